"""EM and F1 of SQuAD: known answers worked out by hand from the official rules, and thresholds by brute force."""

from __future__ import annotations

import itertools
import random

import pytest

from bertie.data.squad import Answer, Question
from bertie.data.squad_scoring import best_threshold, exact_match, f1, normalised, score_squad
from bertie.errors import InputError


def question(identity: str, *gold: str) -> Question:
    return Question(identity, "", "?", " ".join(gold), tuple(Answer(text, 0) for text in gold), not gold)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Cat", "cat"),
        ("a an the", ""),
        ("theatre another", "theatre another"),
        ("U.S.A.", "usa"),
        ("an  old\tman's\nhat!", "old mans hat"),
        ("A-theist", "atheist"),  # punctuation goes first, then articles
        ("“quoted” – dash", "“quoted” – dash"),  # only ASCII punctuation goes
        ("£1,000.50", "£100050"),
    ],
)
def test_normalising(text: str, expected: str) -> None:
    assert normalised(text) == expected


@pytest.mark.parametrize(
    ("prediction", "gold", "exact", "expected"),
    [
        ("the Cat.", "cat", 1, 1.0),
        ("red house", "house", 0, 2 / 3),
        ("a a b b", "b b c", 0, 2 * (2 / 2) * (2 / 3) / (2 / 2 + 2 / 3)),  # 'a' is an article
        ("x x y", "x y y", 0, 2 / 3),  # words count as often as they occur in both
        ("dog", "cat", 0, 0.0),
        ("", "", 1, 1.0),
        ("the", "", 1, 1.0),
        ("cat", "", 0, 0.0),
        ("", "cat", 0, 0.0),
    ],
)
def test_exact_match_and_f1(prediction: str, gold: str, exact: int, expected: float) -> None:
    assert exact_match(prediction, gold) == exact
    assert f1(prediction, gold) == pytest.approx(expected)


QUESTIONS = [question("a", "Paris", "the city of Paris"), question("b", "1969"), question("c"), question("d")]


def test_scores_take_the_best_gold_answer_and_tell_the_answerable_apart() -> None:
    score = score_squad(QUESTIONS, {"a": "city of paris", "b": "in 1969", "c": "", "d": "something"})
    assert (score.exact, score.total) == (50.0, 4)
    assert score.f1 == pytest.approx(100 * (1 + 2 / 3 + 1 + 0) / 4)
    assert (score.has_answer_exact, score.has_answer_total) == (50.0, 2)
    assert score.has_answer_f1 == pytest.approx(100 * (1 + 2 / 3) / 2)
    assert (score.no_answer_exact, score.no_answer_f1, score.no_answer_total) == (50.0, 50.0, 2)


def test_only_answerable_questions_have_no_unanswerable_score() -> None:
    score = score_squad(QUESTIONS[:2], {"a": "Paris", "b": ""})
    assert (score.exact, score.no_answer_exact, score.no_answer_total) == (50.0, None, 0)


def test_a_missing_prediction_scores_nothing() -> None:
    score = score_squad(QUESTIONS, {"a": "Paris"})
    assert (score.exact, score.f1, score.no_answer_exact) == (25.0, 25.0, 0.0)


def test_a_gold_answer_of_nothing_but_articles_is_left_out() -> None:
    odd = question("a", "the", "Paris")
    assert score_squad([odd], {"a": ""}).exact == 0.0
    assert score_squad([question("a", "the")], {"a": ""}).exact == 100.0


def test_a_difference_above_the_threshold_is_no_answer() -> None:
    predictions = {"a": "Paris", "b": "1969", "c": "x", "d": "y"}
    differences = {"a": -3.0, "b": 1.0, "c": 0.5, "d": 2.0}
    at = [
        score_squad(QUESTIONS, predictions, null_differences=differences, threshold=t).exact
        for t in (-4, -3, 0.4, 0.5, 1, 2)
    ]
    assert at == [50.0, 75.0, 75.0, 50.0, 75.0, 50.0]
    found = best_threshold(QUESTIONS, predictions, differences, metric="exact")
    assert (found.score, found.threshold) == (75.0, -3.0)


def test_the_best_threshold_is_the_best_of_all() -> None:
    rng = random.Random(11)
    words = ("one", "two", "one two", "")
    for _ in range(200):
        number = rng.randint(1, 12)
        questions = [question(str(i), *([rng.choice(words[:3])] if rng.random() < 0.6 else [])) for i in range(number)]
        predictions = {str(i): rng.choice(words) for i in range(number)}
        differences = {str(i): rng.choice((-2.0, -1.0, 0.0, 0.5, rng.random())) for i in range(number)}
        for metric in ("exact", "f1"):
            found = best_threshold(questions, predictions, differences, metric=metric)
            reached = score_squad(questions, predictions, null_differences=differences, threshold=found.threshold)
            assert getattr(reached, metric) == pytest.approx(found.score)
            for threshold in itertools.chain([-9.0], differences.values()):
                other = score_squad(questions, predictions, null_differences=differences, threshold=threshold)
                assert getattr(other, metric) <= found.score + 1e-9


def test_mistakes_are_explained() -> None:
    with pytest.raises(InputError, match="no questions"):
        score_squad([], {})
    with pytest.raises(InputError, match="no questions"):
        best_threshold([], {}, {})
    with pytest.raises(InputError, match="no null difference for the question 'a'"):
        best_threshold(QUESTIONS, {}, {})
    with pytest.raises(InputError, match="metric is 'em'"):
        best_threshold(QUESTIONS, {}, {}, metric="em")
    with pytest.raises(InputError, match="not a number"):
        best_threshold(QUESTIONS[:1], {}, {"a": float("nan")})
