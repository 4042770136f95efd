// Attention: all layers × heads as thumbnails, one head large as a matrix or as lines, and why a weight is what it is.

import { rgb } from "d3-color";
import { chooser, isolated, make, number } from "../dom.ts";
import { strip } from "../show.ts";
import { t, type Word } from "../words.ts";
import { fillImage, imageOf, weight, weightTable } from "./colors.ts";
import { color, columnName, paintOn, type Pen, type Picture } from "./pen.ts";
import { View, nameOf, orFailure, selectOf } from "./view.ts";

interface Statistics {
  layer: number[];
  head: number[];
  [name: string]: number[];
}

interface Link {
  from: number;
  to: number;
  byte: number;
}

const THUMB = 32;
const ROW_HEIGHT = 20;
const NAMES = 92; // room for the tokens' names beside and above a matrix
const MOST_LINES = 3000;
const TOP_LINKS = 12;
const ORDERS: ReadonlyArray<readonly [string, Word, string, number]> = [
  // name, words, statistic, direction
  ["next", "byNext", "next", -1],
  ["previous", "byPrevious", "previous", -1],
  ["self", "bySelf", "self", -1],
  ["cls", "byCls", "cls", -1],
  ["sep", "bySep", "sep", -1],
  ["focus", "byFocus", "entropy", 1],
  ["spread", "bySpread", "entropy", -1],
  ["distance", "byDistance", "distance", -1],
];

export class AttentionView extends View {
  private bytes: Uint8Array = new Uint8Array();
  private statistics: Statistics | null = null;
  private thumbnails: Uint8Array = new Uint8Array();
  private readonly grid = make("div", { class: "thumbs", role: "group" });
  private readonly large = make("div", { class: "large" });
  private readonly caption = make("p", { class: "caption", role: "status" });
  private readonly links = make("div");
  private readonly why = make("div", { class: "why" });
  private readonly title = make("h3");
  private canvas: HTMLCanvasElement | null = null;
  private cell = 1;
  private margin = 0;
  private turn = 0;

  async draw(): Promise<void> {
    const { state, opened } = this.stage;
    const orders = [["layer", t("byLayer")] as const, ...ORDERS.map(([name, words]) => [name, t(words)] as const)];
    const order = selectOf(t("order"), "order", orders, state.order, (value) => {
      state.order = value;
      this.stage.changed();
      void this.drawOrder();
    });
    this.grid.setAttribute("aria-label", t("allHeads"));
    this.root.replaceChildren(
      make("p", { class: "lead" }, t("attentionLead")),
      make(
        "div",
        { class: "beside" },
        make("section", { class: "card" }, make("div", { class: "tools" }, make("h3", {}, t("allHeads")), order), make("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": t("allHeads") }, this.grid)),
        make("section", { class: "card" }, make("div", { class: "tools" }, this.title, this.filters()), this.large, this.caption, this.links, this.why),
      ),
    );
    const { row } = state;
    await orFailure(this.grid, async () => {
      this.thumbnails = await this.stage.kept("thumbnails", { row, size: THUMB });
      this.drawThumbnails(layerOrder(opened.heads));
      if (state.order !== "layer") await this.drawOrder();
    });
    await this.drawHead();
  }

  selection(): void {
    void this.drawHead(); // first: the map is on its way while the rest is drawn
    this.markChosen();
  }

  // -- the thumbnails -------------------------------------------------------------------------------------------

  private async drawOrder(): Promise<void> {
    const { state, opened } = this.stage;
    const chosen = ORDERS.find(([name]) => name === state.order);
    if (chosen === undefined) return this.drawThumbnails(layerOrder(opened.heads));
    await orFailure(this.grid, async () => {
      this.statistics = await this.stage.kept("statistics", { row: state.row });
      const values = this.statistics![chosen[2]];
      const places = values.map((_, place) => place).filter((place) => Number.isFinite(values[place]));
      places.sort((a, b) => chosen[3] * (values[a] - values[b]));
      const { layer, head } = this.statistics!;
      this.drawThumbnails(places.map((place) => [layer[place], head[place]]), places.map((place) => number(values[place], 2)));
    });
  }

  private drawThumbnails(heads: [number, number][], notes?: string[]): void {
    const { opened } = this.stage;
    const side = Math.min(THUMB, this.tokens.length);
    const table = weightTable();
    const cells: Node[] = [];
    let last = -1;
    this.grid.classList.toggle("sorted", notes !== undefined);
    this.grid.style.setProperty("--heads", String(opened.num_heads));
    if (!notes) {
      cells.push(make("span"));
      for (let head = 0; head < opened.num_heads; head++) cells.push(make("span", { class: "name", "aria-hidden": "true" }, String(head)));
    }
    heads.forEach(([layer, head], place) => {
      if (!notes && layer !== last) {
        cells.push(make("span", { class: "name layer", "aria-hidden": "true" }, String(layer)));
        last = layer;
      }
      const canvas = make("canvas");
      const start = (layer * opened.num_heads + head) * side * side;
      fillImage(canvas, this.thumbnails.subarray(start, start + side * side), side, side, table);
      const label = t("layerHead", layer, head) + (notes ? `: ${notes[place]}` : "");
      const button = make("button", { type: "button", class: "thumb", "aria-label": label, title: label, "data-head": `${layer}.${head}`, tabIndex: -1 }, canvas);
      if (!notes) button.style.gridColumn = String(head + 2);
      if (notes) button.append(make("small", {}, `${layer}.${head} · ${notes[place]}`));
      button.addEventListener("click", () => this.stage.chooseHead(layer, head));
      cells.push(button);
    });
    this.grid.replaceChildren(...cells);
    this.grid.onkeydown = (event) => this.onGridKey(event, notes === undefined);
    this.markChosen();
  }

  private markChosen(): void {
    const { layer, head } = this.stage.state;
    for (const button of this.grid.querySelectorAll<HTMLElement>(".thumb")) {
      const chosen = String(button.dataset.head === `${layer}.${head}`);
      if (button.getAttribute("aria-pressed") === chosen) continue;
      button.setAttribute("aria-pressed", chosen);
      button.tabIndex = chosen === "true" ? 0 : -1;
    }
    if (!this.grid.querySelector(".thumb[tabindex='0']")) this.grid.querySelector<HTMLElement>(".thumb")?.setAttribute("tabindex", "0");
  }

  private onGridKey(event: KeyboardEvent, byLayer: boolean): void {
    const buttons = [...this.grid.querySelectorAll<HTMLElement>(".thumb")];
    const at = buttons.indexOf(document.activeElement as HTMLElement);
    if (at < 0) return;
    const across = byLayer ? this.stage.opened.num_heads : 1;
    const steps: Record<string, number> = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across, Home: -at, End: buttons.length - 1 - at };
    if (!(event.key in steps)) return;
    event.preventDefault();
    const next = buttons[at + steps[event.key]];
    if (next) {
      next.click();
      next.focus();
    }
  }

  // -- one head, large ------------------------------------------------------------------------------------------

  private filters(): HTMLElement {
    const { state, opened } = this.stage;
    const redraw = (): void => {
      this.stage.changed();
      this.drawMap();
    };
    const special = make("input", { type: "checkbox", id: "special", checked: !state.special });
    special.addEventListener("change", () => {
      state.special = !special.checked;
      redraw();
    });
    const percent = make("span", { class: "amount" });
    const threshold = make("input", { type: "range", id: "threshold", min: 0, max: 100, value: state.threshold });
    const say = (): string => (percent.textContent = t("threshold", `${state.threshold} %`));
    threshold.addEventListener("input", () => {
      state.threshold = Number(threshold.value);
      say();
      redraw();
    });
    say();
    const shape = chooser(t("shape"), [["matrix", t("matrix")], ["arcs", t("arcs")]] as const, state.shape, (value) => {
      state.shape = value;
      redraw();
    });
    const parts: Node[] = [
      shape,
      make("label", { class: "inline", htmlFor: "special" }, special, make("span", {}, t("hideSpecial"))),
      make("label", { class: "inline", htmlFor: "threshold" }, percent, threshold),
    ];
    if (opened.rows[state.row].segments.includes(1)) {
      const choices = [["all", t("allDirections")], ["ab", t("aToB")], ["ba", t("bToA")], ["own", t("aToA")]] as const;
      parts.push(
        selectOf(t("direction"), "direction", choices, state.direction, (value) => {
          state.direction = value as typeof state.direction;
          redraw();
        }),
      );
    }
    return make("div", { class: "filters" }, ...parts);
  }

  private async drawHead(): Promise<void> {
    const { state, opened } = this.stage;
    const turn = ++this.turn;
    this.title.textContent = t("layerHead", state.layer, state.head);
    if (!opened.heads[state.layer]?.includes(state.head)) {
      this.large.replaceChildren(make("p", { class: "empty" }, t("pruned")));
      return;
    }
    await orFailure(this.large, async () => {
      const bytes = await this.stage.kept("map", { row: state.row, layer: state.layer, head: state.head });
      if (turn !== this.turn) return;
      this.bytes = bytes;
      this.drawMap();
      this.large.dataset.head = `${state.layer}.${state.head}`;
    });
    if (state.other >= 0 && turn === this.turn) await this.drawWhy();
  }

  /** The map with what the filters hide at 0. */
  private filtered(): Uint8Array {
    const { state, opened } = this.stage;
    const { tokens, segments } = opened.rows[state.row];
    if (!state.threshold && state.special && state.direction === "all") return this.bytes;
    const size = tokens.length;
    const least = 255 * Math.sqrt(state.threshold / 100);
    const shown = new Uint8Array(this.bytes);
    for (let from = 0; from < size; from++) {
      for (let to = 0; to < size; to++) {
        const crosses = segments[to] - segments[from];
        const hidden =
          shown[from * size + to] < least ||
          (!state.special && (tokens[from].special || tokens[to].special)) ||
          (state.direction === "ab" && crosses !== 1) ||
          (state.direction === "ba" && crosses !== -1) ||
          (state.direction === "own" && crosses !== 0);
        if (hidden) shown[from * size + to] = 0;
      }
    }
    return shown;
  }

  private drawMap(): void {
    const { state } = this.stage;
    const shown = this.filtered();
    const strongest = this.strongest(shown);
    const picture = state.shape === "matrix" ? this.matrix(shown) : this.lines(shown, state.token);
    const canvas = make("canvas", { class: "drawn map", tabIndex: 0, role: "application" });
    const said = strongest.slice(0, 5).map((link) => this.sayLink(link)).join("; ");
    canvas.setAttribute("aria-label", t("mapLabel", state.layer, state.head, this.tokens.length, said));
    paintOn(canvas, picture);
    this.canvas = canvas;
    canvas.addEventListener("mousemove", (event) => this.onPoint(event, shown));
    canvas.addEventListener("mouseleave", () => this.sayChosen(shown));
    canvas.addEventListener("click", (event) => this.onChoose(event));
    canvas.addEventListener("keydown", (event) => this.onMapKey(event));
    this.large.replaceChildren(canvas);
    this.sayChosen(shown);
    this.drawLinks(strongest, strongestOf(shown));
  }

  private matrix(shown: Uint8Array): Picture {
    const { tokens } = this;
    const size = tokens.length;
    const { state } = this.stage;
    const room = Math.max(240, Math.min(this.large.clientWidth || 600, 1100));
    let [cell, margin] = [Math.min(30, Math.floor((room - NAMES) / size)), NAMES];
    if (cell < 8) [cell, margin] = [Math.max(size > 256 ? 1 : 2, Math.floor(room / size)), 0]; // too small for names
    [this.cell, this.margin] = [cell, margin];
    const image = imageOf(shown, size, size, weightTable(strongestOf(shown)));
    return {
      width: margin + cell * size + 2,
      height: margin + cell * size + 2,
      paint: (pen) => {
        const [ink, chosen] = [color("ink"), color("accent")];
        pen.rect(margin, margin, cell * size, cell * size, color("card"), color("line"));
        pen.image(image, margin, margin, cell * size, cell * size);
        if (margin) {
          const textSize = Math.min(13, cell);
          tokens.forEach((token, place) => {
            const style = { color: place === state.token ? chosen : ink, size: textSize, bold: place === state.token };
            pen.text(shorter(nameOf(token)), margin - 5, margin + cell * (place + 0.5), { ...style, align: "right" });
            const column = place === state.other ? { color: chosen, size: textSize, bold: true } : { color: ink, size: textSize };
            columnName(pen, shorter(nameOf(token)), margin + cell * (place + 0.5), margin - 5, column);
          });
        }
        pen.rect(margin, margin + cell * state.token, cell * size, cell, "none", chosen);
        if (state.other >= 0) pen.rect(margin + cell * state.other, margin + cell * state.token, cell, cell, "none", color("warn"));
      },
    };
  }

  private lines(shown: Uint8Array, token: number): Picture {
    const { tokens } = this;
    const size = tokens.length;
    const room = Math.max(240, Math.min(this.large.clientWidth || 600, 720));
    const [left, right] = [room * 0.28, room * 0.72];
    const all = linksOf(shown, size).sort((a, b) => b.byte - a.byte).slice(0, MOST_LINES);
    return {
      width: room,
      height: ROW_HEIGHT * size + 8,
      paint: (pen: Pen) => {
        const y = (place: number): number => 4 + ROW_HEIGHT * (place + 0.5);
        const [accent, soft, ink] = [color("strong"), color("soft"), color("ink")];
        for (const { from, to, byte } of all) {
          const own = from === token;
          pen.curve(left + 4, y(from), right - 4, y(to), faded(own ? accent : soft, own ? Math.max(0.12, byte / 255) : 0.55 * weight(byte)), own ? 2.4 : 1.2);
        }
        tokens.forEach((one, place) => {
          const chosen = place === token;
          if (chosen) pen.rect(2, y(place) - ROW_HEIGHT / 2, left - 2, ROW_HEIGHT, color("wash"));
          pen.text(shorter(nameOf(one), 20), left - 4, y(place), { color: ink, align: "right", size: 13, bold: chosen });
          const looked = weight(shown[token * size + place]);
          if (looked > 0.02) pen.rect(right, y(place) - ROW_HEIGHT / 2 + 1, (room - right) * looked, ROW_HEIGHT - 2, faded(accent, 0.25));
          pen.text(shorter(nameOf(one), 20), right + 4, y(place), { color: ink, size: 13 });
        });
      },
    };
  }

  private strongest(shown: Uint8Array): Link[] {
    const size = this.tokens.length;
    const { token } = this.stage.state;
    const own = linksOf(shown.subarray(token * size, (token + 1) * size), size, token);
    return own.sort((a, b) => b.byte - a.byte).slice(0, TOP_LINKS);
  }

  private sayLink({ from, to, byte }: Link): string {
    return t("looksAt", isolated(this.tokenName(from)), isolated(this.tokenName(to)), number(weight(byte), 2));
  }

  private drawLinks(strongest: Link[], most: number): void {
    const list = make("div", { class: "pieces" });
    for (const link of strongest) {
      const button = make("button", { type: "button", class: "piece" }, make("bdi", {}, this.tokenName(link.from)), " → ", make("bdi", {}, this.tokenName(link.to)), make("small", {}, number(weight(link.byte), 2)));
      button.addEventListener("click", () => this.pair(link.from, link.to));
      list.append(button);
    }
    this.links.replaceChildren(make("h3", {}, t("strongest")), list);
    if (this.stage.state.shape === "matrix") this.links.prepend(make("p", { class: "hint" }, t("strongestColour", number(weight(most), 2))));
    if (this.stage.state.other < 0 && this.stage.source.live) this.why.replaceChildren(make("p", { class: "hint" }, t("neuronsHint")));
  }

  // -- pointing and choosing --------------------------------------------------------------------------------------

  private at(event: MouseEvent): [number, number] | null {
    const size = this.tokens.length;
    if (this.stage.state.shape === "arcs") {
      const place = Math.floor((event.offsetY - 4) / ROW_HEIGHT);
      const isKey = event.offsetX > (this.canvas?.clientWidth ?? 0) * 0.6;
      if (place < 0 || place >= size) return null;
      return isKey ? [this.stage.state.token, place] : [place, -1];
    }
    const column = Math.floor((event.offsetX - this.margin) / this.cell);
    const row = Math.floor((event.offsetY - this.margin) / this.cell);
    return row >= 0 && column >= 0 && row < size && column < size ? [row, column] : null;
  }

  private onPoint(event: MouseEvent, shown: Uint8Array): void {
    const found = this.at(event);
    if (found === null) return this.sayChosen(shown);
    this.say(found[0], found[1], shown);
  }

  private say(from: number, to: number, shown: Uint8Array): void {
    this.caption.textContent = to < 0 ? this.tokenName(from) : this.sayLink({ from, to, byte: shown[from * this.tokens.length + to] });
  }

  private sayChosen(shown: Uint8Array): void {
    this.say(this.stage.state.token, this.stage.state.other, shown);
  }

  private onChoose(event: MouseEvent): void {
    const found = this.at(event);
    if (found) this.pair(...found);
  }

  private pair(from: number, to: number): void {
    this.stage.state.other = to;
    this.stage.chooseToken(from);
  }

  private onMapKey(event: KeyboardEvent): void {
    const { state } = this.stage;
    const steps: Record<string, [number, number]> = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    const last = this.tokens.length - 1;
    const from = Math.min(last, Math.max(0, state.token + step[0]));
    const to = step[1] ? Math.min(last, Math.max(0, state.other + step[1])) : state.other;
    this.pair(from, to);
    requestAnimationFrame(() => this.canvas?.focus());
  }

  // -- why --------------------------------------------------------------------------------------------------------

  private async drawWhy(): Promise<void> {
    const { state, source } = this.stage;
    if (!source.live) return void this.why.replaceChildren();
    await orFailure(this.why, async () => {
      const found = await this.stage.ask("neurons", { row: state.row, layer: state.layer, head: state.head, query: state.token, key: state.other });
      const line = (name: string, values: number[]): Node[] => [make("bdi", {}, name), strip(values, { thin: true })];
      const [from, to] = [this.tokenName(state.token), this.tokenName(state.other)];
      this.why.replaceChildren(
        make("h3", {}, t("neurons")),
        make("div", { class: "tokens" }, ...line(t("queryOf", from), found.q), ...line(t("keyOf", to), found.k), ...line(t("product"), found.product)),
        make("p", { class: "hint" }, t("neuronsSum", found.q.length, number(found.score, 2), number(found.weight, 3)), found.relative ? ` (${t("relativePart", number(found.relative, 2))})` : ""),
      );
    });
  }

  picture(): Picture | null {
    if (!this.bytes.length) return null;
    const shown = this.filtered();
    return this.stage.state.shape === "matrix" ? this.matrix(shown) : this.lines(shown, this.stage.state.token);
  }
}

/** The largest of a map's bytes: maps of long texts would be all but invisible on the scale of short ones. */
function strongestOf(shown: Uint8Array): number {
  return shown.reduce((most, byte) => (byte > most ? byte : most), 1);
}

function layerOrder(heads: number[][]): [number, number][] {
  return heads.flatMap((left, layer) => left.map((head): [number, number] => [layer, head]));
}

function linksOf(shown: Uint8Array, size: number, from?: number): Link[] {
  const links: Link[] = [];
  for (let place = 0; place < shown.length; place++) {
    if (shown[place] > 12) links.push({ from: from ?? Math.floor(place / size), to: place % size, byte: shown[place] });
  }
  return links;
}

function shorter(name: string, most = 12): string {
  const letters = Array.from(name);
  return letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : name;
}

function faded(ink: string, share: number): string {
  return rgb(ink).copy({ opacity: Math.round(100 * Math.min(1, share)) / 100 }).toString();
}
