// What a view is, and what it may use of the page around it.

import { make } from "../dom.ts";
import type { Picture } from "./pen.ts";
import { Failure, type Options, type Progress, type Source } from "./source.ts";
import type { State } from "./state.ts";
import { t } from "../words.ts";

export interface Token {
  text: string;
  id: number;
  special: boolean;
}

export interface Row {
  tokens: Token[];
  segments: number[];
}

export interface Answer {
  text: string;
  top: [string, number][];
}

/** The answer to `answer`: what the model says, or why there is nothing to say and what to do. */
export interface Answered {
  answer: Answer | null;
  no_answer: [string, string] | null;
}

/** The answer to `open`: the model, and the text as it reads it. */
export interface Opened {
  model: string;
  architecture: string;
  task: string;
  tasks: string[];
  views: string[];
  num_layers: number;
  num_heads: number;
  heads: number[][]; // of each layer, those that are left
  hidden_size: number;
  max_length: number;
  mask: string;
  rows: Row[];
  truncated: boolean;
  unknown: [number, string]; // how many tokens are not in the vocabulary, and what stands for them
  writes: boolean; // whether the server may write a pruned checkpoint
}

/** What views share: the state, the model, and asking about it. */
export interface Stage {
  readonly state: State;
  readonly opened: Opened;
  readonly source: Source;
  ask(what: string, options?: Options, signal?: AbortSignal): Promise<any>;
  /** Bytes or answers that were asked for before are kept. */
  kept(what: string, options?: Options): Promise<any>;
  work(what: string, options: Options, onProgress: (at: Progress) => void, signal: AbortSignal): Promise<any>;
  /** The state has changed: the link, and what else shows it. */
  changed(): void;
  chooseToken(place: number): void;
  chooseHead(layer: number, head: number): void;
  show(view: State["view"]): void;
}

export abstract class View {
  constructor(protected readonly stage: Stage, protected readonly root: HTMLElement) {}

  /** Draw the whole view into `root`. */
  abstract draw(): Promise<void>;

  /** The chosen token or head has changed. */
  selection(): void {}

  /** What SVG and PNG files of this view show. */
  abstract picture(): Picture | null;

  /** The view is left: stop what is under way. */
  leave(): void {}

  protected get tokens(): Token[] {
    return this.stage.opened.rows[this.stage.state.row].tokens;
  }

  protected tokenName(place: number): string {
    return nameOf(this.tokens[place]);
  }
}

export function nameOf(token: Token | undefined): string {
  return token === undefined ? "" : token.text || "␣";
}

/** Run something that may fail, and show in `place` why it did; whether it did not. */
export async function orFailure(place: HTMLElement, work: () => Promise<void>): Promise<boolean> {
  try {
    await work();
    return true;
  } catch (problem) {
    if (problem instanceof Failure) place.replaceChildren(problem.shown);
    else if (!(problem instanceof DOMException && problem.name === "AbortError")) throw problem;
    return false;
  }
}

/** A bar that says how far something is, with a button that stops it. */
export class ProgressBar {
  readonly element: HTMLElement;
  private readonly bar = make("progress", { max: 1, value: 0 });
  private readonly words = make("span", { class: "hint" });
  private controller = new AbortController();

  constructor() {
    const stop = make("button", { type: "button", class: "plain" }, t("stop"));
    stop.addEventListener("click", () => this.stop());
    this.bar.setAttribute("aria-label", t("exploring"));
    this.element = make("div", { class: "progress", hidden: true }, this.bar, this.words, stop);
  }

  begin(): AbortSignal {
    this.controller.abort();
    this.controller = new AbortController();
    this.element.hidden = false;
    this.at({ done: 0, total: 1 });
    this.words.textContent = t("exploring");
    return this.controller.signal;
  }

  at({ done, total }: Progress): void {
    this.bar.max = Math.max(1, total);
    this.bar.value = done;
    this.words.textContent = t("working", done, total);
  }

  end(): void {
    this.element.hidden = true;
  }

  stop(): void {
    this.controller.abort();
    this.end();
  }
}

export function selectOf(label: string, id: string, choices: ReadonlyArray<readonly [string, string]>, value: string, choose: (value: string) => void): HTMLElement {
  const select = make("select", { id });
  for (const [name, words] of choices) select.append(make("option", { value: name }, words));
  select.value = value;
  select.addEventListener("change", () => choose(select.value));
  return make("label", { class: "inline", htmlFor: id }, make("span", {}, label), select);
}
