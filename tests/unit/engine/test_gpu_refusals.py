"""What the GPU engine does not do, it says by name, before anything is built."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from tests.tiny_models import tiny

from bertie.engine.gpu.runner import GpuRunner
from bertie.engine.runner import Options, Refused

CUDA = torch.device("cuda")


def refusal(model: Any, dtype: str = "bfloat16") -> str:
    with pytest.raises(Refused) as caught:
        GpuRunner.of(model, Options(dtype, CUDA))
    assert caught.value.remedy
    return caught.value.cause


@pytest.mark.parametrize("positions", ["relative_key", "relative_key_query"])
def test_relative_positions_are_refused(positions: str) -> None:
    assert positions in refusal(tiny("BertModel", position_embedding_type=positions))


def test_heads_wider_than_a_program_are_refused() -> None:
    assert "272" in refusal(tiny("BertModel", hidden_size=272, num_attention_heads=1))


def test_a_missing_triton_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "Triton" in refusal(tiny("BertModel"))


@pytest.mark.parametrize(("dtype", "found"), [("fp8", (8, 0)), ("bfloat16", (7, 5)), ("float16", (7, 0))])
def test_a_gpu_too_old_for_the_dtype_is_named(
    dtype: str, found: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: found)
    said = refusal(tiny("BertModel"), dtype)
    assert dtype in said
    assert f"{found[0]}.{found[1]}" in said
