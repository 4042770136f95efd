"""From start and end logits to the best spans of a document that was read in several windows.

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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bertie.text import Window, WindowedDocument

Floats: TypeAlias = npt.NDArray[np.floating[Any]]


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


def find_spans(
    document: WindowedDocument, logits: Sequence[tuple[Floats, Floats]], rules: SpanRules, *, null: bool
) -> Decoded:
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
    window: Window, start: Floats, end: Floats, best_windows: npt.NDArray[np.int64], rules: SpanRules
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """The tokens that may start a span here, and `[starts, lengths]` logits of their spans, −inf for none."""
    start, end = _pruned(start, rules.beam), _pruned(end, rules.beam)
    firsts = window.start + np.flatnonzero(best_windows[window.start : window.end] == window.index)
    longest = min(rules.max_tokens, window.end - window.start)
    # The end logits of the window's document tokens, with room for spans that would run out of it.
    ends = np.full(window.end - window.start + longest, -np.inf)
    ends[: window.end - window.start] = end[window.start + window.shift : window.end + window.shift]
    lasts = (firsts - window.start)[:, None] + np.arange(longest)[None, :]  # [S, L]
    return firsts, start[firsts + window.shift][:, None] + ends[lasts]


def _pruned(logits: Floats, beam: int | None) -> npt.NDArray[np.float64]:
    """The logits as float64, −inf for all but the `beam` best of the whole row; the earlier of two equals is better."""
    values = np.asarray(logits, dtype=np.float64)
    if beam is None:
        return values
    kept = np.argsort(-values, kind="stable")[:beam]
    pruned = np.full_like(values, -np.inf)
    pruned[kept] = values[kept]
    return pruned


def _best(window: Window, firsts: npt.NDArray[np.int64], grid: npt.NDArray[np.float64], number: int) -> list[_Found]:
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
