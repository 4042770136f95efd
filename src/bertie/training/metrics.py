"""The figures a trained model is judged by, over numpy arrays: classes, scores, rankings, masked words.

Every one is compared with an independent implementation (scikit-learn, scipy) in the tests. Where a figure is 0/0 it is
0, as in scikit-learn's `zero_division=0`; a correlation with something constant is 0 as well. Entities are in
tasks/tag.py, and SQuAD's rules in data/squad_scoring.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bertie.errors import InputError

Array: TypeAlias = npt.NDArray[Any]


def accuracy(predicted: npt.ArrayLike, gold: npt.ArrayLike) -> float:
    """The share that is right. Rows of several labels count as right when all of them are."""
    a, b = _same_shape(predicted, gold)
    if not len(a):
        return 0.0
    right = a == b
    return float((right if right.ndim == 1 else right.all(axis=1)).mean())


def f1_binary(predicted: npt.ArrayLike, gold: npt.ArrayLike, *, positive: int = 1) -> float:
    """F1 of one class: 2·TP / (2·TP + FP + FN)."""
    a, b = _same_shape(predicted, gold)
    return _f1(*_counts(a == positive, b == positive))


def f1_macro(predicted: npt.ArrayLike, gold: npt.ArrayLike, *, num_classes: int | None = None) -> float:
    """The mean of the classes' F1. Without `num_classes`, over the classes that occur on either side.

    Arrays of two dimensions are labels of which several may apply, 1 where one does.
    """
    return float(np.mean(_per_class_f1(predicted, gold, num_classes) or [0.0]))


def f1_micro(predicted: npt.ArrayLike, gold: npt.ArrayLike) -> float:
    """F1 over all decisions together. With one label per text that is the accuracy."""
    a, b = _same_shape(predicted, gold)
    if a.ndim == 1:
        return accuracy(a, b)
    return _f1(*_counts(a != 0, b != 0))


def matthews(predicted: npt.ArrayLike, gold: npt.ArrayLike) -> float:
    """Matthews' correlation coefficient, for two classes or more (Gorodkin 2004)."""
    a, b = _same_shape(predicted, gold)
    classes = np.unique(np.concatenate([a, b]))
    predicted_counts = np.array([(a == c).sum() for c in classes], dtype=np.float64)
    gold_counts = np.array([(b == c).sum() for c in classes], dtype=np.float64)
    total = float(len(a))
    right = float((a == b).sum())
    covariance = right * total - float(predicted_counts @ gold_counts)
    spread = (total**2 - float(predicted_counts @ predicted_counts)) * (total**2 - float(gold_counts @ gold_counts))
    return covariance / math.sqrt(spread) if spread > 0 else 0.0


def pearson(predicted: npt.ArrayLike, gold: npt.ArrayLike) -> float:
    """The linear correlation of two lists of numbers."""
    a, b = _same_shape(np.asarray(predicted, dtype=np.float64), np.asarray(gold, dtype=np.float64))
    if len(a) < 2:
        return 0.0
    a, b = a - a.mean(), b - b.mean()
    lengths = math.sqrt(float(a @ a)) * math.sqrt(float(b @ b))
    return float(np.clip(float(a @ b) / lengths, -1.0, 1.0)) if lengths > 0 else 0.0


def spearman(predicted: npt.ArrayLike, gold: npt.ArrayLike) -> float:
    """The correlation of ranks; equal values share the mean of their ranks."""
    a, b = _same_shape(np.asarray(predicted, dtype=np.float64), np.asarray(gold, dtype=np.float64))
    return pearson(_ranks(a), _ranks(b))


def mean_squared_error(predicted: npt.ArrayLike, gold: npt.ArrayLike) -> float:
    a, b = _same_shape(np.asarray(predicted, dtype=np.float64), np.asarray(gold, dtype=np.float64))
    return float(((a - b) ** 2).mean()) if len(a) else 0.0


def perplexity(total_loss: float, num_tokens: float) -> float:
    """exp of the mean negative log-likelihood; infinite where that is too large to write."""
    mean = total_loss / max(num_tokens, 1.0)
    return math.exp(mean) if mean < 700 else math.inf


def retrieval(
    scores: npt.ArrayLike, relevant: Sequence[Sequence[int]], *, at: Sequence[int] = (1, 5, 10)
) -> dict[str, float]:
    """`{"recall@1": …, "mrr": …}` of scores `[queries, candidates]`, higher is better, and the right candidates.

    recall@k is the share of a query's right candidates among its k best, averaged over the queries; the reciprocal
    rank is that of the first right one. A candidate as good as a right one counts as better: ties never flatter.
    """
    table = np.asarray(scores, dtype=np.float64)
    if table.ndim != 2 or len(table) != len(relevant):
        raise InputError(f"scores has shape {list(table.shape)} for {len(relevant)} queries.")
    recalls: dict[int, list[float]] = {k: [] for k in at}
    reciprocal = []
    for row, right in zip(table, relevant, strict=True):
        if not len(right):
            continue
        own = row[list(right)]
        wrong = np.delete(row, list(right))
        # Rank of each right candidate: the wrong ones at least as good, and the right ones before it.
        order = np.argsort(-own, kind="stable")
        ranks = np.empty(len(own))
        for place, index in enumerate(order):
            ranks[index] = 1 + place + int((wrong >= own[index]).sum())
        for k in at:
            recalls[k].append(float((ranks <= k).mean()))
        reciprocal.append(1.0 / float(ranks.min()))
    found = {f"recall@{k}": float(np.mean(values)) if values else 0.0 for k, values in recalls.items()}
    return found | {"mrr": float(np.mean(reciprocal)) if reciprocal else 0.0}


def balanced_weights(labels: npt.ArrayLike, num_classes: int) -> npt.NDArray[np.float32]:
    """n / (classes · count): every class weighs as much as every other. A class that does not occur has weight 1."""
    counts = np.bincount(np.asarray(labels, dtype=np.int64), minlength=num_classes).astype(np.float64)
    present = counts > 0
    weights = np.ones(num_classes)
    weights[present] = counts.sum() / (present.sum() * counts[present])
    return weights.astype(np.float32)


def _same_shape(predicted: npt.ArrayLike, gold: npt.ArrayLike) -> tuple[Array, Array]:
    a, b = np.asarray(predicted), np.asarray(gold)
    if a.shape != b.shape:
        raise InputError(f"There are predictions of shape {list(a.shape)} for answers of shape {list(b.shape)}.")
    return a, b


def _counts(a: Array, b: Array) -> tuple[int, int, int]:
    return int((a & b).sum()), int((a & ~b).sum()), int((~a & b).sum())


def _f1(right: int, extra: int, missed: int) -> float:
    total = 2 * right + extra + missed
    return 2 * right / total if total else 0.0


def _per_class_f1(predicted: npt.ArrayLike, gold: npt.ArrayLike, num_classes: int | None) -> list[float]:
    a, b = _same_shape(predicted, gold)
    if a.ndim == 2:
        return [_f1(*_counts(a[:, c] != 0, b[:, c] != 0)) for c in range(a.shape[1])]
    classes = np.unique(np.concatenate([a, b])) if num_classes is None else np.arange(num_classes)
    return [_f1(*_counts(a == c, b == c)) for c in classes]


def _ranks(values: Array) -> Array:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2.0)[inverse])
