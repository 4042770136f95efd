"""Many rows through a model, by token budget, in order, in constant memory.

Texts differ in length, so a batch is bounded by tokens and not by a number of texts. Rows are read ahead a little, put
in order of length, so that a batch holds texts of about one length, run, and given back in the order in which they
came. Only the rows read ahead and their answers are held, so a stream of any length goes through. The first window read
ahead is small and each one after it twice as large, so a stream answers soon.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from bertie.errors import InputError

T = TypeVar("T")
R = TypeVar("R")
P = TypeVar("P")
Answers: TypeAlias = Sequence[R] | Callable[[], Sequence[R]]

# Rows read ahead hold at most about this many batches: enough to sort by length, little enough to answer soon.
BATCHES_AHEAD = 16
# The first window is this part of a batch.
_FIRST_PART = 8
# Items in the first chunk of `growing_chunks`.
_AT_FIRST = 16


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


def token_groups(lengths: NDArray[np.int64], budget: int) -> list[NDArray[np.int64]]:
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


def windows(
    items: Iterable[T],
    *,
    budget: int,
    length: Callable[[T], int],
    soon: bool = True,
) -> Iterator[list[T]]:
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


def run_in_order(
    rows: Iterable[T],
    run: Callable[[list[T]], Answers[R]],
    *,
    budget: int,
    length: Callable[[T], int] = len,  # type: ignore[assignment]
    ahead: int = 0,
) -> Iterator[R]:
    """Answers of `run`, which takes a batch of rows and gives as many answers, in the rows' order.

    It may also give a function that gives them: a GPU's batches are started, and read when `ahead` windows more are.
    """
    started: deque[tuple[int, list[tuple[list[int], Answers[R]]]]] = deque()
    for window in windows(rows, budget=budget, length=length):
        groups = split_by_tokens([length(row) for row in window], budget)
        started.append((len(window), [(group, run([window[index] for index in group])) for group in groups]))
        if len(started) > ahead:
            yield from _in_order(*started.popleft())
    while started:
        yield from _in_order(*started.popleft())


def _in_order(count: int, batches: list[tuple[list[int], Answers[R]]]) -> Iterator[R]:
    answers: dict[int, R] = {}
    for group, given in batches:
        answers.update(zip(group, given() if callable(given) else given, strict=True))
    return (answers[index] for index in range(count))


def run_groups(
    groups: Iterable[tuple[P, Sequence[T]]],
    run: Callable[[list[T]], Answers[R]],
    *,
    budget: int,
    length: Callable[[T], int] = len,  # type: ignore[assignment]
    ahead: int = 0,
) -> Iterator[tuple[P, list[R]]]:
    """As `run_in_order` for texts of several rows each: (text, its rows) in, (text, its rows' answers) out.

    Every text has at least one row.
    """
    waiting: deque[tuple[P, int]] = deque()

    def rows() -> Iterator[T]:
        for text, its_rows in groups:
            waiting.append((text, len(its_rows)))
            yield from its_rows

    answers = run_in_order(rows(), run, budget=budget, length=length, ahead=ahead)
    for first in answers:
        text, count = waiting.popleft()
        yield text, [first, *islice(answers, count - 1)]


def growing_chunks(items: Iterable[T], most: int) -> Iterator[list[T]]:
    """Lists of items, few at first, so that a stream answers soon, then twice as many each time, up to `most`."""
    iterator = iter(items)
    size = min(_AT_FIRST, most)
    while chunk := list(islice(iterator, size)):
        yield chunk
        size = min(2 * size, most)


def map_ahead(
    function: Callable[[T], R], items: Iterable[T], *, depth: int = 2, threads: int = 1
) -> Generator[R, None, None]:
    """`map(function, items)`, with up to `depth` calls ahead of the caller, in a thread beside it or in several.

    The items themselves are read in the caller's thread, and the first call is made there, so that short work starts no
    thread. An exception of `function` is raised where its answer would have been; threads end with the iterator.
    """
    process = os.getpid()
    source = iter(items)
    for item in islice(source, 1):
        yield function(item)
    pool: ThreadPoolExecutor | None = None
    queue: deque[Future[R]] = deque()
    try:
        for item in source:
            pool = pool or ThreadPoolExecutor(threads, thread_name_prefix="bertie-ahead")
            queue.append(pool.submit(function, item))
            if len(queue) > depth:
                yield _answer(queue.popleft(), process)
        while queue:
            yield _answer(queue.popleft(), process)
    finally:
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)


def _answer(future: Future[R], process: int) -> R:
    if os.getpid() != process:
        raise InputError(
            "This stream was begun before the process was forked, and the threads that read ahead for it are not here.",
            "Begin a stream in the process that reads it.",
        )
    return future.result()
