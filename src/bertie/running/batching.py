"""Rows to batches: a batch is bounded by tokens and not by a number of texts, because texts differ in length.

Rows are read ahead a little, put in order of length, so that a batch holds texts of about one length, and given back in
the order in which they came (stream.py). What is read ahead is little at first and twice as much each time, so a stream
answers soon; it never holds more than `BATCHES_AHEAD` batches, so a stream of any length goes through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from bertie.errors import InputError

T = TypeVar("T")
Ints = NDArray[np.int64]

# Rows read ahead hold at most about this many batches: enough to sort by length, little enough to answer soon.
BATCHES_AHEAD = 16
# The first window is this part of a batch.
_FIRST_PART = 8
# Items in the first chunk, and texts in one call of the tokenizer: Rust works on them side by side.
_AT_FIRST = 16
TEXTS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Row:
    """One input of the model: token ids with their segments (None: all 0), special tokens included.

    `is_cut`: it holds only a part of its text.
    """

    ids: Sequence[int]
    type_ids: Sequence[int] | None = None
    is_cut: bool = False

    def __len__(self) -> int:
        return len(self.ids)


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


def windows(items: Iterable[T], *, budget: int, length: Callable[[T], int], soon: bool = True) -> Iterator[list[T]]:
    """Items read ahead: a part of a batch at first (or, unless `soon`, a batch), then twice as many each time."""
    sizes = growing(budget, BATCHES_AHEAD * budget, soon=soon)
    wanted = next(sizes)
    held: list[T] = []
    tokens = 0
    for item in items:
        held.append(item)
        tokens += length(item)
        if tokens >= wanted:
            yield held
            held, tokens, wanted = [], 0, next(sizes)
    if held:
        yield held


def growing(budget: int, most: int, *, soon: bool) -> Iterator[int]:
    """Tokens to read ahead: a part of the budget at first (or, unless `soon`, all of it), doubled up to `most`."""
    if budget < 1:
        raise InputError(f"The token budget is {budget}; it takes a whole number of at least 1.")
    size = max(1, budget // _FIRST_PART if soon else budget)
    while True:
        yield size
        size = min(2 * size, most)


def growing_chunks(
    items: Iterable[T], most: int, *, size: Callable[[T], int] = lambda item: 0, largest: int = 1
) -> Iterator[list[T]]:
    """Lists of items, few at first, so that a stream answers soon, then twice as many each time, up to `most`.

    A list also ends where its items' sizes come to `largest`.
    """
    wanted, taken = min(_AT_FIRST, most), 0
    chunk: list[T] = []
    for item in items:
        chunk.append(item)
        taken += size(item)
        if len(chunk) >= wanted or taken >= largest:
            yield chunk
            chunk, taken, wanted = [], 0, min(2 * wanted, most)
    if chunk:
        yield chunk


def chunked(items: Iterable[T], size: int = TEXTS_AT_ONCE) -> Iterator[list[T]]:
    """Lists of `size` items; the last may be shorter.

    >>> list(chunked("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
