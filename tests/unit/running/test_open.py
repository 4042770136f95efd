"""Models by path: loaded once, loaded again when the folder changed, refused when they do not fit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from bertie import (
    BertForMaskedLM,
    BertForNextSentencePrediction,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertLMHeadModel,
    BertModel,
)
from bertie.engine.cpu.library import load_library
from bertie.engine.fast import FastBert
from bertie.errors import CheckpointError, InputError
from bertie.running.open import OpenModel, open_model
from bertie.running.rows import Row
from bertie.tasks.embed import Embedder
from tiny_models import SENTENCES, TEXTS, saved, tiny, tokenizer


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
    with pytest.raises(InputError, match=r"A model was named by 5, of type int\.\nGive the path"):
        open_model(5, BertForSequenceClassification, task="classify")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="There is no device 'gpu'"):
        open_model(tmp_path / "m", BertModel, task="embed", device="gpu")
    with pytest.raises(InputError, match="There is no device 'mps'"):
        open_model(tmp_path / "m", BertModel, task="embed", device="mps")
    with pytest.raises(InputError, match="There is no device 'cuda:x'"):
        open_model(tmp_path / "m", BertModel, task="embed", device="cuda:x")
    with pytest.raises(InputError, match="finds no GPU"):
        open_model(tmp_path / "m", BertModel, task="embed", device="cuda")
    with pytest.raises(InputError, match="engine='fast' is not known"):
        open_model(tmp_path / "m", BertModel, task="embed", engine="fast")


def test_classifiers_of_three_kinds_are_told_apart_by_their_configuration(tmp_path: Path) -> None:
    texts = saved(tmp_path / "texts", "BertForSequenceClassification")
    tokens = saved(tmp_path / "tokens", "BertForTokenClassification")
    choices = saved(tmp_path / "choices", "BertForMultipleChoice", num_labels=1)
    with pytest.raises(CheckpointError, match=r"tag needs a token .* is a BertForSequence.*\n.*classify and rerank"):
        open_model(texts, BertForTokenClassification, task="tag")
    with pytest.raises(CheckpointError, match=r"classify needs a text .* is a BertForToken.*\n.*; tag takes this one"):
        open_model(tokens, BertForSequenceClassification, task="classify")
    with pytest.raises(CheckpointError, match=r"rerank needs .* is a BertForMultipleChoice"):
        open_model(choices, BertForSequenceClassification, task="rerank")
    config = json.loads((tmp_path / "texts" / "config.json").read_text())
    for architectures in (None, ["BertModel"], ["SomethingElse"]):
        changed = {**config, "architectures": architectures}
        (tmp_path / "texts" / "config.json").write_text(json.dumps(changed))
        assert open_model(texts, BertForTokenClassification, task="tag").model.config.num_labels == 2
    both = saved(tmp_path / "both", "BertForPreTraining")
    open_model(both, BertForMaskedLM, task="fill")
    open_model(both, BertForNextSentencePrediction, task="next")


def test_a_gpu_that_is_not_there_is_refused_by_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = saved(tmp_path / "m", "BertModel")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(
        InputError, match=r"cuda:9 was requested, but PyTorch finds only 1 GPU\.\nThe last one is cuda:0"
    ):
        open_model(folder, BertModel, task="embed", device="cuda:9")


# -- the engine --------------------------------------------------------------------------------------------------------

needs_kernels = pytest.mark.skipif(load_library() is None, reason="the CPU kernels are not built")


@needs_kernels
def test_models_by_name_are_compiled_unless_the_reference_is_asked_for(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", "BertForMaskedLM")
    fast = open_model(folder, BertForMaskedLM, task="fill")
    assert fast.is_fast
    assert isinstance(fast.model, BertForMaskedLM)
    assert isinstance(fast.model.bert, FastBert)
    plain = open_model(folder, BertForMaskedLM, task="fill", engine="reference")
    assert not plain.is_fast
    assert plain.budget < fast.budget
    assert (plain.dtype, fast.dtype) == ("float32", "float32")
    rows = [Row(tokenizer()(text, text, truncation=True)["input_ids"], None) for text in TEXTS]
    pairs = [Row(row.ids, [0] * (len(row) - 1) + [1]) for row in rows]
    for batch in (rows, pairs, rows[:1]):
        wanted, found = plain.run(batch).logits, fast.run(batch).logits
        assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()
        assert [len(part) for part in fast.split(found, batch)] == [len(row) for row in batch]


@needs_kernels
def test_int8_is_a_type_like_others(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", "BertModel")
    wanted = Embedder(folder, engine="reference").embed(SENTENCES)
    rounded = Embedder(folder, dtype="int8")
    assert rounded.loaded.dtype == "int8"
    assert rounded.loaded.model.dtype == torch.float32
    found = rounded.embed(SENTENCES)
    cosines = (found * wanted).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(wanted, axis=1)
    assert cosines.min() >= 0.99
    assert Embedder(rounded.loaded, dtype="int8").loaded is rounded.loaded
    with pytest.raises(InputError, match="'float32' was given with a model that is int8"):
        Embedder(rounded.loaded, dtype=torch.float32)


def test_types_are_known_by_several_names(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", "BertModel")
    loaded = open_model(folder, BertModel, task="embed", dtype="bf16")
    assert loaded.model.dtype == torch.bfloat16
    assert not open_model(folder, BertModel, task="embed", dtype="fp16").is_fast  # the engine has none on a CPU
    for name in ("bfloat16", torch.bfloat16, "torch.bfloat16"):
        assert open_model(folder, BertModel, task="embed", dtype=name) is loaded
    assert open_model(folder, BertModel, task="embed", dtype=torch.float64).model.dtype == torch.float64


def test_types_that_cannot_be_had_are_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", "BertModel")
    with pytest.raises(InputError, match="reference has no int8"):
        open_model(folder, BertModel, task="embed", dtype="int8", engine="reference")
    with pytest.raises(InputError, match="fp8 needs a GPU"):
        open_model(folder, BertModel, task="embed", dtype="fp8")
    with pytest.raises(InputError, match="fp8 needs a GPU"):
        open_model(folder, BertModel, task="embed", dtype="fp8", device="cpu")
    decoder = saved(tmp_path / "d", "BertLMHeadModel", is_decoder=True)
    with pytest.raises(InputError, match="is a decoder"):
        open_model(decoder, BertLMHeadModel, task="generate", dtype="int8")
    assert not open_model(decoder, BertLMHeadModel, task="generate").is_fast


def test_a_model_that_is_there_already_stays_what_it_is() -> None:
    model = tiny("BertModel")
    loaded = OpenModel(model, tokenizer())
    for given in (model, loaded):
        same = open_model(given, BertModel, task="embed", tokenizer=tokenizer(), device="cpu", dtype="fp32")
        assert same.model is model
        with pytest.raises(InputError, match=r"dtype='bfloat16' was given with a model that is float32\.\nConvert"):
            open_model(given, BertModel, task="embed", tokenizer=tokenizer(), dtype=torch.bfloat16)
        with pytest.raises(InputError, match=r"device='meta' was given with a model that is on cpu\.\nMove"):
            open_model(given, BertModel, task="embed", tokenizer=tokenizer(), device="meta")
        with pytest.raises(InputError, match="no device 'gpu'"):
            open_model(given, BertModel, task="embed", tokenizer=tokenizer(), device="gpu")


@needs_kernels
def test_a_compiled_model_does_not_move(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", "BertModel")
    compiled = Embedder(open_model(folder, BertModel, task="embed"))
    with pytest.raises(InputError, match="compiled for cpu; it cannot move to meta"):
        compiled.encode("a dog", device="meta")
