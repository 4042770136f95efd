"""QUALITY 7: hub ↔ ours ↔ Google's TensorFlow format, safetensors ↔ .bin, one file ↔ many: not a bit changes.

(That saves survive kill -9 is tests/unit/checkpoint/test_atomic_saving.py's.)
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

import bertie
from bertie.convert import convert
from hostile.mutants import assert_same

# Every class whose parameters all have a place in Google's format.
WITH_TF_FORM = (
    "BertModel", "BertForPreTraining", "BertForMaskedLM", "BertForNextSentencePrediction",
    "BertForSequenceClassification", "BertForMultipleChoice", "BertForTokenClassification", "BertForQuestionAnswering",
)  # fmt: skip
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@st.composite
def configs(draw: st.DrawFn) -> bertie.BertConfig:
    heads = draw(st.integers(1, 3))
    return bertie.BertConfig(
        vocab_size=draw(st.integers(1, 40)),
        hidden_size=heads * draw(st.integers(1, 5)),
        num_hidden_layers=draw(st.integers(1, 11)),
        num_attention_heads=heads,
        intermediate_size=draw(st.integers(1, 20)),
        max_position_embeddings=draw(st.integers(1, 20)),
        type_vocab_size=draw(st.integers(1, 3)),
        hidden_act=draw(st.sampled_from(("gelu", "gelu_new", "relu"))),
        num_labels=draw(st.integers(1, 5)),
    )


def random_model(name: str, config: bertie.BertConfig, seed: int, dtype: torch.dtype = torch.float32) -> Any:
    """Every parameter random, with the values that copying likes to change: infinities, NaNs, negative zeros."""
    torch.manual_seed(seed)
    model = getattr(bertie, name)(config).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
            flat = parameter.view(-1)
            flat[: min(3, flat.numel())] = torch.tensor([float("nan"), -0.0, float("-inf")])[: min(3, flat.numel())].to(
                dtype
            )
    return model


def values(model: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


def reloaded(name: str, folder: Path, **options: Any) -> Any:
    return getattr(bertie, name).from_pretrained(folder, dtype="auto", **options)


@settings(max_examples=12)
@given(
    name=st.sampled_from(WITH_TF_FORM),
    config=configs(),
    seed=st.integers(0, 2**31),
    dtype=st.sampled_from(DTYPES),
)
def test_hub_to_tensorflow_and_back(name: str, config: bertie.BertConfig, seed: int, dtype: torch.dtype) -> None:
    if name == "BertForQuestionAnswering":
        config = config.replace(num_labels=2)  # a start and an end; Google's format says nothing else
    model = random_model(name, config, seed, dtype)
    with TemporaryDirectory() as place:
        hub, google, again = Path(place, "hub"), Path(place, "google"), Path(place, "again")
        model.save_pretrained(hub)
        convert(hub, google, target="tf")
        from_google = reloaded(name, google)
        assert_same(values(from_google), values(model))
        from_google.save_pretrained(again)
        assert_same(load_file(again / "model.safetensors"), load_file(hub / "model.safetensors"))
        convert(again, Path(place, "google again"), target="tf")
        for file in ("bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"):
            assert (google / file).read_bytes() == Path(place, "google again", file).read_bytes()


@settings(max_examples=12)
@given(
    name=st.sampled_from((*WITH_TF_FORM, "BertLMHeadModel")),
    config=configs(),
    seed=st.integers(0, 2**31),
    dtype=st.sampled_from(DTYPES),
    shard_size=st.integers(300, 5000),
    zipped=st.booleans(),
)
def test_safetensors_shards_and_bin(
    name: str, config: bertie.BertConfig, seed: int, dtype: torch.dtype, shard_size: int, zipped: bool
) -> None:
    if name == "BertLMHeadModel":
        config = config.replace(is_decoder=True, add_cross_attention=True)
    model = random_model(name, config, seed, dtype)
    with TemporaryDirectory() as place:
        folder = Path(place)
        model.save_pretrained(folder, max_shard_size=shard_size)
        assert_same(values(reloaded(name, folder)), values(model))
        reloaded(name, folder).save_pretrained(folder)
        names = {path.name for path in folder.iterdir()} - {"generation_config.json"}  # of models that write
        assert names == {"config.json", "model.safetensors"}
        assert_same(values(reloaded(name, folder)), values(model))
        (folder / "model.safetensors").unlink()
        torch.save(model.state_dict(), folder / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
        assert_same(values(reloaded(name, folder)), values(model))


@pytest.mark.parametrize("name", WITH_TF_FORM)
def test_the_hubs_own_files_through_ours_and_tensorflow(tmp_path: Path, name: str) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 30, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3}
    config = transformers.BertConfig(**sizes, intermediate_size=20, max_position_embeddings=10)
    torch.manual_seed(3)
    theirs = getattr(transformers, name)(config)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_()
    theirs.save_pretrained(tmp_path / "hub")
    ours = getattr(bertie, name).from_pretrained(tmp_path / "hub")
    ours.save_pretrained(tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "google", target="tf")
    getattr(bertie, name).from_pretrained(tmp_path / "google").save_pretrained(tmp_path / "back")
    back = getattr(transformers, name).from_pretrained(tmp_path / "back")
    assert_same(values(back), values(theirs))


def test_what_googles_configuration_has_no_place_for_is_said(tmp_path: Path) -> None:
    sizes = {"vocab_size": 30, "hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3}
    config = bertie.BertConfig(**sizes, intermediate_size=20, max_position_embeddings=10, id2label={0: "no", 1: "yes"})
    bertie.BertForSequenceClassification(config).save_pretrained(tmp_path / "hub")
    notes = convert(tmp_path / "hub", tmp_path / "google", target="tf").notes
    assert any("has no place for id2label" in note for note in notes)
    bertie.BertForSequenceClassification(config.replace(id2label=None, label2id=None)).save_pretrained(
        tmp_path / "plain"
    )
    assert not any("no place" in note for note in convert(tmp_path / "plain", tmp_path / "other", target="tf").notes)
