"""`BertConfig` used as code written for transformers uses it: the same calls on both, and the same values."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import bertie
from bertie.errors import ConfigError

transformers = pytest.importorskip("transformers", reason="transformers is the other side of these comparisons")
BOTH = pytest.mark.parametrize("library", [transformers, bertie], ids=["transformers", "bertie"])
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}

CALLS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "sizes": SMALL,
    "labels": {"num_labels": 3},
    "named labels": {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}},
    "unknown keywords": {"my_key": 1, "my_list": [1, {"a": None}], "my_flag": False},
    "decoder": {"is_decoder": True, "add_cross_attention": True, "bos_token_id": 1, "eos_token_id": 2},
    "generation": {"max_length": 77, "num_beams": 4, "do_sample": True, "top_k": None, "early_stopping": True},
    "dtype": {"torch_dtype": "float16"},
    "task": {"problem_type": "regression", "finetuning_task": "stsb", "architectures": ["BertModel"]},
    "pruned": {"pruned_heads": {0: [1, 2]}, "chunk_size_feed_forward": 4, "tie_word_embeddings": False},
    "outputs": {"output_hidden_states": True, "return_dict": False, "torchscript": True},
}
NAMES = [
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act",
    "hidden_dropout_prob", "attention_probs_dropout_prob", "max_position_embeddings", "type_vocab_size",
    "initializer_range", "layer_norm_eps", "pad_token_id", "position_embedding_type", "use_cache", "classifier_dropout",
    "is_decoder", "add_cross_attention", "chunk_size_feed_forward", "pruned_heads", "tie_word_embeddings", "num_labels",
    "id2label", "label2id", "problem_type", "output_attentions", "output_hidden_states", "return_dict", "bos_token_id",
    "eos_token_id", "decoder_start_token_id", "model_type", "attribute_map", "sub_configs", "use_return_dict",
    "is_encoder_decoder", "architectures", "finetuning_task", "tokenizer_class", "prefix", "sep_token_id",
    "torchscript", "cross_attention_hidden_size", "tie_encoder_decoder", "task_specific_params", "name_or_path",
    "_name_or_path", "_commit_hash", "_attn_implementation", "dtype", "has_no_defaults_at_init",
    *transformers.PretrainedConfig._get_global_generation_defaults(),
]  # fmt: skip


@pytest.mark.parametrize("given", CALLS.values(), ids=CALLS.keys())
def test_every_attribute_reads_the_same(given: dict[str, Any]) -> None:
    theirs, ours = transformers.BertConfig(**given), bertie.BertConfig(**given)
    for name in [*NAMES, *(name for name in given if name != "torch_dtype")]:
        assert getattr(ours, name) == getattr(theirs, name), name
        assert (name in ours) or (name not in theirs), name


@pytest.mark.filterwarnings("ignore:Some non-default generation parameters")  # theirs; it saves them all the same
@pytest.mark.parametrize("given", CALLS.values(), ids=CALLS.keys())
def test_files_go_both_ways(given: dict[str, Any], tmp_path: Path) -> None:
    theirs, ours = transformers.BertConfig(**given), bertie.BertConfig(**given)
    ours.save_pretrained(tmp_path / "ours")
    theirs.save_pretrained(tmp_path / "theirs")
    read_by_them = transformers.BertConfig.from_pretrained(tmp_path / "ours")
    read_by_us = bertie.BertConfig.from_pretrained(tmp_path / "theirs")
    assert read_by_them.to_dict() == theirs.to_dict()
    del read_by_us.extra["transformers_version"]  # written by them, kept by us
    assert read_by_us == ours
    assert bertie.BertConfig.from_pretrained(tmp_path / "ours") == ours


@pytest.mark.parametrize("given", CALLS.values(), ids=CALLS.keys())
def test_dictionaries_and_json_make_the_same_again(given: dict[str, Any], tmp_path: Path) -> None:
    ours = bertie.BertConfig(**given)
    for values in (ours.to_dict(), ours.to_diff_dict(), json.loads(ours.to_json_string(use_diff=False))):
        assert bertie.BertConfig(**values) == ours
        assert bertie.BertConfig.from_dict(values) == ours
        assert transformers.BertConfig.from_dict(dict(values)).to_dict() == transformers.BertConfig(**given).to_dict()
    ours.to_json_file(tmp_path / "config.json")
    assert bertie.BertConfig.from_json_file(tmp_path / "config.json") == ours
    for same in (copy.copy(ours), copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert same == ours
        assert same.to_json_string() == ours.to_json_string()
        assert same.extra == ours.extra
    changed = copy.deepcopy(ours)
    changed.my_list = [3]
    assert changed != ours


@pytest.mark.filterwarnings("ignore:Some non-default generation parameters")
@BOTH
def test_attributes_set_later_are_saved(library: Any, tmp_path: Path) -> None:
    config = library.BertConfig(**SMALL)
    config.my_weights = [0.1, 0.9]
    config.max_length = 64
    config.num_labels = 3
    config.update({"my_name": "x", "hidden_dropout_prob": 0.25})
    config.update_from_string("intermediate_size=96,use_cache=false,layer_norm_eps=0.5,hidden_act=relu")
    config.save_pretrained(tmp_path)
    again = library.BertConfig.from_pretrained(tmp_path)
    assert (again.my_weights, again.max_length, again.num_labels, again.my_name) == ([0.1, 0.9], 64, 3, "x")
    assert (again.intermediate_size, again.use_cache, again.layer_norm_eps, again.hidden_act) == (
        96,
        False,
        0.5,
        "relu",
    )
    assert again.hidden_dropout_prob == 0.25
    with pytest.raises(ValueError, match="nonsense"):
        config.update_from_string("nonsense=1")
    with pytest.raises(ValueError):
        config.update_from_string("use_cache=perhaps")


def test_attributes_of_a_model_s_config_are_saved_with_it(tmp_path: Path) -> None:
    model = bertie.BertModel(bertie.BertConfig(vocab_size=50, **SMALL))
    model.config.my_threshold = 0.7
    model.save_pretrained(tmp_path)
    assert bertie.BertModel.from_pretrained(tmp_path).config.my_threshold == 0.7
    assert transformers.BertModel.from_pretrained(tmp_path).config.my_threshold == 0.7
    model.config.my_function = print
    with pytest.raises(ConfigError, match=r"config\.my_function .* a file cannot hold"):
        model.save_pretrained(tmp_path)


@BOTH
def test_from_pretrained_takes_the_hubs_arguments(library: Any, tmp_path: Path) -> None:
    library.BertConfig(**SMALL, my_key=1, id2label={0: "a", 1: "b"}).save_pretrained(tmp_path / "below")
    config, unused = library.BertConfig.from_pretrained(
        tmp_path,
        subfolder="below",
        cache_dir=tmp_path,
        force_download=False,
        local_files_only=True,
        token=None,
        revision="main",
        my_key=2,
        not_a_key=3,
        torch_dtype=torch.float16,
        return_unused_kwargs=True,
    )
    assert (config.my_key, config.hidden_size, config.id2label) == (2, 32, {0: "a", 1: "b"})
    assert config.dtype == torch.float16
    assert unused["not_a_key"] == 3
    assert not hasattr(config, "cache_dir")
    values, rest = library.BertConfig.get_config_dict(tmp_path / "below", foo=1)
    assert values["my_key"] == 1
    assert rest["foo"] == 1
    with pytest.raises(OSError):
        library.BertConfig.from_pretrained(f"./{tmp_path.name}/nothing/there")
    assert library.BertConfig.from_pretrained(tmp_path / "below", num_labels=3).id2label[2] == "LABEL_2"


@BOTH
def test_labels_follow_num_labels_only_when_the_number_changes(library: Any) -> None:
    config = library.BertConfig(id2label={0: "no", 1: "yes"}, label2id={"no": 0, "yes": 1})
    config.num_labels = 2
    assert config.id2label == {0: "no", 1: "yes"}
    config.num_labels = 4
    assert config.id2label[3] == "LABEL_3"
    assert config.label2id["LABEL_3"] == 3


@BOTH
def test_a_subclass_adds_its_own_keys(library: Any, tmp_path: Path) -> None:
    class PooledConfig(library.BertConfig):  # type: ignore[misc,name-defined]
        model_type = "pooled-bert"
        attribute_map = {"width": "hidden_size"}  # noqa: RUF012

        def __init__(self, pooling: str = "mean", **values: Any) -> None:
            self.pooling = pooling  # before or after the others: both are usual
            super().__init__(**values)
            self.heads = 3

    config = PooledConfig(pooling="max", **SMALL)
    assert config.width == 32
    config.width = 64
    assert config.hidden_size == 64
    config.save_pretrained(tmp_path)
    again = PooledConfig.from_pretrained(tmp_path)
    assert (type(again), again.pooling, again.hidden_size, again.heads) == (PooledConfig, "max", 64, 3)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "pooled-bert"


def test_numbers_from_numpy_are_numbers() -> None:
    import numpy

    labels = numpy.array([0, 2, 1])
    for library in (transformers, bertie):
        config = library.BertConfig(num_labels=labels.max() + 1)
        assert config.id2label[2] == "LABEL_2"
    assert type(bertie.BertConfig(vocab_size=numpy.int64(9)).vocab_size) is int


def test_sizes_may_be_given_in_the_hubs_order() -> None:
    theirs, ours = transformers.BertConfig(99, 32, 2, 4, 37, "relu"), bertie.BertConfig(99, 32, 2, 4, 37, "relu")
    assert all(getattr(ours, name) == getattr(theirs, name) for name in NAMES[:16])
    with pytest.raises(ConfigError, match="17 values without names"):
        bertie.BertConfig(*range(17))


def test_impossible_values_are_refused_at_once() -> None:
    """transformers makes the object and fails, less clearly, when a model is built or run."""
    transformers.BertConfig(pruned_heads={"a": 1})
    with pytest.raises(ConfigError, match=r"config\.pruned_heads is"):
        bertie.BertConfig(pruned_heads={"a": 1})


def test_a_layer_norm_eps_of_1_is_taken_as_the_hubs_own_tests_do() -> None:
    for library in (transformers, bertie):
        assert library.BertConfig(layer_norm_eps=1.0).layer_norm_eps == 1.0
    with pytest.raises(bertie.BertieError, match="0 to 1"):
        bertie.BertConfig(layer_norm_eps=1.5)
