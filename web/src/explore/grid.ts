// A heat map with names on both sides: patching, importance, the lens's cosines, matches. A table on the page, so that
// it can be read aloud and walked with the keyboard; on a canvas where there are very many cells.

import { make } from "../dom.ts";
import { color, columnName, isUpright, paintOn, type Pen, type Picture } from "./pen.ts";
import { inkOn } from "./colors.ts";

export interface Heat {
  label: string;
  rows: string[];
  columns: string[];
  background(row: number, column: number): string;
  words(row: number, column: number): string; // in the cell
  title(row: number, column: number): string; // of the cell
  choose?(row: number, column: number): void;
  chosen?: [number, number] | null;
  columnChosen?: number;
  cellWidth?: number;
}

const MOST_CELLS = 4000;
const NAME_WIDTH = 120;
const TOP = 92;
const CELL_HEIGHT = 26;

export function heatTable(heat: Heat): HTMLElement {
  if (heat.rows.length * heat.columns.length > MOST_CELLS) return heatCanvas(heat);
  const short = heat.columns.every((name) => name.length <= 3); // numbers, which need not stand on end
  const table = make("table", { class: short ? "heat short" : "heat" });
  table.append(make("caption", { class: "unseen" }, heat.label));
  const top = make("tr", {}, make("td"));
  heat.columns.forEach((name, column) => {
    const chosen = column === heat.columnChosen ? "chosen" : undefined;
    top.append(make("th", { scope: "col", class: chosen, title: name }, make("bdi", { class: isUpright(name) ? "upright" : undefined }, name)));
  });
  table.append(make("thead", {}, top));
  const body = make("tbody");
  heat.rows.forEach((name, row) => {
    const line = make("tr", {}, make("th", { scope: "row" }, name));
    heat.columns.forEach((_, column) => {
      const background = heat.background(row, column);
      const cell = make("td", { title: heat.title(row, column) });
      cell.style.backgroundColor = background;
      cell.style.color = inkOn(background);
      const words = make("bdi", {}, heat.words(row, column));
      if (heat.choose) {
        const chosen = heat.chosen?.[0] === row && heat.chosen[1] === column;
        const button = make("button", { type: "button", "aria-pressed": String(chosen), "aria-label": heat.title(row, column) }, words);
        button.addEventListener("click", () => heat.choose!(row, column));
        cell.append(button);
      } else cell.append(words);
      line.append(cell);
    });
    body.append(line);
  });
  table.append(body);
  return make("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": heat.label }, table);
}

function heatCanvas(heat: Heat): HTMLElement {
  const picture = heatPicture(heat);
  const canvas = make("canvas", { role: "img", "aria-label": heat.label, class: "drawn" });
  paintOn(canvas, picture, 1);
  const { cell } = sizes(heat);
  const at = (event: MouseEvent): [number, number] | null => {
    const column = Math.floor((event.offsetX - NAME_WIDTH) / cell);
    const row = Math.floor((event.offsetY - TOP) / CELL_HEIGHT);
    return row >= 0 && column >= 0 && row < heat.rows.length && column < heat.columns.length ? [row, column] : null;
  };
  canvas.addEventListener("mousemove", (event) => {
    const found = at(event);
    canvas.title = found ? heat.title(...found) : "";
  });
  canvas.addEventListener("click", (event) => {
    const found = at(event);
    if (found) heat.choose?.(...found);
  });
  return make("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": heat.label }, canvas);
}

function sizes(heat: Heat): { cell: number } {
  return { cell: heat.cellWidth ?? (heat.columns.length > 64 ? 22 : 44) };
}

export function heatPicture(heat: Heat): Picture {
  const { cell } = sizes(heat);
  return {
    width: NAME_WIDTH + cell * heat.columns.length + 10,
    height: TOP + CELL_HEIGHT * heat.rows.length + 10,
    paint(pen: Pen) {
      const [ink, soft] = [color("ink"), color("soft")];
      heat.columns.forEach((name, column) => {
        columnName(pen, name, NAME_WIDTH + cell * (column + 0.5), TOP - 8, { color: ink, size: 12, bold: column === heat.columnChosen });
      });
      heat.rows.forEach((name, row) => {
        const y = TOP + CELL_HEIGHT * row;
        pen.text(name, NAME_WIDTH - 8, y + CELL_HEIGHT / 2, { color: soft, align: "right", size: 12 });
        heat.columns.forEach((_, column) => {
          const background = heat.background(row, column);
          const x = NAME_WIDTH + cell * column;
          pen.rect(x + 0.5, y + 0.5, cell - 1, CELL_HEIGHT - 1, background);
          const words = heat.words(row, column);
          if (words && cell >= 30) pen.text(words, x + cell / 2, y + CELL_HEIGHT / 2, { color: inkOn(background), align: "center", size: 11 });
        });
      });
    },
  };
}
