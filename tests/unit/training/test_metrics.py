"""Metrics against scikit-learn, scipy and seqeval."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.errors import InputError
from bertie.training import metrics
from bertie.training.tasks.tag import entity_scores

sklearn = pytest.importorskip("sklearn.metrics")
scipy_stats = pytest.importorskip("scipy.stats")

CLASSES = st.integers(2, 5).flatmap(
    lambda n: st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), min_size=1, max_size=40)
)
NUMBERS = st.lists(st.tuples(st.integers(-20, 20).map(float), st.integers(-20, 20).map(float)), min_size=3, max_size=40)


@given(CLASSES)
def test_class_metrics_equal_scikit_learn(rows: list[tuple[int, int]]) -> None:
    predicted, gold = (np.array(column) for column in zip(*rows, strict=True))
    assert metrics.accuracy(predicted, gold) == pytest.approx(sklearn.accuracy_score(gold, predicted))
    assert metrics.matthews(predicted, gold) == pytest.approx(
        0.0 if len({*predicted, *gold}) == 1 else sklearn.matthews_corrcoef(gold, predicted), abs=1e-12
    )
    for average, ours in (("macro", metrics.f1_macro), ("micro", metrics.f1_micro)):
        expected = sklearn.f1_score(gold, predicted, average=average, zero_division=0)
        assert ours(predicted, gold) == pytest.approx(expected)
    binary = [(predicted == 1).astype(int), (gold == 1).astype(int)]
    expected = sklearn.f1_score(binary[1], binary[0], zero_division=0)
    assert metrics.f1_binary(predicted, gold) == pytest.approx(expected)


@given(st.lists(st.tuples(*[st.integers(0, 1)] * 6), min_size=1, max_size=30))
def test_multi_label_metrics_equal_scikit_learn(rows: list[tuple[int, ...]]) -> None:
    table = np.array(rows)
    predicted, gold = table[:, :3], table[:, 3:]
    for average, ours in (("macro", metrics.f1_macro), ("micro", metrics.f1_micro)):
        expected = sklearn.f1_score(gold, predicted, average=average, zero_division=0)
        assert ours(predicted, gold) == pytest.approx(expected)
    assert metrics.accuracy(predicted, gold) == pytest.approx(sklearn.accuracy_score(gold, predicted))


@given(NUMBERS)
def test_correlations_equal_scipy(rows: list[tuple[float, float]]) -> None:
    a, b = (np.array(column) for column in zip(*rows, strict=True))
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        assert metrics.pearson(a, b) == metrics.spearman(a, b) == 0.0
        return
    assert metrics.pearson(a, b) == pytest.approx(scipy_stats.pearsonr(a, b).statistic, abs=1e-9)
    assert metrics.spearman(a, b) == pytest.approx(scipy_stats.spearmanr(a, b).statistic, abs=1e-9)
    assert metrics.mean_squared_error(a, b) == pytest.approx(sklearn.mean_squared_error(b, a))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60))
def test_balanced_weights_equal_scikit_learn(labels: list[int]) -> None:
    from sklearn.utils.class_weight import compute_class_weight

    present = sorted(set(labels))
    expected = compute_class_weight("balanced", classes=np.array(present), y=np.array(labels))
    ours = metrics.balanced_weights(labels, 5)
    assert ours[present] == pytest.approx(expected)
    assert all(ours[c] == 1 for c in range(5) if c not in present)


@given(st.integers(0, 2**32 - 1))
def test_recall_and_reciprocal_rank_by_counting(seed: int) -> None:
    chance = np.random.default_rng(seed)
    scores = chance.permutation(5 * 12).reshape(5, 12).astype(float)
    relevant = [sorted(chance.choice(12, size=chance.integers(1, 4), replace=False).tolist()) for _ in range(5)]
    found = metrics.retrieval(scores, relevant, at=(1, 3))
    best = [np.argsort(-row).tolist() for row in scores]
    for k in (1, 3):
        shares = [len({*order[:k]} & {*right}) / len(right) for order, right in zip(best, relevant, strict=True)]
        expected = np.mean(shares)
        assert found[f"recall@{k}"] == pytest.approx(expected)
    reciprocal = np.mean([1 / (1 + min(map(order.index, right))) for order, right in zip(best, relevant, strict=True)])
    assert found["mrr"] == pytest.approx(reciprocal)


def test_ties_do_not_flatter_a_ranking() -> None:
    assert metrics.retrieval([[1.0, 1.0, 1.0]], [[0]], at=(1, 3)) == {"recall@1": 0.0, "recall@3": 1.0, "mrr": 1 / 3}


def test_perplexity_is_the_exponential_of_the_mean_loss() -> None:
    assert metrics.perplexity(math.log(8) * 3, 3) == pytest.approx(8)
    assert metrics.perplexity(1e9, 1) == math.inf


def test_lists_of_different_length_are_refused() -> None:
    with pytest.raises(InputError, match=r"shape \[2\] for answers of shape \[3\]"):
        metrics.accuracy([1, 2], [1, 2, 3])


PREFIXES = {"BIO": ["O", "B-X", "I-X", "B-Y", "I-Y"], "BIOES": ["O", *(f"{p}-{t}" for p in "BIES" for t in "XY")]}


@pytest.mark.parametrize("scheme", sorted(PREFIXES))
def test_entity_scores_equal_seqeval(scheme: str) -> None:
    seqeval = pytest.importorskip("seqeval.metrics")
    chance = np.random.default_rng(5)
    for _ in range(30):
        gold, predicted = (
            [chance.choice(PREFIXES[scheme], size=size).tolist() for size in (1, 4, 9, 30)] for _ in range(2)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            report = seqeval.classification_report(gold, predicted, output_dict=True, zero_division=0)
        ours = entity_scores(predicted, gold)
        for kind, score in ours.by_type.items():
            expected = report[kind]
            assert (score.precision, score.recall, score.f1, score.support) == pytest.approx(
                (expected["precision"], expected["recall"], expected["f1-score"], expected["support"])
            )
        assert set(ours.by_type) == set(report) - {"micro avg", "macro avg", "weighted avg"}
        assert ours.micro.f1 == pytest.approx(report["micro avg"]["f1-score"])
        assert ours.macro_f1 == pytest.approx(report["macro avg"]["f1-score"])


def test_sentences_of_different_length_are_refused() -> None:
    with pytest.raises(InputError, match="Sentence 0 has 2 tags, and 1 were predicted"):
        entity_scores([["O"]], [["O", "O"]])
