"""Many rows through a model, by token budget, in order, in constant memory.

Texts differ in length, so a batch is bounded by tokens and not by a number of texts. Rows are read ahead a little, put
in order of length, so that a batch holds texts of about one length, run, and given back in the order in which they
came. Only the rows read ahead and their answers are held, so a stream of any length goes through.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from bertie.errors import InputError

T = TypeVar("T")
R = TypeVar("R")
P = TypeVar("P")

# Rows read ahead hold about this many batches: enough to sort by length, little enough to answer soon.
_BATCHES_AHEAD = 16


@dataclass(frozen=True, slots=True)
class Row:
    """One input of the model: token ids with their segments (None: all 0), special tokens included."""

    ids: Sequence[int]
    type_ids: Sequence[int] | None = None

    def __len__(self) -> int:
        return len(self.ids)


def split_by_tokens(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices grouped so that each group, longest first, has at most `budget` tokens (never fewer than one row).

    >>> split_by_tokens([5, 1, 4, 5], 10)
    [[0, 3], [2, 1]]
    """
    groups: list[list[int]] = []
    room = 0
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if not groups or lengths[index] > room:
            groups.append([])
            room = budget
        groups[-1].append(index)
        room -= lengths[index]
    return groups


def run_in_order(
    rows: Iterable[T],
    run: Callable[[list[T]], Sequence[R]],
    *,
    budget: int,
    length: Callable[[T], int] = len,  # type: ignore[assignment]
) -> Iterator[R]:
    """Answers of `run`, which takes a batch of rows and gives as many answers, in the rows' order."""
    if budget < 1:
        raise InputError(f"The token budget is {budget}; it takes a whole number of at least 1.")
    ahead: list[T] = []
    tokens = 0
    for row in rows:
        ahead.append(row)
        tokens += length(row)
        if tokens >= _BATCHES_AHEAD * budget:
            yield from _run_all(ahead, run, budget, length)
            ahead, tokens = [], 0
    yield from _run_all(ahead, run, budget, length)


def run_groups(
    groups: Iterable[tuple[P, Sequence[T]]],
    run: Callable[[list[T]], Sequence[R]],
    *,
    budget: int,
    length: Callable[[T], int] = len,  # type: ignore[assignment]
) -> Iterator[tuple[P, list[R]]]:
    """As `run_in_order` for texts of several rows each: (text, its rows) in, (text, its rows' answers) out.

    Every text has at least one row.
    """
    waiting: deque[tuple[P, int]] = deque()

    def rows() -> Iterator[T]:
        for text, its_rows in groups:
            waiting.append((text, len(its_rows)))
            yield from its_rows

    answers = run_in_order(rows(), run, budget=budget, length=length)
    for first in answers:
        text, count = waiting.popleft()
        yield text, [first, *islice(answers, count - 1)]


def _run_all(
    rows: list[T], run: Callable[[list[T]], Sequence[R]], budget: int, length: Callable[[T], int]
) -> Iterator[R]:
    answers: dict[int, R] = {}
    for group in split_by_tokens([length(row) for row in rows], budget):
        answers.update(zip(group, run([rows[index] for index in group]), strict=True))
    yield from (answers[index] for index in range(len(rows)))
