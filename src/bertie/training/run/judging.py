"""What a task can be judged by: a name that it does not have is refused before anything is read.

`METRICS` are all figures that a task may have. Which of them a run has is known once its data is: f1 is for two labels,
pearson for scores, best_f1 where some questions have no answer. An objective says so (`metric_names`), and a test holds
it to what `evaluate` gives.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from bertie.errors import InputError

METRICS: dict[str, tuple[str, ...]] = {
    "classify": ("accuracy", "matthews", "f1", "f1_macro", "f1_micro", "loss"),
    "pairs": ("accuracy", "matthews", "f1", "f1_macro", "f1_micro", "loss"),
    "regress": ("spearman", "pearson", "mse", "loss"),
    "tag": ("f1", "precision", "recall", "f1_macro", "f1[TYPE]", "accuracy", "loss"),
    "answer": ("f1", "exact", "best_f1", "has_answer_f1", "no_answer_exact"),
    "choice": ("accuracy", "loss"),
    "embed": ("mrr", "recall@1", "recall@5", "recall@10", "spearman", "pearson"),
}
_LOWER_IS_BETTER = ("loss", "mse")


def greater_is_better(metric: str) -> bool:
    return metric not in _LOWER_IS_BETTER


def check_metric(task: str, name: str | None) -> None:
    """Refuse a metric that the task never has."""
    known = METRICS[task]
    if name is not None and re.sub(r"\[.+\]", "[TYPE]", name) not in known:
        raise InputError(f"best_metric is {name!r}; {task} has no such metric.", _remedy(name, known))


def check_metric_of_run(task: str, name: str, known: Sequence[str]) -> None:
    """Refuse a metric that the task has, but not with this data."""
    if name not in known:
        raise InputError(f"best_metric is {name!r}; {task} does not have it with this data.", _remedy(name, known))


def _remedy(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name.lower(), known, n=1)
    meant = f"Did you mean {close[0]}? " if close else ""
    return f"{meant}It has: {', '.join(known)}."
