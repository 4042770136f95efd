// The lens: what the masked-word head says after each layer; how far each token's state is from its first and last.

import { chooser, make, number, percent } from "../dom.ts";
import { bars } from "../show.ts";
import { t } from "../words.ts";
import { amountColor } from "./colors.ts";
import { heatPicture, heatTable, type Heat } from "./grid.ts";
import type { Picture } from "./pen.ts";
import { View, nameOf, orFailure } from "./view.ts";

interface Lens {
  words: string[][][]; // [layers + 1][tokens][k]
  probabilities: number[][][];
}

interface Drift {
  to_first: number[][];
  to_last: number[][];
}

const AT_ONCE = 64; // tokens of one answer, as queries.py gives them

export class LensView extends View {
  private readonly result = make("div");
  private readonly best = make("div", { "aria-live": "polite" });
  private heat: Heat | null = null;
  private turn = 0;

  async draw(): Promise<void> {
    const { state, opened } = this.stage;
    const hasWords = opened.views.includes("lens");
    if (!hasWords && state.lens === "words") state.lens = "to_first";
    const choices: ["words" | "to_first" | "to_last", string][] = [["to_first", t("toFirst")], ["to_last", t("toLast")]];
    if (hasWords) choices.unshift(["words", t("lensWords")]);
    const show = chooser(t("lensShow"), choices, state.lens, (value) => {
      state.lens = value;
      this.stage.changed();
      void this.drawTable();
    });
    this.root.replaceChildren(make("p", { class: "lead" }, t("lensLead")), make("section", { class: "card" }, make("div", { class: "filters" }, show), this.result, this.best));
    await this.drawTable();
  }

  selection(): void {
    void this.drawTable();
  }

  private async drawTable(): Promise<void> {
    const { state } = this.stage;
    const turn = ++this.turn;
    await orFailure(this.result, async () => {
      if (state.lens !== "words") {
        this.show(this.cosines(await this.stage.kept("drift", { row: state.row })));
        return void this.best.replaceChildren();
      }
      this.best.replaceChildren(make("p", { class: "hint" }, t("lensHint")));
      const all: Lens = { words: [], probabilities: [] };
      for (let first = 0; first < this.tokens.length; first += AT_ONCE) {
        const some: Lens = await this.stage.kept("lens", { row: state.row, first });
        if (turn !== this.turn) return;
        some.words.forEach((words, layer) => {
          all.words[layer] = [...(all.words[layer] ?? []), ...words];
          all.probabilities[layer] = [...(all.probabilities[layer] ?? []), ...some.probabilities[layer]];
        });
        this.show(this.words(all));
      }
    });
  }

  private show(heat: Heat): void {
    this.heat = heat;
    const left = this.result.querySelector(".scroll")?.scrollLeft ?? 0;
    const table = heatTable(heat);
    this.result.replaceChildren(table);
    table.scrollLeft = left;
  }

  leave(): void {
    this.turn++;
  }

  /** The last layer first: its words are the answer. */
  private words(lens: Lens): Heat {
    const layers = lens.words.length;
    const paint = amountColor(1);
    const at = (row: number): number => layers - 1 - row;
    return {
      ...this.frame(layers, lens.words[0].length),
      cellWidth: 74,
      background: (row, column) => paint(0.85 * Math.sqrt(lens.probabilities[at(row)][column][0])),
      words: (row, column) => lens.words[at(row)][column][0],
      title: (row, column) => t("lensCell", this.layerName(at(row)), this.tokenName(column), `${lens.words[at(row)][column][0]} ${percent(lens.probabilities[at(row)][column][0])}`),
      choose: (row, column) => {
        const names = lens.words[at(row)][column];
        const scores = lens.probabilities[at(row)][column];
        this.best.replaceChildren(
          make("h3", {}, `${this.tokenName(column)}, ${this.layerName(at(row))}`),
          bars(names.map((name, place) => ({ name, score: scores[place] }))),
        );
        this.best.scrollIntoView({ block: "nearest" });
      },
    };
  }

  private cosines(drift: Drift): Heat {
    const values = this.stage.state.lens === "to_first" ? drift.to_first : drift.to_last;
    const paint = amountColor(1);
    const at = (row: number): number => values.length - 1 - row;
    return {
      ...this.frame(values.length, this.tokens.length),
      background: (row, column) => paint(Math.max(0, values[at(row)][column])),
      words: (row, column) => number(values[at(row)][column], 2),
      title: (row, column) => t("lensCell", this.layerName(at(row)), this.tokenName(column), number(values[at(row)][column])),
    };
  }

  private frame(layers: number, tokens: number): Pick<Heat, "label" | "rows" | "columns" | "columnChosen"> {
    return {
      label: t("lens"),
      rows: Array.from({ length: layers }, (_, row) => this.layerName(layers - 1 - row)),
      columns: this.tokens.slice(0, tokens).map(nameOf),
      columnChosen: this.stage.state.token,
    };
  }

  private layerName(state: number): string {
    return state === 0 ? t("embeddings") : t("afterLayer", state - 1);
  }

  picture(): Picture | null {
    return this.heat === null ? null : heatPicture(this.heat);
  }
}
