"""Labelled texts and pairs, tokenized: what classify, pairs and regress train on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bertie.config import BertConfig
from bertie.data import BadRows
from bertie.errors import DataError
from bertie.text import BertTokenizer
from bertie.training.labels import LabelNumbers, label_numbers
from bertie.training.sources import Columns, Kind, Labelled, glue_of, read_labelled, several, source_label
from bertie.training.token_rows import TokenRow, TokenRows, fingerprint


class TextExample(NamedTuple):
    row: TokenRow
    label: Any  # a number of a class, a score, or [labels] of 0 and 1


@dataclass(frozen=True)
class TextExamples:
    """`labels` is `[rows]` of classes (int64) or scores (float32), or `[rows, labels]` where several may apply."""

    rows: TokenRows
    labels: npt.NDArray[Any]
    bad: BadRows

    def __len__(self) -> int:
        return len(self.rows)

    def length(self, index: int) -> int:
        return self.rows.length(index)

    def get(self, index: int, epoch: int) -> TextExample:
        return TextExample(self.rows[index], self.labels[index])

    def fingerprint(self) -> str:
        return fingerprint(*self.rows.arrays(), self.labels)


@dataclass(frozen=True)
class LabelledTexts:
    """Texts as they were read, before anything is tokenized: labels are learned from these."""

    items: list[Labelled]
    bad: BadRows
    source: str
    kind: Kind
    known: tuple[str, ...] | None = None  # labels the format itself knows

    def label_numbers(self, config: BertConfig | None = None) -> LabelNumbers:
        """The labels of these texts, numbered."""
        names: set[str] = set(self.known or ())
        for item in self.items:
            names.update(item.label if isinstance(item.label, tuple) else [str(item.label)])
        return label_numbers(names, config=config, source=self.source)

    def encode(self, tokenizer: BertTokenizer, *, max_length: int, labels: LabelNumbers | None = None) -> TextExamples:
        """Tokenized, with the numbers of their labels; a label that is not among `labels` is a bad row."""
        kept: list[Labelled] = []
        found: list[Any] = []
        for item in self.items:
            try:
                value = item.label if labels is None else _number(item, labels)
            except DataError as error:
                self.bad.report(error)
                continue
            kept.append(item)
            found.append(value)
        if not kept:
            raise DataError(f"{self.source} has no rows to use.", "Check the file, its columns and its labels.")
        seconds = None if kept[0].text_b is None else [item.text_b or "" for item in kept]
        rows = TokenRows.encode(tokenizer, [item.text_a for item in kept], seconds, max_length=max_length)
        if self.kind == "several":
            table = np.zeros((len(found), len(labels or ())), dtype=np.float32)
            for row, numbers in enumerate(found):
                table[row, list(numbers)] = 1
            return TextExamples(rows, table, self.bad)
        dtype = np.float32 if self.kind == "score" else np.int64
        return TextExamples(rows, np.asarray(found, dtype=dtype), self.bad)


def read_texts(
    given: object, *, kind: Kind, paired: bool | None = False, columns: Columns | None = None, skip_bad: bool = False
) -> LabelledTexts:
    """All labelled texts of one source or of several files."""
    columns = columns or Columns()
    bad = BadRows(skip=skip_bad)
    items: list[Labelled] = []
    known: Sequence[str] | None = None
    for source in several(given):
        items.extend(read_labelled(source, kind=kind, paired=paired, columns=columns, bad=bad))
        task = glue_of(source, columns)
        known = task.labels if task is not None else known
    first = next(iter(several(given)))
    return LabelledTexts(items, bad, source_label(first), kind, tuple(known) if known else None)


def _number(item: Labelled, labels: LabelNumbers) -> Any:
    if isinstance(item.label, tuple):
        return [labels.number(label, item.where) for label in item.label]
    return labels.number(str(item.label), item.where)
