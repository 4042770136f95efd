"""transformers 4's two tokenizer classes side by side with ours: what scripts can tell them apart by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from two_libraries import transformers  # noqa: F401

import bertie
from bertie.errors import TokenizerError
from bertie.text import BertTokenizer, BertTokenizerFast, BertTokenizerSlow

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "mat", ".", "dog", "##s", "ran", "a"]
TEXTS = ["The cat sat on the mat.", "dogs ran on a mat", "the dog."]
PAIRS = ["a dog ran on the mat", "the cat", "dogs sat"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true, "model_max_length": 8}')
    return tmp_path


CALLS: list[dict[str, Any]] = [
    {"truncation": True, "max_length": 6},
    {"truncation": True, "max_length": 6, "stride": 2, "padding": True, "return_special_tokens_mask": True},
    {"truncation": "only_first", "max_length": 12, "return_length": True, "return_attention_mask": False},
    {"truncation": True},
    {"truncation": True, "max_length": 6, "add_special_tokens": False},
    {"max_length": 40, "padding": "max_length", "padding_side": "left"},
]


@pytest.mark.parametrize("call", CALLS, ids=str)
@pytest.mark.parametrize("fast", [True, False])
def test_each_gives_what_it_cuts_off_in_its_way(
    fast: bool, call: dict[str, Any], folder: Path, transformers: Any
) -> None:
    mine, theirs = (one.AutoTokenizer.from_pretrained(folder, use_fast=fast) for one in (bertie, _bert(transformers)))
    call = call | {"return_overflowing_tokens": True}
    for texts in (TEXTS, TEXTS[0]):
        assert dict(mine(texts, **call)) == dict(theirs(texts, **call))
    if call.get("truncation") is not True:
        assert dict(mine(TEXTS, PAIRS, **call)) == dict(theirs(TEXTS, PAIRS, **call))
    elif not fast:
        for tokenizer in (mine, theirs):
            with pytest.raises(ValueError, match="another truncation strategy than `longest_first`"):
                tokenizer(TEXTS, PAIRS, **call)


def _bert(transformers: Any) -> Any:
    class Library:
        class AutoTokenizer:
            @staticmethod
            def from_pretrained(folder: Path, use_fast: bool) -> Any:
                chosen = transformers.BertTokenizerFast if use_fast else transformers.BertTokenizer
                return chosen.from_pretrained(folder)

    return Library


@pytest.mark.parametrize("fast", [True, False])
def test_each_says_what_it_is(fast: bool, folder: Path, transformers: Any) -> None:
    mine, theirs = (one.AutoTokenizer.from_pretrained(folder, use_fast=fast) for one in (bertie, _bert(transformers)))
    assert type(mine) is (BertTokenizerFast if fast else BertTokenizerSlow)
    assert mine.is_fast == theirs.is_fast == fast
    assert isinstance(mine, transformers.BertTokenizerFast if fast else transformers.BertTokenizer)
    assert isinstance(mine, transformers.PreTrainedTokenizerFast) == fast
    assert f"is_fast={fast}" in repr(mine)
    written = [{Path(path).name for path in one.save_pretrained(folder / "out")} for one in (mine, theirs)]
    assert written[0] == written[1] - {"added_tokens.json"}  # which transformers lists though it has not written it
    ids = mine.convert_tokens_to_ids(["the", "cat"])
    if not fast:
        for given in (ids, ["the", "cat"]):
            assert dict(mine.encode_plus(given, "dogs")) == dict(theirs.encode_plus(given, "dogs"))
        with pytest.raises(TokenizerError, match="A slow tokenizer does not give"):
            mine("dogs", return_offsets_mapping=True, return_overflowing_tokens=True)


def test_the_plain_name_is_the_fast_one() -> None:
    assert BertTokenizer(WORDS).is_fast
    assert issubclass(BertTokenizerFast, BertTokenizer)
    assert bertie.BertTokenizerFast is BertTokenizerFast


def test_padding_afterwards_gets_the_hubs_advice_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    for kind in (BertTokenizerFast, BertTokenizer, BertTokenizerSlow):
        tokenizer = kind.from_pretrained(folder)
        for _ in range(2):
            tokenizer.pad(tokenizer("dogs"))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "using the `__call__` method is faster" in caplog.text
