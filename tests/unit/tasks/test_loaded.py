"""Models by path: loaded once, loaded again when the folder changed, refused when they do not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bertie import BertForMaskedLM, BertForSequenceClassification, BertModel
from bertie.errors import CheckpointError, InputError
from bertie.tasks.loaded import open_model
from tiny_models import saved, tiny, tokenizer


def test_a_folder_is_loaded_once_and_again_when_it_was_saved_again(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", "BertModel")
    first = open_model(folder, BertModel, task="embed")
    assert open_model(folder, BertModel, task="embed") is first
    saved(tmp_path / "m", "BertModel", seed=1)
    again = open_model(folder, BertModel, task="embed")
    assert again is not first
    assert torch.equal(again.model.embeddings.LayerNorm.bias, tiny("BertModel", seed=1).embeddings.LayerNorm.bias)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "m", "BertModel")
    with pytest.raises(CheckpointError, match="fill needs a masked-word head"):
        open_model(tmp_path / "m", BertForMaskedLM, task="fill")
    with pytest.raises(InputError, match="without its tokenizer"):
        open_model(tiny("BertModel"), BertModel, task="embed")
    with pytest.raises(InputError, match="classify needs a BertForSequenceClassification"):
        open_model(tiny("BertModel"), BertForSequenceClassification, task="classify", tokenizer=tokenizer())
    with pytest.raises(InputError, match="classify needs a model"):
        open_model(None, BertForSequenceClassification, task="classify")
    with pytest.raises(InputError, match="There is no device 'gpu'"):
        open_model(tmp_path / "m", BertModel, task="embed", device="gpu")
    with pytest.raises(InputError, match="sees no GPU"):
        open_model(tmp_path / "m", BertModel, task="embed", device="cuda")
