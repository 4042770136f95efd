// The switchboard: heads, layers and feed-forward parts off, and the answer before and after side by side.

import { make, number, trouble } from "../dom.ts";
import { bars } from "../show.ts";
import { t } from "../words.ts";
import { color, type Pen, type Picture } from "./pen.ts";
import { countOff, nothingOff, type Switched } from "./state.ts";
import { Failure } from "./source.ts";
import { View, orFailure, type Answer, type Answered } from "./view.ts";

interface Ablation {
  before: Answer;
  after: Answer;
}

const CELL = 26;

export class SwitchboardView extends View {
  private readonly board = make("div", { class: "board", role: "group" });
  private readonly answers = make("div", { class: "answers", "aria-live": "polite" });
  private readonly pruning = make("div", { class: "pruning" });
  private found: Ablation | null = null;
  private controller = new AbortController();

  async draw(): Promise<void> {
    const { opened } = this.stage;
    this.board.setAttribute("aria-label", t("switches"));
    this.board.style.setProperty("--heads", String(opened.num_heads));
    const reset = make("button", { type: "button", class: "plain", id: "all-on" }, t("allOn"));
    reset.addEventListener("click", () => this.change(() => Object.assign(this.off, nothingOff())));
    const invert = make("button", { type: "button", class: "plain" }, t("invert"));
    invert.addEventListener("click", () => {
      const isOff = new Set(this.off.heads.map(String));
      this.change(() => (this.off.heads = allHeads(opened.heads).filter((head) => !isOff.has(String(head)))));
    });
    this.root.replaceChildren(
      make("p", { class: "lead" }, t("switchLead")),
      this.stage.source.live ? "" : make("p", { class: "notice" }, t("switchInFile")),
      make(
        "div",
        { class: "beside" },
        make("section", { class: "card" }, make("div", { class: "tools" }, make("h3", {}, t("switches")), make("div", { class: "filters" }, invert, reset)), make("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": t("switches") }, this.board)),
        make("section", { class: "card" }, this.answers, this.pruning),
      ),
    );
    this.makeBoard();
    this.drawPruning();
    await this.run();
  }

  leave(): void {
    this.controller.abort();
  }

  private get off(): Switched {
    return this.stage.state.off;
  }

  // -- the board --------------------------------------------------------------------------------------------------

  private makeBoard(): void {
    const { opened } = this.stage;
    const cells: Node[] = [make("span")];
    for (let head = 0; head < opened.num_heads; head++) {
      cells.push(this.header(String(head), t("headColumn", head), () => this.toggleAll(allHeads(opened.heads).filter((one) => one[1] === head))));
    }
    cells.push(make("span", { class: "name", "aria-hidden": "true" }, t("feedForward")), make("span", { class: "name", "aria-hidden": "true" }, t("wholeLayer")));
    opened.heads.forEach((left, layer) => {
      cells.push(this.header(String(layer), t("layerRow", layer), () => this.toggleAll(left.map((head) => [layer, head]))));
      for (let head = 0; head < opened.num_heads; head++) {
        if (left.includes(head)) cells.push(this.switchOf(t("layerHead", layer, head), `h${layer}.${head}`, () => this.toggleAll([[layer, head]])));
        else cells.push(make("span", { class: "gone-head", title: t("pruned") }));
      }
      cells.push(this.switchOf(t("feedForwardOf", layer), `f${layer}`, () => this.toggleNumber("feed_forward", layer)));
      cells.push(this.switchOf(t("wholeLayerOf", layer), `l${layer}`, () => this.toggleNumber("layers", layer)));
    });
    this.board.replaceChildren(...cells);
    this.board.onkeydown = (event) => this.onKey(event);
    this.markBoard();
  }

  private header(words: string, label: string, toggle: () => void): HTMLElement {
    const button = make("button", { type: "button", class: "name", "aria-label": label, title: label }, words);
    button.addEventListener("click", toggle);
    return button;
  }

  private switchOf(label: string, name: string, toggle: () => void): HTMLElement {
    const button = make("button", { type: "button", class: "switch", role: "switch", "aria-label": label, title: label, "data-switch": name });
    button.addEventListener("click", toggle);
    return button;
  }

  private markBoard(): void {
    const { off } = this;
    const isOff = new Set([...off.heads.map(([layer, head]) => `h${layer}.${head}`), ...off.feed_forward.map((n) => `f${n}`), ...off.layers.map((n) => `l${n}`)]);
    for (const button of this.board.querySelectorAll<HTMLElement>(".switch")) {
      const on = String(!isOff.has(button.dataset.switch!));
      if (button.getAttribute("aria-checked") !== on) button.setAttribute("aria-checked", on);
    }
  }

  private onKey(event: KeyboardEvent): void {
    const buttons = [...this.board.querySelectorAll<HTMLElement>("button")];
    const at = buttons.indexOf(document.activeElement as HTMLElement);
    const across = this.stage.opened.num_heads + 3;
    const steps: Record<string, number> = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across };
    if (at < 0 || !(event.key in steps)) return;
    event.preventDefault();
    buttons[at + steps[event.key]]?.focus();
  }

  private toggleAll(heads: [number, number][]): void {
    const isOff = new Set(this.off.heads.map(String));
    const turnOff = heads.some((head) => !isOff.has(String(head)));
    const named = new Set(heads.map(String));
    this.change(() => {
      const others = this.off.heads.filter((head) => !named.has(String(head)));
      this.off.heads = turnOff ? [...others, ...heads].sort((a, b) => a[0] - b[0] || a[1] - b[1]) : others;
    });
  }

  private toggleNumber(kind: "layers" | "feed_forward", layer: number): void {
    this.change(() => {
      const now = this.off[kind];
      this.off[kind] = now.includes(layer) ? now.filter((one) => one !== layer) : [...now, layer].sort((a, b) => a - b);
    });
  }

  private change(work: () => void): void {
    work();
    void this.run().then(() => requestAnimationFrame(() => setTimeout(() => this.drawPruning()))); // when the answer is seen
    this.markBoard();
    this.stage.changed();
  }

  // -- the answers ------------------------------------------------------------------------------------------------

  private async run(): Promise<void> {
    this.controller.abort();
    const controller = (this.controller = new AbortController());
    const count = countOff(this.off);
    await orFailure(this.answers, async () => {
      if (!count) {
        const { answer }: Answered = await this.stage.kept("answer");
        this.found = answer && { before: answer, after: answer };
        this.answers.replaceChildren(answer ? column(t("before"), answer) : "", make("p", { class: "empty" }, t("nothingOff")));
        this.answers.dataset.off = "0";
        return;
      }
      const found: Ablation = await this.stage.ask("switch", { off: this.off }, controller.signal);
      if (controller.signal.aborted) return;
      this.found = found;
      this.answers.replaceChildren(
        column(t("before"), found.before),
        column(t("after", count), found.after, found.before),
        make("p", { class: "hint across" }, became(found)),
      );
      this.answers.dataset.off = String(count);
    });
  }

  // -- for good ---------------------------------------------------------------------------------------------------

  private drawPruning(): void {
    const { opened, source } = this.stage;
    const heads = this.off.heads;
    if (!heads.length) return void this.pruning.replaceChildren();
    const notes = this.off.layers.length + this.off.feed_forward.length ? make("p", { class: "hint" }, t("pruneHeadsOnly")) : null;
    if (!source.live || !opened.writes) {
      this.pruning.replaceChildren(make("h3", {}, t("prune")), make("p", { class: "hint" }, t("prunePython")), make("pre", { tabIndex: 0 }, pythonFor(opened.model, opened.architecture, heads)), notes ?? "");
      return;
    }
    const name = make("input", { id: "prune-name", value: `${opened.model.split(/[/\\]/).pop()}-pruned`, spellcheck: false });
    const said = make("div", { role: "status" });
    const button = make("button", { type: "submit", class: "primary", id: "prune" }, t("prune"));
    const form = make("form", { autocomplete: "off" }, make("p", { class: "hint" }, t("pruneLead")), make("label", { htmlFor: "prune-name" }, t("pruneName")), make("div", { class: "row" }, name, button), notes, said);
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      button.disabled = true;
      try {
        const { folder } = await this.stage.ask("prune", { off: this.off, name: name.value.trim() });
        said.replaceChildren(make("p", { class: "done" }, t("pruneDone", folder)));
      } catch (problem) {
        said.replaceChildren(problem instanceof Failure ? problem.shown : trouble(String(problem)));
      }
      button.disabled = false;
    });
    this.pruning.replaceChildren(form);
  }

  picture(): Picture | null {
    const { opened } = this.stage;
    const isOff = new Set(this.off.heads.map(String));
    const [left, right] = [30, 360];
    const board = left + CELL * opened.num_heads + 40;
    const shown: [string, Answer][] = [];
    if (this.found) shown.push([t("before"), this.found.before], [t("after", countOff(this.off)), this.found.after]);
    return {
      width: board + right,
      height: Math.max(30 + CELL * opened.num_layers + 10, 200),
      paint: (pen: Pen) => {
        opened.heads.forEach((heads, layer) => {
          pen.text(String(layer), left - 8, 30 + CELL * (layer + 0.5), { color: color("soft"), align: "right", size: 12 });
          for (const head of heads) {
            const on = !isOff.has(String([layer, head])) && !this.off.layers.includes(layer);
            pen.rect(left + CELL * head + 2, 30 + CELL * layer + 2, CELL - 4, CELL - 4, on ? color("strong") : color("card"), color("line"));
          }
        });
        for (let head = 0; head < opened.num_heads; head++) pen.text(String(head), left + CELL * (head + 0.5), 18, { color: color("soft"), align: "center", size: 12 });
        shown.forEach(([title, answer], place) => {
          const y = 18 + place * 150;
          pen.text(title, board, y, { color: color("ink"), bold: true });
          answer.top.slice(0, 5).forEach(([name, score], line) => {
            pen.text(name, board, y + 24 * (line + 1), { color: color("ink") });
            pen.rect(board + 150, y + 24 * (line + 1) - 6, 120 * Math.max(0, Math.min(1, score)), 12, color("accent"));
            pen.text(number(score), board + 330, y + 24 * (line + 1), { color: color("soft"), align: "right" });
          });
        });
      },
    };
  }
}

/** What has become of the first answer. */
function became({ before, after }: Ablation): string {
  const [label, score] = before.top[0] ?? ["", 0];
  const now = after.top.find(([name]) => name === label);
  return now ? t("became", label, number(score), number(now[1])) : t("becameNothing", label, number(score));
}

/** The answer in a line; a number that stands alone is said with it. */
function verdictOf({ text, top }: Answer): string {
  return top.length === 1 && top[0][0] === text ? `${text}: ${number(top[0][1])}` : text;
}

export function column(title: string, answer: Answer, before?: Answer): HTMLElement {
  const changed = before !== undefined && before.top[0]?.[0] !== answer.top[0]?.[0];
  return make(
    "div",
    {},
    make("h3", {}, title),
    make("p", { class: changed ? "verdict no" : "verdict", dir: "auto" }, verdictOf(answer)),
    bars(answer.top.map(([name, score]) => ({ name, score }))),
  );
}

function allHeads(heads: number[][]): [number, number][] {
  return heads.flatMap((left, layer) => left.map((head): [number, number] => [layer, head]));
}

function pythonFor(model: string, architecture: string, heads: [number, number][]): string {
  const byLayer = new Map<number, number[]>();
  for (const [layer, head] of heads) byLayer.set(layer, [...(byLayer.get(layer) ?? []), head]);
  const said = [...byLayer].map(([layer, some]) => `${layer}: [${some.join(", ")}]`).join(", ");
  return `import bertie\n\nmodel = bertie.${architecture}.from_pretrained(${JSON.stringify(model)})\nmodel.prune_heads({${said}})\nmodel.save_pretrained("pruned")`;
}
