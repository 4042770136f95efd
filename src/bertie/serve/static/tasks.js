// One entry to a task: which task a model must do for it (null: any model), its fields, the request it makes,
// and how its answer is drawn.

import { bars, heading, make, marked, matrix, number, pieces, quoted, ranking, strip, trouble, vectorOf } from "./show.js";

const lines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);
const listed = (text) => text.split(",").map((word) => word.trim()).filter(Boolean);
const text = (name, label, value, more = {}) => ({ name, label, value, kind: "text", ...more });
const count = (name, label, value, most = 100) => ({ name, label, value, kind: "number", most });

function cosines(rows, columns) {
  const unit = (vector) => {
    const length = Math.hypot(...vector) || 1;
    return vector.map((value) => value / length);
  };
  const [left, right] = [rows.map(unit), columns.map(unit)];
  return left.map((a) => right.map((b) => a.reduce((sum, value, place) => sum + value * b[place], 0)));
}

export const TASKS = [
  {
    id: "embed",
    needs: "embed",
    title: "Embed",
    lead: "Texts to vectors. Texts that mean alike have vectors that look alike.",
    fields: [
      text("texts", "Texts", "A man plays the guitar.\nSomeone is making music.\nThe stock market fell on Monday.", {
        rows: 5,
        hint: "one to a line",
      }),
    ],
    request: (given) => ({ path: "/embed", body: { inputs: lines(given.texts), truncate: true } }),
    show(found, given) {
      const texts = lines(given.texts);
      const shown = [heading("Vectors"), ...found.map((vector, place) => vectorOf(texts[place], vector))];
      if (texts.length > 1) shown.push(heading("How alike (cosine)"), matrix(texts, texts, cosines(found, found)));
      return shown;
    },
  },
  {
    id: "similarity",
    needs: "similarity",
    title: "Similarity",
    lead: "How close each text is to one of them.",
    fields: [
      text("source", "Text", "How do animals find food at night?", { rows: 2 }),
      text("others", "Compared with", "Bats hunt by listening for echoes.\nThe first stamp was printed in 1840.\nOwls see well in the dark.", {
        rows: 5,
        hint: "one to a line",
      }),
    ],
    request: (given) => ({
      path: "/similarity",
      body: { inputs: { source_sentence: given.source, sentences: lines(given.others) } },
    }),
    show(found, given) {
      const rows = lines(given.others).map((line, place) => ({ text: line, score: found[place] }));
      return [heading("Closest first"), ranking(rows.sort((a, b) => b.score - a.score))];
    },
  },
  {
    id: "rerank",
    needs: "rerank",
    avoids: "embed", // a model that reads query and document together is better at it
    title: "Rerank",
    lead: "Documents in the order of how well they answer a query.",
    fields: [
      text("query", "Query", "Who wrote Faust?", { rows: 1 }),
      text("documents", "Documents", "Goethe wrote Faust.\nIt rains in Hamburg.\nFaust is a play in two parts.", {
        rows: 6,
        hint: "one to a line",
      }),
    ],
    request: (given) => ({ path: "/rerank", body: { query: given.query, texts: lines(given.documents), truncate: true } }),
    show(found, given) {
      const documents = lines(given.documents);
      return [heading("Best first"), ranking(found.map((row) => ({ text: documents[row.index], score: row.score })))];
    },
  },
  {
    id: "classify",
    needs: "classify",
    title: "Classify",
    lead: "Which of its labels a classifier gives to a text.",
    fields: [
      text("texts", "Texts", "Two hours of my life that I want back.\nA warm, funny, beautifully acted film.", {
        rows: 4,
        hint: "one to a line",
      }),
      count("top", "Labels to show", 5),
    ],
    request: (given) => ({ path: "/v1/classify", body: { inputs: lines(given.texts), top_k: given.top } }),
    show: (found, given) => labelled(lines(given.texts), found.results),
  },
  {
    id: "zero-shot",
    needs: "zero_shot",
    title: "Your own labels",
    lead: "Labels nobody trained for, judged by a model that knows what follows from what.",
    fields: [
      text("texts", "Texts", "Shares fell as investors worried about prices.", { rows: 3, hint: "one to a line" }),
      text("labels", "Labels", "business, sports, weather", { rows: 1, hint: "with commas" }),
    ],
    request: (given) => ({ path: "/v1/classify", body: { inputs: lines(given.texts), labels: listed(given.labels) } }),
    show: (found, given) => labelled(lines(given.texts), found.results),
  },
  {
    id: "tag",
    needs: "tag",
    title: "Tag",
    lead: "Names and other entities, marked where they stand.",
    fields: [
      text("text", "Text", "Ada Lovelace lived in London and worked with Charles Babbage.", { rows: 5 }),
      {
        name: "aggregation",
        label: "Tokens become entities",
        kind: "choice",
        value: "simple",
        choices: { simple: "joined", first: "by first piece", average: "by average", max: "by surest", none: "not at all" },
      },
    ],
    request: (given) => ({ path: "/v1/tag", body: { inputs: [given.text], aggregation: given.aggregation } }),
    show(found, given) {
      const entities = found.results[0];
      if (!entities.length) return [marked(given.text, []), make("p", { class: "empty" }, "No entities were found.")];
      const spans = entities.map((one) => ({ ...one, title: `${one.label} ${number(one.score)}` }));
      const rows = entities.map((one) => ({ name: `${one.text} · ${one.label}`, score: one.score }));
      return [heading("In the text"), marked(given.text, spans), heading("How sure"), bars(rows, { compete: false })];
    },
  },
  {
    id: "answer",
    needs: "answer",
    title: "Answer",
    lead: "A question answered by quoting a text.",
    fields: [
      text("question", "Question", "Where did Ada live?", { rows: 1 }),
      text("context", "Text to answer from", "Ada Lovelace lived in London and wrote the first program for a machine that was never built.", { rows: 7 }),
      count("best", "Quotations", 3, 20),
    ],
    request: (given) => ({
      path: "/v1/answer",
      body: { inputs: [{ question: given.question, context: given.context }], n_best: given.best },
    }),
    show(found, given) {
      const { best, candidates, no_answer_score: none } = found.results[0];
      const spans = best ? [{ start: best.start, end: best.end, label: "", title: number(best.score) }] : [];
      const rows = candidates.map((one) => ({ name: one.text, score: one.score }));
      if (none > 0) rows.push({ name: "no answer", score: none });
      const verdict = make("p", { class: best ? "verdict" : "verdict no" }, best ? best.text : "No answer in this text.");
      return [verdict, heading("Where it stands"), marked(given.context, spans), heading("How sure"), bars(rows)];
    },
  },
  {
    id: "fill",
    needs: "fill",
    title: "Fill in",
    lead: "Words for [MASK]: what BERT learned to do first.",
    fields: [
      text("text", "Text with [MASK]", "He drank a cup of [MASK].", { rows: 3 }),
      text("targets", "Only these words", "", { rows: 1, hint: "with commas; empty for any", optional: true }),
      count("top", "Words to show", 8, 50),
    ],
    request(given) {
      const targets = listed(given.targets);
      return { path: "/v1/fill", body: { inputs: [given.text], top_k: given.top, ...(targets.length ? { targets } : {}) } };
    },
    show(found) {
      const { masks, fillings } = found.results[0];
      const shown = masks.flatMap((mask, place) => [
        heading(masks.length > 1 ? `Mask ${place + 1}` : "Words"),
        bars(mask.map((one) => ({ name: one.token, score: one.score }))),
      ]);
      if (fillings.length && masks.length > 1) {
        const rows = fillings.map((one) => ({ name: one.tokens.join(" · "), score: one.score }));
        shown.push(heading("Together"), bars(rows));
      }
      return shown;
    },
  },
  {
    id: "next",
    needs: "next",
    title: "Next sentence",
    lead: "How likely one text is to follow another.",
    fields: [
      text("first", "First", "She opened the door.", { rows: 2 }),
      text("second", "Second", "The room was empty.", { rows: 2 }),
    ],
    request: (given) => ({ path: "/v1/next", body: { inputs: [[given.first, given.second]] } }),
    show(found) {
      const { probability, follows } = found.results[0];
      const rows = [
        { name: "follows", score: probability },
        { name: "is from elsewhere", score: 1 - probability },
      ];
      const verdict = follows ? "The second follows the first." : "The second does not follow the first.";
      return [make("p", { class: follows ? "verdict" : "verdict no" }, verdict), bars(rows)];
    },
  },
  {
    id: "features",
    needs: "features",
    title: "Features",
    lead: "A vector for every token, out of the layers you name.",
    fields: [
      text("text", "Text", "The bank by the river.", { rows: 3 }),
      text("layers", "Layers", "-1", { rows: 1, hint: "0 is the first, -1 the last; with commas" }),
    ],
    request(given) {
      return { path: "/v1/features", body: { inputs: [given.text], layers: listed(given.layers).map(Number) } };
    },
    show(found) {
      const { tokens } = found.results[0];
      const layers = tokens[0].layers.map((layer) => layer.index);
      return layers.flatMap((layer, place) => {
        const grid = make("div", { class: "tokens" });
        for (const token of tokens) grid.append(make("span", {}, token.token), strip(token.layers[place].values, { thin: true }));
        return [heading(`Layer ${layer}, ${tokens[0].layers[place].values.length} numbers to a token`), grid];
      });
    },
  },
  {
    id: "tokenize",
    needs: null,
    title: "Tokenize",
    lead: "How a text is cut into word pieces.",
    fields: [text("text", "Text", "Unbelievably, the café's naïve owner sang.", { rows: 4 })],
    request: (given) => ({ path: "/tokenize", body: { inputs: [given.text] } }),
    show: (found) => [heading(`${found[0].length} pieces`), pieces(found[0])],
  },
];

function labelled(texts, results) {
  if (!results.length) return [trouble("There was no text.", "Write one to a line.")];
  return results.flatMap((labels, place) => [
    quoted(texts[place]),
    bars(labels.map((one) => ({ name: one.label, score: one.score }))),
  ]);
}
