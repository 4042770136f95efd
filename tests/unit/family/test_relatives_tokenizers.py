"""Tokenizers of BERT's relatives by the hub's names: what they read, what they refuse, what they write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import bertie
import family_models
from bertie.errors import BertieError
from bertie.text.kinds import KINDS
from tiny_models import SENTENCES

PAIR = (SENTENCES[1], SENTENCES[4])
NAMES = [name for name in KINDS if name not in ("BertTokenizer", "CamembertTokenizer")]  # which is XLM-RoBERTa's here


@pytest.fixture
def folder(name: str, tmp_path: Path) -> Path:
    family_models.save_tokenizer(name, tmp_path / "files")
    return tmp_path / "files"


@pytest.mark.parametrize("name", NAMES)
def test_a_class_by_name_reads_what_the_tokenizer_of_all_reads(name: str, folder: Path, tmp_path: Path) -> None:
    named: Any = getattr(bertie, name)
    assert getattr(bertie, f"{name}Fast") is named
    tokenizer, wanted = named.from_pretrained(folder), bertie.BertTokenizer.from_pretrained(folder)
    assert type(tokenizer) is named
    assert tokenizer(*PAIR) == wanted(*PAIR)
    (folder / "tokenizer_config.json").unlink()  # the class says what the folder does not
    alone = named.from_pretrained(folder, do_lower_case=True)
    assert alone(*PAIR) == wanted(*PAIR)
    alone.save_pretrained(tmp_path / "again")
    assert bertie.BertTokenizer.from_pretrained(tmp_path / "again").tokenizer_class == name
    assert alone.special_tokens_map == wanted.special_tokens_map


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("RobertaTokenizer", ["vocab.json", "merges.txt"]),
        ("DistilBertTokenizer", ["vocab.txt"]),
        ("ElectraTokenizer", ["vocab.txt"]),
        ("MPNetTokenizer", ["vocab.txt"]),
    ],
)
def test_it_is_made_of_its_files(name: str, files: list[str], folder: Path, tmp_path: Path) -> None:
    named: Any = getattr(bertie, name)
    wanted = named.from_pretrained(folder)
    made = named(*(str(folder / file) for file in files))
    assert made(*PAIR) == wanted(*PAIR)
    assert [Path(path).name for path in made.save_vocabulary(tmp_path / "vocabulary")] == files
    again = named(*(tmp_path / "vocabulary" / file for file in files))
    assert again(*PAIR) == wanted(*PAIR)
    made.save_pretrained(tmp_path / "older", legacy_format=True)
    assert not (tmp_path / "older" / "tokenizer.json").exists()
    assert named.from_pretrained(tmp_path / "older")(*PAIR) == wanted(*PAIR)


@pytest.mark.parametrize("name", ["RobertaTokenizer", "XLMRobertaTokenizer", "MPNetTokenizer"])
def test_it_is_made_of_a_rust_tokenizer(name: str, folder: Path, tmp_path: Path) -> None:
    named: Any = getattr(bertie, name)
    wanted = named.from_pretrained(folder)
    backend = wanted.backend_tokenizer
    backend.save(str(tmp_path / "tokenizer.json"))
    for made in (named(tokenizer_object=backend), named(tokenizer_file=tmp_path / "tokenizer.json")):
        assert made(*PAIR) == wanted(*PAIR)
        assert (made.mask_token, made.pad_token_id) == ("<mask>", 1)


@pytest.mark.parametrize("name", ["XLMRobertaTokenizer"])
def test_what_cannot_be_read_or_written_is_refused(name: str, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        BertieError, match=r"holds a XLMRobertaTokenizer, not a RobertaTokenizer\.\nLoad it with bertie\.XLMRoberta"
    ):
        bertie.RobertaTokenizer.from_pretrained(folder)
    tokenizer = bertie.XLMRobertaTokenizer.from_pretrained(folder)
    for write in (tokenizer.save_vocabulary, lambda place: tokenizer.save_pretrained(place, legacy_format=True)):
        with pytest.raises(BertieError, match=r"A Unigram tokenizer is written as tokenizer\.json only"):
            write(tmp_path / "out")
    with pytest.raises(BertieError, match="expected are the paths of its files"):
        bertie.MPNetTokenizer("vocab.txt", True)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["ElectraTokenizer"])
def test_kinds_with_the_same_files_stand_in_for_each_other(name: str, folder: Path) -> None:
    batch = bertie.DistilBertTokenizer.from_pretrained(folder)(*PAIR)
    assert list(batch) == ["input_ids", "attention_mask"]
    assert batch["input_ids"] == bertie.ElectraTokenizer.from_pretrained(folder)(*PAIR)["input_ids"]
