""" "auto" is never slower than the reference: on processors that nobody measured, a short timing decides, once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny_models import saved, tiny

import bertie
from bertie.engine import FastBert
from bertie.engine.cpu import timing
from bertie.engine.cpu.library import instruction_set
from bertie.running.open import forget_models

pytestmark = pytest.mark.skipif(instruction_set() is None, reason="the kernels were not built: no C++ compiler")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("BERTIE_CACHE", str(tmp_path / "cache"))
    timing.is_ahead.cache_clear()
    yield
    timing.is_ahead.cache_clear()
    forget_models()


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "instruction_set", lambda: "a new one")


def test_known_kernels_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "seconds", lambda dtype: pytest.fail("timed"))
    for dtype, names in timing.KNOWN.items():
        for name in names:
            monkeypatch.setattr(timing, "instruction_set", lambda name=name: name)
            timing.is_ahead.cache_clear()
            assert timing.is_ahead(dtype)
    monkeypatch.setattr(timing, "instruction_set", lambda: "a new one")
    assert timing.is_ahead("int8")  # the reference has none


@pytest.mark.usefixtures("unknown")
@pytest.mark.parametrize(("ours", "ahead"), [(0.5, True), (1.0, True), (1.5, False)])
def test_the_faster_one_answers_for_auto(
    ours: float, ahead: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "seconds", lambda dtype: (ours, 1.0))
    folder = saved(tmp_path / "model", "BertModel")
    assert bertie.Embedder(folder).loaded.is_fast == ahead
    # Whoever compiles by name gets what he asks for.
    assert isinstance(bertie.compile(tiny("BertModel")), FastBert)


@pytest.mark.usefixtures("unknown")
def test_a_timing_is_made_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(timing, "seconds", lambda dtype: made.append(dtype) or (2.0, 1.0))
    for _ in range(3):
        assert not timing.is_ahead("float32")
        timing.is_ahead.cache_clear()  # as another process would
    assert made == [torch.float32]
    (kept,) = (tmp_path / "cache" / "cpu").iterdir()
    assert json.loads(kept.read_text())["reference"] == 1.0
    kept.write_text("{ broken")
    assert not timing.is_ahead("float32")
    assert len(made) == 2
    timing.is_ahead.cache_clear()
    monkeypatch.setattr(timing, "_processor", lambda: "another processor")
    assert not timing.is_ahead("float32")
    assert len(made) == 3


@pytest.mark.usefixtures("unknown")
def test_a_cache_that_cannot_be_written_only_costs_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("BERTIE_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(timing, "seconds", lambda dtype: (0.5, 1.0))
    assert timing.is_ahead("float32")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_both_are_timed_without_touching_the_random_numbers(dtype: torch.dtype) -> None:
    torch.manual_seed(7)
    wanted = torch.rand(3)
    torch.manual_seed(7)
    ours, reference = timing.seconds(dtype)
    assert torch.equal(torch.rand(3), wanted)
    assert 0 < ours < 10
    assert 0 < reference < 10
