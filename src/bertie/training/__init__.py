"""Training: examples, objectives, optimizers, the loop, run checkpoints, one process or many.

Start at `fine_tuning.py` and `pretraining/pretrain.py`, which people call; `contract.py` says what the loop knows about
a task; `run/loop.py` is the loop, and `train` calls it with an objective of your own.

Names are imported when they are first used: the command line reads `settings.py` and shows its choices without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bertie.training.contract import Diverged as Diverged
    from bertie.training.contract import Interrupted as Interrupted
    from bertie.training.contract import Result as Result
    from bertie.training.distillation import Weights as Weights
    from bertie.training.fine_tuning import finetune as finetune
    from bertie.training.pretraining.pretrain import PRETRAINING as PRETRAINING
    from bertie.training.pretraining.pretrain import PretrainOptions as PretrainOptions
    from bertie.training.pretraining.pretrain import pretrain as pretrain
    from bertie.training.run.loop import train as train
    from bertie.training.settings import Settings as Settings
    from bertie.training.sources import Columns as Columns
    from bertie.training.task import TaskOptions as TaskOptions

_WHERE = {
    "Columns": "sources",
    "Diverged": "contract",
    "Interrupted": "contract",
    "PRETRAINING": "pretraining.pretrain",
    "PretrainOptions": "pretraining.pretrain",
    "Result": "contract",
    "Settings": "settings",
    "TaskOptions": "task",
    "Weights": "distillation",
    "finetune": "fine_tuning",
    "pretrain": "pretraining.pretrain",
    "train": "run.loop",
}
__all__ = sorted(_WHERE)


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module 'bertie.training' has no attribute {name!r}")
    return getattr(import_module(f"bertie.training.{_WHERE[name]}"), name)
