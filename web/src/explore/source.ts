// Where the views get their data: from the server, or from the file the page was saved in.
//
// Everything is asked for by a name and options. A saved page holds the answers under the same names and options, so
// the views do not know the difference; what it does not hold is a `Failure` that says how to ask the model itself.

import { trouble } from "../dom.ts";
import { send, wrong } from "../server.ts";
import { t, type Word } from "../words.ts";

/** What is explored; it goes along with everything that is asked of the server. */
export interface Subject {
  model: string;
  task: string | null;
  text: string;
  second: string | string[] | null;
}

export type Options = Record<string, unknown>;

export interface Progress {
  done: number;
  total: number;
  partial?: any;
}

export interface Source {
  readonly live: boolean;
  readonly command: string;
  /** The subject of a saved page; null where any text can be asked about. */
  readonly fixed: Subject | null;
  ask(what: string, subject: Subject, options?: Options, signal?: AbortSignal): Promise<any>;
  /** The same for what takes long: it says how far it is. */
  work(what: string, subject: Subject, options: Options, onProgress: (at: Progress) => void, signal: AbortSignal): Promise<any>;
}

/** Something could not be had; `shown` is what to show instead. */
export class Failure extends Error {
  constructor(readonly shown: HTMLElement, readonly status = 0) {
    super(shown.textContent ?? "");
  }
}

const POLL_MS = 120;

export class ServerSource implements Source {
  readonly live = true;
  readonly command = "bertie explore";
  readonly fixed = null;

  constructor(private readonly askForKey: () => void) {}

  async ask(what: string, subject: Subject, options: Options = {}, signal?: AbortSignal): Promise<any> {
    return this.post(`/explore/${what}`, { ...subject, ...options }, signal);
  }

  async work(what: string, subject: Subject, options: Options, onProgress: (at: Progress) => void, signal: AbortSignal): Promise<any> {
    const { job } = await this.ask(what, subject, options, signal);
    const cancel = (): void => void send("POST", "/explore/job", { job, cancel: true });
    signal.addEventListener("abort", cancel);
    try {
      for (;;) {
        const at = await this.post("/explore/job", { job }, signal);
        if (at.result !== undefined && at.result !== null) return at.result;
        onProgress(at);
        await new Promise((wake) => setTimeout(wake, POLL_MS));
      }
    } finally {
      signal.removeEventListener("abort", cancel);
    }
  }

  private async post(path: string, body: unknown, signal?: AbortSignal): Promise<any> {
    const reply = await send("POST", path, body, signal);
    if (reply.status === 200) return reply.payload;
    if (signal?.aborted) throw new DOMException("stopped", "AbortError");
    if (reply.status === 401) this.askForKey();
    throw new Failure(wrong(reply), reply.status);
  }
}

/** Names and options in one order, as Python writes them with sort_keys. */
export function keyOf(what: string, options: Options): string {
  const inOrder = (_: string, value: unknown): unknown =>
    value === null || typeof value !== "object" || Array.isArray(value)
      ? value
      : Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1)));
  return `${what}${JSON.stringify(options, inOrder)}`;
}

/** Why a saved page does not have something, where there is more to say than that it was not computed. */
const NOT_IN_FILE: Record<string, Word> = { switch: "oneInFile", patching: "noPatchInFile", importance: "noImportanceInFile" };

export class FileSource implements Source {
  readonly live = false;

  private constructor(
    readonly command: string,
    readonly fixed: Subject,
    private readonly entries: Record<string, [number, number, boolean]>,
    private readonly bytes: Uint8Array,
  ) {}

  get model(): string {
    return this.fixed.model;
  }

  /** The element holds letters for zlib's form of: length of the index (4 bytes, little-endian), index (JSON), answers. */
  static async read(element: HTMLElement): Promise<FileSource> {
    const packed = bytesOf(element.textContent!, Number(element.dataset.size));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    const whole = new Uint8Array(await new Response(stream).arrayBuffer());
    const size = new DataView(whole.buffer).getUint32(0, true);
    const { command, subject, entries } = JSON.parse(new TextDecoder().decode(whole.subarray(4, 4 + size)));
    return new FileSource(command, subject, entries, whole.subarray(4 + size));
  }

  async ask(what: string, _: Subject, options: Options = {}): Promise<any> {
    return what === "thumbnails" ? this.thumbnails(options.row as number, options.size as number) : this.find(what, options);
  }

  private find(what: string, options: Options): any {
    const found = this.entries[keyOf(what, options)];
    if (found === undefined) throw new Failure(trouble(t(NOT_IN_FILE[what] ?? "notInFile"), t("runLive", this.command)));
    const [start, length, isBytes] = found;
    const part = this.bytes.subarray(start, start + length);
    return isBytes ? part : JSON.parse(new TextDecoder().decode(part));
  }

  /** All maps in small, as the server gives them: [layers][heads][side][side], a cell the largest of its part. */
  private thumbnails(row: number, size: number): Uint8Array {
    const { heads, num_heads, rows } = this.find("open", {});
    const { length } = rows[row].tokens;
    const side = Math.min(size, length);
    const all = new Uint8Array(heads.length * num_heads * side * side);
    heads.forEach((left: number[], layer: number) => {
      for (const head of left) {
        const small = all.subarray((layer * num_heads + head) * side * side);
        shrink(this.find("map", { row, layer, head }), length, small, side);
      }
    });
    return all;
  }

  async work(what: string, subject: Subject, options: Options): Promise<any> {
    return this.ask(what, subject, options);
  }
}

/** Two letters of 91 are 13 bits: what ASCII prints, without what HTML has to mark (saved.py). */
function bytesOf(letters: string, size: number): Uint8Array<ArrayBuffer> {
  const alphabet = Array.from({ length: 95 }, (_, place) => place + 32).filter((code) => !"\"&'<".includes(String.fromCharCode(code)));
  const values = new Uint8Array(128);
  alphabet.forEach((code, value) => (values[code] = value));
  const bytes = new Uint8Array(size);
  let [bits, count, at] = [0, 0, 0];
  for (let place = 0; at < size; place += 2) {
    bits = ((bits & 0xff) << 13) | (values[letters.charCodeAt(place)] * alphabet.length + values[letters.charCodeAt(place + 1)]);
    for (count += 13; count >= 8 && at < size; count -= 8) bytes[at++] = (bits >> (count - 8)) & 0xff;
  }
  return bytes;
}

/** A map of `length` × `length` cells in `side` × `side`: where they do not divide, parts overlap by a cell. */
function shrink(map: Uint8Array, length: number, small: Uint8Array, side: number): void {
  const start = (part: number): number => Math.floor((part * length) / side);
  const end = (part: number): number => Math.ceil(((part + 1) * length) / side);
  for (let y = 0; y < side; y++) {
    for (let x = 0; x < side; x++) {
      let most = 0;
      for (let from = start(y); from < end(y); from++) {
        for (let to = start(x); to < end(x); to++) most = Math.max(most, map[from * length + to]);
      }
      small[y * side + x] = most;
    }
  }
}
