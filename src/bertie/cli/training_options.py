"""Options that `bertie finetune …` and `bertie pretrain` share: how to train, where to, and how the outcome is told."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bertie.cli.options import _check_device

if TYPE_CHECKING:
    from bertie.training import Result, Settings

F = TypeVar("F", bound=Callable[..., Any])

_AT_LEAST_ONE = click.IntRange(min=1)


def _options(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def run_options(function: F) -> F:
    """-o, --resume, --device: where a run is kept and computed."""
    return _options(
        click.option("-o", "--output", metavar="DIR", required=True, help="Folder of the run, and of its model."),
        click.option("--resume", is_flag=True, help="Go on where the run in DIR was stopped or killed."),
        click.option("--device", metavar="DEVICE", help="cpu, cuda, cuda:1 … [default: cuda where there is one]"),
    )(function)


def training_options(
    *,
    epochs: float,
    learning_rate: float,
    batch_size: int,
    warmup: float,
    micro_batch_tokens: int = 16384,
    every: int | None = None,
) -> Callable[[F], F]:
    """How to train, with a command's own defaults; `settings_of` reads them. `every` so many steps it is evaluated."""
    evaluated, saved = ("every epoch", "when evaluating") if every is None else (f"{every}", f"{every}")
    return _options(
        click.option("--epochs", type=float, default=epochs, show_default=True, help="Times through the data."),
        click.option("--max-steps", type=_AT_LEAST_ONE, metavar="N", help="Steps instead of epochs. [default: epochs]"),
        click.option(
            "--lr", "learning_rate", type=float, default=learning_rate, show_default=True, help="Peak learning rate."
        ),
        click.option(
            "--batch-size",
            type=_AT_LEAST_ONE,
            default=batch_size,
            show_default=True,
            help="Examples in a step, over all processes.",
        ),
        click.option(
            "--batch-tokens", type=_AT_LEAST_ONE, metavar="N", help="Tokens in a step. [default: count examples]"
        ),
        click.option(
            "--micro-batch-tokens",
            type=_AT_LEAST_ONE,
            default=micro_batch_tokens,
            show_default=True,
            help="Tokens in memory at once; a step is done in pieces. Halved when memory runs out.",
        ),
        click.option("--seed", type=click.IntRange(min=0), default=42, show_default=True, help="Of all chance."),
        click.option(
            "--optimizer",
            type=click.Choice(["adamw", "adam-weight-decay", "lamb"]),
            default="adamw",
            show_default=True,
            help="adam-weight-decay is Google's: no bias correction.",
        ),
        click.option(
            "--schedule",
            type=click.Choice(["linear", "polynomial", "cosine", "constant"]),
            default="linear",
            show_default=True,
            help="The learning rate after the warm-up.",
        ),
        click.option(
            "--warmup",
            type=click.FloatRange(min=0),
            default=warmup,
            show_default=True,
            help="Share of the steps, or from 1 up their number.",
        ),
        click.option("--weight-decay", type=float, default=0.01, show_default=True, help="Not on bias and LayerNorm."),
        click.option("--clip", type=float, default=1.0, show_default=True, help="Largest gradient norm; 0 is off."),
        click.option(
            "--layer-decay", type=float, default=1.0, show_default=True, help="Rate of a layer relative to the next."
        ),
        click.option("--ema", type=float, default=0.0, show_default=True, help="Decay of averaged weights; 0 is off."),
        click.option(
            "--precision",
            type=click.Choice(["auto", "float32", "bfloat16"]),
            default="auto",
            show_default=True,
            help="auto is bfloat16 on GPUs that have it.",
        ),
        click.option("--fused/--no-fused", default=True, help="Our kernels on a GPU, in bfloat16. [default: on]"),
        click.option("--compile", "compile_layers", is_flag=True, help="torch.compile instead (slow first steps)."),
        click.option("--gradient-checkpointing", is_flag=True, help="Less memory, a third more time."),
        click.option("--shard", is_flag=True, help="Under torchrun: split the model itself (FSDP2)."),
        click.option(
            "--workers", type=click.IntRange(min=0), default=0, show_default=True, help="Processes that make batches."
        ),
        click.option(
            "--evaluate-every",
            type=_AT_LEAST_ONE,
            metavar="STEPS",
            help=f"Look at the dev data. [default: {evaluated}]",
        ),
        click.option(
            "--save-every", type=_AT_LEAST_ONE, metavar="STEPS", help=f"Checkpoint. [default: {saved}]"
        ),
        click.option("--keep", type=_AT_LEAST_ONE, default=2, show_default=True, help="Checkpoints to keep."),
        click.option(
            "--patience", type=_AT_LEAST_ONE, metavar="N", help="Stop after N evaluations without a better one. "
            "[default: never]"
        ),
        click.option("--log-every", type=_AT_LEAST_ONE, default=10, show_default=True, help="Steps between two lines."),
        click.option("--tensorboard", is_flag=True, help="Write TensorBoard files into DIR/tensorboard."),
    )  # fmt: skip


def distillation_options(function: F) -> F:
    """--teacher and what of it counts; `distillation_of` reads the weights."""
    shown = "Learn from this larger model too. [default: from the data alone]"
    return _options(
        click.option("--teacher", metavar="MODEL", help=shown),
        click.option(
            "--distil",
            nargs=4,
            type=float,
            default=(0.5, 0.5, 0.0, 0.0),
            show_default=True,
            metavar="TASK LOGITS HIDDEN ATTENTION",
            help="--teacher: how much each loss counts.",
        ),
        click.option(
            "--temperature", type=float, default=2.0, show_default=True, help="--teacher: softens its probabilities."
        ),
        click.option(
            "--student-layers",
            type=_AT_LEAST_ONE,
            metavar="N",
            help="--teacher: begin with N of its layers, evenly spaced. [default: with -m]",
        ),
    )(function)


def distillation_of(values: dict[str, Any]) -> Any:
    from bertie.training.distillation import Weights

    task, logits, hidden, attention = values.pop("distil")
    return Weights(task=task, logits=logits, hidden=hidden, attention=attention)


def settings_of(values: dict[str, Any], **more: Any) -> Settings:
    """The training settings among an invocation's values, taken out of them."""
    from dataclasses import fields

    from bertie.training.settings import Settings

    own = {field.name: values.pop(field.name) for field in fields(Settings) if field.name in values}
    return Settings(**own, **more)


def command_line() -> str:
    """What was typed, as the report shows it."""
    return shlex.join(["bertie", *sys.argv[1:]])


def finished(work: Callable[[], Result], device: str | None) -> int:
    """Do the work and say what came of it; 130 when it was interrupted and saved."""
    from bertie.training.loop import Interrupted

    if device is not None:
        _check_device(device)
    try:
        result = work()
    except Interrupted as error:
        click.echo(f"\n{error.cause}", err=True)
        click.echo(f"Go on with: {_resuming(command_line())}", err=True)
        return 130
    import os

    if os.environ.get("RANK", "0") == "0":
        click.echo(_outcome(result))
    return 0


def _resuming(line: str) -> str:
    return line if "--resume" in line.split() else f"{line} --resume"


def _outcome(result: Result) -> str:
    figures = "  ".join(f"{name} {value:.4f}" for name, value in result.metrics.items())
    where = f"step {result.best_step}" if result.best_step is not None else f"step {result.steps}, the last"
    lines = [f"{result.output}: the model of {where}" + (f"  {figures}" if figures else "")]
    lines.append(f"report: {result.output / 'report.md'}")
    return "\n".join(lines)
