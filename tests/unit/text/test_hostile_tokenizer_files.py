"""Damaged and hostile tokenizer files: a typed error or a tokenizer that works; never a crash, a hang or a panic.

The default run tries 150 mutants of each file; `-m slow` tries 2,000 in all of QUALITY's bar, and says so.
"""

from __future__ import annotations

import json
import random
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

from bertie.errors import BertieError, TokenizerError
from bertie.text import BertTokenizer, train_vocabulary
from bertie.text.rust import encode_all, rust_errors
from bertie.text.wordpiece.native import NativeTokenizer

TEXTS = [f"The cat sat on mat number {n}, and the dogs were unaffable." for n in range(30)]
NASTY = [
    b"",
    b"{}",
    b"[]",
    b"null",
    b"\x00",
    b"\xff\xfe",
    b'"',
    b"{",
    b"9" * 5000,
    b"-1",
    b"1e999",
    b'"\\ud800"',
    b"true",
]
FILES = ["tokenizer.json", "vocab.txt", "tokenizer_config.json", "special_tokens_map.json"]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    tokenizer = train_vocabulary(TEXTS, vocab_size=120)
    tokenizer.add_tokens([AddedToken("purr", normalized=False)])
    tokenizer.save_pretrained(folder)
    return folder


def mutate(content: bytes, rng: random.Random) -> bytes:
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(6)
        if kind == 0 and data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at : at + rng.choice((1, 10, 1000))]
        elif kind == 2:
            data[at:at] = rng.choice(NASTY)
        elif kind == 3:
            data[at:at] = data[: rng.choice((1, 50, 500))]
        elif kind == 4:
            del data[at:]
        else:
            words = [b"true", b"null", b'"[UNK]"', b"##", b'"WordPiece"', b'"special"', b"1", b"0", b"\n"]
            data = bytearray(
                bytes(data).replace(rng.choice(words), rng.choice([*words, *NASTY]), rng.choice((1, 1000)))
            )
    return bytes(data)


def compare_native(tokenizer: BertTokenizer) -> None:
    """Where a tokenizer has a form in C++, that gives the rows Rust gives."""
    form = NativeTokenizer.of(tokenizer._backend)
    if form is None:
        return
    rust = partial(encode_all, tokenizer._backend, offsets=True)
    texts = ["The cat [MASK] sat.", "unaffable, éa 中\x07 ##s", "", "x" * 300]
    both: list[list[Any]] = [texts, list(zip(texts, texts[1:] + texts[:1], strict=True))]
    for paired, inputs in enumerate(both):
        rows = form.encode_rows(inputs, paired=bool(paired), framed=True, offsets=True, others=rust)
        assert rows is not None
        for got, wanted in zip(rows, rust(inputs), strict=True):
            for name in ("ids", "type_ids", "offsets", "tokens", "word_ids", "sequence_ids", "special_tokens_mask"):
                assert getattr(got, name) == getattr(wanted, name), name


def try_to_load(folder: Path) -> bool:
    """True when it loaded, False for a typed error; everything else is a failure of the test."""
    started = time.perf_counter()
    try:
        tokenizer = BertTokenizer.from_pretrained(folder, check_case=False)
        tokenizer(["The cat [MASK] sat\ud800.", "purr"], ["x", "unaffable"], truncation=True, max_length=8)
        tokenizer.decode([0, 1, 2, 3, 4, 50])
        compare_native(tokenizer)
        loaded = True
    except BertieError:
        loaded = False
    assert time.perf_counter() - started < 2
    return loaded


def run_mutants(sound: Path, folder: Path, *, name: str, count: int, seed: int) -> tuple[int, int]:
    rng = random.Random(seed)
    contents = {path.name: path.read_bytes() for path in sound.iterdir()}
    if name == "vocab.txt":
        del contents["tokenizer.json"]
    for other, content in contents.items():
        (folder / other).write_bytes(content)
    loaded = 0
    for _ in range(count):
        (folder / name).write_bytes(mutate(contents[name], rng))
        loaded += try_to_load(folder)
    return loaded, count - loaded


@pytest.mark.filterwarnings("ignore:.*never_split words")
@pytest.mark.parametrize("name", FILES)
def test_mutants_load_or_are_refused(sound: Path, tmp_path: Path, name: str) -> None:
    loaded, refused = run_mutants(sound, tmp_path, name=name, count=150, seed=11)
    assert loaded + refused == 150
    assert refused > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*never_split words")
def test_two_thousand_mutants_load_or_are_refused(sound: Path, tmp_path: Path) -> None:
    for seed, name in enumerate(FILES):
        folder = tmp_path / name
        folder.mkdir()
        loaded, refused = run_mutants(sound, folder, name=name, count=500, seed=seed)
        print(f"{name} seed={seed}: {loaded} loaded, {refused} refused, 0 crashes, 0 hangs")


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "added_tokens.json", "config.json"])
@pytest.mark.parametrize("bomb", ["[" * 100_000, '{"a":' * 100_000, '{"a":' * 100_000 + "1" + "}" * 100_000])
def test_deep_json_is_refused_at_once(sound: Path, tmp_path: Path, name: str, bomb: str) -> None:
    for path in sound.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    del config["model_max_length"]  # so that config.json is looked at
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / name).write_text(bomb)
    started = time.perf_counter()
    with pytest.raises(TokenizerError, match=name.replace(".", r"\.")):
        BertTokenizer.from_pretrained(tmp_path, check_case=False)
    assert time.perf_counter() - started < 1


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tokenizer_config.json", {"do_lower_case": "yes"}, "'do_lower_case' is 'yes'; it must be true or false"),
        ("tokenizer_config.json", {"model_max_length": 0}, "'model_max_length' is 0; it must be a positive number"),
        ("tokenizer_config.json", {"model_max_length": float("nan")}, "'model_max_length' is nan"),
        ("tokenizer_config.json", {"padding_side": "up"}, "'padding_side' is 'up'; it must be 'left' or 'right'"),
        ("tokenizer_config.json", {"never_split": "x"}, "'never_split' is 'x'; it must be a list of words"),
        ("tokenizer_config.json", {"max_input_chars_per_word": -1}, "'max_input_chars_per_word' is -1"),
        ("tokenizer_config.json", {"added_tokens_decoder": [1]}, "it must be an object of id: token"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": "y"}}, "it must be a token id"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"9": {"content": 3}}}, "it must be a token"),
        ("tokenizer_config.json", {"cls_token": {"content": "[CLS]", "lstrip": 1}}, "'cls_token.lstrip' is 1"),
        ("tokenizer_config.json", {"cls_token": "\ud800"}, "'cls_token' is no token"),
        ("tokenizer_config.json", [1], "should hold a JSON object, not list"),
        ("special_tokens_map.json", {"additional_special_tokens": "x"}, "it must be a list of tokens"),
        ("added_tokens.json", {"purr": -4}, "'purr' is -4; it must be a token id"),
        (
            "tokenizer.json",
            {"model": {"type": "WordPiece", "vocab": {"a": 0}}},
            "is not a tokenizer this version can read",
        ),
    ],
)
def test_wrong_fields_are_named(sound: Path, tmp_path: Path, file: str, content: object, message: str) -> None:
    for name in ("vocab.txt", "tokenizer.json"):
        (tmp_path / name).write_bytes((sound / name).read_bytes())
    (tmp_path / file).write_text(json.dumps(content))
    with pytest.raises(TokenizerError) as caught:
        BertTokenizer.from_pretrained(tmp_path, check_case=False)
    assert message in str(caught.value)
    assert file in str(caught.value)


def test_a_tokenizer_json_without_its_unknown_token_is_refused(sound: Path, tmp_path: Path) -> None:
    content = json.loads((sound / "tokenizer.json").read_text())
    del content["model"]["vocab"]["[UNK]"]
    content["added_tokens"] = []
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(TokenizerError, match=r"model.vocab has no '\[UNK\]', which model.unk_token names"):
        BertTokenizer.from_pretrained(tmp_path)


def test_a_word_limit_that_would_make_tokenizing_quadratic_is_refused(sound: Path, tmp_path: Path) -> None:
    content = json.loads((sound / "tokenizer.json").read_text())
    content["model"]["max_input_chars_per_word"] = 10**12
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(TokenizerError, match="max_input_chars_per_word is 1000000000000; it must be from 1 to 1000"):
        BertTokenizer.from_pretrained(tmp_path, check_case=False)
    with pytest.raises(TokenizerError, match="max_input_chars_per_word is 0"):
        BertTokenizer(sound / "vocab.txt", max_input_chars_per_word=0, check_case=False)


def test_a_template_with_a_token_it_does_not_define_is_refused_before_rust_panics(
    sound: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    content = json.loads((sound / "tokenizer.json").read_text())
    del content["post_processor"]["special_tokens"]["[SEP]"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(TokenizerError, match=r"names the special token '\[SEP\]' and does not define it"):
        BertTokenizer.from_pretrained(tmp_path)
    assert "panicked" not in capfd.readouterr().err


def test_panics_become_errors_and_interrupts_do_not() -> None:
    panic = type("PanicException", (BaseException,), {})
    with pytest.raises(TokenizerError, match="Here: the tokenizers library failed: boom"), rust_errors("Here"):
        raise panic("boom")
    with pytest.raises(KeyboardInterrupt), rust_errors("Here"):
        raise KeyboardInterrupt
    with pytest.raises(MemoryError), rust_errors("Here"):
        raise MemoryError
