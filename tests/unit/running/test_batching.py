"""Packing by token budget: nothing lost, nothing reordered, bounded batches, bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.errors import InputError
from bertie.running.batching import split_by_tokens
from bertie.running.rows import Row
from bertie.running.stream import growing_chunks, run_groups, run_in_order


@given(st.lists(st.integers(1, 60), max_size=60), st.integers(1, 100))
def test_groups_hold_every_row_once_within_the_budget(lengths: list[int], budget: int) -> None:
    groups = split_by_tokens(lengths, budget)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    for group in groups:
        assert sum(lengths[i] for i in group) <= budget or len(group) == 1


@given(st.lists(st.integers(1, 9), max_size=300), st.integers(1, 20))
def test_answers_come_in_order(lengths: list[int], budget: int) -> None:
    rows = [Row([number] * length) for number, length in enumerate(lengths)]
    batches: list[int] = []

    def run(batch: list[Row]) -> list[int]:
        batches.append(sum(map(len, batch)) if len(batch) > 1 else 0)
        return [row.ids[0] for row in batch]

    assert list(run_in_order(rows, run, budget=budget)) == list(range(len(lengths)))
    assert max(batches, default=0) <= budget


def test_a_stream_is_read_a_little_ahead_only() -> None:
    taken = 0

    def rows() -> Iterator[Row]:
        nonlocal taken
        for _ in range(100_000):
            taken += 1
            yield Row([1] * 10)

    stream = run_in_order(rows(), lambda batch: [len(row) for row in batch], budget=50)
    assert next(stream) == 10
    assert taken <= 16 * 50 / 10 + 1


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), max_size=60), st.integers(1, 20))
def test_texts_of_several_rows_get_their_own_answers(texts: list[list[int]], budget: int) -> None:
    groups = ((number, [Row([number] * length) for length in rows]) for number, rows in enumerate(texts))
    found = run_groups(groups, lambda batch: [(row.ids[0], len(row)) for row in batch], budget=budget)
    assert list(found) == [(number, [(number, length) for length in rows]) for number, rows in enumerate(texts)]


def test_no_budget_is_refused() -> None:
    with pytest.raises(InputError, match="budget is 0"):
        list(run_in_order([Row([1])], lambda batch: [0], budget=0))


@given(st.lists(st.integers(1, 30), max_size=60), st.integers(1, 60), st.integers(0, 3))
def test_batches_that_are_started_ahead_are_read_in_order(lengths: list[int], budget: int, ahead: int) -> None:
    started, unread = 0, 0
    most = 0

    def start(batch: list[Row]) -> Callable[[], list[int]]:
        nonlocal started, unread, most
        started, unread = started + 1, unread + 1
        most = max(most, unread)

        def read() -> list[int]:
            nonlocal unread
            unread -= 1
            return [row.ids[0] for row in batch]

        return read

    rows = [Row([number] * length) for number, length in enumerate(lengths)]
    assert list(run_in_order(rows, start, budget=budget, ahead=ahead)) == list(range(len(lengths)))
    assert unread == 0
    if ahead and started > 1 and budget < sum(lengths) // 4:
        assert most > 1, "some were started before others were read"


def test_chunks_grow() -> None:
    assert [len(chunk) for chunk in growing_chunks(range(100), 40)] == [16, 32, 40, 12]
    assert [len(chunk) for chunk in growing_chunks(range(5), 2)] == [2, 2, 1]
    assert list(growing_chunks([], 8)) == []
