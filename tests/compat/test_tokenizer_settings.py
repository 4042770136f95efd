"""Making, changing, saving and training a tokenizer as code for transformers 4.57 does it."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import AddedToken, Tokenizer

from bertie.errors import TokenizerError
from bertie.text import BertTokenizer, BertTokenizerFast

# fmt: off
WORDS = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "mat", "dog", "un", "##want", "##ed",
    "##s", ",", ".", "a", "b", "##a",
]
# fmt: on
TEXT = "The cats sat, unwanted [MASK] <x>."
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true, "model_max_length": 32}')
    return tmp_path


@pytest.fixture
def hub(folder: Path) -> Any:
    return transformers.BertTokenizerFast.from_pretrained(folder)


@pytest.fixture
def ours(folder: Path) -> BertTokenizer:
    return BertTokenizer.from_pretrained(folder)


LOADED: list[dict[str, Any]] = [
    {"use_fast": False, "cache_dir": "x", "revision": "main", "token": None, "local_files_only": True},
    {"trust_remote_code": False, "force_download": False, "from_slow": True, "legacy": True, "verbose": False},
    {"do_lower_case": False, "strip_accents": True, "tokenize_chinese_chars": False, "check_case": False},
    {"model_max_length": 7, "padding_side": "left", "truncation_side": "left"},
    {"additional_special_tokens": ["<x>", AddedToken("<y>", lstrip=True)], "eos_token": "</s>", "bos_token": "[CLS]"},
    {"additional_special_tokens": ["<x>"], "split_special_tokens": True},
    {"model_input_names": ["input_ids"], "clean_up_tokenization_spaces": True, "add_prefix_space": True},
    {"do_lower_case": None, "padding_side": None, "model_max_length": None},
]


@pytest.mark.parametrize("given", LOADED, ids=str)
def test_settings_of_from_pretrained_mean_the_same(given: dict[str, Any], folder: Path) -> None:
    ours = BertTokenizerFast.from_pretrained(pretrained_model_name_or_path=folder, **given)
    # None is the default here; the hub takes it for a value in some of these.
    stated = {name: value for name, value in given.items() if value is not None and name != "check_case"}
    hub = transformers.BertTokenizerFast.from_pretrained(folder, **stated)
    assert dict(ours([TEXT, "a"], padding=True)) == dict(hub([TEXT, "a"], padding=True))
    assert dict(ours(TEXT, truncation=True, max_length=6)) == dict(hub(TEXT, truncation=True, max_length=6))
    assert ours.special_tokens_map == hub.special_tokens_map
    for name in ("model_max_length", "padding_side", "truncation_side", "model_input_names", "add_prefix_space"):
        assert getattr(ours, name) == getattr(hub, name)
    assert ours.name_or_path == str(folder)


def test_settings_that_cannot_be_are_refused_by_name(folder: Path) -> None:
    with pytest.raises(TokenizerError, match="trust_remote_code=True is not supported"):
        BertTokenizer.from_pretrained(folder, trust_remote_code=True)
    with pytest.raises(TokenizerError, match="do_basic_tokenize=False is not supported"):
        BertTokenizer(folder / "vocab.txt", do_basic_tokenize=False)
    with pytest.raises(TokenizerError, match="has no setting do_lowercase") as caught:
        BertTokenizer.from_pretrained(folder, do_lowercase=False)
    assert caught.value.remedy == "Did you mean do_lower_case?"
    with pytest.raises(AttributeError, match="get_vocab conflicts with the method get_vocab"):
        BertTokenizer.from_pretrained(folder, get_vocab=True)
    with pytest.warns(UserWarning, match="something_else is no setting of a tokenizer"):
        tokenizer = BertTokenizer.from_pretrained(folder, something_else=3)
    assert tokenizer.init_kwargs["something_else"] == 3
    with pytest.raises(TypeError, match="Name tokenizer_file="):
        BertTokenizerFast(folder / "vocab.txt", "tokenizer.json")  # type: ignore[arg-type]
    with pytest.raises(TokenizerError, match="nothing to make a tokenizer from"):
        BertTokenizer()


def test_every_way_to_construct_gives_the_same_tokenizer(folder: Path, hub: Any) -> None:
    hub.save_pretrained(folder / "saved")
    rust_file = folder / "saved" / "tokenizer.json"
    for tokenizer in (
        BertTokenizer(vocab_file=str(folder / "vocab.txt")),
        BertTokenizer(str(folder / "vocab.txt"), True),
        BertTokenizerFast(vocab=WORDS),
        BertTokenizerFast(tokenizer_file=str(rust_file)),
        BertTokenizerFast(tokenizer_object=Tokenizer.from_file(str(rust_file)), model_max_length=32),
        BertTokenizer.from_pretrained(folder, tokenizer_file=rust_file),
        BertTokenizer.from_pretrained(folder.parent, subfolder=folder.name),
    ):
        assert tokenizer(TEXT) == hub(TEXT)
    given = Tokenizer.from_file(str(rust_file))
    BertTokenizerFast(tokenizer_object=given).add_tokens(["new"])
    assert given.token_to_id("new") is None


def test_roles_are_read_and_set_like_the_hubs(ours: BertTokenizer, hub: Any) -> None:
    for role in ROLES:
        assert getattr(ours, role) == getattr(hub, role)
        assert getattr(ours, f"{role}_id") == getattr(hub, f"{role}_id")
        for tokenizer in (ours, hub):
            setattr(tokenizer, f"{role}_id", 5)
        assert getattr(ours, role) == getattr(hub, role) == "the"
        for tokenizer in (ours, hub):
            setattr(tokenizer, role, None)
        assert getattr(ours, f"{role}_id") is getattr(hub, f"{role}_id") is None
        for tokenizer in (ours, hub):
            with pytest.raises(ValueError, match=role):
                setattr(tokenizer, role, 5)
            setattr(tokenizer, role, AddedToken("cat", lstrip=True))
    assert ours.special_tokens_map == hub.special_tokens_map
    assert ours.special_tokens_map_extended == hub.special_tokens_map_extended
    assert ours.all_special_tokens_extended == hub.all_special_tokens_extended
    for tokenizer in (ours, hub):
        tokenizer.additional_special_tokens_ids = [6, 7]
    assert ours.additional_special_tokens == hub.additional_special_tokens == ["cat", "sat"]
    assert ours.additional_special_tokens_ids == [6, 7]


def test_a_new_frame_frames(ours: BertTokenizer) -> None:
    ours.cls_token, ours.sep_token = "a", "b"
    assert ours("the cat").tokens() == ["a", "the", "cat", "b"]
    ours.cls_token = None
    assert ours("the cat").tokens() == ["a", "the", "cat", "b"]


@pytest.mark.parametrize("legacy", [None, True, False])
def test_saved_folders_load_in_both_libraries(legacy: bool | None, folder: Path, hub: Any, tmp_path: Path) -> None:
    ours = BertTokenizer.from_pretrained(folder, eos_token=AddedToken("[E]", lstrip=True), padding_side="left")
    ours.add_tokens(["newword"])
    ours.add_special_tokens({"additional_special_tokens": ["<x>"]})
    files = ours.save_pretrained(tmp_path / "saved", legacy_format=legacy)
    names = {Path(file).name for file in files}
    assert all(isinstance(file, str) and Path(file).is_file() for file in files)
    assert ("tokenizer.json" in names) == (legacy is not True)
    assert ("vocab.txt" in names) == (legacy is not False)
    for cls in (BertTokenizer, transformers.BertTokenizerFast):
        again = cls.from_pretrained(tmp_path / "saved")
        assert again(TEXT + " newword")["input_ids"] == ours(TEXT + " newword")["input_ids"]
        assert again.special_tokens_map == ours.special_tokens_map
        assert again.padding_side == "left"
        assert again.added_tokens_decoder == ours.added_tokens_decoder


def test_prefixes_and_the_vocabulary_alone(ours: BertTokenizer, hub: Any, tmp_path: Path) -> None:
    (written,) = ours.save_vocabulary(str(tmp_path), filename_prefix="my")
    (theirs,) = hub.save_vocabulary(str(tmp_path))
    assert Path(written).name == "my-vocab.txt"
    assert Path(written).read_text() == Path(theirs).read_text()
    assert {Path(file).name for file in ours.save_pretrained(tmp_path / "p", filename_prefix="q")} == {
        "q-tokenizer_config.json", "q-special_tokens_map.json", "q-vocab.txt", "q-tokenizer.json",
    }  # fmt: skip


def test_tokens_that_only_the_files_name_get_ids(folder: Path) -> None:
    config = {"do_lower_case": True, "additional_special_tokens": ["<x>"], "mask_token": "<m>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    ours, hub = (c.from_pretrained(folder) for c in (BertTokenizer, transformers.BertTokenizerFast))
    assert ours("<m> the <x>").tokens() == hub("<m> the <x>").tokens() == ["[CLS]", "<m>", "the", "<x>", "[SEP]"]
    assert len(ours) == len(hub) == len(WORDS) + 2


def test_training_anew_learns_the_hubs_words(ours: BertTokenizer, hub: Any) -> None:
    # So many merges that every word becomes one piece: the order of ties is left to chance, there too.
    corpus = [["This is the first sentence.", "This is the second one."], ["But not, this one (#) 12 3."]] * 3
    for arguments in ({}, {"special_tokens_map": {"[CLS]": "<c>"}, "new_special_tokens": ["<n>"]}):
        mine = ours.train_new_from_iterator(corpus, 1000, show_progress=False, **arguments)
        theirs = hub.train_new_from_iterator(corpus, 1000, show_progress=False, **arguments)
        assert mine.tokenize("This second <n> sentence") == theirs.tokenize("This second <n> sentence")
        assert mine.tokenize("this second sentence") == ["this", "second", "sentence"]
        assert mine.all_special_ids == theirs.all_special_ids
        assert mine("this").tokens() == theirs("this").tokens()
        assert mine.special_tokens_map == theirs.special_tokens_map
        assert (mine.model_max_length, type(mine)) == (32, BertTokenizer)


def test_copies_and_pickles_are_tokenizers(ours: BertTokenizer) -> None:
    ours.add_tokens(["newword"])
    for again in (pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours), copy.copy(ours)):
        assert type(again) is BertTokenizer
        assert again("newword " + TEXT) == ours("newword " + TEXT)
        assert repr(again) == repr(ours)
    assert ours
    assert "special_tokens={'unk_token': '[UNK]'" in repr(ours)


def test_odd_properties_equal_the_slow_tokenizers(ours: BertTokenizer, folder: Path) -> None:
    slow = transformers.BertTokenizer.from_pretrained(folder)
    assert ours.basic_tokenizer.tokenize("Ünwanted, cats") == slow.basic_tokenizer.tokenize("Ünwanted, cats")
    assert ours.wordpiece_tokenizer.tokenize("unwanted dog x") == slow.wordpiece_tokenizer.tokenize("unwanted dog x")
    assert ours.ids_to_tokens == dict(slow.ids_to_tokens)
    assert ours.convert_tokens_to_string(["un", "##want"]) == slow.convert_tokens_to_string(["un", "##want"])
    assert ours.clean_up_tokenization("do n't .") == slow.clean_up_tokenization("do n't .") == "don't."
    assert (ours.do_basic_tokenize, ours.do_lower_case) == (slow.do_basic_tokenize, slow.do_lower_case)
    assert set(slow.init_kwargs) - {"special_tokens_map_file"} <= set(ours.init_kwargs) | {"added_tokens_decoder"}


def test_transformers_5_has_another_name_for_additional_tokens(ours: BertTokenizer, tmp_path: Path) -> None:
    ours.save_pretrained(tmp_path)
    plain = BertTokenizer.from_pretrained(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert "additional_special_tokens" not in config
    (tmp_path / "special_tokens_map.json").unlink()
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"extra_special_tokens": ["<x>"]}))
    again = BertTokenizer.from_pretrained(tmp_path)
    assert again.additional_special_tokens == ["<x>"]
    assert again.convert_tokens_to_ids("<x>") == len(plain)
