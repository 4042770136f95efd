"""Where we differ from transformers 4.57.6 on purpose: both behaviours, side by side (ARCHITECTURE.md has the list)."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import bertie
from bertie.errors import ConfigError, WeightsMismatch
from parity.oracle import pair

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "dog", "##s", "[B]"]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("words") / "vocab.txt"
    file.write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    return str(file)


def test_maps_are_given_before_dropout() -> None:
    theirs, ours = pair("BertModel", attention_probs_dropout_prob=0.5)
    ids = torch.randint(3, 60, (2, 12))
    wanted = theirs.train()(ids, output_attentions=True).attentions[0]
    got = ours.train()(ids, output_attentions=True).attentions[0]
    assert (wanted == 0).any(), "dropped"
    assert not (got == 0).any()
    assert torch.allclose(got.sum(-1), torch.ones(2, 3, 12), atol=1e-5)


@pytest.mark.parametrize("values", [{"hidden_act": "geru"}, {"num_hidden_layers": -1}, {"hidden_dropout_prob": 7.0}])
def test_a_configuration_that_cannot_be_is_refused_at_once(values: dict[str, object]) -> None:
    assert transformers.BertConfig(**values)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=next(iter(values))):
        bertie.BertConfig(**values)


def test_missing_weights_of_the_encoder_are_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    theirs, ours = pair("BertModel")
    ours.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["encoder.layer.0.intermediate.dense.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with caplog.at_level(logging.WARNING):
        assert type(theirs).from_pretrained(tmp_path)
    with pytest.raises(WeightsMismatch, match="intermediate"):
        bertie.BertModel.from_pretrained(tmp_path)


def test_setting_the_labels_sets_their_numbers() -> None:
    theirs, ours = transformers.BertConfig(num_labels=2), bertie.BertConfig(num_labels=2)
    theirs.id2label = ours.id2label = {0: "no", 1: "yes"}
    assert theirs.label2id == {"LABEL_0": 0, "LABEL_1": 1}
    assert ours.label2id == {"no": 0, "yes": 1}


def test_the_name_without_fast_is_fast_too(vocabulary: str) -> None:
    assert not transformers.BertTokenizer(vocabulary).is_fast
    with pytest.raises(NotImplementedError):
        transformers.BertTokenizer(vocabulary)("the dogs", return_offsets_mapping=True)
    assert bertie.BertTokenizer(vocabulary).is_fast
    found = bertie.BertTokenizer(vocabulary)("the dogs", return_offsets_mapping=True)
    assert found["offset_mapping"] == [(0, 0), (0, 3), (4, 7), (7, 8), (0, 0)]


def test_an_empty_second_text_is_a_second_text(vocabulary: str) -> None:
    theirs, ours = transformers.BertTokenizerFast(vocabulary), bertie.BertTokenizer(vocabulary)
    assert len(theirs("dog", "")["input_ids"]) == 3
    assert len(theirs(["dog"], [""])["input_ids"][0]) == 4
    assert ours("dog", "")["input_ids"] == ours(["dog"], [""])["input_ids"][0] == [2, 6, 3, 3]


def test_a_new_frame_token_is_used(vocabulary: str) -> None:
    theirs, ours = transformers.BertTokenizerFast(vocabulary), bertie.BertTokenizer(vocabulary)
    theirs.cls_token = ours.cls_token = "[B]"
    assert theirs("dog")["input_ids"] == [2, 6, 3]
    assert ours("dog")["input_ids"] == [8, 6, 3]


def test_files_of_newer_pickle_protocols_are_read(tmp_path: Path) -> None:
    _, ours = pair("BertModel")
    ours.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(dict(ours.state_dict()), tmp_path / "pytorch_model.bin", pickle_protocol=5)
    with pytest.raises(Exception, match="weights_only"):
        torch.load(tmp_path / "pytorch_model.bin", weights_only=True)
    loaded = bertie.BertModel.from_pretrained(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), loaded.parameters(), strict=True))
