"""Calls of `BertTokenizer` beside those of transformers 4.57's `BertTokenizerFast`: the same columns and refusals."""

from __future__ import annotations

import copy
import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from transformers.models.bert import tokenization_bert as hub_python

from bertie.errors import TokenizerError
from bertie.text import BasicTokenizer, BatchEncoding, BertTokenizer, WordpieceTokenizer

# fmt: off
WORDS = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "mat", "dog", "ran", "un", "##want",
    "##ed", "##s", "##ing", "runn", ",", ".", "!", "?", "a", "b", "c", "##a", "##b", "low", "lowest", "hello", "world",
]
# fmt: on
TEXTS = ["The cat sat on the mat.", "Dogs ran, unwanted!", "hello world", ""]
PAIRS = ["the dog", "running lowest a b c", "hello", "world"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    (path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (path / "tokenizer_config.json").write_text('{"do_lower_case": true, "model_max_length": 32}')
    return path


@pytest.fixture
def hub(folder: Path) -> Any:
    return transformers.BertTokenizerFast.from_pretrained(folder)


@pytest.fixture
def ours(folder: Path) -> BertTokenizer:
    return BertTokenizer.from_pretrained(folder)


def same(ours: Any, hub: Any) -> bool:
    """Equal columns of equal types."""
    assert list(ours) == list(hub)
    for name, column in ours.items():
        assert type(column) is type(hub[name])
        if isinstance(column, (np.ndarray, torch.Tensor)):
            assert column.dtype == hub[name].dtype
            assert column.tolist() == hub[name].tolist()
        else:
            assert column == hub[name]
    return True


CALLS: list[dict[str, Any]] = [
    {},
    {"add_special_tokens": False},
    {"padding": True},
    {"padding": True, "pad_to_multiple_of": 8, "return_tensors": "pt"},
    {"padding": "max_length", "max_length": 12, "truncation": True, "padding_side": "left", "return_tensors": "np"},
    {"truncation": True, "max_length": 6},
    {"truncation": "longest_first", "max_length": 6, "return_length": True},
    {"truncation": True},
    {"return_attention_mask": None, "return_token_type_ids": None},
    {"return_attention_mask": False, "return_token_type_ids": False},
    {"return_special_tokens_mask": True, "return_offsets_mapping": True, "verbose": False},
    {"truncation": True, "max_length": 9, "stride": 1, "return_overflowing_tokens": True},
    {"max_length": 9},
    {"padding": transformers.utils.PaddingStrategy.LONGEST, "return_tensors": transformers.TensorType.NUMPY},
    {"split_special_tokens": True},
]


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_calls_give_the_same_columns(call: dict[str, Any], ours: BertTokenizer, hub: Any) -> None:
    assert same(ours(TEXTS, **call), hub(TEXTS, **call))
    assert same(ours(TEXTS, PAIRS, **call), hub(TEXTS, PAIRS, **call))
    assert same(ours(TEXTS[0], **call), hub(TEXTS[0], **call))
    assert same(ours.batch_encode_plus(TEXTS, **call), hub.batch_encode_plus(TEXTS, **call))
    assert same(ours.encode_plus(TEXTS[0], PAIRS[0], **call), hub.encode_plus(TEXTS[0], PAIRS[0], **call))
    assert ours.tokenize(TEXTS[0], PAIRS[0]) == hub.tokenize(TEXTS[0], PAIRS[0])


def test_arguments_by_position_are_the_hubs(ours: BertTokenizer, hub: Any) -> None:
    assert same(
        ours("the cat", "a dog", None, None, False, "max_length", True, 9),
        hub("the cat", "a dog", None, None, False, "max_length", True, 9),
    )
    assert ours.encode("the cat", None, True, "max_length", True, 9) == hub.encode(
        "the cat", None, True, "max_length", True, 9
    )
    assert same(ours.encode_plus("the cat", None, False, True), hub.encode_plus("the cat", None, False, True))
    assert ours.decode([5, 6, 3], True) == hub.decode([5, 6, 3], True)


def test_target_texts_become_labels(ours: BertTokenizer, hub: Any) -> None:
    assert same(ours(TEXTS, text_target=PAIRS, padding=True), hub(TEXTS, text_target=PAIRS, padding=True))
    assert same(ours(text_target=PAIRS), hub(text_target=PAIRS))
    both = ours.prepare_seq2seq_batch(TEXTS, PAIRS, max_length=6, max_target_length=4, return_tensors="pt")
    assert (both["input_ids"].shape[1], both["labels"].shape[1]) == (6, 4)


IDS = st.lists(st.integers(5, len(WORDS) - 1), max_size=12)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    first=IDS,
    second=st.none() | IDS,
    strategy=st.sampled_from([None, True, "only_first", "only_second", "longest_first"]),
    max_length=st.none() | st.integers(3, 20),
    stride=st.integers(0, 3),
    side=st.sampled_from(["left", "right"]),
    flags=st.fixed_dictionaries({"add_special_tokens": st.booleans(), "return_special_tokens_mask": st.booleans()}),
    padding=st.sampled_from([False, True, "max_length"]),
)
def test_rows_made_of_ids_equal_the_hubs(
    folder: Path,
    first: Any,
    second: Any,
    strategy: Any,
    max_length: Any,
    stride: int,
    side: Any,
    flags: Any,
    padding: Any,
) -> None:
    ours, hub = (made_once(cls, folder) for cls in (BertTokenizer, transformers.BertTokenizer))
    ours.truncation_side = hub.truncation_side = side
    call = {"padding": padding, "truncation": strategy, "max_length": max_length, "stride": stride, **flags}
    if padding is True and strategy is None:
        call["max_length"] = None  # the hub warns that it is ignored
    try:
        row = ours.prepare_for_model(list(first), None if second is None else list(second), **call)
    except TokenizerError:  # where the hub logs an error and gives a row that is too long
        row = hub.prepare_for_model(list(first), None if second is None else list(second), **call)
        assert len(row["input_ids"]) > (max_length or 32)
        return
    assert same(row, hub.prepare_for_model(list(first), None if second is None else list(second), **call))


_MADE: dict[Any, Any] = {}


def made_once(cls: Any, folder: Path) -> Any:
    if (cls, folder) not in _MADE:
        _MADE[cls, folder] = cls.from_pretrained(folder)
    return _MADE[cls, folder]


def test_ids_get_the_hubs_masks_and_frames(ours: BertTokenizer, folder: Path) -> None:
    slow = transformers.BertTokenizer.from_pretrained(folder)
    for pair in (None, [8, 9]):
        for method in (
            "build_inputs_with_special_tokens",
            "create_token_type_ids_from_sequences",
            "get_special_tokens_mask",
        ):
            assert getattr(ours, method)([5, 6, 7], pair) == getattr(slow, method)([5, 6, 7], pair)
        assert ours.truncate_sequences([5, 6, 7, 8], pair, 2) == slow.truncate_sequences([5, 6, 7, 8], pair, 2)
    assert ours.get_special_tokens_mask([2, 5, 3], already_has_special_tokens=True) == [1, 0, 1]
    assert ours.max_len_single_sentence == slow.max_len_single_sentence == 30
    assert ours.max_len_sentences_pair == slow.max_len_sentences_pair == 29


PADDED: list[Any] = [
    [{"input_ids": [2, 5, 3], "labels": 1}, {"input_ids": [2, 3], "labels": 0}],
    [{"input_ids": [2, 5, 3], "labels": 0.25}, {"input_ids": [2, 3], "labels": 0.5}],
    {"input_ids": [[2, 5, 3], [2, 3]], "token_type_ids": [[0, 0, 0], [0, 0]], "attention_mask": [[1, 1, 0], [1, 1]]},
    {"input_ids": [2, 5, 3]},
    {"input_ids": torch.tensor([[2, 5, 3], [2, 3, 0]])},
    [{"input_ids": np.array([2, 5, 3])}, {"input_ids": np.array([2, 3])}],
]


@pytest.mark.parametrize("rows", PADDED, ids=str)
@pytest.mark.parametrize(
    "call",
    [
        {},
        {"padding": "max_length", "max_length": 5, "return_tensors": "pt"},
        {"pad_to_multiple_of": 4, "padding_side": "left"},
    ],
    ids=str,
)
def test_padding_afterwards_gives_the_same_columns(rows: Any, call: Any, ours: BertTokenizer, hub: Any) -> None:
    if (
        isinstance(rows, dict)
        and call.get("return_tensors")
        and not isinstance(rows["input_ids"][0], (list, torch.Tensor))
    ):
        call = call | {"return_tensors": None}
    assert same(ours.pad(copy.deepcopy(rows), **call), hub.pad(copy.deepcopy(rows), **call))


def test_fractions_stay_fractions_in_tensors(ours: BertTokenizer) -> None:
    padded = ours.pad([{"input_ids": [5], "labels": 2.75}, {"input_ids": [6, 7], "labels": 0.5}], return_tensors="pt")
    assert padded["labels"].tolist() == [2.75, 0.5]
    with pytest.raises(TokenizerError, match="'name' makes no tensor: it holds 'x', which is no number"):
        ours.pad([{"input_ids": [5], "name": "x"}], return_tensors="pt")


def test_encodings_answer_like_the_hubs(ours: BertTokenizer, hub: Any) -> None:
    mine, theirs = ours(TEXTS[:2], PAIRS[:2], padding=True), hub(TEXTS[:2], PAIRS[:2], padding=True)
    assert (mine.is_fast, mine.n_sequences) == (theirs.is_fast, theirs.n_sequences) == (True, 2)
    for row in (0, 1):
        assert mine.tokens(row) == theirs.tokens(row)
        assert mine.word_ids(row) == theirs.word_ids(row)
        assert mine.sequence_ids(row) == theirs.sequence_ids(row)
        for name in ("ids", "type_ids", "offsets", "attention_mask", "special_tokens_mask", "n_sequences"):
            assert getattr(mine.encodings[row], name) == getattr(theirs.encodings[row], name)
        for char in range(12):
            assert mine.char_to_token(row, char) == theirs.char_to_token(row, char)
            assert mine.char_to_word(row, char, 1) == theirs.char_to_word(row, char, 1)
        for token in range(1, 4):
            assert mine.token_to_word(row, token) == theirs.token_to_word(row, token)
            assert tuple(mine.token_to_chars(row, token)) == tuple(theirs.token_to_chars(row, token))
            assert mine.token_to_sequence(row, token) == theirs.token_to_sequence(row, token)
        for word in range(3):
            assert tuple(mine.word_to_tokens(row, word)) == tuple(theirs.word_to_tokens(row, word))
            assert tuple(mine.word_to_chars(row, word)) == tuple(theirs.word_to_chars(row, word))
    assert [row.ids for row in mine[0:2]] == [row.ids for row in theirs[0:2]]
    again = pickle.loads(pickle.dumps(mine))
    assert again == mine
    assert again.word_ids(1) == mine.word_ids(1)
    assert (again.is_fast, again.n_sequences) == (True, 2)
    assert same(
        BatchEncoding({"a": [1]}, tensor_type="pt", prepend_batch_axis=True),
        transformers.BatchEncoding({"a": [1]}, tensor_type="pt", prepend_batch_axis=True),
    )
    made = BatchEncoding({"input_ids": [5]}, encoding=ours.backend_tokenizer.encode("cat"))
    assert made.tokens() == ["[CLS]", "cat", "[SEP]"]
    assert same(mine.convert_to_tensors("pt").to("cpu"), theirs.convert_to_tensors("pt").to("cpu"))


def test_long_rows_and_truncation_without_a_length_are_said_once(
    ours: BertTokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="bertie"):
        ours(["the cat " * 40] * 2)
        ours("the cat " * 40)
        ours("the cat " * 40, truncation=True)
        ours("the cat " * 40, max_length=10)
    assert len(caplog.records) == 1
    assert caplog.records[0].message.startswith(
        "Token indices sequence length is longer than the specified maximum sequence length for this model (82 > 32)"
    )


def test_what_is_no_text_is_a_type_error(ours: BertTokenizer, hub: Any) -> None:
    for tokenizer in (ours, hub):
        for method in (tokenizer.tokenize, tokenizer.encode, tokenizer.encode_plus, tokenizer.batch_encode_plus):
            with pytest.raises(TypeError):
                method(None)
        with pytest.raises(ValueError):
            tokenizer()
        with pytest.raises(ValueError):
            tokenizer("a", padding=True, truncation=True, max_length=12, pad_to_multiple_of=8)


def test_misspelt_sides_are_refused(ours: BertTokenizer, folder: Path) -> None:
    for act in (
        lambda: BertTokenizer.from_pretrained(folder, padding_side="lft"),
        lambda: BertTokenizer(WORDS, truncation_side="rihgt"),
        lambda: setattr(ours, "padding_side", "lft"),
        lambda: ours(TEXTS, padding=True, padding_side="lft"),
        lambda: ours.pad({"input_ids": [[5], [5, 6]]}, padding_side="lft"),
    ):
        with pytest.raises(TokenizerError, match=r"_side is '.*'; it must be 'left' or 'right'"):
            act()


def test_uploads_are_refused_by_name(ours: BertTokenizer) -> None:
    with pytest.raises(TokenizerError, match="push_to_hub"):
        ours.push_to_hub("name")


def test_changes_to_the_rust_tokenizer_count_for_much_text_too(folder: Path) -> None:
    tokenizer = BertTokenizer.from_pretrained(folder)
    text = "the CAT " * 5000
    assert tokenizer.encode_ids([text])[0][1:3] == [5, 6]
    tokenizer.backend_tokenizer.normalizer.lowercase = False
    assert tokenizer.encode_ids([text])[0][1:3] == tokenizer("the CAT", verbose=False)["input_ids"][1:3] == [5, 1]
    tokenizer.set_truncation_and_padding("do_not_pad", "longest_first", 4, 0, None)
    assert len(tokenizer.backend_tokenizer.encode("the cat sat on the mat")) == 4
    assert len(tokenizer("the cat sat on the mat")["input_ids"]) == 8


LETTERS = st.text(st.characters(max_codepoint=0x2FFF, exclude_categories=["Cs", "Cn", "Co"]), max_size=30)


@settings(max_examples=300, deadline=None)
@given(
    text=LETTERS | st.text("Aaé İß'.,-$你\u0345\t ", max_size=20),
    lower=st.booleans(),
    strip=st.none() | st.booleans(),
    chinese=st.booleans(),
)
def test_the_python_halves_equal_the_hubs(text: str, lower: bool, strip: bool | None, chinese: bool) -> None:
    options: dict[str, Any] = {"do_lower_case": lower, "strip_accents": strip, "tokenize_chinese_chars": chinese}
    words = BasicTokenizer(never_split=["A"], **options).tokenize(text)
    assert words == hub_python.BasicTokenizer(never_split=["A"], **options).tokenize(text)
    vocab = {word: index for index, word in enumerate(["[UNK]", "a", "##a", "##é", "é"])}
    pieces = WordpieceTokenizer(vocab, "[UNK]", 5).tokenize(text)
    assert pieces == hub_python.WordpieceTokenizer(vocab, "[UNK]", 5).tokenize(text)


def test_added_tokens_count_and_encode_like_the_hubs(ours: BertTokenizer, hub: Any) -> None:
    for tokenizer in (ours, hub):
        assert tokenizer.add_tokens("") == 0
        assert tokenizer.add_tokens(["newword", AddedToken("two words", lstrip=True)]) == 2
        assert tokenizer.add_special_tokens({"bos_token": "<s>", "additional_special_tokens": ["<x>"]}) == 2
        assert (
            tokenizer.add_special_tokens(
                {"additional_special_tokens": ["<y>"]}, replace_additional_special_tokens=False
            )
            == 1
        )
        with pytest.raises(AssertionError):
            tokenizer.add_special_tokens({"additional_special_tokens": "<z>"})
    text = "<s> the newword two words <x><y> cat"
    assert ours(text) == hub(text)
    assert ours.special_tokens_map == hub.special_tokens_map
    assert (ours.all_special_tokens, ours.all_special_ids) == (hub.all_special_tokens, hub.all_special_ids)
    assert ours.get_added_vocab() == hub.get_added_vocab() == ours.added_tokens_encoder
    assert (len(ours), ours.vocab_size, ours.vocab) == (len(hub), hub.vocab_size, hub.vocab)
