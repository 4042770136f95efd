"""Pooling inside the CPU engine gives the bits of pooling its last state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tiny_models import SENTENCES, saved, tiny, tokenizer

import bertie
from bertie.engine.cpu import runner as cpu_runner
from bertie.engine.cpu.library import instruction_set
from bertie.errors import InputError
from bertie.running.open import OpenModel
from bertie.running.pooling import POOLING_MODES, Pieces, pool

pytestmark = pytest.mark.skipif(instruction_set() is None, reason="the kernels were not built: no C++ compiler")


def opened(**config: Any) -> OpenModel:
    model = bertie.compile(tiny("BertModel", max_position_embeddings=256, hidden_size=48, **config))
    return OpenModel(model, tokenizer())


def pieces_of(lengths: list[int], **columns: list[int] | list[bool]) -> Pieces:
    ids = np.arange(sum(lengths), dtype=np.int64) % 90 + 5
    whole = Pieces.of_texts(ids, np.array(lengths))
    found = {name: np.array(values) for name, values in columns.items()}
    names = ("lengths", "starts", "counts", "positions", "firsts", "lasts")
    return Pieces(ids, *(found.get(name, getattr(whole, name)) for name in names))


CASES = [
    pieces_of([1]),
    pieces_of([1, 40, 17, 130, 2]),
    pieces_of([30, 20], starts=[4, 0], counts=[26, 0], positions=[4, 0]),  # a prompt; a row of which nothing counts
    # one text in three windows, then a text of its own
    pieces_of(
        [20, 20, 12, 5],
        starts=[0, 4, 4, 0],
        counts=[16, 12, 8, 5],
        positions=[0, 16, 28, 0],
        firsts=[True, False, False, True],
        lasts=[False, False, True, True],
    ),
]


@pytest.mark.parametrize("pieces", CASES, ids=["one", "several", "prompts", "windows"])
@pytest.mark.parametrize("threads", [1, 3])
def test_pooled_equals_pooling_the_last_state(pieces: Pieces, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_runner, "usable_cores", lambda: threads)
    loaded = opened()
    loaded.model.base_model.runner.threads = threads  # type: ignore[union-attr]
    found = loaded.pooled(pieces, POOLING_MODES)
    wanted = pool(loaded.last_states(pieces.ids, pieces.lengths), pieces, POOLING_MODES)
    assert found.shape == (len(pieces), len(POOLING_MODES), 48)
    for number, mode in enumerate(POOLING_MODES):
        assert torch.equal(found[:, number], wanted[:, number]), mode


def test_texts_and_ids_that_the_model_does_not_have_are_refused() -> None:
    loaded = opened()
    with pytest.raises(InputError, match="256"):
        loaded.pooled(pieces_of([257]), ("mean",))
    wrong = pieces_of([4])
    wrong.ids[2] = 10_000
    with pytest.raises(InputError, match="input_ids"):
        loaded.pooled(wrong, ("mean",))


def test_an_embedder_s_batches_are_as_large_as_the_engine_likes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_runner, "usable_cores", lambda: 16)
    before = torch.get_num_threads()
    torch.set_num_threads(16)
    try:
        embedder = bertie.Embedder(bertie.compile(tiny("BertModel"), threads=16), tokenizer=tokenizer())
        assert embedder.loaded.budget == 16 * 1024
        assert embedder.embed(SENTENCES).shape == (len(SENTENCES), 32)
    finally:
        torch.set_num_threads(before)
    assert bertie.Embedder(saved(tmp_path, "BertModel"), engine="reference").loaded.budget == 2048
