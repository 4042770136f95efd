"""Tasks take files: a path gives a stream of answers, in order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import bertie
from bertie.data import read_rows, texts
from bertie.errors import DataError
from tiny_models import SENTENCES, saved


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    file = tmp_path / "rows.jsonl"
    contexts = [{"question": "What?", "context": text} for text in SENTENCES[:3]]
    file.write_text("".join(json.dumps(row) + "\n" for row in contexts))
    return file


def test_a_text_file_is_a_stream(tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(SENTENCES) + "\n")
    model = saved(tmp_path / "m", "BertForSequenceClassification", num_labels=3)
    answers = bertie.classify(file, model=model)
    assert isinstance(answers, Iterator)
    assert list(answers) == bertie.classify(SENTENCES, model=model)
    assert list(bertie.classify(texts(read_rows(file)), model=model)) == bertie.classify(SENTENCES, model=model)
    tagger = saved(tmp_path / "t", "BertForTokenClassification", num_labels=3)
    assert list(bertie.tag(file, model=tagger)) == bertie.tag(SENTENCES, model=tagger)


def test_pairs_are_found_by_their_columns(tmp_path: Path, rows: Path) -> None:
    pairs = [("What?", text) for text in SENTENCES[:3]]
    classifier = saved(tmp_path / "c", "BertForSequenceClassification", num_labels=3)
    assert list(bertie.classify(rows, model=classifier)) == bertie.classify(pairs, model=classifier)
    answerer = saved(tmp_path / "a", "BertForQuestionAnswering")
    assert list(bertie.answer(rows, model=answerer)) == bertie.answer(pairs, model=answerer)
    follower = saved(tmp_path / "n", "BertForNextSentencePrediction")
    assert list(bertie.next_sentence(rows, model=follower)) == bertie.next_sentence(pairs, model=follower)


def test_a_text_that_is_of_no_use_is_named_by_its_line(tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("He was [MASK].\nNothing.\n")
    model = saved(tmp_path / "m", "BertForMaskedLM")
    with pytest.raises(DataError, match=r"texts\.txt, line 2: has no \[MASK\]: 'Nothing.'.\nWrite \[MASK\]"):
        list(bertie.fill(file, model=model))


def test_a_file_without_what_is_needed_is_named(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("x,y,z\n1,2,3\n")
    model = saved(tmp_path / "m", "BertForSequenceClassification", num_labels=3)
    with pytest.raises(DataError, match=r"rows\.csv"):
        list(bertie.classify(file, model=model))
    with pytest.raises(DataError, match=r"nothing\.txt"):
        list(bertie.classify(tmp_path / "nothing.txt", model=model))
