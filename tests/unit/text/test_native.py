"""Ids by the C++ library equal Rust's, text for text, or are left to Rust."""

from __future__ import annotations

import copy
import itertools
import pickle
import random
import time
import unicodedata
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, normalizers, pre_tokenizers, processors

from bertie.errors import TokenizerError
from bertie.text import BertTokenizer, WordPieceTokenizer
from bertie.text.rust import encode_all
from bertie.text.wordpiece import native
from bertie.text.wordpiece.native import NativeTokenizer

pytestmark = pytest.mark.skipif(native.load_library() is None, reason="the library was not built: no C++ compiler")

LETTERS = [chr(code) for code in range(33, 0x250) if chr(code).isprintable() and chr(code) != " "]
PIECES = [
    *("the", "##ing", "##s", "un", "##aff", "##able", "ss", "中", "國", "가", "##가", "ᄀ", "##ᅡ", "σ", "##σ"),
    *("’", "—", "😀"),
]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = list(dict.fromkeys([*SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS), *PIECES]))
TEXTS = [
    "", " ", "the", "Unaffable things!", "a\tb\nc\r\n", "x\x07y\x7fz", "naïve Äpfel ÅÅ", "it’s — “so”…",
    "中國abc國", "가나 각", "[MASK] the [SEP]", "[mask]", "[", "[[MASK]]", "ΑΣ ΣΑΣ", "İstanbul ẞ ǅ",
    "e\u0301\u0323 \u0323\u0301", "\u3099か\u0301", "\U0001d15e\U0001d165", "😀😀 a😀b", "a" * 100, "a" * 101,
    "é" * 101, "…" * 300, "\ufffd\ufeff\u00ad", "\u2028\u2029\u3000a", "१२ ۳ ４", "ﬁ ﬀ Ⅷ ½", "a\u200db\u200c",
    "\ue000\U000f0000", "\u0344\u0390", "##s ##", "the##ing", "\u1680\u180e",
]  # fmt: skip
SETTINGS = [
    {"do_lower_case": lower, "strip_accents": strip, "tokenize_chinese_chars": chinese}
    for lower, strip, chinese in itertools.product((True, False), (None, True, False), (True, False))
]


@pytest.fixture(autouse=True)
def little_is_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertie.text.rust._MUCH", 0)


def of(**settings: object) -> BertTokenizer:
    return BertTokenizer(VOCABULARY, check_case=False, **settings)  # type: ignore[arg-type]


def encode(tokenizer: BertTokenizer, texts: list[str], max_length: int | None = None) -> tuple[list[list[int]], int]:
    """Rows by the library, and how many texts it left."""
    form = tokenizer._encoders.native(tokenizer._backend, "")
    assert form is not None
    left = 0

    def others(given: list[str]) -> list[list[int]]:
        nonlocal left
        left += len(given)
        return tokenizer._encode_rust(given, max_length=max_length)

    found = form.encode_flat(texts, max_length=max_length, others=others)
    assert found is not None
    ids, lengths = found
    assert lengths.sum() == len(ids)
    return [row.tolist() for row in np.split(ids, np.cumsum(lengths)[:-1])], left


def assert_rows_equal_rust(tokenizer: BertTokenizer, inputs: list[Any], *, framed: bool = True) -> None:
    """Everything about whole rows, offsets and words too."""
    form = tokenizer._encoders.native(tokenizer._backend, "")
    assert form is not None
    paired = bool(inputs) and not isinstance(inputs[0], str)

    def rust(given: list[Any]) -> Any:
        return encode_all(tokenizer._backend, given, framed=framed, offsets=True)

    rows = form.encode_rows(inputs, paired=paired, framed=framed, offsets=True, others=rust)
    assert rows is not None
    for given, got, wanted in zip(inputs, rows, rust(inputs), strict=True):
        for name in ("ids", "type_ids", "sequence_ids", "special_tokens_mask", "tokens", "offsets", "word_ids"):
            assert getattr(got, name) == getattr(wanted, name), (given, name)


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda given: "-".join(str(value) for value in given.values()))
def test_ids_equal_rust_and_the_reference(settings: dict[str, bool | None]) -> None:
    tokenizer = of(**settings)
    vocabulary = {piece: number for number, piece in enumerate(VOCABULARY)}
    reference = WordPieceTokenizer(vocabulary, **settings)  # type: ignore[arg-type]
    for length in (None, 3, 4, 7, 50):
        rows, left = encode(tokenizer, TEXTS, length)
        assert rows == tokenizer._encode_rust(TEXTS, max_length=length)
        assert left <= 6
    assert encode(tokenizer, TEXTS)[0] == [reference.encode(text) for text in TEXTS]
    for framed in (True, False):
        assert_rows_equal_rust(tokenizer, TEXTS, framed=framed)
        assert_rows_equal_rust(tokenizer, list(zip(TEXTS, TEXTS[3:] + TEXTS[:3], strict=True)), framed=framed)


def _around(codes: range) -> list[str]:
    return [f"a{chr(c)}b {chr(c)} x{chr(c)}{chr(c)} {chr(c)}\u0301c" for c in codes if c and not 0xD800 <= c < 0xE000]


@pytest.mark.parametrize("settings", SETTINGS[:1] + SETTINGS[-2:-1], ids=("uncased", "cased"))
def test_the_first_characters_of_unicode(settings: dict[str, bool | None]) -> None:
    tokenizer, texts = of(**settings), _around(range(0x3100))
    assert encode(tokenizer, texts)[0] == tokenizer._encode_rust(texts, max_length=None)
    assert_rows_equal_rust(tokenizer, texts)


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda given: "-".join(str(value) for value in given.values()))
def test_every_character_of_unicode(settings: dict[str, bool | None]) -> None:
    # Pieces for whatever letters become: otherwise most of them would be [UNK] both ways.
    made = {part for code in range(0x110000) for part in unicodedata.normalize("NFD", chr(code).lower())}
    plain = sorted(part for part in made | {chr(code) for code in range(1, 0x110000)} if part.isalnum())
    pieces = list(dict.fromkeys([*VOCABULARY, *plain, *(f"##{part}" for part in plain)]))
    tokenizer = BertTokenizer(pieces, check_case=False, **settings)  # type: ignore[arg-type]
    for start in range(0, 0x110000, 0x8000):
        texts = _around(range(start, start + 0x8000))
        rows, left = encode(tokenizer, texts)
        assert rows == tokenizer._encode_rust(texts, max_length=None), hex(start)
        assert left <= 100
        assert_rows_equal_rust(tokenizer, texts)


def test_random_texts() -> None:
    chance = random.Random(0)
    letters = "aabbcdethxyz  .,!?[]#AÄé’中\u0301\u0323\u3099\u0327가\u200b\t😀"
    texts = ["".join(chance.choices(letters, k=chance.randrange(60))) for _ in range(4000)]
    texts += [text[: len(text) // 2] + "[MASK]" + text[len(text) // 2 :] for text in texts[::9]]
    for tokenizer in (of(), of(do_lower_case=False), of(never_split=["the"]), of(max_input_chars_per_word=3)):
        for length in (None, 3, 12):
            assert encode(tokenizer, texts, length)[0] == tokenizer._encode_rust(texts, max_length=length)
        assert_rows_equal_rust(tokenizer, texts)


CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bare": {"add_special_tokens": False},
    "cut": {"truncation": True, "max_length": 9},
    "first cut": {"truncation": "only_first", "max_length": 130},
    "cut and filled": {"truncation": True, "max_length": 12, "padding": "max_length"},
    "in parts": {"truncation": True, "max_length": 9, "stride": 2, "return_overflowing_tokens": True},
    "special tokens told": {"return_special_tokens_mask": True, "return_length": True},
    "offsets": {"return_offsets_mapping": True},
    "offsets in parts": {
        "return_offsets_mapping": True,
        "truncation": True,
        "max_length": 9,
        "stride": 2,
        "padding": True,
        "return_overflowing_tokens": True,
    },
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize("paired", [False, True], ids=["texts", "pairs"])
def test_calls_have_the_columns_they_have_through_rust(
    call: dict[str, Any], paired: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [text for text in TEXTS if len(text) < 101]
    seconds = texts[5:] + texts[:5] if paired else None
    tokenizer = of()
    assert tokenizer._encoders.native(tokenizer._backend, "") is not None
    got = tokenizer(texts, seconds, **call)
    monkeypatch.setattr(native, "load_library", lambda: None)
    through_rust = of()
    wanted = through_rust(texts, seconds, **call)
    assert through_rust._encoders.native(through_rust._backend, "") is None
    assert dict(got) == dict(wanted)
    assert [got.word_ids(row) for row in range(got.num_rows)] == [wanted.word_ids(row) for row in range(got.num_rows)]
    assert [got.tokens(row) for row in range(got.num_rows)] == [wanted.tokens(row) for row in range(got.num_rows)]


def test_pairs_in_a_list_and_texts_of_two_letters() -> None:
    tokenizer = of()
    assert tokenizer([("a", "b c")])["input_ids"] == tokenizer(["a"], ["b c"])["input_ids"]
    assert tokenizer(["ab", "cd"])["input_ids"] == tokenizer._encode_rust(["ab", "cd"], max_length=None)
    mixed = tokenizer([("a", "b"), "cd"])["input_ids"]
    assert mixed == [*tokenizer(["a"], ["b"])["input_ids"], *tokenizer(["cd"])["input_ids"]]
    assert tokenizer([])["input_ids"] == []
    assert tokenizer("the thing")["input_ids"] == tokenizer._encode_rust(["the thing"], max_length=None)[0]


def test_a_template_of_another_shape_has_no_native_form() -> None:
    tokenizer = of()
    special = [(token, tokenizer._backend.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    for single, pair in (("$A $A", "$A $B"), ("[CLS] $A", "$B $A"), ("[CLS]", "$A $B")):
        tokenizer._backend.post_processor = processors.TemplateProcessing(single, pair, special)
        assert NativeTokenizer.of(tokenizer._backend) is None, (single, pair)
    tokenizer._backend.post_processor = processors.TemplateProcessing("[CLS]:3 $A:4", "$A:5 [SEP]:6 $B:7", special)
    form = NativeTokenizer.of(tokenizer._backend)
    assert form is not None
    for inputs, paired in ((["the a"], False), ([("the", "b c")], True)):
        rows = form.encode_rows(
            inputs, paired=paired, framed=True, offsets=False, others=lambda left: pytest.fail(f"{left}")
        )
        assert rows is not None
        rust = tokenizer._backend.encode_batch(inputs)[0]
        assert (rows[0].ids, rows[0].type_ids, rows[0].sequence_ids) == (rust.ids, rust.type_ids, rust.sequence_ids)
        assert rows[0].special_tokens_mask == rust.special_tokens_mask


def test_only_what_needs_rust_is_left_to_it() -> None:
    tokenizer = of()
    assert encode(tokenizer, ["The naïve “thing” in 中國 — 😀."])[1] == 0
    assert encode(tokenizer, ["[MASK]", "[mask]", "か\u0327\U0001d165"])[1] == 2
    assert encode(tokenizer, ["the [MASK]"], 3)[1] == 0, "what is cut away is not looked at"


@pytest.mark.parametrize(
    "texts", [["a\0b", "c"], ["a\ud800b \udc00", "c"], ["a", ""], []], ids=("zero", "surrogate", "empty", "none")
)
def test_both_ways_of_asking(texts: list[str]) -> None:
    tokenizer = of()
    wanted = tokenizer._encode_rust(texts, max_length=None)
    assert tokenizer.encode_ids(texts) == wanted
    ids, lengths = tokenizer.encode_flat(texts)
    assert lengths.tolist() == [len(row) for row in wanted]
    assert ids.tolist() == [one for row in wanted for one in row]
    assert ids.dtype == lengths.dtype == np.int64


def test_what_is_no_text_is_refused_as_ever() -> None:
    with pytest.raises(TokenizerError, match="Text 1 is int 5; it must be a string"):
        of().encode_ids(["a", 5])  # type: ignore[list-item]
    with pytest.raises(TokenizerError):
        of().encode_ids(["the the the"], max_length=1)


def test_the_end_is_kept_where_the_tokenizer_says_so() -> None:
    tokenizer = of(truncation_side="left")
    assert tokenizer.encode_ids(["a b c d"], max_length=4) == tokenizer._encode_rust(["a b c d"], max_length=4)
    assert tokenizer.encode_ids(["a b c d"], max_length=4) != of().encode_ids(["a b c d"], max_length=4)


def test_tokens_that_are_added_later_count() -> None:
    tokenizer = of()
    before = tokenizer.encode_ids(["the <x> thing"])
    tokenizer.add_tokens([AddedToken("<x>", normalized=False)])
    after = tokenizer.encode_ids(["the <x> thing"])
    assert after != before
    assert after == tokenizer._encode_rust(["the <x> thing"], max_length=None)
    assert encode(tokenizer, ["the <x> thing", "the thing"])[1] == 1


def test_many_added_tokens_are_found_as_fast_as_rust_finds_them() -> None:
    chance = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    names = ["".join(chance.choices(letters, k=9)) + str(number) for number in range(20_000)]
    tokenizer = of()
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in names])
    texts = [" ".join("".join(chance.choices(letters, k=6)) for _ in range(60)) for _ in range(20)]
    mixed = [*texts, f"the {names[7]} thing", names[19_999], names[3][:-1], f"a{names[0]}b"]
    wanted = tokenizer._encode_rust(mixed, max_length=None)
    assert encode(tokenizer, mixed) == (wanted, 3)
    assert encode(tokenizer, mixed, max_length=4)[0] == tokenizer._encode_rust(mixed, max_length=4)

    def seconds(run: Callable[[], object]) -> float:
        start = time.process_time()
        run()
        return time.process_time() - start

    ours = min(seconds(lambda: encode(tokenizer, texts)) for _ in range(3))
    rust = min(seconds(lambda: tokenizer._encode_rust(texts, max_length=None)) for _ in range(3))
    assert ours < 2 * rust  # it is a fifth; one comparison to a token and letter made it fourteen times as much


def test_added_tokens_of_any_length_are_left_to_rust() -> None:
    tokenizer = of()
    tokenizer.add_tokens([AddedToken("a" * 257, normalized=False)])
    assert NativeTokenizer.of(tokenizer._backend) is None


def test_tokenizers_of_another_kind_have_no_native_form() -> None:
    normalised = of()
    normalised.add_tokens(["word"])  # to be found in the normalised text
    assert NativeTokenizer.of(normalised._backend) is None
    assert normalised.encode_ids(["a WORD"]) == normalised._encode_rust(["a WORD"], max_length=None)
    unicode = of()
    unicode._backend.normalizer = normalizers.NFC()
    words = of()
    words._backend.pre_tokenizer = pre_tokenizers.Whitespace()
    assert NativeTokenizer.of(unicode._backend) is None
    assert NativeTokenizer.of(words._backend) is None


def test_a_vocabulary_too_large_for_the_trie_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_MOST_NODES", 1000)
    tokenizer = of()
    assert NativeTokenizer.of(tokenizer._backend) is None
    assert tokenizer.encode_ids(["the thing"]) == tokenizer._encode_rust(["the thing"], max_length=None)


def test_copies_and_other_processes_make_their_own() -> None:
    tokenizer = of()
    wanted = tokenizer.encode_ids(TEXTS)
    for other in (copy.copy(tokenizer), copy.deepcopy(tokenizer), pickle.loads(pickle.dumps(tokenizer))):
        assert other.encode_ids(TEXTS) == wanted
        assert other._encoders.native(other._backend, "") is not None


def test_it_is_made_for_much_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertie.text.rust._MUCH", 20)
    tokenizer = of()
    assert tokenizer.encode_ids(["the", "b"]) == tokenizer._encode_rust(["the", "b"], max_length=None)
    assert tokenizer(["the"], ["bc"])["input_ids"] == [tokenizer.encode("the", "bc")]
    with pytest.raises(TokenizerError):
        tokenizer(["the", None, 5])
    assert tokenizer._encoders.native(tokenizer._backend, ["a"]) is None, "nineteen characters so far"
    tokenizer([("a", "the")])
    assert tokenizer._encoders.native(tokenizer._backend, []) is not None, "once made it is for everyone"


def test_many_threads_at_once() -> None:
    tokenizer = of()
    wanted = tokenizer._encode_rust(TEXTS, max_length=None)  # the tables are made by whoever comes first
    with ThreadPoolExecutor(8) as pool:
        assert all(rows == wanted for rows in pool.map(lambda _: tokenizer.encode_ids(TEXTS), range(64)))


def test_without_the_library_rust_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = of().encode_ids(TEXTS, max_length=9)
    monkeypatch.setattr(native, "load_library", lambda: None)
    tokenizer = of()
    assert tokenizer._encoders.native(tokenizer._backend, "") is None
    assert tokenizer.encode_ids(TEXTS, max_length=9) == wanted
