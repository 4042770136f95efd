"""Training: examples, objectives, optimizers, the loop, run checkpoints, one process or many.

Start at `finetune.py` and `pretrain.py`, which people call; `contract.py` says what the loop knows about a task;
`loop.py` is the loop.
"""

from __future__ import annotations

from bertie.training.finetune import finetune
from bertie.training.pretrain import PretrainOptions, pretrain
from bertie.training.registry import Columns, TaskOptions
from bertie.training.run.loop import Diverged, Interrupted, Result
from bertie.training.settings import Settings

__all__ = [
    "Columns",
    "Diverged",
    "Interrupted",
    "PretrainOptions",
    "Result",
    "Settings",
    "TaskOptions",
    "finetune",
    "pretrain",
]
