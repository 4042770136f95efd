"""What comes of a run: its result, or the two ways it can end before that."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bertie.errors import BertieError

MOST_SKIPPED = 10  # steps in a row without a finite gradient that end a run


class Interrupted(BertieError):
    """The run was stopped from outside.

    `began`: there is a checkpoint of it to resume from. `kept`: there is that, or at least what was prepared for it.
    """

    def __init__(self, cause: str, remedy: str | None = None, *, began: bool = True, kept: bool = True) -> None:
        super().__init__(cause, remedy)
        self.began, self.kept = began, kept


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
