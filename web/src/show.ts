// Drawing answers: bars, strips, tables, marked texts. Both sections of the page use them.

import { clip, make, number } from "./dom.ts";
import { t } from "./words.ts";

const TONES = 6;

export interface Scored {
  name: string;
  score: number;
}

export interface Span {
  start: number;
  end: number;
  label: string;
  title?: string;
}

/** Names with scores as bars, the best in bold if they compete. Scores beyond 0…1 are drawn against the largest. */
export function bars(rows: Scored[], { compete = true }: { compete?: boolean } = {}): HTMLElement {
  const scores = rows.map((row) => row.score);
  const largest = Math.max(1, ...scores.map(Math.abs));
  const winner = compete ? scores.indexOf(Math.max(...scores)) : -1;
  const grid = make("div", { class: "bars" });
  rows.forEach((row, place) => {
    const fill = make("i");
    fill.style.width = `${(100 * Math.max(0, row.score)) / largest}%`;
    const best = place === winner ? " best" : "";
    grid.append(
      make("span", { class: `name${best}`, title: row.name, dir: "auto" }, row.name || "␣"),
      make("span", { class: "track" }, fill),
      make("span", { class: `value${best}` }, number(row.score)),
    );
  });
  return grid;
}

/** A vector as a strip: a stripe to a number, orange above zero and blue below, stronger further away from it. Numbers
 * that are known to so many digits only are shown with these. */
export function strip(values: ArrayLike<number>, { thin = false, digits }: { thin?: boolean; digits?: number } = {}): HTMLCanvasElement {
  const all = Array.from(values);
  const canvas = make("canvas", { width: Math.max(1, all.length), height: 1, class: thin ? "strip-line thin" : "strip-line" });
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", t("vectorOf", all.length));
  const sizes = all.map(Math.abs).sort((a, b) => a - b);
  const strong = sizes[Math.floor(0.98 * (sizes.length - 1))] || 1;
  const context = canvas.getContext("2d")!;
  const image = context.createImageData(canvas.width, 1);
  all.forEach((value, place) => {
    const [red, green, blue] = value > 0 ? [224, 112, 28] : [38, 112, 196];
    image.data.set([red, green, blue, Math.round(255 * Math.min(1, Math.abs(value) / strong))], 4 * place);
  });
  context.putImageData(image, 0, 0);
  canvas.addEventListener("mousemove", (event) => {
    const place = Math.min(all.length - 1, Math.floor((event.offsetX / canvas.clientWidth) * all.length));
    if (place < 0) return; // on the border
    const said = digits === undefined ? number(all[place], 4) : `≈ ${Number(all[place].toPrecision(digits))}`;
    canvas.title = t("numberAt", place, said);
  });
  return canvas;
}

/** A text's vector with what there is to say about it. */
export function vectorOf(text: string, values: number[]): HTMLElement {
  const norm = Math.sqrt(values.reduce((sum, value) => sum + value * value, 0));
  return make(
    "div",
    { class: "strip" },
    make(
      "div",
      { class: "what" },
      make("span", { title: text, dir: "auto" }, text),
      make("span", {}, t("vectorFacts", values.length, number(norm, 2))),
    ),
    strip(values),
  );
}

/** Similarities as a table whose cells are as dark as they are alike. */
export function matrix(rows: string[], columns: string[], scores: number[][]): HTMLElement {
  const tones = [31, 150, 132];
  const table = make("table", { class: "matrix" });
  const top = make("tr", {}, make("td"));
  columns.forEach((text, place) => top.append(make("th", { title: text, scope: "col" }, String(place + 1))));
  table.append(make("thead", {}, top));
  const body = make("tbody");
  rows.forEach((text, row) => {
    const line = make("tr", {}, make("th", { title: text, scope: "row" }, `${row + 1} ${clip(text, 40)}`));
    columns.forEach((other, column) => {
      const score = scores[row][column];
      const cell = make("td", { title: `${clip(text)} ↔ ${clip(other)}` }, number(score, 2));
      cell.style.backgroundColor = `rgb(${tones.join(" ")} / ${Math.round(65 * Math.max(0, Math.min(1, score)))}%)`;
      line.append(cell);
    });
    body.append(line);
  });
  table.append(body);
  return table;
}

/** A text with spans marked. Offsets count characters as Python does, which is not how JavaScript does. */
export function marked(text: string, spans: Span[]): HTMLElement {
  const letters = Array.from(text);
  const whole = make("div", { class: "text", dir: "auto" });
  let at = 0;
  for (const span of [...spans].sort((a, b) => a.start - b.start)) {
    if (span.start < at) continue;
    whole.append(letters.slice(at, span.start).join(""));
    const inside = make("mark", { class: `tone-${tone(span.label)}` }, letters.slice(span.start, span.end).join(""));
    if (span.label) inside.append(make("small", {}, span.label));
    if (span.title) inside.title = span.title;
    whole.append(inside);
    at = span.end;
  }
  whole.append(letters.slice(at).join(""));
  return whole;
}

export function ranking(rows: { text: string; score: number }[]): HTMLElement {
  const scores = rows.map((row) => row.score);
  const least = Math.min(0, ...scores);
  const range = Math.max(...scores, 1e-9) - least || 1;
  const list = make("ol", { class: "ranking" });
  rows.forEach((row, place) => {
    const fill = make("i");
    fill.style.width = `${(100 * (row.score - least)) / range}%`;
    list.append(
      make(
        "li",
        {},
        make("span", { class: "place" }, String(place + 1)),
        make("span", { dir: "auto" }, row.text),
        make("span", { class: "number" }, number(row.score)),
        make("span", { class: "track" }, fill),
      ),
    );
  });
  return list;
}

export function pieces(tokens: Piece[]): HTMLElement {
  const line = make("div", { class: "pieces" });
  tokens.forEach((token, place) => {
    const id = make("small", {}, String(token.id));
    const goesOn = tokens[0]?.text === "[CLS]" && continues(tokens[place - 1], token);
    const mark = goesOn ? make("span", { class: "soft" }, "##") : null;
    line.append(make("span", { class: token.special ? "piece special" : "piece" }, mark, make("bdi", {}, token.text || "␣"), id));
  });
  return line;
}

export interface Piece {
  id: number;
  text: string;
  special: boolean;
  start?: number | null;
  stop?: number | null;
}

/** Whether a piece goes on with the word before it: they touch, and WordPiece would not have parted them (it parts
 * punctuation and Chinese characters from everything). */
function continues(before: Piece | undefined, piece: Piece): boolean {
  if (!before || before.special || piece.special || before.stop !== piece.start) return false;
  const inWord = /[\p{L}\p{N}\p{M}]/u;
  const alone = /\p{Script=Han}/u;
  const [end, begin] = [[...before.text].at(-1) ?? "", [...piece.text][0] ?? ""];
  return inWord.test(end) && inWord.test(begin) && !alone.test(end) && !alone.test(begin);
}

/** A text that an answer is about. */
export function quoted(text: string): HTMLElement {
  return make("p", { class: "quote", dir: "auto" }, text);
}

function tone(label: string): number {
  return [...(label || "")].reduce((sum, letter) => sum + letter.codePointAt(0)!, 0) % TONES;
}
