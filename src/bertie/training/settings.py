"""How to train: one frozen value that the loop, the run's checkpoints and the report share.

Settings that decide the numbers (`DECIDING`) are kept in every checkpoint, and a run is not resumed under others: its
second half would not belong to its first. The rest (how often to log, how much fits into memory) may change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Literal, TypedDict, get_args

from bertie.arguments import number, one_of
from bertie.errors import ConfigError

OptimizerName = Literal["adamw", "adam-weight-decay", "lamb"]
ScheduleName = Literal["linear", "polynomial", "cosine", "constant"]
Precision = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True)
class Settings:
    """The defaults are Google's grid for fine-tuning."""

    # how long, and in which portions
    epochs: float = 3.0
    max_steps: int | None = None  # instead of epochs
    batch_size: int = 32  # examples in one step, over all processes
    batch_tokens: int | None = None  # tokens in one step, instead of examples
    micro_batch_tokens: int = 16384  # tokens that are in memory at once, per process
    seed: int = 42
    # the optimizer
    optimizer: OptimizerName = "adamw"
    learning_rate: float = 3e-5
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float | None = None  # 1e-8 for adamw, Google's 1e-6 for the others
    clip: float = 1.0  # largest norm of the gradient; 0 turns clipping off
    layer_decay: float = 1.0  # learning rate of each layer, relative to the one above it
    # the schedule
    schedule: ScheduleName = "linear"
    warmup: float = 0.1  # a share of all steps, or from 1 up a number of steps
    power: float = 1.0  # of the polynomial schedule
    final_learning_rate: float = 0.0
    # the machine
    precision: Precision = "auto"  # bfloat16 autocast where a GPU has it
    fused: bool = True  # our kernels for layers in bfloat16 on a GPU, where they have a form for the model
    compile_layers: bool = False  # torch.compile instead of them
    gradient_checkpointing: bool = False
    shard: bool = False  # FSDP2: parameters and optimizer are split over the processes
    workers: int = 0  # processes that make batches; 0 makes them in a thread
    # what is kept and shown
    ema: float = 0.0  # decay of the averaged weights; 0 is off
    evaluate_every: int | None = None  # steps; None is once an epoch
    save_every: int | None = None  # steps; None is whenever it is evaluated
    keep: int = 2  # checkpoints of the run
    patience: int | None = None  # evaluations without a better one before the run stops
    log_every: int = 10
    tensorboard: bool = False

    def __post_init__(self) -> None:
        for name, known in (("optimizer", OptimizerName), ("schedule", ScheduleName), ("precision", Precision)):
            one_of(name, getattr(self, name), get_args(known), ConfigError)
        for names, bounds in _BOUNDS.items():
            for name in names.split():
                if getattr(self, name) is not None:
                    number(name, getattr(self, name), error=ConfigError, **bounds)

    @property
    def eps(self) -> float:
        """The optimizer's epsilon; by default the one its source uses."""
        return self.epsilon if self.epsilon is not None else (1e-8 if self.optimizer == "adamw" else 1e-6)

    def deciding(self) -> dict[str, object]:
        """The settings that decide the numbers of a run, as JSON has them."""
        return {name: value for name, value in asdict(self).items() if name in DECIDING}


DECIDING = frozenset(field.name for field in fields(Settings)) - {
    "micro_batch_tokens", "compile_layers", "fused", "gradient_checkpointing", "shard", "workers", "evaluate_every",
    "save_every", "keep", "log_every", "tensorboard", "precision", "patience",
}  # fmt: skip


class _Bounds(TypedDict, total=False):
    least: float
    above: float
    most: float
    below: float
    finite: bool


_BOUNDS: dict[str, _Bounds] = {
    "batch_size micro_batch_tokens keep log_every": {"least": 1},
    "max_steps batch_tokens evaluate_every save_every patience": {"least": 1},
    "weight_decay warmup final_learning_rate workers": {"least": 0},
    "clip": {"least": 0, "finite": False},
    "seed": {"least": 0, "most": 2**63 - 1},  # torch takes 64 bits, and processes add to it
    "epochs learning_rate power": {"above": 0},
    "layer_decay": {"above": 0, "most": 1},
    "beta1 beta2 ema": {"least": 0, "below": 1},
}


def refuse_changes(what: str, before: Mapping[str, object], now: Mapping[str, object]) -> None:
    """Refuse to continue a run that was started with other deciding settings. Older runs know fewer of them."""
    for name, value in now.items():
        if name in before and before[name] != value:
            raise ConfigError(
                f"The run was started with {{{name}}}; now it is {value!r}.",
                f"Resume with the same {what}, or start a new run in another folder.",
                **{name: before[name]},
            )
