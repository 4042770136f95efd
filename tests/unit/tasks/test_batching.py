"""Packing by token budget: nothing lost, nothing reordered, bounded batches, bounded memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.errors import InputError
from bertie.tasks.batching import Row, run_groups, run_in_order, split_by_tokens


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
