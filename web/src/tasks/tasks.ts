// One entry to a task: which task a model must do for it (null: any model), its fields, the request it makes,
// and how its answer is drawn.

import { heading, make, number, trouble } from "../dom.ts";
import { bars, marked, matrix, pieces, quoted, ranking, strip, vectorOf } from "../show.ts";
import { t, type Word } from "../words.ts";

export interface Field {
  name: string;
  label: Word;
  value: string | number;
  kind: "text" | "number" | "choice";
  rows?: number;
  hint?: Word;
  optional?: boolean;
  most?: number;
  choices?: Record<string, Word>;
}

export type Given = Record<string, any>;

export interface Task {
  id: string;
  needs: string | null;
  avoids?: string;
  title: Word;
  lead: Word;
  fields: Field[];
  request(given: Given): { path: string; body: Record<string, unknown> };
  show(found: any, given: Given): Node[];
}

const lines = (text: string): string[] => text.split("\n").map((line) => line.trim()).filter(Boolean);
const listed = (text: string): string[] => text.split(",").map((word) => word.trim()).filter(Boolean);
const text = (name: string, label: Word, value: string, more: Partial<Field> = {}): Field => ({ name, label, value, kind: "text", ...more });
const count = (name: string, label: Word, value: number, most = 100): Field => ({ name, label, value, kind: "number", most });

function cosines(rows: number[][], columns: number[][]): number[][] {
  const unit = (vector: number[]): number[] => {
    const length = Math.hypot(...vector) || 1;
    return vector.map((value) => value / length);
  };
  const [left, right] = [rows.map(unit), columns.map(unit)];
  return left.map((a) => right.map((b) => a.reduce((sum, value, place) => sum + value * b[place], 0)));
}

export const TASKS: Task[] = [
  {
    id: "embed",
    needs: "embed",
    title: "embedTitle",
    lead: "embedLead",
    fields: [
      text("texts", "texts", "A man plays the guitar.\nSomeone is making music.\nThe stock market fell on Monday.", {
        rows: 5,
        hint: "oneToALine",
      }),
    ],
    request: (given) => ({ path: "/embed", body: { inputs: lines(given.texts), truncate: true } }),
    show(found, given) {
      const texts = lines(given.texts);
      const shown: Node[] = [heading(t("vectors")), ...found.map((vector: number[], place: number) => vectorOf(texts[place], vector))];
      if (texts.length > 1) shown.push(heading(t("howAlike")), matrix(texts, texts, cosines(found, found)));
      return shown;
    },
  },
  {
    id: "similarity",
    needs: "similarity",
    title: "similarityTitle",
    lead: "similarityLead",
    fields: [
      text("source", "text", "How do animals find food at night?", { rows: 2 }),
      text("others", "comparedWith", "Bats hunt by listening for echoes.\nThe first stamp was printed in 1840.\nOwls see well in the dark.", {
        rows: 5,
        hint: "oneToALine",
      }),
    ],
    request: (given) => ({
      path: "/similarity",
      body: { inputs: { source_sentence: given.source, sentences: lines(given.others) } },
    }),
    show(found, given) {
      const rows = lines(given.others).map((line, place) => ({ text: line, score: found[place] as number }));
      return [heading(t("closestFirst")), ranking(rows.sort((a, b) => b.score - a.score))];
    },
  },
  {
    id: "rerank",
    needs: "rerank",
    avoids: "embed", // a model that reads query and document together is better at it
    title: "rerankTitle",
    lead: "rerankLead",
    fields: [
      text("query", "query", "Who wrote Faust?", { rows: 1 }),
      text("documents", "documents", "Goethe wrote Faust.\nIt rains in Hamburg.\nFaust is a play in two parts.", {
        rows: 6,
        hint: "oneToALine",
      }),
    ],
    request: (given) => ({ path: "/rerank", body: { query: given.query, texts: lines(given.documents), truncate: true } }),
    show(found, given) {
      const documents = lines(given.documents);
      const rows = found.map((row: { index: number; score: number }) => ({ text: documents[row.index], score: row.score }));
      return [heading(t("bestFirst")), ranking(rows)];
    },
  },
  {
    id: "classify",
    needs: "classify",
    title: "classifyTitle",
    lead: "classifyLead",
    fields: [
      text("texts", "texts", "Two hours of my life that I want back.\nA warm, funny, beautifully acted film.", {
        rows: 4,
        hint: "oneToALine",
      }),
      count("top", "labelsToShow", 5),
    ],
    request: (given) => ({ path: "/v1/classify", body: { inputs: lines(given.texts), top_k: given.top } }),
    show: (found, given) => labelled(lines(given.texts), found.results),
  },
  {
    id: "zero-shot",
    needs: "zero_shot",
    title: "zeroTitle",
    lead: "zeroLead",
    fields: [
      text("texts", "texts", "Shares fell as investors worried about prices.", { rows: 3, hint: "oneToALine" }),
      text("labels", "labels", "business, sports, weather", { rows: 1, hint: "withCommas" }),
    ],
    request: (given) => ({ path: "/v1/classify", body: { inputs: lines(given.texts), labels: listed(given.labels) } }),
    show: (found, given) => labelled(lines(given.texts), found.results),
  },
  {
    id: "tag",
    needs: "tag",
    title: "tagTitle",
    lead: "tagLead",
    fields: [
      text("text", "text", "Ada Lovelace lived in London and worked with Charles Babbage.", { rows: 5 }),
      {
        name: "aggregation",
        label: "aggregation",
        kind: "choice",
        value: "simple",
        choices: { simple: "joined", first: "byFirst", average: "byAverage", max: "bySurest", none: "notAtAll" },
      },
    ],
    request: (given) => ({ path: "/v1/tag", body: { inputs: [given.text], aggregation: given.aggregation } }),
    show(found, given) {
      const entities: { text: string; label: string; score: number; start: number; end: number }[] = found.results[0];
      if (!entities.length) return [marked(given.text, []), make("p", { class: "empty" }, t("noEntities"))];
      const spans = entities.map((one) => ({ ...one, title: `${one.label} ${number(one.score)}` }));
      const rows = entities.map((one) => ({ name: `${one.text} · ${one.label}`, score: one.score }));
      return [heading(t("inTheText")), marked(given.text, spans), heading(t("howSure")), bars(rows, { compete: false })];
    },
  },
  {
    id: "answer",
    needs: "answer",
    title: "answerTitle",
    lead: "answerLead",
    fields: [
      text("question", "question", "Where did Ada live?", { rows: 1 }),
      text("context", "context", "Ada Lovelace lived in London and wrote the first program for a machine that was never built.", { rows: 7 }),
      count("best", "quotations", 3, 20),
    ],
    request: (given) => ({
      path: "/v1/answer",
      body: { inputs: [{ question: given.question, context: given.context }], n_best: given.best },
    }),
    show(found, given) {
      const { best, candidates, no_answer_score: none } = found.results[0];
      const spans = best ? [{ start: best.start, end: best.end, label: "", title: number(best.score) }] : [];
      const rows = candidates.map((one: { text: string; score: number }) => ({ name: one.text, score: one.score }));
      if (none > 0) rows.push({ name: t("noAnswer"), score: none });
      const verdict = make("p", { class: best ? "verdict" : "verdict no", dir: "auto" }, best ? best.text : t("noAnswerText"));
      return [verdict, heading(t("whereItStands")), marked(given.context, spans), heading(t("howSure")), bars(rows)];
    },
  },
  {
    id: "fill",
    needs: "fill",
    title: "fillTitle",
    lead: "fillLead",
    fields: [
      text("text", "textWithMask", "He drank a cup of [MASK].", { rows: 3 }),
      text("targets", "onlyTheseWords", "", { rows: 1, hint: "commasOrAny", optional: true }),
      count("top", "wordsToShow", 8, 50),
    ],
    request(given) {
      const targets = listed(given.targets);
      return { path: "/v1/fill", body: { inputs: [given.text], top_k: given.top, ...(targets.length ? { targets } : {}) } };
    },
    show(found) {
      const { masks, fillings } = found.results[0];
      const shown: Node[] = masks.flatMap((mask: { token: string; score: number }[], place: number) => [
        heading(masks.length > 1 ? t("maskNumber", place + 1) : t("words")),
        bars(mask.map((one) => ({ name: one.token, score: one.score }))),
      ]);
      if (fillings.length && masks.length > 1) {
        const rows = fillings.map((one: { tokens: string[]; score: number }) => ({ name: one.tokens.join(" · "), score: one.score }));
        shown.push(heading(t("together")), bars(rows));
      }
      return shown;
    },
  },
  {
    id: "next",
    needs: "next",
    title: "nextTitle",
    lead: "nextLead",
    fields: [
      text("first", "first", "She opened the door.", { rows: 2 }),
      text("second", "second", "The room was empty.", { rows: 2 }),
    ],
    request: (given) => ({ path: "/v1/next", body: { inputs: [[given.first, given.second]] } }),
    show(found) {
      const { probability, follows } = found.results[0];
      const rows = [
        { name: t("follows"), score: probability },
        { name: t("fromElsewhere"), score: 1 - probability },
      ];
      return [make("p", { class: follows ? "verdict" : "verdict no" }, t(follows ? "itFollows" : "itDoesNot")), bars(rows)];
    },
  },
  {
    id: "features",
    needs: "features",
    title: "featuresTitle",
    lead: "featuresLead",
    fields: [
      text("text", "text", "The bank by the river.", { rows: 3 }),
      text("layers", "layers", "-1", { rows: 1, hint: "layersHint" }),
    ],
    request(given) {
      return { path: "/v1/features", body: { inputs: [given.text], layers: listed(given.layers).map(Number) } };
    },
    show(found) {
      const { tokens } = found.results[0];
      const layers: number[] = tokens[0].layers.map((layer: { index: number }) => layer.index);
      return layers.flatMap((layer, place) => {
        const grid = make("div", { class: "tokens" });
        for (const token of tokens) grid.append(make("bdi", {}, token.token), strip(token.layers[place].values, { thin: true }));
        return [heading(t("layerNumbers", layer, tokens[0].layers[place].values.length)), grid];
      });
    },
  },
  {
    id: "tokenize",
    needs: null,
    title: "tokenizeTitle",
    lead: "tokenizeLead",
    fields: [text("text", "text", "Unbelievably, the café's naïve owner sang.", { rows: 4 })],
    request: (given) => ({ path: "/tokenize", body: { inputs: [given.text] } }),
    show: (found) => [heading(t("pieces", found[0].length)), pieces(found[0])],
  },
];

function labelled(texts: string[], results: { label: string; score: number }[][]): Node[] {
  if (!results.length) return [trouble(t("noText"), t("writeOne"))];
  return results.flatMap((labels, place) => [
    quoted(texts[place]),
    bars(labels.map((one) => ({ name: one.label, score: one.score }))),
  ]);
}
