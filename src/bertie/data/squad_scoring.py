"""Exact match and F1 of SQuAD 1.1 and 2.0, by the rules of the official scripts (Rajpurkar et al. 2016, 2018).

Texts are compared in lower case, without ASCII punctuation, without the articles a, an, the, and with single spaces.
Exact match is equality of that; F1 is over its words, counted as often as they occur. A question scores the best over
its gold answers. In 2.0 a question without answers has the gold answer "", and "" is right only there: where either
side is empty, F1 is 1 if both are.

Both versions are one rule here, which gives 1.1's numbers on 1.1's files unless a gold answer is nothing but articles
and punctuation (2.0 leaves such an answer out).
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bertie.data.squad import Question
from bertie.errors import InputError

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


@dataclass(frozen=True, slots=True)
class SquadScore:
    """Percentages over all questions, and over those with and without answers (None where there are none)."""

    exact: float
    f1: float
    total: int
    has_answer_exact: float | None
    has_answer_f1: float | None
    has_answer_total: int
    no_answer_exact: float | None
    no_answer_f1: float | None
    no_answer_total: int


@dataclass(frozen=True, slots=True)
class BestThreshold:
    """The best percentage a threshold reaches, and the least threshold that reaches it."""

    score: float
    threshold: float


def normalised(text: str) -> str:
    """The text as it is compared.

    >>> normalised("The  Cat's “pyjamas”.")
    'cats “pyjamas”'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, gold: str) -> float:
    """1 if the two are the same when normalised, otherwise 0."""
    return float(normalised(prediction) == normalised(gold))


def f1(prediction: str, gold: str) -> float:
    """The harmonic mean of precision and recall over words.

    >>> f1("the red house", "a house")
    0.6666666666666666
    """
    predicted, wanted = normalised(prediction).split(), normalised(gold).split()
    if not predicted or not wanted:
        return float(predicted == wanted)
    shared = (Counter(predicted) & Counter(wanted)).total()
    if not shared:
        return 0.0
    precision, recall = shared / len(predicted), shared / len(wanted)
    return 2 * precision * recall / (precision + recall)


def score_squad(
    questions: Iterable[Question],
    predictions: Mapping[str, str],
    *,
    null_differences: Mapping[str, float] | None = None,
    threshold: float = 0.0,
) -> SquadScore:
    """Score texts predicted for questions, by id; "" says that there is no answer.

    With `null_differences` (or probabilities of no answer), a prediction counts as "" where that is greater than the
    threshold. A question without a prediction scores 0, as in the script of 1.1 (that of 2.0 leaves it out).
    """
    marks = _Marks.of(questions, predictions)
    if null_differences is not None:
        for identity in marks.exact:
            if _difference(null_differences, identity) > threshold and identity in predictions:
                right = float(not marks.has_answer[identity])
                marks.exact[identity] = marks.f1[identity] = right
    if not marks.exact:
        raise InputError("There are no questions to score.")
    answered = [identity for identity, has in marks.has_answer.items() if has]
    unanswerable = [identity for identity, has in marks.has_answer.items() if not has]
    return SquadScore(
        exact=_mean(marks.exact, marks.exact) or 0.0,
        f1=_mean(marks.f1, marks.f1) or 0.0,
        total=len(marks.exact),
        has_answer_exact=_mean(marks.exact, answered),
        has_answer_f1=_mean(marks.f1, answered),
        has_answer_total=len(answered),
        no_answer_exact=_mean(marks.exact, unanswerable),
        no_answer_f1=_mean(marks.f1, unanswerable),
        no_answer_total=len(unanswerable),
    )


def best_threshold(
    questions: Iterable[Question],
    predictions: Mapping[str, str],
    null_differences: Mapping[str, float],
    *,
    metric: str = "f1",
) -> BestThreshold:
    """The threshold for `answer` at which these predictions score best.

    `predictions` are the best quotations, given whether or not the verdict was "no answer" (`result.candidates[0]`),
    and `null_differences` are `result.null_difference`. **Ours**: questions with the same difference are let through
    together, as a threshold does; the official search tries them one by one and may promise more than any threshold
    gives.
    """
    if metric not in ("f1", "exact"):
        raise InputError(f"metric is {metric!r}.", "Use 'f1' or 'exact'.", metric=metric, accepted=("f1", "exact"))
    marks = _Marks.of(questions, predictions)
    if not marks.exact:
        raise InputError("There are no questions to score.")
    values = marks.f1 if metric == "f1" else marks.exact
    differences = {identity: _difference(null_differences, identity) for identity in values}
    if any(math.isnan(value) for value in differences.values()):
        raise InputError("A null difference is not a number.")
    # At first everything is "no answer"; then questions are let through, the likeliest to have an answer first.
    current = best = float(sum(not has for has in marks.has_answer.values()))
    ordered = sorted(values, key=lambda identity: differences[identity])
    least = differences[ordered[0]]
    threshold = 0.0 if least > 0 else math.nextafter(least, -math.inf)
    for index, identity in enumerate(ordered):
        before = float(not marks.has_answer[identity])
        current += values[identity] - before
        last_of_equals = index + 1 == len(ordered) or differences[ordered[index + 1]] > differences[identity]
        if last_of_equals and current > best:
            best, threshold = current, differences[identity]
    return BestThreshold(100.0 * best / len(values), threshold)


@dataclass(frozen=True)
class _Marks:
    """What each question scored, by id."""

    exact: dict[str, float]
    f1: dict[str, float]
    has_answer: dict[str, bool]

    @classmethod
    def of(cls, questions: Iterable[Question], predictions: Mapping[str, str]) -> _Marks:
        marks = cls({}, {}, {})
        for question in questions:
            gold = [answer.text for answer in question.answers if normalised(answer.text)] or [""]
            predicted = predictions.get(question.id)
            marks.has_answer[question.id] = bool(question.answers)
            marks.exact[question.id] = 0.0 if predicted is None else max(exact_match(predicted, g) for g in gold)
            marks.f1[question.id] = 0.0 if predicted is None else max(f1(predicted, g) for g in gold)
        return marks


def _difference(differences: Mapping[str, float], identity: str) -> float:
    try:
        return differences[identity]
    except KeyError:
        raise InputError(f"There is no null difference for the question {identity!r}.") from None


def _mean(values: Mapping[str, float], identities: Iterable[str]) -> float | None:
    chosen = [values[identity] for identity in identities]
    return 100.0 * sum(chosen) / len(chosen) if chosen else None
