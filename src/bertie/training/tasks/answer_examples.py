"""Questions about contexts as windows: where in each window the answer is, or [CLS] where it is not in it.

The windows are those of tasks/answer.py. As in google-research/bert `run_squad.py`, training takes a question's first
answer, and a window that does not hold all of it (or a question without answer) points at [CLS], position 0.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bertie.data import BadRows, Question, question_rows, read_squad
from bertie.errors import DataError, TokenizerError
from bertie.text import BertTokenizer, Window, WindowedDocument, split_document
from bertie.text.windows import DEFAULT_STRIDE
from bertie.training.sources import Columns, several, source_label
from bertie.training.token_rows import TokenRow, TokenRows, fingerprint


class AnswerExample(NamedTuple):
    """A window; `start` and `end` are positions in its row, both included."""

    row: TokenRow
    start: int
    end: int


@dataclass(frozen=True)
class AnswerExamples:
    """Windows to train on, and the questions themselves to evaluate with."""

    rows: TokenRows
    spans: npt.NDArray[np.int32]  # [windows, 2]
    owners: npt.NDArray[np.int64]  # [windows]: the question of each
    questions: tuple[Question, ...]
    max_length: int
    stride: int
    bad: BadRows

    def __len__(self) -> int:
        return len(self.rows)

    def length(self, index: int) -> int:
        return self.rows.length(index)

    def get(self, index: int, epoch: int) -> AnswerExample:
        start, end = self.spans[index]
        return AnswerExample(self.rows[index], int(start), int(end))

    def fingerprint(self) -> str:
        return fingerprint(*self.rows.arrays(), self.spans, [self.max_length, self.stride])

    def groups(self) -> list[str]:
        """Questions about the same context belong together."""
        return [question.context for question in self.questions]

    def take(self, things: npt.NDArray[np.int64]) -> AnswerExamples:
        """These questions alone, with their windows."""
        windows = np.flatnonzero(np.isin(self.owners, things))
        return replace(
            self,
            rows=self.rows.take(windows),
            spans=self.spans[windows],
            owners=np.searchsorted(things, self.owners[windows]),
            questions=tuple(self.questions[question] for question in things),
        )


def answer_examples(
    given: object,
    tokenizer: BertTokenizer,
    *,
    max_length: int = 384,
    stride: int = DEFAULT_STRIDE,
    skip_bad: bool = False,
    repair: bool = False,
    columns: Columns | None = None,
) -> AnswerExamples:
    """From SQuAD json or flat rows. `repair` moves answers whose place is wrong to where their text is nearest."""
    bad = BadRows(skip=skip_bad)
    questions: list[Question] = []
    rows: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    spans: list[tuple[int, int]] = []
    owners: list[int] = []
    source = source_label(next(iter(several(given))))
    for question in _questions(given, repair, columns or Columns(), bad):
        try:
            if not question.answers and not question.is_impossible:
                raise DataError(
                    f"{source}, question {question.id}: has no answer, and is not marked impossible.",
                    "Mark it: is_impossible, or leave such questions out: skip_bad=True (--skip-bad).",
                )
            document = split_document(
                tokenizer, question.context, question=question.question, max_length=max_length, stride=stride
            )
        except DataError as error:
            bad.report(error)
            continue
        except TokenizerError as error:
            bad.report(DataError(f"{source}, question {question.id}: {error.cause}", error.remedy))
            continue
        tokens = answer_tokens(document, question)
        questions.append(question)
        for window in document.windows:
            rows.append((window.input_ids, window.token_type_ids))
            spans.append(position_in(window, tokens))
            owners.append(len(questions) - 1)
    if not questions:
        raise DataError(f"{source} has no questions to use.", "Check the file: question, context and answers.")
    table = np.asarray(spans, dtype=np.int32)
    whose = np.asarray(owners, dtype=np.int64)
    return AnswerExamples(TokenRows.of(rows), table, whose, tuple(questions), max_length, stride, bad)


def answer_tokens(document: WindowedDocument, question: Question) -> tuple[int, int] | None:
    """The document's tokens (first, last) that hold the first answer; None where there is none."""
    if not question.answers:
        return None
    answer = question.answers[0]
    start, end = answer.start, answer.start + len(answer.text)
    first = bisect_right([token_end for _, token_end in document.offsets], start)
    last = bisect_left([token_start for token_start, _ in document.offsets], end) - 1
    # An answer of nothing but dropped characters has no tokens.
    return (first, last) if first <= last else None


def position_in(window: Window, tokens: tuple[int, int] | None) -> tuple[int, int]:
    """Where a window's row holds these tokens; (0, 0), which is [CLS], unless it holds all of them."""
    if tokens is None or tokens[0] < window.start or tokens[1] >= window.end:
        return 0, 0
    return tokens[0] + window.shift, tokens[1] + window.shift


def _questions(given: object, repair: bool, columns: Columns, bad: BadRows) -> Iterator[Question]:
    for source in several(given):
        if isinstance(source, str | os.PathLike):
            reader = read_squad(
                source,
                repair=repair,
                format=columns.format,
                encoding=columns.encoding,
                skip_bad=bad.skip,
                delimiter=columns.delimiter,
            )
            yield from reader.reading(bad)
        else:
            yield from question_rows(source, repair=repair).reading(bad)
