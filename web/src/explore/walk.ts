// The walk: one token from its id to the prediction. A box to a step of model/bert.py, with its formula, its shape, the
// numbers of this very token, and the lines of the source that computed them. Arrow keys walk.

import { make, number } from "../dom.ts";
import { strip } from "../show.ts";
import { currentLanguage, t } from "../words.ts";
import { color, type Pen, type Picture } from "./pen.ts";
import { View, orFailure } from "./view.ts";

export interface Step {
  name: string; // the module's, as in the checkpoint
  title: string;
  title_zh: string;
  says: string;
  says_zh: string;
  formula: string;
  layer: number; // -1 before the layers, num_layers after them
  shape: string;
  vector: Packed | null;
  words: [string, number][] | null; // words or labels with their shares, where the step gives such
  by_head: Record<string, [string, number][]> | null; // the same for each head
  weights: number;
  source: number;
  marked: number[]; // the lines of the source that are this step
}

/** A vector: a letter to a number for the strip; the first few, and what can be said of all of them, as they are. */
interface Packed {
  scale: number;
  codes: string;
  first: number[];
  mean: number;
  std: number;
  norm: number;
}

interface Source {
  file: string;
  first: number;
  lines: string[];
}

export class WalkView extends View {
  private readonly path = make("ol", { class: "path" });
  private readonly box = make("section", { class: "card box", tabIndex: -1, "aria-live": "polite" });
  private steps: Step[] = [];
  private sources: Source[] = [];

  async draw(): Promise<void> {
    this.path.setAttribute("aria-label", t("path"));
    this.root.replaceChildren(
      make("p", { class: "lead" }, t("walkLead"), " ", make("span", { class: "keys" }, t("walkKeys", "← →", "↑ ↓"))),
      make("div", { class: "walk" }, make("nav", { class: "card", "aria-label": t("path") }, this.path), this.box),
    );
    document.addEventListener("keydown", this.onKey);
    await this.load();
  }

  leave(): void {
    document.removeEventListener("keydown", this.onKey);
  }

  selection(): void {
    void this.load();
  }

  private async load(): Promise<void> {
    const { state } = this.stage;
    await orFailure(this.box, async () => {
      const held = this.path.contains(document.activeElement);
      ({ steps: this.steps, sources: this.sources } = await this.stage.kept("walk", { row: state.row, place: state.token }));
      state.step = Math.min(state.step, this.steps.length - 1);
      this.show();
      if (held) this.path.querySelector<HTMLElement>("[aria-current]")?.focus();
    });
  }

  // -- walking ------------------------------------------------------------------------------------------------------

  private go(step: number, focus = true): void {
    if (step < 0 || step >= this.steps.length) return;
    this.stage.state.step = step;
    this.stage.changed();
    this.show();
    if (focus) this.path.querySelector<HTMLElement>("[aria-current]")?.focus({ preventScroll: true });
  }

  /** Wherever the focus is, but where arrow keys already mean something. */
  private readonly onKey = (event: KeyboardEvent): void => {
    const taken = "pre, select, input, textarea, [role=tablist], #explore-tokens";
    if (event.altKey || event.ctrlKey || event.metaKey || (event.target as HTMLElement).closest?.(taken)) return;
    const { step } = this.stage.state;
    const steps: Record<string, () => void> = {
      ArrowRight: () => this.go(step + 1),
      ArrowLeft: () => this.go(step - 1),
      ArrowDown: () => this.go(this.sameStep(1)),
      ArrowUp: () => this.go(this.sameStep(-1)),
      Home: () => this.go(0),
      End: () => this.go(this.steps.length - 1),
    };
    if (!(event.key in steps)) return;
    event.preventDefault();
    steps[event.key]();
  };

  /** The same step one layer on; beyond the layers, simply the next box. */
  private sameStep(direction: 1 | -1): number {
    const here = this.steps[this.stage.state.step];
    const of = (layer: number): Step[] => this.steps.filter((step) => step.layer === layer);
    const place = of(here.layer).indexOf(here);
    const there = of(here.layer + direction);
    const { num_layers } = this.stage.opened;
    const inside = here.layer >= 0 && here.layer < num_layers && here.layer + direction >= 0 && here.layer + direction < num_layers;
    if (!there.length) return this.stage.state.step + direction;
    return this.steps.indexOf(inside ? there[Math.min(place, there.length - 1)] : there[0]);
  }

  // -- showing --------------------------------------------------------------------------------------------------------

  private show(): void {
    this.drawPath();
    this.drawBox();
  }

  private title(step: Step): string {
    return currentLanguage() === "zh" ? step.title_zh : step.title;
  }

  private drawPath(): void {
    const { step: at } = this.stage.state;
    const open = this.steps[at].layer;
    const items: Node[] = [];
    let last = NaN;
    this.steps.forEach((step, place) => {
      const inLayers = step.layer >= 0 && step.layer < this.stage.opened.num_layers;
      if (inLayers && step.layer !== last) {
        const button = make("button", { type: "button", class: "layer", "aria-expanded": String(step.layer === open) }, t("layer", step.layer));
        button.addEventListener("click", () => this.go(place));
        items.push(make("li", {}, button));
      }
      last = step.layer;
      if (inLayers && step.layer !== open) return;
      const button = make("button", { type: "button", class: inLayers ? "step inner" : "step" }, this.title(step));
      if (place === at) button.setAttribute("aria-current", "step");
      button.addEventListener("click", () => this.go(place));
      items.push(make("li", {}, button));
    });
    this.path.replaceChildren(...items);
    const current = this.path.querySelector<HTMLElement>("[aria-current]");
    if (current) {
      const list = this.path.parentElement!;
      const [outer, inner] = [list.getBoundingClientRect(), current.getBoundingClientRect()];
      if (inner.top < outer.top + 20 || inner.bottom > outer.bottom - 20) list.scrollTop += inner.top - outer.top - outer.height / 2;
    }
  }

  private drawBox(): void {
    const { state } = this.stage;
    const step = this.steps[state.step];
    const turn = (words: string, label: string, by: number): HTMLElement => {
      const button = make("button", { type: "button", class: "plain", "aria-label": label, title: label, disabled: !this.steps[state.step + by] }, words);
      button.addEventListener("click", () => this.go(state.step + by, false));
      return button;
    };
    const parts: Node[] = [
      make(
        "div",
        { class: "tools" },
        make("span", { class: "hint" }, t("step", state.step + 1, this.steps.length), step.layer >= 0 && step.layer < this.stage.opened.num_layers ? ` · ${t("layer", step.layer)}` : ""),
        make("div", { class: "filters" }, turn("←", t("previousStep"), -1), turn("→", t("nextStep"), 1)),
      ),
      make("h3", { class: "step-title" }, this.title(step)),
      make("p", {}, currentLanguage() === "zh" ? step.says_zh : step.says),
      make("p", { class: "formula" }, step.formula),
      make("p", { class: "facts" }, fact(t("shapes"), step.shape), step.name ? fact("", step.name) : null, step.weights ? fact(t("weightsHere"), step.weights.toLocaleString("en")) : null),
    ];
    if (step.vector) {
      const { first, mean, std, norm } = step.vector;
      parts.push(make("h3", {}, t("liveNumbers", this.tokenName(state.token))), strip(unpacked(step.vector), { digits: 2 }));
      parts.push(make("p", { class: "numbers" }, `[ ${first.map((value) => number(value, 2)).join("  ")}  … ]`));
      parts.push(make("p", { class: "facts" }, fact(t("mean"), number(mean)), fact(t("std"), number(std)), fact(t("norm"), number(norm, 2))));
    }
    const words = step.by_head ? (step.by_head[state.head] ?? Object.values(step.by_head)[0]) : step.words;
    if (step.by_head) parts.push(make("h3", {}, `${t("liveNumbers", this.tokenName(state.token))} · ${t("head", step.by_head[state.head] ? state.head : Object.keys(step.by_head)[0])}`));
    if (words) parts.push(wordBars(words));
    parts.push(sourceOf(this.sources[step.source], step.marked));
    this.box.replaceChildren(...parts);
    this.box.dataset.step = String(state.step);
  }

  picture(): Picture | null {
    const step = this.steps[this.stage.state.step];
    if (!step) return null;
    const { lines, first } = this.sources[step.source];
    const says = wrapped(currentLanguage() === "zh" ? step.says_zh : step.says, 96);
    const top = 120 + 20 * says.length;
    return {
      width: 760,
      height: top + 60 + 18 * lines.length,
      paint: (pen: Pen) => {
        pen.text(`${this.tokenName(this.stage.state.token)} · ${this.title(step)}`, 16, 26, { color: color("ink"), size: 18, bold: true });
        says.forEach((line, place) => pen.text(line, 16, 54 + 20 * place, { color: color("soft") }));
        pen.text(step.formula, 16, top - 50, { color: color("accent"), size: 16 });
        pen.text(step.shape, 744, top - 50, { color: color("soft"), align: "right" });
        if (step.vector) pen.image(strip(unpacked(step.vector)), 16, top - 30, 728, 24);
        lines.forEach((line, place) => {
          const y = top + 24 + 18 * place;
          if (step.marked.includes(first + place)) pen.rect(12, y - 9, 736, 18, color("wash"));
          pen.text(line.replaceAll(" ", "\u00a0"), 16, y, { color: color("ink"), size: 12 });
        });
      },
    };
  }
}

function fact(name: string, value: string): HTMLElement {
  return make("span", {}, name ? `${name} ` : "", make("b", {}, value));
}

/** Weights over tokens or labels, the largest first. */
function wordBars(words: [string, number][]): HTMLElement {
  const most = Math.max(...words.map(([, value]) => Math.abs(value)), 1e-9);
  const grid = make("div", { class: "bars" });
  for (const [name, value] of words) {
    const fill = make("i");
    fill.style.width = `${(100 * Math.abs(value)) / most}%`;
    grid.append(make("bdi", { class: "name" }, name || "␣"), make("span", { class: "track" }, fill), make("span", { class: "value" }, number(value)));
  }
  return grid;
}

/** A number is ±(code / 28)² times the largest; letters go from # to [, and ? is 0 (walk.py). */
function unpacked({ codes, scale }: Packed): Float32Array {
  return Float32Array.from(codes, (letter) => {
    const share = (letter.charCodeAt(0) - 63) / 28;
    return share * Math.abs(share) * scale;
  });
}

function sourceOf({ file, first, lines }: Source, marked: number[]): HTMLElement {
  const code = make("pre", { class: "source", tabIndex: 0, "aria-label": t("source") });
  lines.forEach((line, place) => {
    const at = first + place;
    code.append(make("span", { class: marked.includes(at) ? "line marked" : "line" }, make("i", {}, String(at)), `${line}\n`));
  });
  return make("div", {}, make("h3", {}, t("source")), make("p", { class: "hint" }, t("sourceLines", file, first, first + lines.length - 1)), code);
}

function wrapped(words: string, width: number): string[] {
  const lines = [""];
  for (const word of words.split(/(?<=\s|[，。：；、])/)) {
    if ((lines[lines.length - 1] + word).length > width) lines.push("");
    lines[lines.length - 1] += word;
  }
  return lines;
}
