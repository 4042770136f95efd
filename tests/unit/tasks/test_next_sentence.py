"""next_sentence: class 0 of the head, two lists or pairs, batches that do not matter, mistakes explained."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bertie.errors import CheckpointError, InputError
from bertie.running.open import OpenModel
from bertie.tasks.next_sentence import NextSentence, NextSentencePredictor, next_sentence
from tiny_models import MAX_LENGTH, SENTENCES, TEXTS, random_batches, saved, tiny, tokenizer

PAIRS = list(zip(TEXTS, reversed(TEXTS), strict=True))


@pytest.fixture(scope="module")
def loaded() -> OpenModel:
    return OpenModel(tiny("BertForNextSentencePrediction"), tokenizer())


def test_the_probability_is_class_0_of_the_head(loaded: OpenModel) -> None:
    inputs = tokenizer()(SENTENCES[0], SENTENCES[1], return_tensors="pt")
    with torch.no_grad():
        wanted = loaded.model(**inputs).logits.softmax(-1)[0, 0].item()
    found = next_sentence(SENTENCES[0], SENTENCES[1], model=loaded)
    assert isinstance(found, NextSentence)
    assert found.probability == pytest.approx(wanted, abs=1e-6)
    assert float(found) == found.probability
    assert found.follows is (found.probability > 0.5)


def test_texts_lists_streams_and_pairs_are_answered_alike(loaded: OpenModel) -> None:
    firsts, seconds = [a for a, _ in PAIRS], [b for _, b in PAIRS]
    wanted = next_sentence(PAIRS, model=loaded)
    assert next_sentence(firsts, seconds, model=loaded) == wanted
    stream = next_sentence(iter(firsts), iter(seconds), model=loaded)
    assert isinstance(stream, Iterator)
    assert list(stream) == wanted
    assert list(next_sentence(iter(PAIRS), model=loaded)) == wanted
    assert next_sentence(PAIRS[2], model=loaded).probability == pytest.approx(wanted[2].probability, abs=1e-6)
    assert next_sentence([], [], model=loaded) == []


def test_a_pair_gets_the_same_alone_and_in_random_batches(loaded: OpenModel) -> None:
    task = NextSentencePredictor(loaded)
    alone = [task(pair).probability for pair in PAIRS]
    for batch in random_batches(PAIRS, count=25):
        found = [answer.probability for answer in task([PAIRS[i] for i in batch])]
        assert found == pytest.approx([alone[i] for i in batch], abs=1e-5)


def test_a_long_pair_loses_the_end_of_its_longer_text(loaded: OpenModel) -> None:
    word = tokenizer().encode("dog", add_special_tokens=False)[0]
    cls, sep = tokenizer().cls_token_id, tokenizer().sep_token_id
    row = torch.tensor([[cls, *[word] * (MAX_LENGTH - 3 - 5), sep, *[word] * 5, sep]])
    types = torch.tensor([[0] * (MAX_LENGTH - 3 - 5 + 2) + [1] * 6])
    with torch.no_grad():
        wanted = loaded.model(row, token_type_ids=types).logits.softmax(-1)[0, 0].item()
    found = next_sentence("dog " * 300, "dog " * 5, model=loaded)
    assert found.probability == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ("a", None, "next_sentence was given a first text without a second text"),
        (["a", "b"], None, r"Text 0 is str .a.; it must be a pair \(first text, second text\)"),
        (["a"], ["b", "c"], "next_sentence was given 1 first texts and 2 second texts"),
        ("a", ["b"], "next_sentence was given one first text and several of the other"),
        (5, ["b"], "The first texts are int 5"),
        (["a", 3], ["b", "c"], "Text 1, the first text, is int 3"),
        (("a", "b", "c"), None, r"The text is tuple .*; it must be a pair \(first text, second text\)"),
    ],
)
def test_mistakes_are_explained(loaded: OpenModel, first: Any, second: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        next_sentence(first, second, model=loaded)


def test_streams_of_different_length_are_noticed(loaded: OpenModel) -> None:
    with pytest.raises(InputError, match="There is a first text 1, and no second text for it"):
        list(next_sentence(iter(["a", "b"]), iter(["c"]), model=loaded))
    with pytest.raises(InputError, match="There is a second text 1, and no first text for it"):
        list(next_sentence(iter(["a"]), iter(["c", "d"]), model=loaded))


def test_a_model_without_the_head_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="next_sentence needs a next-sentence head"):
        next_sentence("a", "b", model=saved(tmp_path, "BertModel"))
