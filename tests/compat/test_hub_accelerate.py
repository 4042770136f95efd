"""accelerate's ways with a model: empty, dispatched, offloaded, and saved through an `Accelerator`."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from two_libraries import IDS, MASK, SIZES, base  # noqa: F401

import bertie

accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
NAMES = ["BertModel", "BertForMaskedLM", "BertForSequenceClassification"]


def answer(model: Any) -> torch.Tensor:
    with torch.no_grad():
        first: torch.Tensor = model(IDS, attention_mask=MASK, return_dict=False)[0]
    return first


@pytest.fixture(params=NAMES)
def model(request: pytest.FixtureRequest) -> Any:
    return getattr(bertie, request.param)(bertie.BertConfig(**SIZES)).eval()


def test_a_model_made_without_memory_is_filled_from_a_checkpoint(model: Any, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    with accelerate.init_empty_weights():
        empty = type(model)(copy.deepcopy(model.config))
    assert all(parameter.is_meta for parameter in empty.parameters())
    empty.tie_weights()
    filled = accelerate.load_checkpoint_and_dispatch(
        empty, str(tmp_path / "model.safetensors"), device_map={"": "cpu"}, no_split_module_classes=["BertLayer"]
    )
    filled.eval()
    assert torch.equal(answer(filled), answer(model))


@pytest.mark.parametrize("where", ["cpu", "disk"])
def test_an_offloaded_model_answers_alike_and_saves_whole(where: str, model: Any, tmp_path: Path) -> None:
    expected = answer(model)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if where == "cpu":
        moved = accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    else:
        moved = accelerate.disk_offload(model, str(tmp_path / "disk"), execution_device=torch.device("cpu"))
    assert any(parameter.is_meta for parameter in moved.parameters())
    assert torch.equal(answer(moved), expected)
    moved.save_pretrained(tmp_path / "saved")
    again = type(model).from_pretrained(tmp_path / "saved")
    assert all(torch.equal(tensor, state[name]) for name, tensor in again.state_dict().items())


def test_a_model_is_dispatched_by_a_map(model: Any, tmp_path: Path) -> None:
    expected = answer(model)
    parts = accelerate.infer_auto_device_map(model, no_split_module_classes=model._no_split_modules)
    assert set(parts.values()) <= {"cpu"}
    names = {name for name, _ in model.named_children()}
    moved = accelerate.dispatch_model(
        model,
        {name: "disk" if name in ("bert", "encoder") else "cpu" for name in names},
        main_device="cpu",
        offload_dir=str(tmp_path),
    )
    assert torch.equal(answer(moved), expected)


def test_device_map_keywords_of_from_pretrained(base: Path, tmp_path: Path) -> None:
    plain = bertie.BertModel.from_pretrained(base)
    for given in ("auto", "cpu", {"": "cpu"}, "sequential", "balanced"):
        model = bertie.BertModel.from_pretrained(base, device_map=given)
        assert set(map(str, model.hf_device_map.values())) == {"cpu"}
        assert torch.equal(answer(model), answer(plain))
    parts = {"embeddings": "cpu", "encoder": "disk", "pooler": "cpu"}
    with pytest.raises(bertie.BertieError, match="offload_folder"):
        bertie.BertModel.from_pretrained(base, device_map=parts)
    model = bertie.BertModel.from_pretrained(base, device_map=parts, offload_folder=str(tmp_path))
    assert model.encoder.layer[0].output.dense.weight.is_meta
    assert torch.equal(answer(model), answer(plain))


@pytest.mark.parametrize("safe", [True, False])
def test_the_idiom_for_saving(safe: bool, model: Any, tmp_path: Path) -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    prepared = accelerator.prepare(model)
    accelerator.unwrap_model(prepared).save_pretrained(
        tmp_path,
        is_main_process=accelerator.is_main_process,
        save_function=accelerator.save,
        state_dict=accelerator.get_state_dict(prepared),
        safe_serialization=safe,
    )
    again = type(model).from_pretrained(tmp_path)
    assert torch.equal(answer(again), answer(model))
    assert again.state_dict().keys() == model.state_dict().keys()
