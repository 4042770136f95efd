"""Questions answered by quoting a context, from a `BertForQuestionAnswering`: n-best, scores and "no answer".

    answer("Who wrote it?", "It was written by Ada.", model="my-squad")                   AnswerResult, .best.text
    answer([("Q1", "context 1"), ("Q2", "context 2")], model="my-squad", n_best=3)        a list of them

A long context is read in overlapping windows, and its answers compete on one scale (`spans.py`). What is found is
quoted character by character: `context[found.start:found.end] == found.text`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from typing import Any, ClassVar

import torch

from bertie.answers import AnswerResult, FoundAnswer
from bertie.data import RowReader, as_rows, pairs
from bertie.data.lists import is_table, listed
from bertie.errors import InputError
from bertie.model import BertForQuestionAnswering
from bertie.running.batching import Row
from bertie.running.documents import DocumentReader, checked_length, checked_stride
from bertie.running.inputs import Task, checked_count, checked_text, described
from bertie.running.open import ModelLike, open_model
from bertie.running.spans import Floats, SpanRules, find_spans
from bertie.text import BertTokenizer, WindowedDocument
from bertie.text.windows import DEFAULT_STRIDE

# Google's length for SQuAD.
_MAX_LENGTH = 384
_MISSING = object()


class Answerer(Task[tuple[str, str], AnswerResult]):
    """`answer` with its model and settings fixed: call it as `answer` is called."""

    name: ClassVar[str] = "answer"

    def __init__(
        self,
        model: ModelLike,
        *,
        n_best: int = 1,
        max_answer_tokens: int = 30,
        no_answer: bool | None = None,
        threshold: float = 0.0,
        beam: int | None = None,
        max_length: int | None = None,
        stride: int = DEFAULT_STRIDE,
        tokenizer: BertTokenizer | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | str | None = None,
    ) -> None:
        checked_count("n_best", n_best)
        checked_count("max_answer_tokens", max_answer_tokens)
        checked_count("beam", beam, none_means="a search of every span")
        if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or math.isnan(threshold):
            raise InputError(f"threshold is {threshold!r}; it takes a number (math.inf: always answer).")
        self.stride = checked_stride(stride)
        self.rules = SpanRules(n_best, max_answer_tokens, beam)
        self.threshold = threshold
        self.no_answer = threshold < math.inf if no_answer is None else bool(no_answer)
        self.loaded = open_model(
            model, BertForQuestionAnswering, task=self.name, tokenizer=tokenizer, device=device, dtype=dtype
        )
        self.max_length = checked_length(self.loaded, max_length, default=_MAX_LENGTH)
        self.reader = DocumentReader(self.loaded, self.max_length, self.stride)

    def __call__(self, question: Any, context: Any = None, *, progress: bool | None = None) -> Any:
        return super().__call__(_paired(question, context), progress=progress)

    def read(self, rows: RowReader) -> Iterable[Any]:
        return pairs(rows)

    def read_table(self, table: Any) -> Iterable[Any]:
        return pairs(as_rows(table))

    def is_one(self, given: Any) -> bool:
        return isinstance(given, tuple)

    def checked(self, item: Any, where: str) -> tuple[str, str]:
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise InputError(
                f"{where} is {described(item)}; a pair (question, context) was wanted.",
                "Pass pairs, or the questions and the contexts as two lists.",
            )
        question, context = item
        return checked_text(question, f"{where}, the question,"), checked_text(context, f"{where}, the context,")

    def stream(self, items: Iterable[tuple[str, str]]) -> Iterator[AnswerResult]:
        for _, document, logits in self.reader.judged(items, _context_first, self.start):
            yield self.decode(document, logits)

    def rows(self, item: tuple[str, str]) -> tuple[WindowedDocument, list[Row]]:
        """The context's tokens, and its rows for the model, each with the question."""
        question, context = item
        return self.reader.rows(context, question)

    def run(self, rows: list[Row]) -> list[tuple[Floats, Floats]]:
        """Start and end logits `[length]` of each row; rows of many questions may be mixed."""
        return self.start(rows)()

    def start(self, rows: list[Row]) -> Callable[[], list[tuple[Floats, Floats]]]:
        """As `run`, to be read later."""
        output = self.loaded.run(rows)
        both = self.loaded.read_later(torch.stack((output.start_logits, output.end_logits), dim=-1).float())

        def read() -> list[tuple[Floats, Floats]]:
            return [(part[:, 0].numpy(), part[:, 1].numpy()) for part in self.loaded.split(both(), rows)]

        return read

    def decode(self, document: WindowedDocument, logits: list[tuple[Floats, Floats]]) -> AnswerResult:
        """The verdict, from what `run` gave for the question's rows."""
        decoded = find_spans(document, logits, self.rules, null=self.no_answer)
        candidates = []
        for span in decoded.spans:
            start, end = document.span(span.first, span.last)
            candidates.append(FoundAnswer(document.text[start:end], start, end, span.score, span.logit))
        best = candidates[0] if candidates else None
        if self.no_answer and best is not None and decoded.null_logit - best.logit > self.threshold:
            best = None
        return AnswerResult(document.question or "", best, tuple(candidates), decoded.null_score, decoded.null_logit)


def answer(
    question: Any,
    context: Any = None,
    *,
    model: ModelLike,
    n_best: int = 1,
    max_answer_tokens: int = 30,
    no_answer: bool | None = None,
    threshold: float = 0.0,
    beam: int | None = None,
    max_length: int | None = None,
    stride: int = DEFAULT_STRIDE,
    tokenizer: BertTokenizer | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = None,
    progress: bool | None = None,
) -> Any:
    """An `AnswerResult` for a question and a context; a list of them for two lists, an iterator for two iterators.

    Without `context`, `question` holds pairs: one tuple (question, context), a list or an iterator of them.

    - `n_best`: how many different quotations to give, best first, of at most `max_answer_tokens` tokens each.
    - `threshold`: the verdict is "no answer" (`best` is None) when the logit of that is more than `threshold` above the
      best quotation's. Larger answers more often, `math.inf` always; `best_threshold` in `squad_scoring.py` finds a
      good one.
    - `no_answer`: whether "no answer" is a possible verdict at all, and takes its share of the scores. By default it
      is unless the threshold is `math.inf`. Models trained on SQuAD 2.0 know the verdict; one trained on 1.1 has seen
      it only in windows without the answer, and False may suit it better.
    - `beam`: Google's pruned search, with its `n_best_size` (20); by default every span is looked at.
    - `max_length`, `stride`: the tokens of a window, question included (default: 384, or what the model takes), and how
      many of them two neighbours share.

    A context without any token has no answer, whatever the settings. A question that leaves no room for the context is
    an error; it is not cut. Quotations begin and end where tokens do, which may be inside a word: they are not widened
    to whole words, as the pipeline of transformers does by default.
    """
    task = Answerer(
        model,
        n_best=n_best,
        max_answer_tokens=max_answer_tokens,
        no_answer=no_answer,
        threshold=threshold,
        beam=beam,
        max_length=max_length,
        stride=stride,
        tokenizer=tokenizer,
        device=device,
        dtype=dtype,
    )
    return task(question, context, progress=progress)


def _context_first(item: tuple[str, str]) -> tuple[str, str]:
    question, context = item
    return context, question


def _paired(question: Any, context: Any) -> Any:
    """(question, context), a list or an iterator of them, from two texts, two lists or two iterators."""
    if context is None:
        if isinstance(question, str):
            raise InputError("answer was given a question without a context.", "Pass the text to answer it from.")
        return question
    for name, value, other in (("question", question, context), ("context", context, question)):
        if isinstance(value, str) and (_is_collection(other) or isinstance(other, Iterator)):
            raise InputError(
                f"answer was given one {name} and several of the other.",
                f"Repeat the {name} for each of them, or pass (question, context) pairs.",
            )
    if isinstance(question, Iterator) or isinstance(context, Iterator):
        return _zipped(_several(question, "questions"), _several(context, "contexts"))
    if any(_is_collection(value) for value in (question, context)):
        questions, contexts = listed(question, "questions"), listed(context, "contexts")
        if len(questions) != len(contexts):
            raise InputError(
                f"answer was given {len(questions)} questions and {len(contexts)} contexts.",
                "Pass one context to each question.",
            )
        return list(zip(questions, contexts, strict=True))
    if isinstance(question, tuple) and isinstance(context, tuple):
        return _paired(list(question), list(context))
    return question, context


def _is_collection(value: Any) -> bool:
    """Several texts; a tuple may also be one item."""
    return not isinstance(value, (str, bytes, bytearray, dict, tuple)) and (
        isinstance(value, Iterable) or is_table(value)
    )


def _several(values: Any, name: str) -> Iterable[Any]:
    if isinstance(values, (str, bytes, bytearray, dict)) or not isinstance(values, Iterable):
        raise InputError(f"The {name} are {described(values)}; a list or an iterator was wanted.")
    return values


def _zipped(questions: Iterable[Any], contexts: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    for number, (question, context) in enumerate(zip_longest(questions, contexts, fillvalue=_MISSING)):
        if question is _MISSING or context is _MISSING:
            missing, there = ("question", "context") if question is _MISSING else ("context", "question")
            raise InputError(f"There is a {there} {number}, and no {missing} for it.", "Pass as many of each.")
        yield question, context
