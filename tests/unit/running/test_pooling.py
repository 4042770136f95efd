"""Pooling of packed batches, against the plain formula over one text at a time."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bertie.running.pooling import POOLING_MODES, Pieces, divide, join, pool, ranges

HIDDEN = 5


def random_pieces(seed: int, *, windows: bool) -> Pieces:
    """Texts in one row and in several, with tokens at the start that do not count, and one of which none does."""
    chance = random.Random(seed)
    rows: list[tuple[int, int, int, int, bool, bool]] = [(2, 2, 0, 2, True, True)]
    for _ in range(30):
        parts = chance.randint(1, 4) if windows else 1
        position = chance.choice([0, 0, 2])
        for part in range(parts):
            length = chance.randint(3, 20)
            start = position if part == 0 else chance.randrange(length)
            count = chance.randint(1, length - start)
            rows.append((length, start, count, position, part == 0, part == parts - 1))
            position += count
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    return Pieces(np.arange(columns[0].sum()), *columns)  # type: ignore[arg-type]


def plain(packed: NDArray[np.float64], pieces: Pieces, mode: str) -> NDArray[np.float64]:
    """Text by text, in float64."""
    answers: list[Any] = []
    rows = zip(pieces.begins, pieces.starts, pieces.counts, pieces.positions, pieces.firsts, strict=True)
    texts: list[list[tuple[NDArray[np.float64], NDArray[np.float64]]]] = []
    for begin, start, count, position, first in rows:
        if first:
            texts.append([])
        texts[-1].append((packed[begin + start : begin + start + count], np.arange(position + 1, position + 1 + count)))
    for text in texts:
        tokens = np.concatenate([part for part, _ in text])
        weights = np.concatenate([part for _, part in text])[:, None]
        if len(tokens) == 0:
            answers.append(np.zeros(packed.shape[1]))
            continue
        answers.append(
            {
                "cls": tokens[0],
                "lasttoken": tokens[-1],
                "max": tokens.max(0),
                "mean": tokens.mean(0),
                "mean_sqrt_len_tokens": tokens.sum(0) / len(tokens) ** 0.5,
                "weightedmean": (tokens * weights).sum(0) / weights.sum(),
            }[mode]
        )
    return np.stack(answers)


@pytest.mark.parametrize("windows", [False, True], ids=["whole", "windows"])
@pytest.mark.parametrize("mode", POOLING_MODES)
def test_pooling_is_the_plain_formula(mode: str, windows: bool) -> None:
    for seed in range(5):
        pieces = random_pieces(seed, windows=windows)
        packed = torch.randn(len(pieces.ids), HIDDEN, generator=torch.Generator().manual_seed(seed))
        found = divide(join(pool(packed, pieces, [mode]), pieces, [mode]), pieces, [mode])
        assert np.abs(found.numpy() - plain(packed.double().numpy(), pieces, mode)).max() <= 1e-5
        if not windows:
            assert torch.equal(divide(pool(packed, pieces, [mode]), pieces, [mode]), found)


def test_modes_stand_side_by_side() -> None:
    pieces = random_pieces(0, windows=False)
    packed = torch.randn(len(pieces.ids), HIDDEN)
    both = divide(pool(packed, pieces, ["max", "mean"]), pieces, ["max", "mean"])
    for i, mode in enumerate(["max", "mean"]):
        assert torch.equal(both[:, i * HIDDEN : (i + 1) * HIDDEN], divide(pool(packed, pieces, [mode]), pieces, [mode]))


def test_rows_taken_and_joined_are_the_same_rows() -> None:
    pieces = random_pieces(3, windows=True)
    order = np.random.default_rng(0).permutation(len(pieces))
    back = pieces.take(order).take(np.argsort(order))
    halves = Pieces.joined([pieces.take(np.arange(7)), pieces.take(np.arange(7, len(pieces)))])
    for other in (back, halves):
        for name in ("ids", "lengths", "starts", "counts", "positions", "firsts", "lasts"):
            assert np.array_equal(getattr(other, name), getattr(pieces, name)), name
    assert not pieces.whole
    assert random_pieces(3, windows=False).whole


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 9)), min_size=1, max_size=20))
def test_ranges_count_up_from_each_beginning(parts: list[tuple[int, int]]) -> None:
    begins, lengths = (np.array(column) for column in zip(*parts, strict=True))
    wanted = [begin + i for begin, length in parts for i in range(length)]
    assert ranges(begins, lengths).tolist() == wanted
