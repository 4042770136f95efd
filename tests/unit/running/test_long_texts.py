"""Texts longer than the model: counted and said aloud, marked in the answers, refused or read whole when asked."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from bertie.cli.main import main
from bertie.errors import InputError, TruncationWarning
from bertie.running import progress
from bertie.running.open import OpenModel
from bertie.running.rows import cut_ids
from bertie.tasks.classify import Classifier
from bertie.tasks.embed import Embedder
from bertie.tasks.features import FeatureExtractor
from bertie.tasks.next_sentence import NextSentencePredictor
from bertie.tasks.rerank import Reranker
from bertie.tasks.zero_shot import ZeroShotClassifier
from tiny_models import MAX_LENGTH, tiny, tokenizer

SHORT, LONG = "the dog sleeps", "the quick brown fox " * 60
NLI = {0: "contradiction", 1: "neutral", 2: "entailment"}


def loaded(kind: str, **config: Any) -> OpenModel:
    return OpenModel(tiny(kind, **config), tokenizer())


def embed(long: str) -> Callable[[list[str]], Any]:
    embedder = Embedder(loaded("BertModel"))
    return lambda texts: embedder.embed(texts, long=long)


def rerank(long: str) -> Callable[[list[str]], Any]:
    ranker = Reranker(loaded("BertForSequenceClassification", num_labels=1), long=long)  # type: ignore[arg-type]
    return lambda texts: sorted(ranker("dog", texts), key=lambda one: one.index)


TASKS: dict[str, Callable[[str], Callable[[list[str]], Any]]] = {
    "embed": embed,
    "rerank": rerank,
    "classify": lambda long: Classifier(loaded("BertForSequenceClassification"), long=long),  # type: ignore[arg-type]
    "zero_shot": lambda long: ZeroShotClassifier(
        ["a", "b"],
        loaded("BertForSequenceClassification", id2label=NLI),
        long=long,  # type: ignore[arg-type]
    ),
    "features": lambda long: FeatureExtractor(loaded("BertModel"), long=long),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", TASKS)
def test_texts_that_are_cut_are_counted_in_one_warning(name: str) -> None:
    task = TASKS[name]("truncate")
    with pytest.warns(TruncationWarning) as said:
        found = task([SHORT, LONG, SHORT, LONG])
    assert len(said) == 1
    assert f"2 of 4 texts were longer than the model's {MAX_LENGTH} tokens and cut." in str(said[0].message)
    assert "long='windows'" in str(said[0].message)
    assert "long='error'" in str(said[0].message)
    if name != "embed":
        assert [one.truncated for one in found] == [False, True, False, True]


@pytest.mark.parametrize("name", TASKS)
def test_nothing_is_said_where_nothing_is_cut(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = TASKS[name]("windows")([SHORT, LONG])
        TASKS[name]("truncate")([SHORT])
        TASKS[name]("error")([SHORT])
    if name != "embed":
        assert [one.truncated for one in found] == [False, False]


@pytest.mark.parametrize("name", TASKS)
def test_a_text_that_is_too_long_is_refused_when_that_is_asked_for(name: str) -> None:
    with pytest.raises(InputError, match=f"has more than {MAX_LENGTH} tokens.\nShorten it, or pass long='windows'"):
        TASKS[name]("error")([SHORT, LONG])


def test_pairs_that_are_cut_are_told() -> None:
    task = NextSentencePredictor(loaded("BertForNextSentencePrediction"))
    with pytest.warns(TruncationWarning, match=f"1 text was longer than the model's {MAX_LENGTH} tokens and cut"):
        found = task([(SHORT, SHORT), (SHORT, LONG)])
    assert [one.truncated for one in found] == [False, True]


def test_a_query_that_is_cut_in_windows_is_told() -> None:
    ranker = Reranker(loaded("BertForSequenceClassification", num_labels=1), long="windows")
    with pytest.warns(TruncationWarning, match="1 text was longer"):
        assert [one.truncated for one in ranker(LONG, [LONG])] == [True]


def test_a_stream_tells_when_it_ends_and_when_it_is_left() -> None:
    embedder = Embedder(loaded("BertModel"))
    stream = embedder.embed(iter([LONG, SHORT]))
    with pytest.warns(TruncationWarning, match="1 text was"):
        assert len(list(stream)) == 2
    stream = embedder.embed(iter([LONG] * 2000))
    next(stream)
    with pytest.warns(TruncationWarning, match="texts were longer"):
        stream.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("side", ["right", "left"])
def test_ids_are_those_of_truncation_and_texts_that_just_fit_are_not_cut(side: str) -> None:
    wordy = tokenizer()
    wordy.truncation_side = side  # type: ignore[assignment]
    try:
        words = LONG.split()
        texts = [" ".join(words[:count]) for count in range(0, 60)]
        for limit in (3, 7, MAX_LENGTH):
            ids, lengths, is_cut = cut_ids(wordy, texts, limit)
            wanted, wanted_lengths = wordy.encode_flat(texts, max_length=limit)
            assert np.array_equal(ids, wanted)
            assert np.array_equal(lengths, wanted_lengths)
            assert is_cut.tolist() == [len(row) > limit for row in wordy.encode_ids(texts)]
    finally:
        wordy.truncation_side = "right"


def test_the_command_says_it_in_its_own_words(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["embed", SHORT, "word " * 600, "--truncate-dim", "2"]) == 0
    said = capsys.readouterr().err
    assert said.count("note:") == 1
    assert "1 text was longer than the model's 256 tokens and cut. Pass --long windows to read all" in said
    assert main(["embed", SHORT, "word " * 600, "--long", "error"]) == 2
    assert "has more than 256 tokens" in capsys.readouterr().err


def test_one_long_text_shows_progress_by_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_PATIENCE", 0.0)
    screen = io.StringIO()
    monkeypatch.setattr("rich.console.Console", lambda **_: Console(file=screen, force_terminal=True, width=100))
    model = OpenModel(tiny("BertModel"), tokenizer(), budget=64)
    Embedder(model).embed(LONG * 20, long="windows", progress=True)
    assert "tokens" in screen.getvalue()
