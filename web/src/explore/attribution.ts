// Attribution: the tokens in the colours of what they did for the answer.

import { isolated, make, number, percent } from "../dom.ts";
import { t } from "../words.ts";
import { inkOn, scoreColor } from "./colors.ts";
import { heatTable } from "./grid.ts";
import type { Picture } from "./pen.ts";
import { ProgressBar, View, nameOf, orFailure, selectOf } from "./view.ts";

interface Attribution {
  scores: number[][]; // one list to a row
  error: number | null;
  score: number;
  baseline_score: number | null;
}

const WIDTH = 760;
const LINE = 34;

export class AttributionView extends View {
  private readonly result = make("div", { "aria-live": "polite" });
  private readonly progress = new ProgressBar();
  private found: Attribution | null = null;
  private labels: string[] = [];

  async draw(): Promise<void> {
    const { state } = this.stage;
    const known = await orFailure(this.root, async () => {
      this.labels = (await this.stage.kept("targets")).targets;
    });
    if (!known) return;
    const methods = [
      ["integrated_gradients", t("integrated")], ["gradient_x_input", t("gradientInput")],
      ["occlusion", t("occlusion")], ["rollout", t("rolloutMethod")],
    ] as const;
    const targets = this.labels.map((label, place) => [String(place), label] as const);
    const tools: Node[] = [
      selectOf(t("method"), "method", methods, state.method, (value) => {
        state.method = value;
        this.again();
      }),
    ];
    if (targets.length > 1) {
      tools.push(
        selectOf(t("target"), "target", targets, String(Math.min(state.target, targets.length - 1)), (value) => {
          state.target = Number(value);
          this.again();
        }),
      );
    }
    this.root.replaceChildren(
      make("p", { class: "lead" }, t("attributionLead")),
      make("section", { class: "card" }, make("div", { class: "filters" }, ...tools), this.progress.element, this.result),
    );
    await this.run();
  }

  leave(): void {
    this.progress.stop();
  }

  private again(): void {
    this.stage.changed();
    void this.run();
  }

  private async run(): Promise<void> {
    const { state, opened } = this.stage;
    const signal = this.progress.begin();
    await orFailure(this.result, async () => {
      const target = Math.min(state.target, Math.max(0, this.labels.length - 1));
      this.found = await this.stage.work("attribution", { method: state.method, target }, (at) => this.progress.at(at), signal);
      if (!signal.aborted) this.show(this.found!);
    });
    if (!signal.aborted) this.progress.end();
    if (opened.task === "embed" && opened.rows.length === 2 && !signal.aborted) await this.drawMatches();
  }

  private show(found: Attribution): void {
    const paint = this.paint(found);
    const texts = found.scores.map((scores, row) => {
      const line = make("p", { class: "colored", dir: "auto" });
      scores.forEach((score, place) => {
        const token = this.stage.opened.rows[row].tokens[place];
        const button = make("button", { type: "button", class: "word", title: number(score, 4), "aria-label": `${nameOf(token)}: ${number(score, 3)}` }, make("bdi", {}, nameOf(token)));
        button.style.backgroundColor = paint(score);
        button.style.color = inkOn(paint(score));
        button.addEventListener("click", () => row === this.stage.state.row && this.stage.chooseToken(place));
        line.append(button, " ");
      });
      return line;
    });
    const notes = [make("p", { class: "hint" }, found.baseline_score === null ? t("scoreAlone", number(found.score)) : t("scoreOf", number(found.score), number(found.baseline_score)))];
    if (found.error !== null) notes.push(make("p", { class: "hint" }, t("completeness", percent(found.error))));
    this.result.replaceChildren(...texts, ...notes);
    this.result.dataset.method = this.stage.state.method;
  }

  private paint(found: Attribution): (score: number) => string {
    return scoreColor(found.scores.flat());
  }

  /** Similarity of two texts: which token of the one goes with which of the other. */
  private async drawMatches(): Promise<void> {
    const place = make("div");
    this.result.append(make("h3", {}, t("matches")), place);
    await orFailure(place, async () => {
      const { weights } = await this.stage.kept("match");
      const [first, second] = this.stage.opened.rows.map((row) => row.tokens.map(nameOf));
      const paint = scoreColor(weights.flat());
      place.replaceChildren(
        heatTable({
          label: t("matches"),
          rows: first,
          columns: second,
          background: (row, column) => paint(weights[row][column]),
          words: () => "",
          title: (row, column) => t("looksAt", isolated(first[row]), isolated(second[column]), number(weights[row][column])),
        }),
      );
    });
  }

  picture(): Picture | null {
    const { found } = this;
    if (found === null) return null;
    const paint = this.paint(found);
    const measure = document.createElement("canvas").getContext("2d")!;
    measure.font = `15px ${getComputedStyle(document.body).fontFamily}`;
    const boxes: { x: number; y: number; width: number; name: string; score: number }[] = [];
    let [x, y] = [10, 10];
    found.scores.forEach((scores, row) => {
      scores.forEach((score, place) => {
        const name = nameOf(this.stage.opened.rows[row].tokens[place]);
        const width = measure.measureText(name).width + 12;
        if (x + width > WIDTH - 10) [x, y] = [10, y + LINE];
        boxes.push({ x, y, width, name, score });
        x += width + 4;
      });
      [x, y] = [10, y + LINE + 8];
    });
    return {
      width: WIDTH,
      height: y,
      paint(pen) {
        for (const box of boxes) {
          const background = paint(box.score);
          pen.rect(box.x, box.y, box.width, LINE - 8, background);
          pen.text(box.name, box.x + 6, box.y + (LINE - 8) / 2, { color: inkOn(background), size: 15 });
        }
      },
    };
  }
}
