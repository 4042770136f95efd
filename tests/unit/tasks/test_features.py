"""features: Google's layers, pairs, cutting and JSON; windows by most context; batches that do not matter."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertie.errors import InputError
from bertie.running.open import OpenModel
from bertie.tasks.features import FeatureExtractor, Features, features, google_pair_sizes, split_at_bars
from bertie.text import split_document
from tiny_models import MAX_LENGTH, TEXTS, random_batches, saved, tiny, tokenizer


@pytest.fixture(scope="module")
def loaded() -> OpenModel:
    return OpenModel(tiny("BertModel"), tokenizer())


def matrix(found: Features, layer: int = -1) -> np.ndarray:
    return np.stack([token.vector(layer) for token in found.tokens])


def states(loaded: OpenModel, ids: Any, types: Any = None) -> Any:
    with torch.no_grad():
        given = None if types is None else torch.tensor([types])
        return loaded.model(torch.tensor([ids]), token_type_ids=given, output_hidden_states=True).hidden_states


def test_layers_are_counted_as_google_does(loaded: OpenModel) -> None:
    found = features(TEXTS[0], model=loaded, layers=(-1, 0, -3, 1))
    hidden = states(loaded, tokenizer().encode(TEXTS[0]))
    assert [index for index, _ in found.tokens[0].layers] == [-1, 0, -3, 1]
    for layer, place in ((-1, 3), (0, 1), (-3, 1), (1, 2)):  # the embeddings come first among the hidden states
        assert np.abs(matrix(found, layer) - hidden[place][0].numpy()).max() <= 1e-5
    assert [token.token for token in found.tokens] == tokenizer().tokenize(TEXTS[0], add_special_tokens=True)
    assert found.tokens[0].vector(-1).dtype == np.float32


def test_json_is_that_of_extract_features(loaded: OpenModel) -> None:
    first, second = features(["the dog", "who ||| the fox"], model=loaded, layers=[-1, -2])
    line = first.to_google_json()
    assert list(line) == ["linex_index", "features"]
    assert line["linex_index"] == 0
    assert second.to_google_json()["linex_index"] == 1
    assert [list(token) for token in line["features"]] == [["token", "layers"]] * 4
    assert [token["token"] for token in line["features"]] == ["[CLS]", "the", "dog", "[SEP]"]
    assert [layer["index"] for layer in line["features"][0]["layers"]] == [-1, -2]
    values = line["features"][1]["layers"][0]["values"]
    assert values == [round(float(value), 6) for value in first.tokens[1].vector(-1)]
    assert json.loads(json.dumps(line)) == line


def test_a_pair_may_be_written_with_bars(loaded: OpenModel) -> None:
    bars, pair = features(["who ||| the fox", ("who", "the fox")], model=loaded, layers=(-1,))
    assert np.abs(matrix(bars) - matrix(pair)).max() <= 1e-5
    encoded = tokenizer()("who", "the fox")
    hidden = states(loaded, encoded["input_ids"], encoded["token_type_ids"])
    assert np.abs(matrix(bars) - hidden[-1][0].numpy()).max() <= 1e-5
    assert split_at_bars(" a ||| b ||| c \n") == ("a ||| b", "c")
    for text in ("a|||b", "a ||| ", "a\n ||| b", "||| b", ""):
        assert split_at_bars(text) == text


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))
def test_pairs_are_cut_as_google_cuts_them(num_a: int, num_b: int, room: int) -> None:
    a, b = list(range(num_a)), list(range(num_b))
    while len(a) + len(b) > room:  # _truncate_seq_pair of extract_features.py
        (a if len(a) > len(b) else b).pop()
    assert google_pair_sizes(num_a, num_b, room) == (len(a), len(b))


def test_long_texts_are_cut_or_read_in_windows(loaded: OpenModel) -> None:
    text = TEXTS[-1]
    ids = tokenizer().encode(text)
    cut = features(text, model=loaded, layers=(-1,))
    wanted = states(loaded, [*ids[: MAX_LENGTH - 1], ids[-1]])[-1][0].numpy()
    assert np.abs(matrix(cut) - wanted).max() <= 1e-5
    assert len(features(text, model=loaded, max_length=7).tokens) == 7
    whole = features(text, model=loaded, layers=(-1,), long="windows", stride=9)
    assert [token.token for token in whole.tokens] == tokenizer().convert_ids_to_tokens(ids)
    document = split_document(tokenizer(), text, max_length=MAX_LENGTH, stride=9)
    rows = [states(loaded, window.input_ids)[-1][0].numpy() for window in document.windows]
    for token, window in enumerate(document.best_windows):
        wanted = rows[window][token + document.windows[window].shift]
        assert np.abs(whole.tokens[token + 1].vector(-1) - wanted).max() <= 1e-5
    for short in ("", "dog", ("a", "dog")):
        found = features(short, model=loaded, layers=(-1,), long="windows")
        assert np.abs(matrix(found) - matrix(features(short, model=loaded, layers=(-1,)))).max() <= 1e-5
    pair = features(("the dog", text), model=loaded, layers=(-1,), long="windows")
    assert [token.token for token in pair.tokens] == tokenizer().tokenize("the dog", text, add_special_tokens=True)


def test_a_text_gets_the_same_alone_and_in_random_batches(loaded: OpenModel) -> None:
    task = FeatureExtractor(loaded, layers=(-1, 0))
    alone = [task(text) for text in TEXTS]
    for batch in random_batches(TEXTS, count=15):
        for index, found in zip(batch, task([TEXTS[i] for i in batch]), strict=True):
            for layer in (-1, 0):
                assert np.abs(matrix(found, layer) - matrix(alone[index], layer)).max() <= 1e-5
    stream = task(iter(TEXTS))
    assert isinstance(stream, Iterator)
    assert [found.index for found in stream] == list(range(len(TEXTS)))


def test_any_checkpoint_has_hidden_states(tmp_path: Path, loaded: OpenModel) -> None:
    for name in ("BertForMaskedLM", "BertForTokenClassification", "BertModel"):
        folder = saved(tmp_path / name, name)
        found = features("dog", model=folder)
        assert [index for index, _ in found.tokens[0].layers] == [-1, -2, -3]  # there are three
        assert len(found.tokens) == 3
    with_head = OpenModel(tiny("BertForSequenceClassification"), tokenizer())
    assert len(features("dog", model=with_head).tokens) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": (-1, 3)}, "Layer 3 does not exist: the model has 3.\nUse -3 to 2"),
        ({"layers": (-4,)}, "Layer -4 does not exist"),
        ({"layers": ()}, "layers is empty"),
        ({"layers": (True,)}, "Layer True does not exist"),
        ({"layers": -9}, "Layer -9 does not exist"),
        ({"max_length": 500}, "max_length is 500; the model takes at most 48"),
        ({"max_length": 1}, "the special tokens alone do not fit"),
        ({"long": "all"}, "long='all' is not known"),
    ],
)
def test_mistakes_are_explained(loaded: OpenModel, options: dict[str, Any], message: str) -> None:
    options = {"layers": (-1,)} | options
    with pytest.raises(InputError, match=message):
        features("dog", model=loaded, **options)


def test_a_layer_that_was_not_asked_for_is_named(loaded: OpenModel) -> None:
    with pytest.raises(InputError, match="Layer 0 was not asked for; there are -1, -2"):
        features("dog", model=loaded, layers=(-1, -2)).tokens[0].vector(0)
    with pytest.raises(InputError, match="Text 1 is int 4"):
        features(["dog", 4], model=loaded, layers=(-1,))
