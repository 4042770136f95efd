"""A folder as a user has it: small checkpoints of every kind and files to work on, under the names the help uses."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

from tiny_models import SENTENCES, saved, tiny, tokenizer

STAND_IN = "stand-in-mini"

SQUAD = {
    "version": "1.1",
    "data": [
        {
            "title": "Ada",
            "paragraphs": [
                {
                    "context": "Ada Lovelace lived in London and wrote the first program.",
                    "qas": [
                        {
                            "id": "q1",
                            "question": "Where did Ada live?",
                            "answers": [{"text": "London", "answer_start": 22}],
                        },
                        {
                            "id": "q2",
                            "question": "Who was it?",
                            "answers": [{"text": "Ada Lovelace", "answer_start": 0}],
                        },
                    ],
                }
            ],
        }
    ],
}


def build(folder: Path) -> None:
    """Everything that the examples of `--help` name."""
    names = {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC", 4: "I-LOC"}
    saved(folder / "my-bert", "BertForPreTraining")
    # For bertie-mini: in float16 as that is, and with other answers than my-bert.
    tiny("BertForPreTraining", seed=1).save_pretrained(folder / STAND_IN, dtype="float16")
    tokenizer().save_pretrained(folder / STAND_IN)
    saved(folder / "my-sentiment", "BertForSequenceClassification", id2label={0: "negative", 1: "positive"})
    inference = {0: "contradiction", 1: "neutral", 2: "entailment"}
    saved(folder / "my-nli", "BertForSequenceClassification", id2label=inference)
    saved(folder / "my-cross-encoder", "BertForSequenceClassification", id2label={0: "score"})
    saved(folder / "my-ner", "BertForTokenClassification", id2label=names)
    saved(folder / "my-squad", "BertForQuestionAnswering")
    saved(folder / "my-decoder", "BertLMHeadModel", is_decoder=True)
    for name in ("texts.txt", "documents.txt", "queries.txt", "report.txt"):
        (folder / name).write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
    for name, column in (("texts.csv", "review"), ("reviews.csv", "review"), ("corpus.csv", "body")):
        rows = "".join(f'k{n},"{text}"\n' for n, text in enumerate(SENTENCES))
        (folder / name).write_text(f"key,{column}\n{rows}", encoding="utf-8")
    for name in ("corpus.jsonl", "more.jsonl"):
        rows = "".join(json.dumps({"id": f"{name[0]}{n}", "text": text}) + "\n" for n, text in enumerate(SENTENCES))
        (folder / name).write_text(rows, encoding="utf-8")
    pairs = "".join(f'"{a}","{b}"\n' for a, b in pairwise(SENTENCES))
    (folder / "pairs.csv").write_text(f"sentence1,sentence2\n{pairs}", encoding="utf-8")
    (folder / "dev.json").write_text(json.dumps(SQUAD), encoding="utf-8")
