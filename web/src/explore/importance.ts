// Importance over the user's own file: how much each part of the model matters there.

import { make, number, trouble } from "../dom.ts";
import { t } from "../words.ts";
import { scoreColor } from "./colors.ts";
import { heatPicture, heatTable, type Heat } from "./grid.ts";
import type { Picture } from "./pen.ts";
import { ProgressBar, View, orFailure, selectOf } from "./view.ts";

interface Importance {
  of: string;
  values: (number | null)[][]; // [layers][heads], or [layers][1]
  loss: number;
  num_examples: number;
  notes: string[]; // what was skipped in the data
}

export class ImportanceView extends View {
  private readonly result = make("div", { "aria-live": "polite" });
  private readonly progress = new ProgressBar();
  private found: Importance | null = null;
  private file: { name: string; content: string } | null = null;
  private method = "gradient";
  private of = "heads";
  private skipBad = false;

  async draw(): Promise<void> {
    const choose = make("input", { type: "file", id: "file", accept: ".jsonl,.json,.csv,.tsv,.txt" });
    choose.addEventListener("change", async () => {
      const chosen = choose.files?.[0];
      this.file = chosen ? { name: chosen.name, content: await chosen.text() } : null;
    });
    const skip = make("input", { type: "checkbox", id: "skip-bad", checked: this.skipBad });
    skip.addEventListener("change", () => (this.skipBad = skip.checked));
    const methods = [["gradient", t("byGradient")], ["leave_one_out", t("leaveOneOut")]] as const;
    const kinds = [["heads", t("ofHeads")], ["layers", t("ofLayers")], ["feed_forward", t("ofFeed")]] as const;
    const form = make(
      "form",
      { autocomplete: "off" },
      make("div", { class: "field" }, make("label", { htmlFor: "file" }, t("file"), make("span", { class: "hint" }, ` (${t(this.stage.opened.task === "fill" ? "textsHint" : "fileHint")})`)), choose),
      make(
        "div",
        { class: "filters" },
        selectOf(t("ofWhat"), "of-what", kinds, this.of, (value) => (this.of = value)),
        selectOf(t("method"), "importance-method", methods, this.method, (value) => (this.method = value)),
        make("label", { class: "inline", htmlFor: "skip-bad" }, skip, make("span", {}, t("skipBad"))),
        make("button", { class: "primary", id: "measure" }, t("compute")),
      ),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.run();
    });
    form.hidden = !this.stage.source.live;
    this.root.replaceChildren(make("p", { class: "lead" }, t("importanceLead")), make("section", { class: "card" }, form, this.progress.element, this.result));
    if (!this.stage.source.live) await this.run();
    else if (this.found) this.show(this.found);
  }

  leave(): void {
    this.progress.stop();
  }

  private async run(): Promise<void> {
    const { source } = this.stage;
    if (source.live && this.file === null) return void this.result.replaceChildren(trouble(t("chooseFile")));
    const signal = this.progress.begin();
    const options = source.live ? { ...this.file, method: this.method, of: this.of, skip_bad: this.skipBad } : {};
    await orFailure(this.result, async () => {
      const found = await this.stage.work("importance", options, (at) => this.progress.at(at), signal);
      if (!signal.aborted) this.show(found);
    });
    if (!signal.aborted) this.progress.end();
  }

  private show(found: Importance): void {
    this.found = found;
    const parts: Node[] = [make("p", {}, t("overExamples", found.num_examples, number(found.loss))), ...found.notes.map((note) => make("p", { class: "hint" }, note)), heatTable(this.heat(found))];
    if (found.of === "heads" && this.stage.source.live) {
      const button = make("button", { type: "button", class: "plain", id: "least" }, t("leastImportant"));
      button.addEventListener("click", () => this.switchLeastOff(found));
      parts.push(button);
    }
    this.result.replaceChildren(...parts);
    this.result.dataset.examples = String(found.num_examples);
  }

  private switchLeastOff(found: Importance): void {
    const heads = this.stage.opened.heads.flatMap((left, layer) => left.map((head): [number, number] => [layer, head]));
    const value = ([layer, head]: [number, number]): number => found.values[layer][head] ?? 0;
    heads.sort((a, b) => value(a) - value(b));
    this.stage.state.off = { heads: heads.slice(0, Math.floor(heads.length / 4)).sort((a, b) => a[0] - b[0] || a[1] - b[1]), layers: [], feed_forward: [] };
    this.stage.show("switchboard");
  }

  private heat(found: Importance): Heat {
    const all = found.values.flat().map((one) => one ?? 0);
    const paint = scoreColor(all);
    const digits = Math.max(...all.map(Math.abs)) < 0.01 ? 5 : 3;
    const name = (row: number, column: number): string => (found.of === "heads" ? t("layerHead", row, column) : t("layer", row));
    return {
      label: t("importance"),
      rows: found.values.map((_, layer) => t("layer", layer)),
      columns: found.values[0].map((_, head) => (found.of === "heads" ? String(head) : "")),
      cellWidth: 54,
      background: (row, column) => paint(found.values[row][column] ?? 0),
      words: (row, column) => number(found.values[row][column], digits),
      title: (row, column) => t("importanceCell", name(row, column), number(found.values[row][column], 6)),
    };
  }

  picture(): Picture | null {
    return this.found === null ? null : heatPicture(this.heat(this.found));
  }
}
