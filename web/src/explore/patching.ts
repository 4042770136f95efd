// Patching: states of another text put into this one, layer × place, as a heat map that fills row by row.

import { make, number } from "../dom.ts";
import { t } from "../words.ts";
import { scoreColor } from "./colors.ts";
import { heatPicture, heatTable, type Heat } from "./grid.ts";
import type { Picture } from "./pen.ts";
import { ProgressBar, View, nameOf, orFailure, selectOf, type Answer } from "./view.ts";

interface Patching {
  clean: Answer;
  corrupted: Answer;
  layers: number[];
  places: number[];
  effect: (number | null)[][]; // as many rows as there are so far
  other?: string; // of a saved page, which has no field for it
}

export class PatchingView extends View {
  private readonly result = make("div", { "aria-live": "polite" });
  private readonly progress = new ProgressBar();
  private found: Patching | null = null;

  async draw(): Promise<void> {
    const { state, opened, source } = this.stage;
    const other = make("textarea", { id: "other-text", rows: 2, value: state.otherText || state.text, dir: "auto", spellcheck: false, required: true });
    const parts = [["state", t("partState")], ["attention", t("partAttention")], ["feed_forward", t("partFeed")]] as const;
    const part = selectOf(t("part"), "part", parts, state.part, (value) => {
      state.part = value as typeof state.part;
      this.stage.changed();
    });
    const form = make(
      "form",
      { autocomplete: "off" },
      make("label", { htmlFor: "other-text" }, t("otherText"), make("span", { class: "hint" }, ` (${t("sameLength", opened.rows[state.row].tokens.length)})`)),
      other,
      make("div", { class: "filters" }, part, make("button", { class: "primary", id: "patch" }, t("compute"))),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      state.otherText = other.value;
      this.stage.changed();
      void this.run();
    });
    form.hidden = !source.live;
    this.root.replaceChildren(make("p", { class: "lead" }, t("patchingLead")), make("section", { class: "card" }, form, this.progress.element, this.result));
    if (state.otherText || !source.live) await this.run();
  }

  leave(): void {
    this.progress.stop();
  }

  private async run(): Promise<void> {
    const { state, source } = this.stage;
    const signal = this.progress.begin();
    const options = source.live ? { other: state.otherText, part: state.part } : {};
    await orFailure(this.result, async () => {
      const found = await this.stage.work("patching", options, (at) => {
        this.progress.at(at);
        if (at.partial) this.show(at.partial);
      }, signal);
      if (!signal.aborted) this.show(found);
    });
    if (!signal.aborted) this.progress.end();
  }

  private show(found: Patching): void {
    this.found = found;
    this.result.replaceChildren(
      found.other === undefined ? "" : make("p", { dir: "auto" }, t("fromText", found.other)),
      make("p", { dir: "auto" }, t("patchAnswers", found.clean.text, found.corrupted.text)),
      heatTable(this.heat(found)),
      make("p", { class: "hint" }, t("patchLegend")),
    );
    this.result.dataset.rows = String(found.effect.length);
  }

  private heat(found: Patching): Heat {
    const paint = scoreColor([1, ...found.effect.flat().map((one) => one ?? 0)]);
    const names = found.layers.map((layer) => (layer === 0 ? t("embeddings") : t("afterLayer", layer - 1)));
    return {
      label: t("patching"),
      rows: names.slice(0, found.effect.length),
      columns: found.places.map((place) => nameOf(this.tokens[place])),
      columnChosen: found.places.indexOf(this.stage.state.token),
      background: (row, column) => paint(found.effect[row][column] ?? 0),
      words: (row, column) => number(found.effect[row][column], 2),
      title: (row, column) => t("patchCell", names[row], this.tokenName(found.places[column]), number(found.effect[row][column])),
    };
  }

  picture(): Picture | null {
    return this.found === null ? null : heatPicture(this.heat(this.found));
  }
}
