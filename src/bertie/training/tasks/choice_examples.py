"""Questions with choices, tokenized: a choice is a pair (question, choice), an example is all choices of a question."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bertie.data import BadRows, ChoiceQuestion, choice_rows
from bertie.data.reading import SKIP_REMEDY
from bertie.errors import DataError
from bertie.text import BertTokenizer
from bertie.training.sources import Columns, open_rows, several, source_label
from bertie.training.token_rows import TokenRow, TokenRows, fingerprint


class ChoiceExample(NamedTuple):
    rows: list[TokenRow]
    answer: int


@dataclass(frozen=True)
class ChoiceExamples:
    """Question i has the rows `i * num_choices` to `(i + 1) * num_choices`."""

    rows: TokenRows
    answers: npt.NDArray[np.int64]
    num_choices: int
    bad: BadRows

    def __len__(self) -> int:
        return len(self.answers)

    def length(self, index: int) -> int:
        first = index * self.num_choices
        return int(self.rows.ends[first + self.num_choices] - self.rows.ends[first])

    def get(self, index: int, epoch: int) -> ChoiceExample:
        first = index * self.num_choices
        return ChoiceExample(
            [self.rows[row] for row in range(first, first + self.num_choices)], int(self.answers[index])
        )

    def fingerprint(self) -> str:
        return fingerprint(*self.rows.arrays(), self.answers, self.num_choices)


def choice_examples(
    given: object,
    tokenizer: BertTokenizer,
    *,
    max_length: int,
    skip_bad: bool = False,
    columns: Columns | None = None,
) -> ChoiceExamples:
    """From every layout that `read_choices` knows; all questions have equally many choices, and an answer."""
    bad = BadRows(skip=skip_bad)
    questions: list[ChoiceQuestion] = []
    source = source_label(next(iter(several(given))))
    for each in several(given):
        rows = open_rows(each, skip_bad=skip_bad, columns=columns)
        for question in choice_rows(rows).reading(bad):
            try:
                _check(question, questions, source_label(each))
            except DataError as error:
                bad.report(error)
                continue
            questions.append(question)
    if not questions:
        raise DataError(f"{source} has no questions to use.", "Check the file: question, choices and answer.")
    pairs = [(question.question, choice) for question in questions for choice in question.choices]
    encoded = TokenRows.encode(tokenizer, [a for a, _ in pairs], [b for _, b in pairs], max_length=max_length)
    answers = np.asarray([question.answer for question in questions], dtype=np.int64)
    return ChoiceExamples(encoded, answers, len(questions[0].choices), bad)


def _check(question: ChoiceQuestion, before: list[ChoiceQuestion], source: str) -> None:
    if question.answer is None:
        raise DataError(f"{source}, question {question.id}: has no answer.", SKIP_REMEDY)
    if before and len(before[0].choices) != len(question.choices):
        raise DataError(
            f"{source}, question {question.id}: {len(question.choices)} choices; the questions before have "
            f"{len(before[0].choices)}.",
            SKIP_REMEDY,
        )
