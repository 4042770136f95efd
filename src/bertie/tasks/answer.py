"""Questions answered by quoting a context, from a `BertForQuestionAnswering`: n-best, scores and "no answer".

    answer("Who wrote it?", "It was written by Ada.", model="my-squad")                   AnswerResult, .best.text
    answer([("Q1", "context 1"), ("Q2", "context 2")], model="my-squad", n_best=3)        a list of them

A long context is read in overlapping windows, and its answers compete on one scale. What is found is quoted character
by character: `context[found.start:found.end] == found.text`.

The rules are those of google-research/bert `run_squad.py` (`write_predictions`):

- a span starts and ends on tokens of the document, in one window, start ≤ end, at most `max_tokens` long;
- its start is taken only from the window in which that token has most context, so no span is found twice;
- its logit is start logit + end logit; of spans with the same text the best one is kept;
- "no answer" has the logit of [CLS], start + end, in the window where that is least.

**Ours**: all spans that the rules allow are looked at. Google pairs only the `n_best_size` best starts with the
`n_best_size` best ends of a window, question and special tokens among them, and can so lose the best answer or find
none; `beam=20` does the same. And a span's score is its probability among *all* allowed spans of all windows (with "no
answer", where that is allowed), so it does not change with the number of answers asked for; Google's is among the
n-best only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias, Unpack, overload

import numpy as np
import torch
from numpy.typing import NDArray

from bertie.answers import AnswerResult, FoundAnswer
from bertie.arguments import whole_number
from bertie.errors import InputError
from bertie.model import BertForQuestionAnswering
from bertie.running.open import ModelLike
from bertie.running.paired import PairedTask
from bertie.running.rows import DEFAULT_STRIDE, Cuts, Row, document_rows
from bertie.running.task import RowTask, RunSettings, Streamed, described_as
from bertie.text import Window, WindowedDocument

Floats: TypeAlias = NDArray[np.floating]
Logits: TypeAlias = tuple[Floats, Floats]  # of every token of a row, to start and to end an answer

# Google's length for SQuAD.
_MAX_LENGTH = 384


class Answerer(RowTask[tuple[str, str], WindowedDocument, Logits, AnswerResult], PairedTask[AnswerResult]):
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

    name: ClassVar[str] = "answer"
    names: ClassVar[tuple[str, str]] = ("question", "context")

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
        **settings: Unpack[RunSettings],
    ) -> None:
        whole_number("n_best", n_best)
        whole_number("max_answer_tokens", max_answer_tokens)
        whole_number("beam", beam, or_none="a search of every span")
        whole_number("stride", stride, 0)
        if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or math.isnan(threshold):
            raise InputError("{threshold:is} it must be a number (math.inf: always answer).", threshold=threshold)
        self.stride, self.threshold = stride, threshold
        self.rules = SpanRules(n_best, max_answer_tokens, beam)
        self.no_answer = threshold < math.inf if no_answer is None else bool(no_answer)
        self.open(model, BertForQuestionAnswering, settings)
        self.max_length = self.loaded.checked_length(max_length, default=_MAX_LENGTH)

    def tokenized(self, items: list[tuple[str, str]], cuts: Cuts) -> Iterator[tuple[WindowedDocument, list[Row]]]:
        """The contexts' tokens, and their rows for the model, each with the question."""
        questions, contexts = zip(*items, strict=True)
        return document_rows(self.loaded.tokenizer, contexts, questions, max_length=self.max_length, stride=self.stride)

    def start(self, rows: list[Row]) -> Callable[[], list[Logits]]:
        """Start and end logits `[length]` of each row."""
        output = self.loaded.run(rows)
        both = self.loaded.read_later(torch.stack((output.start_logits, output.end_logits), dim=-1).float())
        return lambda: [(part[:, 0].numpy(), part[:, 1].numpy()) for part in self.loaded.split(both(), rows)]

    def decode(self, context: WindowedDocument, judged: list[Logits]) -> AnswerResult:
        document = context
        decoded = find_spans(document, judged, self.rules, null=self.no_answer)
        candidates = []
        for span in decoded.spans:
            start, end = document.span(span.first, span.last)
            candidates.append(FoundAnswer(document.text[start:end], start, end, span.score, span.logit))
        best = candidates[0] if candidates else None
        if self.no_answer and best is not None and decoded.null_logit - best.logit > self.threshold:
            best = None
        return AnswerResult(document.question or "", best, tuple(candidates), decoded.null_score, decoded.null_logit)


class AnswerSettings(RunSettings, total=False):
    model: ModelLike
    n_best: int
    max_answer_tokens: int
    no_answer: bool | None
    threshold: float
    beam: int | None
    max_length: int | None
    stride: int


@overload
def answer(
    question: str | tuple[str, str], context: str | None = None, **settings: Unpack[AnswerSettings]
) -> AnswerResult: ...


@overload
def answer(
    question: Iterator[str] | Streamed[tuple[str, str]],
    context: Iterator[str] | None = None,
    **settings: Unpack[AnswerSettings],
) -> Iterator[AnswerResult]: ...


@overload
def answer(
    question: list[str] | list[tuple[str, str]],
    context: list[str] | None = None,
    **settings: Unpack[AnswerSettings],
) -> list[AnswerResult]: ...


def answer(
    question: object, context: object = None, **settings: Unpack[AnswerSettings]
) -> AnswerResult | list[AnswerResult] | Iterator[AnswerResult]:
    return Answerer(**settings).paired(question, context)


described_as(answer, Answerer)


# -- from logits to spans ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SpanRules:
    """Which spans are looked at, and how many are given back."""

    n_best: int = 1
    max_tokens: int = 30
    beam: int | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens `first` to `last` of the document, both included, as judged in a window."""

    first: int
    last: int
    window: int
    logit: float
    score: float


@dataclass(frozen=True, slots=True)
class Decoded:
    """The best spans, best first, and "no answer" with its logit and its probability (0 where it is not allowed)."""

    spans: tuple[Span, ...]
    null_logit: float
    null_score: float


# A span while it is looked for; in this order they sort best first, then by place.
_Found: TypeAlias = tuple[float, int, int, int]  # -logit, first, last, window


def find_spans(document: WindowedDocument, logits: Sequence[Logits], rules: SpanRules, *, null: bool) -> Decoded:
    """The best spans by the (start, end) logits of every window, `[length]` each.

    `null` says whether "no answer" takes its share of the scores.
    """
    null_logit = min(float(start[0]) + float(end[0]) for start, end in logits)
    best_windows = np.asarray(document.best_windows, dtype=np.int64)
    grids = [
        (window, *_grid(window, start, end, best_windows, rules))
        for window, (start, end) in zip(document.windows, logits, strict=True)
    ]
    number = sum(int(np.isfinite(grid).sum()) for _, _, grid in grids)
    if not number:
        return Decoded((), null_logit, 1.0 if null else 0.0)
    # Everything is measured from the highest logit, so that nothing overflows however large they are.
    highest = max([null_logit if null else -math.inf, *(float(grid.max(initial=-np.inf)) for _, _, grid in grids)])
    total = math.exp(null_logit - highest) if null else 0.0
    total += sum(float(np.exp(grid - highest).sum()) for _, _, grid in grids)
    # Spans of the same text count once, so more may have to be looked at than are wanted.
    looked_at = 4 * rules.n_best
    while True:
        found = sorted(span for window, firsts, grid in grids for span in _best(window, firsts, grid, looked_at))
        kept = _of_different_text(document, found[:looked_at], rules.n_best)
        if len(kept) == rules.n_best or looked_at >= number:
            break
        looked_at *= 4
    spans = tuple(
        Span(first, last, window, -negative, math.exp(-negative - highest) / total)
        for negative, first, last, window in kept
    )
    return Decoded(spans, null_logit, math.exp(null_logit - highest) / total if null else 0.0)


def _grid(
    window: Window, start: Floats, end: Floats, best_windows: NDArray[np.int64], rules: SpanRules
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The tokens that may start a span here, and `[starts, lengths]` logits of their spans, −inf for none."""
    start, end = _pruned(start, rules.beam), _pruned(end, rules.beam)
    firsts = window.start + np.flatnonzero(best_windows[window.start : window.end] == window.index)
    longest = min(rules.max_tokens, window.end - window.start)
    # The end logits of the window's document tokens, with room for spans that would run out of it.
    ends = np.full(window.end - window.start + longest, -np.inf)
    ends[: window.end - window.start] = end[window.start + window.shift : window.end + window.shift]
    lasts = (firsts - window.start)[:, None] + np.arange(longest)[None, :]  # [S, L]
    return firsts, start[firsts + window.shift][:, None] + ends[lasts]


def _pruned(logits: Floats, beam: int | None) -> NDArray[np.float64]:
    """The logits as float64, −inf for all but the `beam` best of the whole row; the earlier of two equals is better."""
    values = np.asarray(logits, dtype=np.float64)
    if beam is None:
        return values
    kept = np.argsort(-values, kind="stable")[:beam]
    pruned = np.full_like(values, -np.inf)
    pruned[kept] = values[kept]
    return pruned


def _best(window: Window, firsts: NDArray[np.int64], grid: NDArray[np.float64], number: int) -> list[_Found]:
    """At least the `number` best spans of a window, all that are as good as the last of them included."""
    flat = grid.ravel()
    least = np.partition(flat, -number)[-number] if number < flat.size else -np.inf
    places = np.flatnonzero((flat >= least) & np.isfinite(flat))
    rows, extra = np.divmod(places, grid.shape[1]) if len(places) else (places, places)
    return [
        (-logit, first, first + length, window.index)
        for logit, first, length in zip(flat[places].tolist(), firsts[rows].tolist(), extra.tolist(), strict=True)
    ]


def _of_different_text(document: WindowedDocument, found: Sequence[_Found], number: int) -> list[_Found]:
    kept: dict[str, _Found] = {}
    for span in found:
        if len(kept) == number:
            break
        kept.setdefault(document.quote(span[1], span[2]), span)
    return list(kept.values())
