"""What a GPU computes in where nobody says. The choice is the same on a CPU, where the reference has both types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import bertie.engine.half_precision as module
from bertie import BertModel, BertTokenizer
from bertie.engine.compile import with_runner
from bertie.engine.half_precision import LEAST_COSINE, in_half_precision
from bertie.engine.runner import ReferenceRunner
from bertie.running import open as opening
from bertie.running.open import open_model
from tiny_models import saved


@pytest.fixture
def on_any_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference stands for the GPU's runner, in the type that was asked for."""

    def compiled(model: BertModel, *, dtype: str, **_: Any) -> BertModel:
        half = type(model)(model.config, add_pooling_layer=False).to(getattr(torch, dtype)).eval()
        half.load_state_dict(model.state_dict())
        return with_runner(half, ReferenceRunner)

    monkeypatch.setattr(module, "compile_model", compiled)


def opened(folder: Path) -> tuple[BertModel, BertTokenizer]:
    model = BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    return model, BertTokenizer.from_pretrained(folder)


@pytest.mark.usefixtures("on_any_device")
def test_float16_where_vectors_stay_the_same(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, tokenizer = opened(Path(saved(tmp_path, "BertModel")))
    with caplog.at_level("INFO", logger="bertie.engine"):
        made = in_half_precision(model, tokenizer)
    assert made.dtype == torch.float16
    (said,) = [one.getMessage() for one in caplog.records if "cosine" in one.getMessage()]
    assert said.startswith("float16")


@pytest.mark.usefixtures("on_any_device")
def test_bfloat16_where_numbers_grow_beyond_float16(tmp_path: Path) -> None:
    model, tokenizer = opened(Path(saved(tmp_path, "BertModel")))
    with torch.no_grad():  # the sum into the feed-forward layer's second half is beyond 65,504
        for layer in model.encoder.layer:
            layer.intermediate.dense.weight.mul_(3e4)
            layer.output.dense.weight.mul_(3e4)
    assert in_half_precision(model, tokenizer).dtype == torch.bfloat16


def test_a_model_without_a_runner_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = opened(Path(saved(tmp_path, "BertModel")))
    monkeypatch.setattr(module, "compile_model", lambda model, **_: model)
    assert in_half_precision(model, tokenizer) is model
    assert LEAST_COSINE == 0.99999


def test_a_cpu_computes_in_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "in_half_precision", lambda *_: pytest.fail("not on a CPU"))
    loaded = open_model(saved(tmp_path, "BertModel"), BertModel, task="embed", device="cpu")
    assert loaded.dtype == "float32"
