"""What comes of a run: its result, or the two ways it can end before that."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bertie.errors import BertieError

MOST_SKIPPED = 10  # steps in a row without a finite gradient that end a run


class Interrupted(BertieError):
    """The run was stopped from outside and saved; it can be resumed."""


class Diverged(BertieError):
    """Gradients stopped being numbers; the last good state is saved."""


@dataclass(frozen=True)
class Result:
    """What came of a run."""

    output: Path
    steps: int
    metrics: dict[str, float]  # of the model that was kept, on the dev data; empty without any
    best_step: int | None
    stopped_early: bool
    skipped: int
    seconds: float  # of training alone, without evaluating and saving
    tokens: int
    flops: float
    oom_halvings: int = 0
