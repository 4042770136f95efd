// The server from the page's side: requests that never throw, and a watch that notices when it has gone and come back.

import { trouble } from "./dom.ts";
import { t } from "./words.ts";

export interface Reply {
  status: number;
  payload: any; // JSON, text or bytes, as the server sent it
  took: number;
  headers: Headers;
}

let key = "";
let onGone: () => void = () => {};
let onBack: () => void = () => {};
let waiting = false;

export function setKey(given: string): void {
  key = given;
}

export function hasKey(): boolean {
  return key !== "";
}

/** Be told when the server cannot be reached, and when it can again. */
export function watchServer(gone: () => void, back: () => void): void {
  [onGone, onBack] = [gone, back];
}

export async function send(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<Reply> {
  const started = performance.now();
  const headers: Record<string, string> = { "content-type": "application/json" };
  if (key) headers.authorization = `Bearer ${key}`;
  try {
    const options: RequestInit = { method, headers, credentials: "omit", cache: "no-store", signal };
    if (body !== undefined) options.body = JSON.stringify(body);
    const response = await fetch(path, options);
    let payload: unknown;
    if (response.headers.get("content-type")?.startsWith("application/octet-stream")) {
      payload = new Uint8Array(await response.arrayBuffer());
    } else {
      const words = await response.text();
      try {
        payload = JSON.parse(words);
      } catch {
        payload = words; // plain text is an answer too
      }
    }
    return { status: response.status, payload, took: performance.now() - started, headers: response.headers };
  } catch (problem) {
    if (!signal?.aborted) void waitForServer();
    const said = problem instanceof Error ? problem.message : String(problem);
    return { status: 0, payload: t("unreachable", said), took: 0, headers: new Headers() };
  }
}

/** The server has gone: say so, and look for it until it is back. */
async function waitForServer(): Promise<void> {
  if (waiting) return;
  waiting = true;
  onGone();
  for (let pause = 500; ; pause = Math.min(5000, pause * 1.5)) {
    await new Promise((wake) => setTimeout(wake, pause));
    try {
      const response = await fetch("/ready", { credentials: "omit", cache: "no-store" });
      if (response.ok) break;
    } catch {
      // still gone
    }
  }
  waiting = false;
  onBack();
}

const REMEDIES: Record<number, Parameters<typeof t>[0]> = {
  0: "remedy0", 400: "remedy400", 401: "remedy401", 404: "remedy404", 408: "remedy408",
  413: "remedy413", 424: "remedy424", 429: "remedy429", 503: "remedy503",
};

/** An answer that is not 200, as cause and remedy. */
export function wrong(reply: Reply): HTMLElement {
  let said = reply.payload;
  if (said && typeof said === "object") said = said.error ?? said.detail ?? said;
  const remedy = (said && said.remedy) || (reply.payload && reply.payload.remedy);
  if (said && typeof said === "object") said = said.message ?? said.cause ?? JSON.stringify(said);
  const busy = reply.headers.get("retry-after");
  const advice = String(remedy || t(REMEDIES[reply.status] ?? "remedyOther"));
  return trouble(String(said || t("status", reply.status)), busy ? `${advice} (${busy} s)` : advice);
}
