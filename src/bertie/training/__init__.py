"""Training: examples, objectives, optimizers, the loop, run checkpoints, one process or many.

Start at `fine_tuning.py` and `pretraining/pretrain.py`, which people call; `contract.py` says what the loop knows about
a task; `run/loop.py` is the loop, and `train` calls it with an objective of your own.

Names are imported when they are first used: the command line reads `settings.py` and shows its choices without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bertie.training.contract import Diverged, Interrupted, Result
    from bertie.training.fine_tuning import finetune
    from bertie.training.pretraining.pretrain import PretrainOptions, pretrain
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
_WHERE = {
    "Columns": "sources",
    "PretrainOptions": "pretraining.pretrain",
    "Settings": "settings",
    "TaskOptions": "task",
    "finetune": "fine_tuning",
    "pretrain": "pretraining.pretrain",
    "train": "run.loop",
    **dict.fromkeys(("Diverged", "Interrupted", "Result"), "contract"),
}


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module 'bertie.training' has no attribute {name!r}")
    return getattr(import_module(f"bertie.training.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return __all__
