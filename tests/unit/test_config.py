"""BertConfig: presets, files both ways, labels, and errors that name field, value and remedy."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.config import BertConfig
from bertie.errors import CheckpointNotFound, ConfigError


def test_defaults_are_the_hubs() -> None:
    config = BertConfig()
    assert (config.vocab_size, config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (
        30522,
        768,
        12,
        12,
    )
    assert (config.intermediate_size, config.hidden_act, config.max_position_embeddings) == (3072, "gelu", 512)
    assert (config.layer_norm_eps, config.initializer_range, config.pad_token_id) == (1e-12, 0.02, 0)
    assert config.id2label == {0: "LABEL_0", 1: "LABEL_1"}
    assert config.head_dropout == 0.1
    assert config.attention_head_size == 64


@pytest.mark.parametrize(
    ("name", "layers", "width", "heads"),
    [("tiny", 2, 128, 2), ("mini", 4, 256, 4), ("small", 4, 512, 8), ("medium", 8, 512, 8), ("base", 12, 768, 12),
     ("large", 24, 1024, 16)],
)  # fmt: skip
def test_presets(name: str, layers: int, width: int, heads: int) -> None:
    config = BertConfig.preset(name, vocab_size=100)
    assert (config.num_hidden_layers, config.hidden_size, config.num_attention_heads) == (layers, width, heads)
    assert config.intermediate_size == 4 * width
    assert config.vocab_size == 100


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"hidden_size": 0}, "config.hidden_size is 0"),
    ({"hidden_size": 768.0}, "config.hidden_size is 768.0"),
    ({"num_hidden_layers": True}, "config.num_hidden_layers is True"),
    ({"vocab_size": "many"}, "config.vocab_size is 'many'"),
    ({"hidden_act": "geru"}, "config.hidden_act is 'geru'"),
    ({"position_embedding_type": "rotary"}, "config.position_embedding_type is 'rotary'"),
    ({"problem_type": "guess"}, "config.problem_type is 'guess'"),
    ({"add_cross_attention": True}, "config.is_decoder is false"),
    ({"hidden_dropout_prob": 1.5}, "config.hidden_dropout_prob is 1.5"),
    ({"classifier_dropout": -1}, "config.classifier_dropout is -1"),
    ({"layer_norm_eps": float("nan")}, "config.layer_norm_eps is nan"),
    ({"pad_token_id": 30522}, "config.pad_token_id is 30522"),
    ({"chunk_size_feed_forward": -1}, "config.chunk_size_feed_forward is -1"),
    ({"is_decoder": "yes"}, "config.is_decoder is 'yes'"),
    ({"pruned_heads": {12: [0]}}, "names layer 12"),
    ({"pruned_heads": {0: [12]}}, "names head 12 of layer 0"),
    ({"pruned_heads": [1, 2]}, "config.pruned_heads is [1, 2]"),
    ({"num_labels": 0}, "config.num_labels is 0"),
    ({"num_labels": 3, "id2label": {0: "a"}}, "config.num_labels (3) differs from the 1 entries"),
    ({"id2label": ["a"]}, "config.id2label is ['a']"),
    ({"hidden_size": 12 * 10**8, "num_attention_heads": 12}, "no BERT is that large"),
]


@pytest.mark.parametrize(("values", "message"), WRONG, ids=[str(w[0]) for w in WRONG])
def test_wrong_values_are_refused_by_name(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        BertConfig(**values)


def test_changes_are_validated_before_a_model_is_built() -> None:
    import bertie

    config = BertConfig.preset("tiny", vocab_size=10)
    config.hidden_size = 127
    message = "config.hidden_size (127) is not a multiple of config.num_attention_heads (2)"
    with pytest.raises(ConfigError, match=re.escape(message)):
        bertie.BertModel(config)


def test_a_configuration_alone_may_have_a_width_that_no_model_has() -> None:
    """As google-research/bert's own test has it; the model refuses it."""
    config = BertConfig(vocab_size=99, hidden_size=37)
    assert json.loads(config.to_json_string(use_diff=False))["hidden_size"] == 37
    with pytest.raises(ConfigError, match="37"):
        config.validate()


def test_pruned_layers_may_be_counted_from_the_end() -> None:
    config = BertConfig(pruned_heads={0: [1], -1: [2], 11: [3]})
    assert config.pruned_heads == {0: [1], 11: [2, 3]}
    with pytest.raises(ConfigError, match="names layer -13"):
        BertConfig(pruned_heads={-13: [0]})


def test_unknown_preset_lists_what_there_is() -> None:
    with pytest.raises(ConfigError, match="'huge'"):
        BertConfig.preset("huge")


def test_other_model_types_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="'distilbert'"):
        BertConfig.from_dict({"model_type": "distilbert"})


def test_unknown_keys_are_kept_readable_and_written_back(tmp_path: Path) -> None:
    original = {"model_type": "bert", "hidden_size": 24, "num_attention_heads": 2, "architectures": ["BertForMaskedLM"],
                "auto_map": {"AutoModel": "evil.Module"}, "directionality": "bidi"}  # fmt: skip
    file = tmp_path / "config.json"
    file.write_text(json.dumps(original))
    config = BertConfig.from_json_file(file)
    assert config.architectures == ["BertForMaskedLM"]
    with pytest.raises(AttributeError, match="no field 'nonsense'"):
        _ = config.nonsense
    config.to_json_file(file)
    written = json.loads(file.read_text())
    assert all(written[key] == value for key, value in original.items())
    assert BertConfig.from_json_file(file) == config


def test_google_files_read_and_write() -> None:
    google = {"attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 128,
              "initializer_range": 0.02, "intermediate_size": 512, "max_position_embeddings": 512,
              "num_attention_heads": 2, "num_hidden_layers": 2, "type_vocab_size": 2, "vocab_size": 30522}  # fmt: skip
    assert BertConfig.from_dict(google).to_google_dict() == google


def test_labels_stay_in_step() -> None:
    config = BertConfig.from_dict({"id2label": {"0": "no", "1": "yes", "2": "maybe"}, "label2id": {"no": 0}})
    assert config.num_labels == 3
    assert config.id2label[2] == "maybe"
    config.num_labels = 2
    assert config.id2label == {0: "LABEL_0", 1: "LABEL_1"}
    config.id2label = {0: "a", 1: "b", 2: "c", 3: "d"}
    assert config.num_labels == 4
    assert config.label2id["d"] == 3
    assert BertConfig.from_dict(config.to_dict(), num_labels=5).id2label[4] == "LABEL_4"
    assert BertConfig.from_dict(config.to_dict(), id2label={0: "x", 1: "y"}).label2id == {"x": 0, "y": 1}
    assert BertConfig.from_dict(config.to_dict()) == config


def test_a_function_as_activation_works_but_cannot_be_written() -> None:
    import torch

    config = BertConfig.preset("tiny", vocab_size=10, hidden_act=torch.sin)
    with pytest.raises(ConfigError, match="a file cannot hold"):
        config.to_json()


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"{", "not valid JSON"), (b"[1]", "holds a JSON list"), (b"\xff\xfe", "not valid JSON"),
     (b"[" * 100_000 + b"]" * 100_000, "not valid JSON"), (b'{"hidden_size": NaN}', "config.hidden_size is nan")],
    ids=["cut off", "list", "bytes", "deep", "nan"],
)  # fmt: skip
def test_broken_files_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        BertConfig.from_json_file(file)
    with pytest.raises(CheckpointNotFound, match=r"nothing\.json"):
        BertConfig.from_json_file(tmp_path / "nothing.json")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sorted(BertConfig().__dict__)) | st.text(max_size=6), JSON, max_size=6))
def test_any_object_is_a_config_or_a_config_error(values: dict[str, Any]) -> None:
    try:
        config = BertConfig.from_dict(values)
    except ConfigError:
        return
    assert BertConfig.from_dict(config.to_dict()).to_dict() == config.to_dict()
