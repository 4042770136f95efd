"""How to train: one frozen value that the loop, the run's checkpoints and the report share.

Settings that decide the numbers (`DECIDING`) are kept in every checkpoint, and a run is not resumed under others: its
second half would not belong to its first. The rest (how often to log, how much fits into memory) may change.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from bertie.errors import ConfigError

OptimizerName = Literal["adamw", "adam-weight-decay", "lamb"]
ScheduleName = Literal["linear", "polynomial", "cosine", "constant"]
Precision = Literal["auto", "float32", "bfloat16"]

OPTIMIZERS = ("adamw", "adam-weight-decay", "lamb")
SCHEDULES = ("linear", "polynomial", "cosine", "constant")
PRECISIONS = ("auto", "float32", "bfloat16")
MOST_SEED = 2**63 - 1  # torch takes 64 bits, and processes add to it


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
    workers: int = 0  # processes that prepare batches; 0 prepares them in a thread
    # what is kept and shown
    ema: float = 0.0  # decay of the averaged weights; 0 is off
    evaluate_every: int | None = None  # steps; None is once an epoch
    save_every: int | None = None  # steps; None is whenever it is evaluated
    keep: int = 2  # checkpoints of the run
    patience: int | None = None  # evaluations without a better one before the run stops
    log_every: int = 10
    tensorboard: bool = False

    def __post_init__(self) -> None:
        one_of("optimizer", self.optimizer, OPTIMIZERS)
        one_of("schedule", self.schedule, SCHEDULES)
        one_of("precision", self.precision, PRECISIONS)
        for name in ("batch_size", "micro_batch_tokens", "keep", "log_every"):
            at_least(name, getattr(self, name), 1)
        for name in ("max_steps", "batch_tokens", "evaluate_every", "save_every", "patience"):
            if getattr(self, name) is not None:
                at_least(name, getattr(self, name), 1)
        for name in ("weight_decay", "clip", "warmup", "final_learning_rate", "workers", "seed"):
            at_least(name, getattr(self, name), 0)
        for name in ("weight_decay", "warmup", "final_learning_rate"):
            if getattr(self, name) == float("inf"):
                raise ConfigError(f"{name} is inf; it takes a number that is finite.")
        if self.seed > MOST_SEED:
            raise ConfigError(f"seed is {self.seed}; it takes at most {MOST_SEED}.")
        for name in ("epochs", "learning_rate", "power", "layer_decay"):
            above_zero(name, getattr(self, name))
        for name in ("beta1", "beta2", "ema"):
            below_one(name, getattr(self, name))
        if self.layer_decay > 1:
            raise ConfigError(f"layer_decay is {self.layer_decay}; it takes at most 1, which is no decay.")

    @property
    def eps(self) -> float:
        return self.epsilon if self.epsilon is not None else (1e-8 if self.optimizer == "adamw" else 1e-6)

    def deciding(self) -> dict[str, Any]:
        """The settings that decide the numbers of a run, as JSON has them."""
        return {name: value for name, value in asdict(self).items() if name in DECIDING}

    def refuse_others(self, saved: dict[str, Any]) -> None:
        """Refuse to go on with a run that was started with other deciding settings."""
        for name, value in self.deciding().items():
            if name in saved and saved[name] != value:
                raise ConfigError(
                    f"The run was started with {name}={saved[name]!r}; now it is {value!r}.",
                    "Resume with the same settings, or start a new run in another folder.",
                )


DECIDING = frozenset(field.name for field in fields(Settings)) - {
    "micro_batch_tokens", "compile_layers", "fused", "gradient_checkpointing", "shard", "workers", "evaluate_every",
    "save_every", "keep", "log_every", "tensorboard", "precision", "patience",
}  # fmt: skip


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} is {value!r}.", f"It takes one of: {', '.join(allowed)}.")


def above_zero(name: str, value: float) -> None:
    if not value > 0 or value == float("inf"):
        raise ConfigError(f"{name} is {value}; it must be above 0.")


def below_one(name: str, value: float) -> None:
    """Refuse what is no share or probability."""
    if not 0 <= value < 1:
        raise ConfigError(f"{name} is {value}; it takes 0 up to (not with) 1.")


def at_least(name: str, value: float, least: float) -> None:
    if not value >= least:
        raise ConfigError(f"{name} is {value}; it takes at least {least}.")
