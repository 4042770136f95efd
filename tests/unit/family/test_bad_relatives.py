"""What cannot be loaded, and why: cause, remedy, and the list of what is known."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import bertie
import family_models
from bertie.config.relatives import MODEL_TYPES, OTHERS
from bertie.errors import BertieError


@pytest.fixture
def roberta(tmp_path: Path) -> Path:
    family_models.saved(tmp_path, "RobertaForMaskedLM")
    return tmp_path


def changed(folder: Path, **values: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def refused(call: object, folder: Path, *words: str) -> None:
    with pytest.raises(BertieError) as caught:
        call(folder)  # type: ignore[operator]
    for word in words:
        assert word in str(caught.value), str(caught.value)


@pytest.mark.parametrize("model_type", [*OTHERS, "gpt2"])
def test_other_architectures_are_refused_by_name_with_the_reason(roberta: Path, model_type: str) -> None:
    changed(roberta, model_type=model_type)
    reason = OTHERS.get(model_type, "")
    refused(bertie.load, roberta, f"describes a {model_type!r} model", reason, ", ".join(MODEL_TYPES))
    refused(lambda path: bertie.embed("a", model=str(path)), roberta, f"{model_type!r} model", reason)


def test_a_class_of_another_relative_is_refused(roberta: Path) -> None:
    remedy = "bertie.load(…) takes the class that the checkpoint was saved from"
    refused(bertie.DistilBertForMaskedLM.from_pretrained, roberta, "'roberta' model", "not a 'distilbert' one", remedy)
    refused(bertie.BertModel.from_pretrained, roberta, "'roberta' model", "not a 'bert' one", remedy)
    with pytest.raises(
        BertieError, match=r"RobertaForMaskedLM .* of type DistilBertConfig\.\nPass a bertie\.RobertaConfig"
    ):
        bertie.RobertaForMaskedLM(bertie.DistilBertConfig())
    with pytest.raises(BertieError, match=r"MPNetModel .* of type BertConfig\.\nPass a bertie\.MPNetConfig"):
        bertie.MPNetModel(bertie.BertConfig())
    with pytest.raises(BertieError, match=r"model_type is 'roberta'; ElectraConfig reads 'electra' only\.\nAutoConfig"):
        bertie.ElectraConfig.from_pretrained(roberta)


def test_a_relatives_configuration_without_its_type_is_refused(roberta: Path) -> None:
    """It would be loaded as a BERT, whose positions begin elsewhere."""
    values = json.loads((roberta / "config.json").read_text())
    del values["model_type"]
    (roberta / "config.json").write_text(json.dumps(values))
    for call in (bertie.load, bertie.BertModel.from_pretrained, bertie.AutoModel.from_pretrained):
        refused(call, roberta, "no model_type", "RobertaForMaskedLM", 'Add "model_type": "roberta"')


def test_a_head_that_the_checkpoint_lacks_is_said(roberta: Path) -> None:
    refused(lambda path: bertie.classify("a", model=str(path)), roberta, "lacks classifier.")
    refused(lambda path: bertie.next_sentence("a", "b", model=str(path)), roberta, "nothing like", "RobertaForMaskedLM")


def test_a_configuration_of_other_weights_is_refused(roberta: Path) -> None:
    changed(roberta, model_type="mpnet", architectures=["MPNetModel"], vocab_size=300)
    refused(bertie.load, roberta, "none of its 42 tensors", "Is this the right checkpoint?")
    changed(roberta, model_type="roberta", architectures=["RobertaModel"], hidden_size=16)
    refused(bertie.load, roberta, "have another size than the configuration says")
    changed(roberta, hidden_size=32, num_hidden_layers=5)
    refused(bertie.load, roberta, "num_hidden_layers is 5; the weights have 2")


@pytest.mark.parametrize(
    ("kind", "values", "words"),
    [
        ("RobertaConfig", {"pad_token_id": None}, "positions start after it"),
        ("RobertaConfig", {"pad_token_id": 30, "max_position_embeddings": 31}, "there are 31"),
        ("ElectraConfig", {"embedding_size": 0}, "embedding_size is 0"),
        ("MPNetConfig", {"relative_attention_num_buckets": 4}, "at least 32"),
        ("DistilBertConfig", {"is_decoder": True}, "always an encoder"),
    ],
)
def test_configurations_that_cannot_be_are_refused(kind: str, values: dict[str, object], words: str) -> None:
    with pytest.raises(BertieError, match=re.escape(words)):
        getattr(bertie, kind)(**values).validate()


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt"])
def test_half_a_tokenizer_says_which_file_is_missing(roberta: Path, name: str) -> None:
    (roberta / name).unlink()
    refused(bertie.BertTokenizer.from_pretrained, roberta, f"without {name}", "tokenizer.json")
    for one in ("vocab.json", "merges.txt"):
        (roberta / one).unlink(missing_ok=True)
    refused(bertie.BertTokenizer.from_pretrained, roberta, "neither tokenizer.json nor vocab.json with merges.txt")


def test_damaged_tokenizer_files_are_refused_by_name(roberta: Path) -> None:
    (roberta / "merges.txt").write_text("a b\nthree of them\n")
    refused(bertie.BertTokenizer.from_pretrained, roberta, "merges.txt, line 2", "not two pieces")
    (roberta / "merges.txt").write_text("")
    (roberta / "vocab.json").write_text('{"a": "b"}')
    refused(bertie.BertTokenizer.from_pretrained, roberta, "vocab.json is no vocabulary")
    for name in ("merges.txt", "vocab.json", "tokenizer_config.json"):
        (roberta / name).unlink()
    changed(roberta, model_type="xlm-roberta")
    for content in (b"", b"\xff\xff\xff", b"\x0a\xff\x7f", b"\x0a\x02\x0a\x00" * 2):
        (roberta / "sentencepiece.bpe.model").write_bytes(content)
        refused(bertie.BertTokenizer.from_pretrained, roberta, "sentencepiece.bpe.model is no SentencePiece model")


def test_configurations_read_and_write_either_name(tmp_path: Path) -> None:
    config = bertie.DistilBertConfig(dim=24, n_heads=3, hidden_size=48)
    assert (config.hidden_size, config.dim, config.num_attention_heads) == (48, 48, 3)
    config.n_layers = 4
    assert config.num_hidden_layers == 4
    written = json.loads(config.to_json())
    assert (written["dim"], written["n_layers"], written["model_type"]) == (48, 4, "distilbert")
    assert not {"hidden_size", "type_vocab_size", "layer_norm_eps"} & written.keys()
    assert bertie.DistilBertConfig.from_dict(written) == config
    assert config.replace(hidden_size=12).dim == 12
    assert (
        bertie.RobertaConfig.from_dict(json.loads(bertie.RobertaConfig(bos_token_id=None).to_json())).bos_token_id
        is None
    )
