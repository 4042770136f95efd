"""Tokenizers of BERT's relatives beside transformers' fast ones: small vocabularies, learned by the real algorithms."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import ByteLevelBPETokenizer

import bertie
from bertie import BertTokenizer
from bertie.errors import BertieError

sentencepiece = pytest.importorskip("sentencepiece", reason="the oracle (extra 'parity') is not installed")

# Eight scripts, odd spaces, marks, names of special tokens, and words that no vocabulary has.
LINES = [
    "The quick brown fox doesn't jump over  the lazy dog.",
    "Été à Noël : l'œuvre de Mme Durand, 12 %…",
    "Вопросы и ответы на русском языке, конечно!",
    "今天天气很好，我们去公园散步吧。",
    "東京の天気は晴れです。カタカナも。",
    "العربية تكتب من اليمين إلى اليسار",
    "हिन्दी में एक वाक्य लिखा गया है।",
    "한국어 문장도 하나 있어야 합니다.",
    "Ελληνικά κείμενα με τόνους",
    "a <mask> b, <mask>c and <s> </s> <pad> <unk> [UNK]",
    "\t tabs\nand\r\nlines  \u00a0\u2003 spaces \u200b\ufeff",
    "ﬁ ﬀ Ⅷ ① é e\u0301 ñ n\u0303 👩‍👩‍👧 🇫🇷 \U0001f600",
    "",
    " ",
    "x" * 300,
]
PAIRS = [
    (first, second) for first, second in zip(LINES, reversed(LINES), strict=True) if first.strip() and second.strip()
]
CORPUS = [line for line in LINES[:12] for _ in range(8)]
KINDS = [
    "RobertaTokenizer", "XLMRobertaTokenizer", "CamembertTokenizer", "MPNetTokenizer", "DistilBertTokenizer",
    "ElectraTokenizer",
]  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder of older files for each kind."""
    place = tmp_path_factory.mktemp("tokenizers")
    found = {name: place / name for name in KINDS}
    for name, folder in found.items():
        folder.mkdir()
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name, "model_max_length": 64}))
    bytes_ = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    bytes_.train_from_iterator(CORPUS, vocab_size=500, special_tokens=special, show_progress=False)
    bytes_.save_model(str(found["RobertaTokenizer"]))
    (place / "corpus.txt").write_text("\n".join(CORPUS), encoding="utf-8")
    for name in ("XLMRobertaTokenizer", "CamembertTokenizer"):
        sentencepiece.SentencePieceTrainer.train(
            input=str(place / "corpus.txt"), model_prefix=str(found[name] / "sentencepiece.bpe"), vocab_size=280,
            model_type="unigram", hard_vocab_limit=False, minloglevel=5, num_threads=1,
        )  # fmt: skip
    words = [
        "<s>",
        "<pad>",
        "</s>",
        "[UNK]",
        "<mask>",
        *"abcdefghijklmnopqrstuvwxyz.,!'",
        "##s",
        "##o",
        "the",
        "over",
        "##x",
    ]
    (found["MPNetTokenizer"] / "vocab.txt").write_text("\n".join(words))
    for name in ("DistilBertTokenizer", "ElectraTokenizer"):
        (found[name] / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words[5:]]))
        described = {"tokenizer_class": name, "model_max_length": 64, "clean_up_tokenization_spaces": True}
        (found[name] / "tokenizer_config.json").write_text(json.dumps(described))
    return found


def oracle(name: str, folder: Path, **options: Any) -> Any:
    return getattr(transformers, f"{name}Fast").from_pretrained(folder, **options)


def columns(batch: Any) -> dict[str, Any]:
    return {name: [list(row) if row and isinstance(row[0], int) else row for row in batch[name]] for name in batch}


def check_same(theirs: Any, ours: BertTokenizer, texts: Any, pairs: Any = None, **options: Any) -> None:
    wanted = theirs(texts, pairs, return_offsets_mapping=True, return_special_tokens_mask=True, **options)
    found = ours(texts, pairs, return_offsets_mapping=True, return_special_tokens_mask=True, **options)
    assert list(found) == list(wanted)
    assert columns(found) == columns(wanted)
    for row in range(len(wanted["input_ids"])):
        assert found.word_ids(row) == wanted.word_ids(row)
        assert found.sequence_ids(row) == wanted.sequence_ids(row)
        assert found.tokens(row) == wanted.tokens(row)
        assert ours.decode(found["input_ids"][row]) == theirs.decode(wanted["input_ids"][row])


@pytest.mark.parametrize("name", KINDS)
def test_older_files_give_the_fast_tokenizers_answers(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    theirs, ours = oracle(name, folders[name]), BertTokenizer.from_pretrained(folders[name])
    assert len(ours) == len(theirs)
    assert ours.special_tokens_map.items() >= {
        (k, v) for k, v in theirs.special_tokens_map.items() if isinstance(v, str)
    }
    check_same(theirs, ours, LINES)
    check_same(theirs, ours, *map(list, zip(*PAIRS, strict=True)))
    long, other = " ".join(LINES[:4]), LINES[0]
    windows = {"truncation": "only_second", "max_length": 40, "stride": 7, "return_overflowing_tokens": True}
    check_same(theirs, ours, [other], [long], **windows)
    check_same(theirs, ours, LINES, padding="longest", truncation=True, max_length=16)

    theirs.save_pretrained(tmp_path / "theirs")  # with tokenizer.json
    check_same(theirs, BertTokenizer.from_pretrained(tmp_path / "theirs"), LINES)
    ours.save_pretrained(tmp_path / "ours")
    back = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert type(back).__name__ == f"{name}Fast"
    check_same(back, ours, LINES)
    check_same(back, ours, *map(list, zip(*PAIRS, strict=True)))


@pytest.mark.parametrize("name", KINDS)
def test_classes_by_name_are_made_as_theirs(name: str, folders: dict[str, Path]) -> None:
    ours: Any = getattr(bertie, name)
    check_same(oracle(name, folders[name]), ours.from_pretrained(folders[name]), LINES)
    arguments = {"merges.txt": "merges_file"} | dict.fromkeys(
        ("vocab.json", "vocab.txt", "sentencepiece.bpe.model"), "vocab_file"
    )
    files = {arguments[file.name]: str(file) for file in folders[name].iterdir() if file.name in arguments}
    theirs: Any = getattr(transformers, f"{name}Fast")(**files)
    made = ours(**files)
    for pair in PAIRS:
        assert made(*pair)["input_ids"] == theirs(*pair)["input_ids"]
    assert made.model_input_names == theirs.model_input_names
    for role in ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"):
        assert str(getattr(made, role)) == str(getattr(theirs, role))


@pytest.mark.parametrize("name", KINDS)
def test_split_words_are_theirs_and_never_joined(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    words = [["Paris", "is", "in", "France", "."], ["Été", "à"]]
    ours = BertTokenizer.from_pretrained(folders[name])
    if name == "RobertaTokenizer":
        with pytest.raises(BertieError, match="add_prefix_space=True"):
            ours(words, is_split_into_words=True)
    theirs = oracle(name, folders[name], add_prefix_space=True)
    prefixed = BertTokenizer.from_pretrained(folders[name], add_prefix_space=True)
    check_same(theirs, prefixed, words, is_split_into_words=True)
    check_same(theirs, prefixed, LINES)
    check_same(theirs, ours.for_words(), words, is_split_into_words=True)
    ours.for_words().save_pretrained(tmp_path)
    check_same(theirs, BertTokenizer.from_pretrained(tmp_path), words, is_split_into_words=True)
    check_same(transformers.AutoTokenizer.from_pretrained(tmp_path), prefixed, LINES)


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(text=st.text(max_size=60))
def test_any_string_gives_the_fast_tokenizers_answer(name: str, text: str, folders: dict[str, Path]) -> None:
    text = text.encode("utf-8", "ignore").decode()
    theirs, ours = LOADED.setdefault(name, (oracle(name, folders[name]), BertTokenizer.from_pretrained(folders[name])))
    check_same(theirs, ours, [text])


LOADED: dict[str, tuple[Any, BertTokenizer]] = {}


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_a_hundred_thousand_lines_and_twenty_thousand_odd_strings(name: str, folders: dict[str, Path]) -> None:
    theirs, ours = oracle(name, folders[name]), BertTokenizer.from_pretrained(folders[name])
    chance = random.Random(0)
    words = [word for line in LINES for word in line.split(" ")]
    lines = [" ".join(chance.choices(words, k=chance.randint(1, 14))) for _ in range(100_000)]
    letters = [*map(chr, range(1, 0x250)), *map(chr, range(0x300, 0x370)), *"αяشहか漢한ไ\u200b\u2028\ufeff😀👩🏽"]
    odd = ["".join(chance.choices(letters, k=chance.randint(0, 40))) for _ in range(20_000)]
    for start in range(0, 120_000, 5_000):
        texts = (lines + odd)[start : start + 5_000]
        wanted, found = (one(texts, return_offsets_mapping=True) for one in (theirs, ours))
        assert found["input_ids"] == wanted["input_ids"]
        assert found["offset_mapping"] == wanted["offset_mapping"]
