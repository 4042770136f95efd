"""A cased checkpoint is not lower-cased, an uncased one is; vocabularies that say nothing are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertie.errors import TokenizerError
from bertie.text import BertTokenizer
from bertie.text.wordpiece.vocabulary import (
    check_case_matches,
    format_vocabulary,
    guess_lower_case,
    name_case,
    read_vocabulary,
    vocabulary_case,
)

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
AMINO_ACIDS = [*SPECIAL, *"ACDEFGHIKLMNPQRSTVWYXBUZO"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
UNCASED = [*SPECIAL, *(f"w{a}{b}{c}" for a in "abc" for b in LETTERS for c in LETTERS)][:1505]
CASED = [*UNCASED, *(word.capitalize() for word in UNCASED[5:500])]
CHINESE = [*SPECIAL, *map(chr, range(0x4E00, 0x4E00 + 4000)), *UNCASED[5:]]
VOCABS = Path(__file__).resolve().parents[4] / "shared" / "data" / "vocabs"


def test_vocabularies_tell_their_case() -> None:
    assert vocabulary_case(AMINO_ACIDS) == "cased"
    assert vocabulary_case(CASED) == "cased"
    assert vocabulary_case(UNCASED) == "uncased"
    assert vocabulary_case(CHINESE) is None
    assert vocabulary_case([*UNCASED, "DrugBank", "mRNA"]) is None
    assert vocabulary_case([*SPECIAL, "слово", "a", "b"]) is None


@pytest.mark.skipif(not VOCABS.is_dir(), reason="the real vocabularies are not here (../shared/data)")
@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("uncased", "uncased"),
        ("cased", "cased"),
        ("chinese", None),
        ("multilingual-cased", "cased"),
        ("multilingual-uncased", "uncased"),
    ],
)
def test_real_vocabularies_load_and_are_guarded(name: str, case: str | None, tmp_path: Path) -> None:
    path = VOCABS / f"bert-base-{name}"
    vocab = read_vocabulary(path / "vocab.txt")
    assert vocabulary_case(vocab) == case
    assert BertTokenizer.from_pretrained(path).do_lower_case == (case != "cased")
    (tmp_path / "vocab.txt").write_bytes((path / "vocab.txt").read_bytes())
    for lower in (True, False):
        if case is None or (case == "uncased") == lower:
            assert BertTokenizer(tmp_path / "vocab.txt", do_lower_case=lower).do_lower_case == lower
        else:
            with pytest.raises(TokenizerError, match=f"do_lower_case={lower} does not fit") as caught:
                BertTokenizer(tmp_path / "vocab.txt", do_lower_case=lower)
            assert caught.value.remedy is not None
            assert f"do_lower_case={not lower}" in caught.value.remedy
            overridden = BertTokenizer(tmp_path / "vocab.txt", do_lower_case=lower, check_case=False)
            assert overridden.do_lower_case == lower


def test_the_wrong_case_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="an uncased model"):
        BertTokenizer(UNCASED, do_lower_case=False)
    with pytest.raises(TokenizerError, match="a cased model"):
        BertTokenizer(AMINO_ACIDS)
    assert BertTokenizer(AMINO_ACIDS, do_lower_case=None).tokenize("AC") == ["[UNK]"]
    BertTokenizer(CASED, do_lower_case=False).save_pretrained(tmp_path)
    with pytest.raises(TokenizerError, match="capitalised words"):
        BertTokenizer.from_pretrained(tmp_path, do_lower_case=True)
    assert BertTokenizer.from_pretrained(tmp_path, do_lower_case=True, check_case=False).do_lower_case


def test_names_decide_only_where_the_vocabulary_does_not() -> None:
    assert name_case("uncased_L-12_H-768_A-12") == name_case("chinese_L-12_H-768_A-12") == "uncased"
    assert name_case("cased_L-24_H-1024_A-16.zip") == name_case("wwm_cased_L-24_H-1024_A-16") == "cased"
    assert name_case("bert-base-cased") is None
    with pytest.raises(TokenizerError, match="it is named"):
        check_case_matches(CHINESE, False, name="chinese_L-12_H-768_A-12")
    check_case_matches(CHINESE, False, name="bert-base-chinese")
    assert guess_lower_case(CASED, "bert-base-uncased") is False
    assert guess_lower_case(CHINESE, "my-cased-model") is False
    assert guess_lower_case(CHINESE, "my-uncased-model") is True
    assert guess_lower_case(CHINESE) is True


def test_vocabulary_files_round_trip_and_odd_ones_are_read(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes(b"\xef\xbb\xbf[PAD]\r\n[UNK]\r\n\xe2\x80\xa8\r\n\r\nlast")
    assert read_vocabulary(path) == {"[PAD]": 0, "[UNK]": 1, "\u2028": 2, "": 3, "last": 4}
    vocab = {"a": 1, "b": 4, "c": 5}
    path.write_text(format_vocabulary(vocab))
    assert read_vocabulary(path) == vocab


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is empty"), (b"a\nb\xff\n", "is not UTF-8 text: byte 3 is 0xff")],
)
def test_broken_vocabulary_files_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    with pytest.raises(TokenizerError, match=message):
        read_vocabulary(path)
    with pytest.raises(TokenizerError, match="cannot be read"):
        read_vocabulary(tmp_path)


def test_vocabularies_that_no_file_can_hold_are_refused() -> None:
    with pytest.raises(TokenizerError, match="line break"):
        format_vocabulary({"a\nb": 0})
    with pytest.raises(TokenizerError, match="too sparse"):
        format_vocabulary({"a": 2**31 - 1})
    with pytest.raises(TokenizerError, match="maps 'a' to -1"):
        BertTokenizer({"a": -1})
