"""The right one of several choices: `BertForMultipleChoice`.

A choice is a pair (question, choice), an example is all choices of a question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from bertie.data import BadRows, ChoiceQuestion, choice_rows
from bertie.data.reading import bad_row
from bertie.errors import DataError
from bertie.model import BertForMultipleChoice
from bertie.text import BertTokenizer
from bertie.training import metrics
from bertie.training.contract import Batch, Examples, LabelObjective, Numbers, run_model
from bertie.training.sources import Columns, sources_of
from bertie.training.task import LoadedTask, Request, Task, notes_of
from bertie.training.token_rows import TokenRow, TokenRows, fingerprint, pack


def load(request: Request) -> LoadedTask:
    options = request.options
    model = request.load(BertForMultipleChoice)
    length = request.max_length(model)
    train, dev = request.both(
        lambda given: choice_examples(
            given, request.tokenizer, max_length=length, skip_bad=options.skip_bad, columns=options.columns
        )
    )
    objective = MultipleChoice(
        model, request.tokenizer, label_smoothing=options.label_smoothing, best_metric=options.best_metric
    )
    return LoadedTask(objective, train, dev, notes_of(train, dev), max_length=length)


TASKS = (Task("choice", ("accuracy", "loss"), load, reported=("label_smoothing",)),)


# -- examples ----------------------------------------------------------------------------------------------------------


class ChoiceExample(NamedTuple):
    rows: list[TokenRow]
    answer: int


@dataclass(frozen=True)
class ChoiceExamples(Examples[ChoiceExample]):
    """Question i has the rows `i * num_choices` to `(i + 1) * num_choices`."""

    rows: TokenRows
    answers: Numbers
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
    """From every layout that `read_choices` knows; all questions have the same number of choices, and an answer."""
    bad = BadRows(skip=skip_bad)
    questions: list[ChoiceQuestion] = []
    sources = sources_of(given, columns)
    for source in sources:
        for question in choice_rows(source.open(skip_bad=skip_bad)).reading(bad):
            try:
                _check(question, questions, source.name)
            except DataError as error:
                bad.report(error)
                continue
            questions.append(question)
    if not questions:
        raise DataError(f"{sources[0].name} has no questions to use.", "Check the file: question, choices and answer.")
    pairs = [(question.question, choice) for question in questions for choice in question.choices]
    encoded = TokenRows.encode(tokenizer, [a for a, _ in pairs], [b for _, b in pairs], max_length=max_length)
    answers = np.asarray([question.answer for question in questions], dtype=np.int64)
    return ChoiceExamples(encoded, answers, len(questions[0].choices), bad)


def _check(question: ChoiceQuestion, before: list[ChoiceQuestion], source: str) -> None:
    if question.answer is None:
        raise bad_row(f"{source}, question {question.id}: has no answer.")
    if before and len(before[0].choices) != len(question.choices):
        counts = f"{len(question.choices)} choices; the questions before have {len(before[0].choices)}"
        raise bad_row(f"{source}, question {question.id}: {counts}.")


# -- objective ---------------------------------------------------------------------------------------------------------


class MultipleChoice(LabelObjective[ChoiceExample]):
    """Cross-entropy over a question's choices; units are questions."""

    name = "choice"

    def collate(self, examples: Sequence[ChoiceExample]) -> Batch:
        tensors = pack([row for example in examples for row in example.rows])
        tensors["labels"] = torch.tensor([example.answer for example in examples])
        return Batch(tensors, float(len(examples)), len(tensors["input_ids"]), len(examples))

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        num_rows, num_questions = len(batch.tensors["cu_seqlens"]) - 1, len(batch.tensors["labels"])
        logits: Tensor = run_model(model, batch, num_choices=num_rows // num_questions)["logits"]
        return logits.float()

    def metric_names(self, dev: Examples[ChoiceExample]) -> tuple[str, ...]:
        return "accuracy", "loss"

    def evaluate(
        self, model: nn.Module, examples: Examples[ChoiceExample], *, token_budget: int, device: torch.device | str
    ) -> dict[str, float]:
        predicted, gold, total = [], [], 0.0
        for _, batch, logits, loss in self.scored(model, examples, token_budget, device):
            total += loss
            predicted.append(logits.argmax(dim=-1).cpu().numpy())
            gold.append(batch.tensors["labels"].cpu().numpy())
        accuracy = metrics.accuracy(np.concatenate(predicted), np.concatenate(gold))
        return {"loss": total / max(1, len(examples)), "accuracy": accuracy}
