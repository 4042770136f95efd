"""Training: examples, objectives, optimizers, the loop, run checkpoints, one process or many.

Start at `finetune.py` and `pretrain.py`, which people call; `contract.py` says what the loop knows about a task;
`run/loop.py` is the loop, and `train` calls it with an objective of your own.
"""

from __future__ import annotations

from bertie.training.contract import Diverged, Interrupted, Result
from bertie.training.finetune import finetune
from bertie.training.pretrain import PretrainOptions, pretrain
from bertie.training.run.loop import train
from bertie.training.settings import Settings
from bertie.training.sources import Columns
from bertie.training.task import TaskOptions

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
    "train",
]
