"""The tables that attention on a GPU reads: every token once, every text to itself, for any mix of lengths."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.engine.gpu import runner
from bertie.engine.gpu.attention_schedule import TILE, host_tables, most_programs, schedule, tile_programs

mixes = st.lists(st.integers(1, 600) | st.integers(1, 20), min_size=1, max_size=60)
tiles = st.sampled_from([16, 32, 64, 128])


@settings(max_examples=200, deadline=None)
@given(mixes, tiles)
def test_every_row_has_one_program_and_all_keys_of_its_text(lengths: list[int], tile: int) -> None:
    table = tile_programs(lengths, tile)
    ends = [*accumulate(lengths)]
    taken = np.zeros(ends[-1], dtype=int)
    for first, end, first_key, end_key in table.tolist():
        assert 0 < end - first <= tile
        taken[first:end] += 1
        for length, text_end in zip(lengths, ends, strict=True):
            if first < text_end and text_end - length < end:  # the text has rows in this program
                assert first_key <= text_end - length
                assert text_end <= end_key
                # Only whole texts share a program; the rows of a long one have it to themselves.
                assert length <= tile or (first_key, end_key) == (text_end - length, text_end)
    assert (taken == 1).all()


@settings(max_examples=200, deadline=None)
@given(mixes, tiles)
def test_no_mix_needs_more_programs_than_a_graph_has(lengths: list[int], tile: int) -> None:
    assert len(tile_programs(lengths, tile)) <= most_programs(sum(lengths), tile)


def test_long_texts_come_first() -> None:
    table = tile_programs([5, 300, 7, 120], 64)
    keys = (table[:, 3] - table[:, 2]).tolist()
    assert keys == sorted(keys, reverse=True)


@pytest.mark.parametrize("lengths", [[3], [3, 1], [5, 1, 2, 4, 9]], ids=str)
def test_tables_are_filled_up_to_the_size_of_a_graph(lengths: list[int]) -> None:
    tokens = sum(lengths)
    flat = host_tables(lengths, tile=16, programs=6, tokens=40, positions_from=2)
    assert flat.dtype == np.int32
    assert len(flat) == 4 * 6 + 2 * 40
    table, starts, positions = flat[:24].reshape(6, 4), flat[24:64], flat[64:]
    made = tile_programs(lengths, 16)
    assert (table[: len(made)] == made).all()
    assert not table[len(made) :].any()
    texts = [range(end - length, end) for length, end in zip(lengths, accumulate(lengths), strict=True)]
    assert starts[:tokens].tolist() == [text.start for text in texts for _ in text]
    assert positions[:tokens].tolist() == [2 + place for text in texts for place in range(len(text))]
    assert not starts[tokens:].any()
    assert not positions[tokens:].any()


def test_the_device_gets_both_tables() -> None:
    lengths = [50, 60, 300, 20]
    plan = schedule(lengths, torch.device("cpu"))
    assert plan.tile == TILE
    assert plan.programs.tolist() == tile_programs(lengths).tolist()
    assert plan.starts.tolist() == [0] * 50 + [50] * 60 + [110] * 300 + [410] * 20


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 512), min_size=1, max_size=80), st.integers(512, 4000))
def test_a_large_batch_is_cut_between_texts(lengths: list[int], most: int) -> None:
    whole = runner.PART
    runner.PART = most
    try:
        parts = runner._parts(lengths)
    finally:
        runner.PART = whole
    assert [length for texts, _ in parts for length in lengths[texts]] == lengths
    for texts, tokens in parts:
        assert tokens.stop - tokens.start == sum(lengths[texts]) <= most
    assert parts[0][1].start == 0
    assert all(a[1].stop == b[1].start for a, b in pairwise(parts))
