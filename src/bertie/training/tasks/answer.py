"""Where an answer starts and ends: `BertForQuestionAnswering`, judged by the spans `bertie.answer` would find.

Questions about contexts are cut into the windows of tasks/answer.py. As in google-research/bert `run_squad.py`,
training takes a question's first answer, and a window that does not hold all of it (or a question without answer)
points at [CLS], position 0.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from bertie.data import BadRows, Question, question_rows, read_squad
from bertie.data.squad_scoring import best_threshold, score_squad
from bertie.errors import DataError, TokenizerError
from bertie.model import BertForQuestionAnswering
from bertie.running.stream import run_groups
from bertie.tasks.answer import Floats, SpanRules, find_spans
from bertie.text import BertTokenizer, Window, WindowedDocument, split_document
from bertie.text.windows import DEFAULT_STRIDE
from bertie.training.contract import (
    Batch,
    Examples,
    Numbers,
    RowExamples,
    TextObjective,
    evaluating,
    own_examples,
    run_model,
)
from bertie.training.sources import Columns, Source, sources_of
from bertie.training.task import LoadedTask, Request, Task, notes_of
from bertie.training.token_rows import TokenRow, TokenRows, fingerprint, pack

_DEFAULT_LENGTH = 384  # Google's for SQuAD


def load(request: Request) -> LoadedTask:
    options = request.options
    model = request.load(BertForQuestionAnswering, num_labels=2)
    length = request.max_length(model, default=_DEFAULT_LENGTH)
    train, dev = request.both(
        lambda given: answer_examples(
            given,
            request.tokenizer,
            max_length=length,
            stride=options.stride,
            skip_bad=options.skip_bad,
            repair=options.repair,
            columns=options.columns,
        )
    )
    objective = Answering(
        model, request.tokenizer, max_answer_tokens=options.max_answer_tokens, best_metric=options.best_metric
    )
    return LoadedTask(objective, train, dev, notes_of(train, dev), max_length=length)


_FIGURES = ("f1", "exact", "best_f1", "has_answer_f1", "no_answer_exact")
TASKS = (Task("answer", _FIGURES, load, reported=("max_answer_tokens",)),)


# -- examples ----------------------------------------------------------------------------------------------------------


class AnswerExample(NamedTuple):
    """A window; `start` and `end` are positions in its row, both included."""

    row: TokenRow
    start: int
    end: int


@dataclass(frozen=True)
class AnswerExamples(RowExamples[AnswerExample]):
    """Windows to train on, and the questions themselves to evaluate with."""

    spans: npt.NDArray[np.int32]  # [windows, 2]
    owners: Numbers  # [windows]: the question of each
    questions: tuple[Question, ...]
    max_length: int
    stride: int
    bad: BadRows

    def get(self, index: int, epoch: int) -> AnswerExample:
        start, end = self.spans[index]
        return AnswerExample(self.rows[index], int(start), int(end))

    def fingerprint(self) -> str:
        return fingerprint(*self.rows.arrays(), self.spans, [self.max_length, self.stride])

    def groups(self) -> list[str]:
        """Questions about the same context belong together."""
        return [question.context for question in self.questions]

    def take(self, things: Numbers) -> AnswerExamples:
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
    sources = sources_of(given, columns)
    source = sources[0].name
    for question in _questions(sources, repair, bad):
        try:
            if not question.answers and not question.is_impossible:
                raise DataError(
                    f"{source}, question {question.id}: has no answer, and is not marked impossible.",
                    "Mark it: is_impossible, or leave such questions out: {skip_bad}.",
                    skip_bad=True,
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


def _questions(sources: Sequence[Source], repair: bool, bad: BadRows) -> Iterator[Question]:
    for source in sources:
        if source.path is None:
            yield from question_rows(source.given, repair=repair).reading(bad)
            continue
        how = source.columns
        yield from read_squad(
            source.path,
            repair=repair,
            format=how.format,
            encoding=how.encoding,
            skip_bad=bad.skip,
            delimiter=how.delimiter,
        ).reading(bad)


# -- objective ---------------------------------------------------------------------------------------------------------


class Answering(TextObjective[AnswerExample]):
    """The mean of two cross-entropies, over the places where an answer may start and end. Units are windows."""

    name = "answer"

    def __init__(
        self,
        model: BertForQuestionAnswering,
        tokenizer: BertTokenizer,
        *,
        max_answer_tokens: int = 30,
        best_metric: str | None = None,
    ) -> None:
        super().__init__(model, tokenizer, best_metric=best_metric or "f1")
        self.max_answer_tokens = max_answer_tokens

    def collate(self, examples: Sequence[AnswerExample]) -> Batch:
        tensors = pack([example.row for example in examples])
        ends = tensors["cu_seqlens"].long()
        lengths = ends.diff()
        tensors["text_ids"] = torch.repeat_interleave(torch.arange(len(examples)), lengths)  # [T]
        # Positions among all packed tokens, so that a gold logit is one index away.
        tensors["starts"] = ends[:-1] + torch.tensor([example.start for example in examples])
        tensors["ends"] = ends[:-1] + torch.tensor([example.end for example in examples])
        return Batch(tensors, float(len(examples)), len(tensors["input_ids"]), len(examples))

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        output, tensors = run_model(model, batch), batch.tensors
        losses = [
            segment_cross_entropy(output[logits].float(), tensors["text_ids"], tensors[name])
            for logits, name in (("start_logits", "starts"), ("end_logits", "ends"))
        ]
        return (losses[0] + losses[1]) / 2, {}

    def metric_names(self, dev: Examples[AnswerExample]) -> tuple[str, ...]:
        """What `evaluate` gives, but for the threshold, by which nothing is judged."""
        unanswerable = any(not question.answers for question in own_examples(dev, AnswerExamples, self).questions)
        return ("f1", "exact", *(("best_f1", "has_answer_f1", "no_answer_exact") if unanswerable else ()))

    def evaluate(
        self, model: nn.Module, examples: Examples[AnswerExample], *, token_budget: int, device: torch.device | str
    ) -> dict[str, float]:
        """SQuAD's figures in percent: with "no answer" as a possible verdict where the data has such questions."""
        data = own_examples(examples, AnswerExamples, self)
        questions = data.questions
        unanswerable = any(not question.answers for question in questions)
        rules = SpanRules(n_best=1, max_tokens=self.max_answer_tokens)
        predictions: dict[str, str] = {}
        differences: dict[str, float] = {}

        def documents() -> Iterator[tuple[tuple[str, WindowedDocument], Sequence[Window]]]:
            for question in questions:
                document = split_document(
                    self.tokenizer,
                    question.context,
                    question=question.question,
                    max_length=data.max_length,
                    stride=data.stride,
                )
                yield (question.id, document), document.windows

        def run(windows: list[Window]) -> list[tuple[Floats, Floats]]:
            rows = [TokenRow(np.asarray(w.input_ids), w.token_type_ids.count(0)) for w in windows]
            batch = Batch(pack(rows), 0.0, sum(map(len, windows)), len(windows)).to(device)
            output = run_model(model, batch)
            both = torch.stack((output["start_logits"], output["end_logits"]), dim=-1).float().cpu()  # [tokens, 2]
            parts = torch.split(both, [len(window) for window in windows])
            return [(part[:, 0].numpy(), part[:, 1].numpy()) for part in parts]

        with evaluating(model):
            for (identity, document), logits in run_groups(documents(), run, budget=token_budget):
                decoded = find_spans(document, logits, rules, null=unanswerable)
                best_span = decoded.spans[0] if decoded.spans else None
                predictions[identity] = document.quote(best_span.first, best_span.last) if best_span else ""
                differences[identity] = decoded.null_logit - best_span.logit if best_span else math.inf
        score = score_squad(questions, predictions, null_differences=differences if unanswerable else None)
        figures = {"exact": score.exact, "f1": score.f1}
        if unanswerable:
            best = best_threshold(questions, predictions, differences)
            figures |= {"best_f1": best.score, "best_f1_threshold": best.threshold}
            figures |= {"no_answer_exact": score.no_answer_exact or 0.0, "has_answer_f1": score.has_answer_f1 or 0.0}
        return {name: float(np.nan_to_num(value, posinf=1e30, neginf=-1e30)) for name, value in figures.items()}


def segment_cross_entropy(logits: Tensor, segments: Tensor, targets: Tensor) -> Tensor:
    """The sum of cross-entropies of packed `[T]` logits, each text over its own tokens; `targets` are places in `[T]`.

    >>> logits = torch.tensor([0.0, 0.0, 5.0])
    >>> float(segment_cross_entropy(logits, torch.tensor([0, 0, 1]), torch.tensor([0, 2])).exp())
    2.0
    """
    num_texts = len(targets)
    highest = logits.new_full((num_texts,), -torch.inf).scatter_reduce(0, segments, logits.detach(), "amax")
    masses = logits.new_zeros(num_texts).index_add(0, segments, (logits - highest[segments]).exp())
    return (masses.log() + highest - logits[targets]).sum()
