"""Rows to batches: a batch is bounded by tokens and not by a number of texts, because texts differ in length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
Ints = NDArray[np.int64]

TEXTS_AT_ONCE = 64  # in one call of the tokenizer: Rust works on them side by side


def split_by_tokens(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices grouped so that each group, longest first, has at most `budget` tokens (never fewer than one row).

    >>> split_by_tokens([5, 1, 4, 5], 10)
    [[0, 3], [2, 1]]
    """
    return [group.tolist() for group in token_groups(np.asarray(lengths, dtype=np.int64), budget)]


def token_groups(lengths: Ints, budget: int) -> list[Ints]:
    """As `split_by_tokens`, in arrays. Groups are about equally large, so that the last is not a crumb."""
    if len(lengths) <= 1:
        return [np.zeros(1, dtype=np.int64)] * len(lengths)
    order = np.argsort(-lengths, kind="stable")
    ends = np.cumsum(lengths[order])
    total, longest = int(ends[-1]), int(lengths[order[0]])
    fewest = -(-total // budget)
    share = min(budget, -(-total // fewest) + longest)
    groups, start, used = [], 0, 0
    while start < len(order):
        stop = max(start + 1, int(np.searchsorted(ends, used + share, side="right")))
        groups.append(order[start:stop])
        start, used = stop, int(ends[stop - 1])
    return groups


def chunked(items: Iterable[T], size: int = TEXTS_AT_ONCE) -> Iterator[list[T]]:
    """Lists of `size` items; the last may be shorter.

    >>> list(chunked("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
