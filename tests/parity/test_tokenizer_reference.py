"""The pure-Python reference against the Rust library: ids, offsets, words; and the class of every character."""

from __future__ import annotations

import itertools
import sys
import unicodedata
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_cases import NO_DATA, PROSE, VOCABS, fuzz_strings, small_tokenizer
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordPiece

from bertie.errors import TokenizerError
from bertie.text import BertTokenizer, WordPieceTokenizer
from bertie.text.wordpiece.characters import (
    NONSPACING_MARKS,
    PUNCTUATION,
    WHITESPACE,
    combining_class,
    decompose,
    is_chinese,
    is_removed,
    is_word_character,
    lowercase,
)
from bertie.text.wordpiece.reference import GOOGLE_WORD_LIMIT

FENCE = "\U000e0ff0"  # unassigned, so nothing touches it
EVERY_CHARACTER = [chr(c) for c in range(sys.maxunicode + 1) if not 0xD800 <= c < 0xE000 and chr(c) != FENCE]
SETTINGS = list(itertools.product([True, False], [None, True, False], [True, False]))


def rust_normalizer(**on: bool) -> normalizers.BertNormalizer:
    off = {"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False}
    return normalizers.BertNormalizer(**(off | on))


def normalize_each(normalizer: normalizers.Normalizer, characters: list[str]) -> list[str]:
    """Each character normalized by itself, in few calls."""
    pieces: list[str] = []
    for start in range(0, len(characters), 50_000):
        pieces += normalizer.normalize_str(FENCE.join(characters[start : start + 50_000])).split(FENCE)
    return pieces


def test_cleaning_knows_every_character() -> None:
    got = normalize_each(rust_normalizer(clean_text=True), EVERY_CHARACTER)
    for char, rust in zip(EVERY_CHARACTER, got, strict=True):
        ours = "" if is_removed(char) else " " if char in WHITESPACE else char
        assert ours == rust, f"U+{ord(char):04X}"


def test_chinese_spacing_knows_every_character() -> None:
    got = normalize_each(rust_normalizer(handle_chinese_chars=True), EVERY_CHARACTER)
    for char, rust in zip(EVERY_CHARACTER, got, strict=True):
        assert (f" {char} " if is_chinese(char) else char) == rust, f"U+{ord(char):04X}"


def test_lowercase_knows_every_character() -> None:
    got = normalize_each(rust_normalizer(lowercase=True), EVERY_CHARACTER)
    for char, rust in zip(EVERY_CHARACTER, got, strict=True):
        assert lowercase(char) == rust, f"U+{ord(char):04X}"


def test_decomposition_and_accents_know_every_character() -> None:
    decomposed = normalize_each(normalizers.NFD(), EVERY_CHARACTER)
    stripped = normalize_each(rust_normalizer(strip_accents=True), EVERY_CHARACTER)
    for char, nfd, bare in zip(EVERY_CHARACTER, decomposed, stripped, strict=True):
        assert decompose(char) == nfd, f"U+{ord(char):04X}"
        assert "".join(part for part in nfd if part not in NONSPACING_MARKS) == bare, f"U+{ord(char):04X}"


def test_combining_classes_know_every_mark() -> None:
    # U+0345 has the highest class and U+0334 the lowest: a mark with a class changes places with one of them.
    marks = [c for c in EVERY_CHARACTER if unicodedata.combining(c) and decompose(c) == c and c not in "\u0345\u0334"]
    high = normalize_each(normalizers.NFD(), [f"a\u0345{mark}" for mark in marks])
    low = normalize_each(normalizers.NFD(), [f"a{mark}\u0334" for mark in marks])
    for mark, after_high, before_low in zip(marks, high, low, strict=True):
        has_class = after_high != f"a\u0345{mark}" or before_low != f"a{mark}\u0334"
        assert bool(combining_class(mark)) == has_class, f"U+{ord(mark):04X}"


def test_splitting_knows_every_character() -> None:
    rust = pre_tokenizers.BertPreTokenizer()
    boundary = {c for c in EVERY_CHARACTER if c in PUNCTUATION or c in WHITESPACE}
    plain = "".join(char for char in EVERY_CHARACTER if char not in boundary)
    assert len(rust.pre_tokenize_str(plain)) == 1
    for char in sorted(boundary):
        pieces = [piece for piece, _ in rust.pre_tokenize_str(f"a{char}b")]
        assert pieces == (["a", char, "b"] if char in PUNCTUATION else ["a", "b"]), f"U+{ord(char):04X}"


@pytest.mark.skipif(unicodedata.unidata_version > "16", reason="this Python knows word characters that Rust may not")
@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.slow)])
def test_word_characters_are_those_of_rust(step: int) -> None:
    rust = Tokenizer(WordPiece({"[UNK]": 0, "ab": 1}, unk_token="[UNK]"))
    rust.add_tokens([AddedToken("ab", single_word=True, normalized=False)])
    tried = EVERY_CHARACTER[::step]
    for start in range(0, len(tried), 100_000):
        chunk = tried[start : start + 100_000]
        for char, row in zip(chunk, rust.encode_batch_fast([f"{c}ab" for c in chunk]), strict=True):
            assert is_word_character(char) == (row.ids != [0, 1]), f"U+{ord(char):04X}"


def assert_reference_equals(tokenizer: BertTokenizer, reference: WordPieceTokenizer, texts: list[str]) -> None:
    batch = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
    for index, text in enumerate(texts):
        ours = [(token.id, (token.start, token.end), token.word) for token in reference.tokenize(text)]
        row = batch[index]
        assert ours == list(zip(row.ids, row.offsets, row.word_ids, strict=True)), ascii(text)


@pytest.mark.parametrize(("lower", "strip", "chinese"), SETTINGS)
def test_reference_equals_rust_on_fuzz_strings(lower: bool, strip: bool | None, chinese: bool) -> None:
    vocab = small_tokenizer(lowercase=lower).get_vocab()
    options = {
        "do_lower_case": lower,
        "strip_accents": strip,
        "tokenize_chinese_chars": chinese,
        "never_split": ["the"],
    }
    seed = SETTINGS.index((lower, strip, chinese))
    tokenizer = BertTokenizer(vocab, check_case=False, **options)
    reference = WordPieceTokenizer(vocab, **options)
    assert_reference_equals(tokenizer, reference, PROSE + fuzz_strings(400, seed=seed))


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(exclude_categories=[]), max_size=40))
def test_reference_equals_rust_on_any_text(text: str) -> None:
    tokenizer, reference = any_text_tokenizers()
    assert_reference_equals(tokenizer, reference, [text])


@cache
def any_text_tokenizers() -> tuple[BertTokenizer, WordPieceTokenizer]:
    vocab = small_tokenizer().get_vocab()
    return BertTokenizer(vocab), WordPieceTokenizer(vocab)


def test_reference_equals_rust_with_googles_word_limit() -> None:
    vocab = small_tokenizer().get_vocab()
    tokenizer = BertTokenizer(vocab, max_input_chars_per_word=GOOGLE_WORD_LIMIT)
    reference = WordPieceTokenizer(vocab, max_input_chars_per_word=GOOGLE_WORD_LIMIT)
    texts = ["a" * length for length in (99, 100, 101, 199, 200, 201)]
    assert_reference_equals(tokenizer, reference, texts + fuzz_strings(300, seed=7))
    unknown = [row == [tokenizer.unk_token_id] for row in tokenizer(texts, add_special_tokens=False)["input_ids"]]
    assert unknown == [False] * 5 + [True]
    capped = [
        row == [tokenizer.unk_token_id] for row in BertTokenizer(vocab)(texts, add_special_tokens=False)["input_ids"]
    ]
    assert capped == [False] * 2 + [True] * 4


@pytest.mark.skipif(not VOCABS.is_dir(), reason=NO_DATA)
@pytest.mark.parametrize("name", ["uncased", "cased", "chinese", "multilingual-cased"])
def test_reference_equals_rust_on_real_vocabularies(name: str) -> None:
    tokenizer = BertTokenizer.from_pretrained(VOCABS / f"bert-base-{name}")
    reference = WordPieceTokenizer(tokenizer.get_vocab(), do_lower_case=tokenizer.do_lower_case)
    assert_reference_equals(tokenizer, reference, PROSE + fuzz_strings(300, seed=8))
    for text in PROSE:
        assert reference.encode(text, "second [MASK]") == tokenizer.encode(text, "second [MASK]")


def test_a_vocabulary_without_unk_is_refused_by_the_reference() -> None:
    with pytest.raises(TokenizerError, match=r"no '\[UNK\]'"):
        WordPieceTokenizer({"a": 0})
