"""Texts that belong together, for training embeddings: pairs, pairs with hard negatives, or pairs with a score.

    query, positive                     each pair's other positives are the negatives (in-batch negatives)
    anchor, positive, negative, …       and these besides: columns called negative, negative_1, negative_2 …
    sentence1, sentence2, score         how similar two texts are (STS-B)
    questions + answers (json)          ReQA's layout, see data/retrieval.py

Every distinct text is kept and tokenized once; an example is a row of text numbers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bertie.data import BadRows, RowReader, choose_label, choose_pair
from bertie.data.columns import label_of, text_of
from bertie.data.glue import read_glue
from bertie.data.retrieval import read_answer_retrieval
from bertie.errors import DataError
from bertie.text import BertTokenizer
from bertie.training.sources import Columns, glue_of, open_rows, several, source_label
from bertie.training.token_rows import TokenRow, TokenRows, fingerprint

_NEGATIVE = re.compile(r"(hard_)?neg(ative)?s?[ _-]?\d*", re.IGNORECASE)


class EmbedExample(NamedTuple):
    """Rows: the anchor, its positive, its hard negatives; and the numbers of these texts."""

    rows: list[TokenRow]
    texts: npt.NDArray[np.int64]
    score: float


@dataclass(frozen=True)
class EmbedExamples:
    """`table[i]` are the text numbers of example i, the anchor first; `scores` is None for pairs without."""

    texts: TokenRows
    table: npt.NDArray[np.int64]  # [examples, 2 + negatives]
    scores: npt.NDArray[np.float32] | None
    bad: BadRows

    def __len__(self) -> int:
        return len(self.table)

    def length(self, index: int) -> int:
        return sum(self.texts.length(int(text)) for text in self.table[index])

    def get(self, index: int, epoch: int) -> EmbedExample:
        numbers = self.table[index]
        score = 0.0 if self.scores is None else float(self.scores[index])
        return EmbedExample([self.texts[int(text)] for text in numbers], numbers, score)

    def fingerprint(self) -> str:
        return fingerprint(*self.texts.arrays(), self.table, [] if self.scores is None else self.scores)

    def groups(self) -> list[int]:
        """Pairs of the same anchor belong together."""
        anchors: list[int] = self.table[:, 0].tolist()
        return anchors

    def take(self, things: npt.NDArray[np.int64]) -> EmbedExamples:
        """These pairs alone, with the texts they need."""
        used, table = np.unique(self.table[things], return_inverse=True)
        scores = None if self.scores is None else self.scores[things]
        return EmbedExamples(self.texts.take(used), table.reshape(len(things), -1), scores, self.bad)

    def scaled(self, largest: float) -> EmbedExamples:
        """With scores divided by `largest`: 0 to 5 becomes 0 to 1, which a cosine can be."""
        scores = None if self.scores is None else self.scores / np.float32(largest)
        return EmbedExamples(self.texts, self.table, scores, self.bad)


def embed_examples(
    given: object,
    tokenizer: BertTokenizer,
    *,
    max_length: int,
    columns: Columns | None = None,
    skip_bad: bool = False,
    scored: bool | None = None,
    prompt: str = "",
) -> EmbedExamples:
    """Read and tokenize. `scored=None` takes scores where there is a column of them; `prompt` goes before each text."""
    bad = BadRows(skip=skip_bad)
    numbers: dict[str, int] = {}
    table: list[tuple[int, ...]] = []
    scores: list[float] = []
    source = source_label(next(iter(several(given))))
    for texts, score, where in _items(given, columns or Columns(), scored, bad):
        has_score = score is not None
        wrong = None
        if table and len(texts) != len(table[0]):
            wrong = f"{where}: {len(texts) - 2} negatives; the rows before have {len(table[0]) - 2}."
        elif table and has_score != bool(scores):
            wrong = f"{where}: {'a score, and rows before have none' if has_score else 'no score'}."
        if wrong is not None:
            bad.report(DataError(wrong, "Give every row the same columns."))
            continue
        table.append(tuple(numbers.setdefault(text, len(numbers)) for text in texts))
        if score is not None:
            scores.append(score)
    if not table:
        raise DataError(f"{source} has no pairs to use.", "Check the file and its columns.")
    rows = TokenRows.encode(tokenizer, [prompt + text for text in numbers], max_length=max_length)
    made = np.asarray(scores, dtype=np.float32) if scores else None
    return EmbedExamples(rows, np.asarray(table, dtype=np.int64), made, bad)


_Item = tuple[Sequence[str], float | None, str]


def _items(given: object, columns: Columns, scored: bool | None, bad: BadRows) -> Iterator[_Item]:
    for source in several(given):
        task = glue_of(source, columns)
        if task is not None and task.text_b is not None:
            for example in read_glue(task.name, os.fspath(source), encoding=columns.encoding).reading(bad):  # type: ignore[call-overload]
                where = f"{source_label(source)}, example {example.guid}"
                try:
                    score = None if scored is False else float(example.label)  # type: ignore[arg-type]
                except (TypeError, ValueError):
                    bad.report(DataError(f"{where}: the label {example.label!r} is no score.", "Use STS-B, or MRPC."))
                    continue
                yield (example.text_a, example.text_b or ""), score, where
        elif (
            isinstance(source, str | os.PathLike)
            and (answers := _answer_retrieval(source, columns.encoding)) is not None
        ):
            yield from answers
        else:
            yield from _rows(open_rows(source, skip_bad=bad.skip, columns=columns), columns, scored, bad)


def _answer_retrieval(path: str | os.PathLike[str], encoding: str) -> list[_Item] | None:
    """ReQA's pairs, if that is what the file holds: an object with a list called questions."""
    if Path(path).suffix.lower() != ".json" or not Path(path).is_file():
        return None
    with open(path, "rb") as file:
        head = file.read(2048)
    if not re.match(rb'\s*\{\s*"(questions|candidates|answers|ground_truths)"', head):
        return None
    found = read_answer_retrieval(path, encoding=encoding)
    return [
        ((question, found.candidates[answer]), None, f"{os.fspath(path)}, questions[{number}]")
        for number, (question, answers) in enumerate(zip(found.questions, found.relevant, strict=True))
        for answer in answers
    ]


def _rows(reader: RowReader, columns: Columns, scored: bool | None, bad: BadRows) -> Iterator[_Item]:
    chosen: tuple[list[str], str | None] | None = None
    for row in reader.reading(bad):
        if chosen is None:
            chosen = _choose(list(row.values), columns, scored, reader.name)
        names, label = chosen
        try:
            texts = [text_of(row, name) for name in names]
            score = None if label is None else float(label_of(row, label, scored=True))
        except DataError as error:
            bad.report(error)
            continue
        yield texts, score, row.where


def _choose(names: list[str], columns: Columns, scored: bool | None, source: str) -> tuple[list[str], str | None]:
    negatives = sorted(
        (name for name in names if _NEGATIVE.fullmatch(name.strip())),
        key=lambda name: (int("0" + re.sub(r"\D", "", name)), name),
    )
    first, second = choose_pair([n for n in names if n not in negatives], given=columns.pair, source=source)
    label = None
    if scored is not False and not negatives:
        try:
            label = choose_label([n for n in names if n not in (first, second)], given=columns.label, source=source)
        except DataError:
            if scored or columns.label:
                raise
    return [first, second, *([] if label else negatives)], label
