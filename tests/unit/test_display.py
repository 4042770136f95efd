"""Answers are short where they are printed and tables where they are displayed; nothing in them is markup."""

from __future__ import annotations

import pickle

import numpy as np

from bertie.answers import (
    AnswerResult,
    Candidate,
    Classification,
    Features,
    Filled,
    Filling,
    FoundAnswer,
    Representation,
    TokenFeatures,
)
from bertie.display import Displayed, table

FILLED = Filled(
    masks=(tuple(Candidate(word, score, f"A {word}.", (3,)) for word, score in [("cat", 0.5), ("dog", 0.25)]),),
    fillings=(Filling(("cat",), 0.5, "A cat."), Filling(("dog",), 0.25, "A dog.")),
)
VECTOR = np.array([3.0, 4.0], dtype=np.float32)
FOUND = FoundAnswer("Ada", 0, 3, 0.9, 1.5)


def test_reprs_are_one_short_line() -> None:
    shown = {
        Classification((("good", 0.91), ("bad", 0.05), ("odd", 0.03), ("dull", 0.01))): (
            "<Classification: good 0.910, bad 0.050, odd 0.030, …>"
        ),
        FILLED: "<Filled: cat 0.500, dog 0.250>",
        AnswerResult("Who?", FOUND, (FOUND,), 0.1, -1.0): "<AnswerResult: 'Ada' 0.900, 1 candidates>",
        AnswerResult("Who?", None, (FOUND,), 0.8, 3.0): "<AnswerResult: no answer, 1 candidates>",
        Features(0, (TokenFeatures("a", ((-1, VECTOR),)),)): "<Features: 1 tokens, layers -1>",
        Representation(VECTOR, {7: 0.5}, VECTOR[None]): (
            "<Representation: dense 2 numbers, sparse 1 weights, multi 1 vectors of 2 numbers>"
        ),
    }
    assert {answer: repr(answer) for answer in shown} == shown


def test_a_notebook_shows_scores_as_absolute_bars() -> None:
    html = FILLED._repr_html_()
    assert html.count("<tr>") == 3
    assert "rgba(37,99,235,.25) 50.0%" in html
    assert "A dog." in html


def test_texts_are_never_markup() -> None:
    html = Classification((("<script>alert(1)</script>", 1.0),))._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


def test_long_tables_say_how_much_is_left_out() -> None:
    assert table([{"n": number} for number in range(25)]).endswith("<i>and 5 more</i>")
    assert table([]) == "<i>nothing found</i>"


def test_displayed_answers_compare_hash_and_pickle_as_before() -> None:
    assert pickle.loads(pickle.dumps(FILLED)) == FILLED
    assert hash(FILLED) == hash(pickle.loads(pickle.dumps(FILLED)))
    assert isinstance(FILLED, Displayed)
    assert not hasattr(FILLED, "__dict__")
