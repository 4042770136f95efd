"""`BertTokenizer` by itself: loading, refusing, threads, surrogates, mistakes."""

from __future__ import annotations

import copy
import doctest
import importlib
import json
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from inspect import signature
from pathlib import Path
from typing import Any, get_args

import pytest
from tokenizers import AddedToken

from bertie.errors import CheckpointNotFound, TokenizerError
from bertie.text import BatchEncoding, BertTokenizer, WordPieceTokenizer, train_vocabulary
from bertie.text.settings import NO_LIMIT
from bertie.text.truncation import Strategy

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "the",
    "cat",
    "sat",
    "##s",
    ",",
    ".",
    "!",
    "c",
    "##a",
    "##t",
    "C++",
]


@pytest.fixture
def tokenizer() -> BertTokenizer:
    return BertTokenizer(WORDS, check_case=False)


@pytest.fixture
def folder(tmp_path: Path, tokenizer: BertTokenizer) -> Path:
    tokenizer.save_pretrained(tmp_path / "tok")
    return tmp_path / "tok"


@pytest.mark.skipif(os.name == "nt", reason="has no such rights")
def test_saved_files_have_the_rights_that_the_umask_gives(tokenizer: BertTokenizer, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        tokenizer.save_pretrained(tmp_path / "private")
    finally:
        os.umask(before)
    files = list((tmp_path / "private").iterdir())
    assert files
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


def test_text_package_does_not_import_torch() -> None:
    code = "import sys, bertie.text; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "module", ["wordpiece.reference", "tokenizer", "truncation", "wordpiece.vocabulary", "windows"]
)
def test_examples_in_docstrings_run(module: str) -> None:
    result = doctest.testmod(importlib.import_module(f"bertie.text.{module}"))
    assert result.failed == 0
    assert result.attempted > 0


@pytest.mark.parametrize("much", [0, 10**9], ids=["C++", "Rust"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_rows_cut_for_a_model_equal_those_of_a_call(much: int, side: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertie.text.rust._MUCH", much)
    tokenizer = BertTokenizer(WORDS, check_case=False, truncation_side=side)
    texts = ["the cat sat, the cat sat.", "the cats, the cats, the cats!", "[MASK] cats, the \ud800 cat sat, sat!"]
    for paired, items in ((False, texts), (True, list(zip(texts, texts[::-1], strict=True)))):
        for strategy in get_args(Strategy)[: 3 if paired else 2]:
            for length in (6 if strategy == "longest_first" else 16, 30):
                settings: dict[str, Any] = {"max_length": length}
                wanted = tokenizer(items, truncation=strategy, **settings)
                found = tokenizer.encode_cut(items, paired=paired, strategy=strategy, **settings)
                assert found.ids == wanted.input_ids
                assert (found.type_ids or [[0] * len(row) for row in found.ids]) == wanted.token_type_ids
                assert found.is_cut == wanted.truncated
    assert tokenizer.encode_cut([*texts, ""], max_length=3).is_cut == [True, True, True, False]


def test_words_pieces_and_offsets(tokenizer: BertTokenizer) -> None:
    encoding = tokenizer("The cats, sat!", return_offsets_mapping=True)
    assert encoding.tokens() == ["[CLS]", "the", "cat", "##s", ",", "sat", "!", "[SEP]"]
    assert encoding.offset_mapping == [(0, 0), (0, 3), (4, 7), (7, 8), (8, 9), (10, 13), (13, 14), (0, 0)]
    assert encoding.word_ids() == [None, 0, 1, 1, 2, 3, 4, None]
    assert encoding.token_to_chars(2) == (4, 7)
    assert encoding.token_to_chars(0) is None
    assert encoding.char_to_token(9) is None


def test_columns_are_attributes_and_keys(tokenizer: BertTokenizer) -> None:
    encoding = tokenizer(["the cat", "sat"])
    assert encoding.input_ids is encoding["input_ids"]
    assert set(encoding) == {"input_ids", "token_type_ids", "attention_mask"}
    assert dict(**encoding) == dict(encoding)
    assert encoding[1].tokens == ["[CLS]", "sat", "[SEP]"]
    assert encoding[-1] == encoding[1]
    assert encoding[:1] == [encoding[0]]
    assert BatchEncoding(dict(encoding))[:1] == {name: column[:1] for name, column in encoding.items()}
    with pytest.raises(AttributeError, match="has no 'labels'"):
        _ = encoding.labels
    with pytest.raises(TokenizerError, match="no row 5: the encoding has 2"):
        encoding.word_ids(5)


def test_encodings_pickle_and_copy(tokenizer: BertTokenizer) -> None:
    encoding = tokenizer("the cat")
    again = pickle.loads(pickle.dumps(encoding))
    assert dict(again) == dict(encoding)
    assert isinstance(again, BatchEncoding)
    assert again.word_ids() == encoding.word_ids() == [None, 0, 1, None]
    assert (again.is_fast, again.n_sequences, again.encodings) == (True, 1, encoding.encodings)
    with pytest.raises(TokenizerError, match="only its columns"):
        BatchEncoding(dict(encoding)).word_ids()
    assert copy.copy(encoding).input_ids == encoding.input_ids
    twin = pickle.loads(pickle.dumps(tokenizer))
    assert twin("the cat!") == tokenizer("the cat!")


def test_words_are_those_of_the_call_when_the_list_changes_later(tokenizer: BertTokenizer) -> None:
    texts = ["the cat", "sat"]
    encoding = tokenizer(texts)
    texts[0] = "sat"
    assert encoding.tokens(0) == ["[CLS]", "the", "cat", "[SEP]"]


def test_a_template_of_other_types_is_obeyed(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    for piece in content["post_processor"]["single"]:
        next(iter(piece.values()))["type_id"] = 1
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert BertTokenizer.from_pretrained(folder, check_case=False)("the cat").token_type_ids == [1, 1, 1, 1]


def test_words_are_looked_up_with_the_tokenizer_of_the_call(tokenizer: BertTokenizer) -> None:
    encoding = tokenizer("the cat")
    tokenizer.add_tokens(["the cat"])
    assert encoding.tokens() == ["[CLS]", "the", "cat", "[SEP]"]
    assert tokenizer("the cat").tokens() == ["[CLS]", "the cat", "[SEP]"]


def test_lone_surrogates_keep_every_position(tokenizer: BertTokenizer) -> None:
    text = "the\ud800 \udfff cat\udc00s"
    encoding = tokenizer(text, return_offsets_mapping=True)
    assert encoding.tokens() == ["[CLS]", "the", "cat", "##s", "[SEP]"]
    assert encoding.offset_mapping[1:4] == [(0, 3), (7, 10), (11, 12)]
    batch = tokenizer(["the cat", text], ["sat", "\ud801"], padding=True)
    assert batch.tokens(1)[:6] == ["[CLS]", "the", "cat", "##s", "[SEP]", "[SEP]"]
    words = tokenizer([["the\ud800", "cat"]], is_split_into_words=True)
    assert words.tokens() == ["[CLS]", "the", "cat", "[SEP]"]


def test_never_split_words_keep_case_and_shape() -> None:
    tokenizer = BertTokenizer(WORDS, never_split=["C++"], check_case=False)
    assert tokenizer.tokenize("The C++, sat") == ["the", "C++", ",", "sat"]
    assert tokenizer.tokenize("C++cat c++") == ["c", "[UNK]", "[UNK]", "cat", "c", "[UNK]", "[UNK]"]
    reference = WordPieceTokenizer(tokenizer.get_vocab(), never_split=["C++"])
    text = "C++ C++. xC++ [C++] C++cat C++\u0301"
    assert [token.text for token in reference.tokenize(text)] == tokenizer.tokenize(text)
    with pytest.raises(TokenizerError, match="never_split holds words that are not in the vocabulary: 'C#'"):
        BertTokenizer(WORDS, never_split=["C#"], check_case=False)


def test_never_split_survives_saving_and_unknown_words_in_a_file_are_dropped_aloud(tmp_path: Path) -> None:
    BertTokenizer(WORDS, never_split=["C++"], check_case=False).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config["never_split"] = ["C++", "C#"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    for _ in range(2):  # with tokenizer.json, then from vocab.txt
        with pytest.warns(UserWarning, match=r"ignored: \['C#'\]"):
            loaded = BertTokenizer.from_pretrained(tmp_path, check_case=False)
        assert loaded.tokenize("the C++!") == ["the", "C++", "!"]
        (tmp_path / "tokenizer.json").unlink(missing_ok=True)


def test_concurrent_calls_do_not_disturb_each_other(tokenizer: BertTokenizer) -> None:
    texts = ["the cat sat , " * n for n in range(1, 20)]

    def call(settings: dict[str, Any]) -> Any:
        return [dict(tokenizer(texts, **settings)) for _ in range(10)]

    every = [
        {"truncation": True, "max_length": length, "padding": padding, "padding_side": side}
        for length in (4, 9, 31)
        for padding in (False, True, "max_length")
        for side in ("left", "right")
    ]
    alone = [call(settings) for settings in every]
    with ThreadPoolExecutor(8) as pool:
        growing = pool.submit(lambda: [tokenizer.add_tokens(f"new{n}") for n in range(20)])
        together = list(pool.map(call, every))
        assert sum(growing.result()) == 20
    assert together == alone


def test_encode_ids_equals_the_call(tokenizer: BertTokenizer) -> None:
    texts = ["the cat sat", "", "the " * 30]
    assert tokenizer.encode_ids(texts) == tokenizer(texts)["input_ids"]
    cut = tokenizer(texts, texts, truncation=True, max_length=12)["input_ids"]
    assert tokenizer.encode_ids(texts, texts, max_length=12) == cut
    assert tokenizer.encode_ids([]) == []
    assert dict(tokenizer([])) == {"input_ids": [], "token_type_ids": [], "attention_mask": []}


def test_generators_and_tuples_of_texts_work(tokenizer: BertTokenizer) -> None:
    texts = ["the cat", "sat"]
    assert tokenizer(text for text in texts) == tokenizer(tuple(texts)) == tokenizer(texts)


def test_tensors_move_and_refuse_ragged_rows(tokenizer: BertTokenizer) -> None:
    torch = pytest.importorskip("torch")
    encoding = tokenizer(["the cat", "sat"], padding=True, return_tensors="pt").to("cpu")
    assert encoding.input_ids.dtype == torch.int64
    assert encoding.input_ids.shape == (2, 4)
    with pytest.raises(TokenizerError, match=r"different lengths \(3 to 4\)"):
        tokenizer(["the cat", "sat"], return_tensors="pt")
    with pytest.raises(TokenizerError, match="return_tensors='tf' is not known"):
        tokenizer("the", return_tensors="tf")


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        ((None,), {}, "Cannot tokenize NoneType"),
        ((b"the",), {}, "Cannot tokenize bytes"),
        ((["the", None],), {}, "Text 1 is NoneType None; it must be a string"),
        ((["the", 3.5],), {}, "Text 1 is float 3.5"),
        (([["the"], 3],), {"is_split_into_words": True}, "Text 1 is int 3; it must be a list of words"),
        (("the", ["cat"]), {}, "text is a single text but text_pair is a list"),
        ((["the"], ["cat", "sat"]), {}, "text has 1 entries and text_pair 2"),
        (("the",), {"padding": "longst"}, "padding='longst' is not known"),
        (("the",), {"truncation": "first"}, "truncation='first' is not known"),
        (("the",), {"padding": "max_length"}, "needs a length"),
        (("the",), {"padding": True, "pad_to_multiple_of": 0}, "pad_to_multiple_of=0"),
        (("the cat",), {"truncation": True, "max_length": 1}, "max_length=1 leaves no room"),
        (("the cat",), {"truncation": True, "max_length": -1}, "should not be negative"),
        (
            ("the cat sat",),
            {"truncation": True, "max_length": 4, "stride": 2},
            "stride=2 is not smaller than the 2 tokens",
        ),
        (("the", "cat " * 9), {"truncation": "only_first", "max_length": 6}, "the first sequence has only 1 tokens"),
        (("the " * 9,), {"truncation": "only_second", "max_length": 6}, "the second sequence has only 0 tokens"),
    ],
)
def test_mistakes_are_named(tokenizer: BertTokenizer, arguments: Any, settings: Any, message: str) -> None:
    with pytest.raises(TokenizerError, match=message.replace("(", r"\(")):
        tokenizer(*arguments, **settings)


def test_ids_that_are_no_ids_are_named(tokenizer: BertTokenizer) -> None:
    for ids in ([-1], [2**40], ["a"]):
        with pytest.raises(TokenizerError, match="cannot be decoded"):
            tokenizer.decode(ids)
    assert tokenizer.decode([5, 999_999, 6]) == "the cat"
    assert tokenizer.convert_ids_to_tokens([5, 999_999]) == ["the", "[UNK]"]


def test_a_vocabulary_without_padding_pads_nothing() -> None:
    tokenizer = BertTokenizer(WORDS[1:], check_case=False)
    assert tokenizer.pad_token is None
    assert tokenizer.pad_token_id is None
    with pytest.raises(TokenizerError, match="Padding needs a padding token"):
        tokenizer(["the", "the cat"], padding=True)


@pytest.mark.parametrize("missing", ["[UNK]", "[CLS]", "[SEP]"])
def test_vocabularies_without_the_tokens_that_frame_a_text_are_refused(missing: str) -> None:
    with pytest.raises(TokenizerError, match=f"has no '\\{missing}'"):
        BertTokenizer([word for word in WORDS if word != missing], check_case=False)


def test_special_tokens_can_have_other_names() -> None:
    tokenizer = BertTokenizer(
        ["<pad>", "<unk>", "<s>", "</s>", "<mask>", "a"],
        unk_token="<unk>", sep_token="</s>", pad_token="<pad>", cls_token="<s>", mask_token="<mask>",
    )  # fmt: skip
    assert tokenizer("a <mask> b").tokens() == ["<s>", "a", "<mask>", "<unk>", "</s>"]
    assert tokenizer.mask_token_id == 4


def test_new_cls_and_sep_frame_the_text(tokenizer: BertTokenizer) -> None:
    assert tokenizer.add_special_tokens({"cls_token": "[START]", "sep_token": "[END]"}) == 2
    assert tokenizer("the", "cat").tokens() == ["[START]", "the", "[END]", "cat", "[END]"]
    with pytest.raises(TokenizerError, match="end_token is no special token of BERT"):
        tokenizer.add_special_tokens({"end_token": "x"})


def test_folders_of_every_kind_load(folder: Path, tokenizer: BertTokenizer, tmp_path: Path) -> None:
    text = "The cats [MASK] sat!"
    expected = tokenizer.encode(text)
    assert BertTokenizer.from_pretrained(folder, check_case=False).encode(text) == expected
    assert BertTokenizer.from_pretrained(folder / "tokenizer.json", check_case=False).encode(text) == expected
    assert (
        BertTokenizer.from_pretrained(folder / "vocab.txt", do_lower_case=True, check_case=False).encode(text)
        == expected
    )

    google = tmp_path / "uncased_L-2_H-128_A-2"
    google.mkdir()
    (google / "vocab.txt").write_bytes((folder / "vocab.txt").read_bytes().replace(b"C++\n", b""))
    (google / "bert_config.json").write_text(json.dumps({"max_position_embeddings": 48}))
    loaded = BertTokenizer.from_pretrained(google)
    assert loaded.encode(text) == expected
    assert loaded.model_max_length == 48
    assert len(loaded("the " * 99, truncation=True)["input_ids"]) == 48
    with pytest.raises(TokenizerError, match="it is named 'uncased_L-2_H-128_A-2'"):
        BertTokenizer.from_pretrained(google, do_lower_case=False)


def test_older_folders_with_added_tokens_and_a_special_tokens_map_load(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, "model_max_length": 1e30}))
    (folder / "added_tokens.json").write_text(json.dumps({"purr": 17, "meow": 16}))
    special = {"mask_token": {"content": "[MASK]", "lstrip": True}, "additional_special_tokens": ["purr"]}
    (folder / "special_tokens_map.json").write_text(json.dumps(special))
    loaded = BertTokenizer.from_pretrained(folder, check_case=False)
    assert loaded.convert_tokens_to_ids(["meow", "purr"]) == [16, 17]
    assert loaded.additional_special_tokens == ["purr"]
    assert loaded.decode(loaded.encode("the meow purr"), skip_special_tokens=True) == "the meow"
    assert loaded.model_max_length == NO_LIMIT
    (folder / "added_tokens.json").write_text(json.dumps({"purr": 99}))
    with pytest.raises(TokenizerError, match="'purr' is listed with id 99, but has 16"):
        BertTokenizer.from_pretrained(folder, check_case=False)


def test_truncation_and_padding_inside_tokenizer_json_are_not_obeyed(folder: Path, tokenizer: BertTokenizer) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    content["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    content["padding"] = {
        "strategy": {"Fixed": 2**40}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]",
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert BertTokenizer.from_pretrained(folder, check_case=False)("the cat sat") == tokenizer("the cat sat")


def test_explicit_settings_go_before_the_files(folder: Path) -> None:
    loaded = BertTokenizer.from_pretrained(
        folder,
        do_lower_case=False,
        model_max_length=7,
        padding_side="left",
        max_input_chars_per_word=3,
        check_case=False,
    )
    assert loaded.do_lower_case is False
    assert loaded.tokenize("The the cats") == ["[UNK]", "the", "[UNK]"]
    assert (loaded.model_max_length, loaded.padding_side) == (7, "left")
    with pytest.raises(TokenizerError, match="has no setting do_lowercase"):
        BertTokenizer.from_pretrained(folder, do_lowercase=True)  # type: ignore[arg-type]


def test_missing_paths_and_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFound, match="There is no"):
        BertTokenizer(tmp_path / "vocab.txt")
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(
        CheckpointNotFound, match=r"neither tokenizer.json nor vocab.txt \(it holds model.safetensors\)"
    ):
        BertTokenizer.from_pretrained(tmp_path)


def test_hub_names_go_through_the_resolver(folder: Path) -> None:
    asked: list[str] = []

    def resolver(name: str) -> Path:
        asked.append(name)
        return folder

    loaded = BertTokenizer.from_pretrained("someone/some-bert", resolver=resolver, check_case=False)
    assert asked == ["someone/some-bert"]
    assert loaded.tokenize("cats") == ["cat", "##s"]


def test_saving_replaces_whole_files_and_leaves_nothing_else(folder: Path, tokenizer: BertTokenizer) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    tokenizer.save_pretrained(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert set(before) == {"tokenizer.json", "vocab.txt", "tokenizer_config.json", "special_tokens_map.json"}
    with pytest.raises(TokenizerError, match="could not be saved"):
        tokenizer.save_pretrained(folder / "vocab.txt")


def test_the_length_counts_every_token_once() -> None:
    """Added ones too, whether the vocabulary has them or not."""
    tokenizer = BertTokenizer({word: number for number, word in enumerate(WORDS)}, check_case=False)
    assert len(tokenizer) == len(tokenizer.get_vocab()) == len(WORDS)
    tokenizer.add_tokens(["cat", "dog", "a new one"])
    assert len(tokenizer) == len(tokenizer.get_vocab()) == len(WORDS) + 2


def test_training_is_deterministic_and_respects_its_arguments(tmp_path: Path) -> None:
    texts = [f"Words of the {number}th line, wording and words and Äpfel.\nnew" for number in range(200)]
    first, second = (train_vocabulary(iter(texts), vocab_size=150) for _ in range(2))
    assert first.get_vocab() == second.get_vocab()
    assert first.pad_token_id == 0
    assert first.tokenize("Words of words") == ["words", "of", "words"]
    file = tmp_path / "text.txt"
    file.write_text("\n".join(texts), encoding="utf-8")
    assert train_vocabulary(file, vocab_size=150).get_vocab() == first.get_vocab()
    cased = train_vocabulary([file, file], vocab_size=150, lowercase=False, num_unused=3)
    assert cased.tokenize("Words") == ["Words"]
    assert cased.convert_tokens_to_ids("[unused2]") == 7
    assert len(train_vocabulary(texts, vocab_size=30_000)) < 300
    with pytest.raises(TokenizerError, match="vocab_size=20 is too small"):
        train_vocabulary(texts, vocab_size=20)
    with pytest.raises(TokenizerError, match="one string"):
        train_vocabulary("text.txt")
    with pytest.raises(TokenizerError, match="no text to learn"):
        train_vocabulary(["  ", ""])
    with pytest.raises(TokenizerError, match="Text 1 is a int"):
        train_vocabulary(["a", 1])  # type: ignore[list-item]
    with pytest.raises(TokenizerError, match="cannot be read as text"):
        train_vocabulary(tmp_path / "absent.txt")


def test_a_line_that_is_not_utf_8_is_named_or_passed_over(tmp_path: Path) -> None:
    lines = [f"words and wording {number}".encode() for number in range(20)]
    whole, broken = tmp_path / "whole.txt", tmp_path / "broken.txt"
    whole.write_bytes(b"\n".join(lines))
    broken.write_bytes(b"\r\n".join([*lines[:4], b"caf\xe9", *lines[4:]]))
    with pytest.raises(TokenizerError, match=r"broken\.txt, line 5: byte 0xe9 at 4 is not utf-8[\s\S]*skip_bad"):
        train_vocabulary(broken, vocab_size=60)
    skipping = train_vocabulary(broken, vocab_size=60, skip_bad=True)
    assert skipping.get_vocab() == train_vocabulary(whole, vocab_size=60).get_vocab()


def test_all_roles_are_read_by_the_hub_s_private_name_too() -> None:
    """Scripts ask transformers' tokenizers for `_special_tokens_map`: every role, with its token as given."""
    end = AddedToken("[END]", lstrip=True, normalized=False, special=True)
    tokenizer = BertTokenizer(WORDS, check_case=False, eos_token=end)
    roles = tokenizer._special_tokens_map
    assert list(roles) == tokenizer.SPECIAL_TOKENS_ATTRIBUTES
    assert (roles["eos_token"], roles["bos_token"], roles["additional_special_tokens"]) == (end, None, [])
    with pytest.raises(TypeError):  # a write would be lost
        roles["eos_token"] = "x"  # type: ignore[index]


def test_a_chat_template_is_taken_unnamed_by_the_constructor() -> None:
    """As in transformers, whose own tests tell processors from tokenizers by that name in the signature."""
    assert "chat_template" not in signature(BertTokenizer.__init__).parameters
    tokenizer = BertTokenizer(WORDS, check_case=False, chat_template="{{ messages }}")
    assert tokenizer.chat_template == tokenizer.init_kwargs["chat_template"] == "{{ messages }}"
    assert tokenizer.other_settings == {}
