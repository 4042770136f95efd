// What the views share, and the link that keeps it: #explore?text=…&view=…&layer=…

import type { Subject } from "./source.ts";

export const VIEWS = ["attention", "switchboard", "walk", "attribution", "lens", "patching", "importance"] as const;
export type ViewName = (typeof VIEWS)[number];

export interface Switched {
  heads: [number, number][];
  layers: number[];
  feed_forward: number[];
}

export interface State extends Subject {
  view: ViewName;
  row: number;
  token: number; // -1: the word that is looked for, or the first
  other: number; // the token that it looks at, or -1
  layer: number;
  head: number;
  off: Switched;
  shape: "matrix" | "arcs";
  special: boolean;
  direction: "all" | "ab" | "ba" | "own";
  threshold: number; // in hundredths
  order: string;
  method: string;
  target: number;
  lens: "words" | "to_first" | "to_last";
  step: number;
  otherText: string;
  part: "state" | "attention" | "feed_forward";
}

export function nothingOff(): Switched {
  return { heads: [], layers: [], feed_forward: [] };
}

export function countOff(off: Switched): number {
  return off.heads.length + off.layers.length + off.feed_forward.length;
}

export function initialState(): State {
  return {
    model: "", task: null, text: "", second: null, view: "attention", row: 0, token: -1, other: -1, layer: 0, head: 0,
    off: nothingOff(), shape: "matrix", special: true, direction: "all", threshold: 0, order: "layer",
    method: "integrated_gradients", target: 0, lens: "words", step: 0, otherText: "", part: "state",
  };
}

/** The link of a state: what differs from the beginning. */
export function linkOf(state: State): string {
  const plain = initialState();
  const said = new URLSearchParams();
  for (const name of Object.keys(plain) as (keyof State)[]) {
    const value = state[name];
    if (JSON.stringify(value) === JSON.stringify(plain[name])) continue;
    if (name === "off") said.set("off", shortOff(state.off));
    else if (Array.isArray(value)) for (const one of value) said.append(name, String(one));
    else said.set(name, String(value));
  }
  return `#explore?${said.toString()}`;
}

export function stateOf(link: string): State {
  const state = initialState();
  const said = new URLSearchParams(link.replace(/^#explore\??/, ""));
  const found = state as unknown as Record<string, unknown>;
  for (const name of new Set(said.keys())) {
    if (!(name in state)) continue;
    const value = said.get(name)!;
    if (name === "off") state.off = longOff(value);
    else if (name === "second") state.second = said.getAll(name).length > 1 ? said.getAll(name) : value;
    else if (name === "view") state.view = VIEWS.find((view) => view === value) ?? state.view;
    else if (typeof found[name] === "number") found[name] = Number.isInteger(Number(value)) ? Number(value) : found[name];
    else if (typeof found[name] === "boolean") found[name] = value === "true";
    else found[name] = value;
  }
  return state;
}

/** 3.5 is a head, L3 a layer, F3 a feed-forward part. */
function shortOff(off: Switched): string {
  return [...off.heads.map(([layer, head]) => `${layer}.${head}`), ...off.layers.map((n) => `L${n}`), ...off.feed_forward.map((n) => `F${n}`)].join(" ");
}

function longOff(short: string): Switched {
  const off = nothingOff();
  for (const part of short.split(" ")) {
    const head = part.match(/^(\d{1,4})\.(\d{1,4})$/);
    if (head) off.heads.push([Number(head[1]), Number(head[2])]);
    else if (/^L\d{1,4}$/.test(part)) off.layers.push(Number(part.slice(1)));
    else if (/^F\d{1,4}$/.test(part)) off.feed_forward.push(Number(part.slice(1)));
  }
  return off;
}
