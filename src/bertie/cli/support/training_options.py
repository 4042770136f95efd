"""Options that `bertie finetune …` and `bertie pretrain` share: how to train, where to, and how the outcome is told."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from bertie import training
from bertie.cli.support.options import check_device, choice_option, with_options
from bertie.errors import (
    BertieError,
    CheckpointError,
    ConfigError,
    DataError,
    InputError,
    MissingExtra,
    TokenizerError,
)
from bertie.training.settings import OptimizerName, Precision, ScheduleName, Settings

if TYPE_CHECKING:
    from bertie.training import Result, Weights

F = TypeVar("F", bound=Callable[..., Any])

# Ranges are checked where the settings are made, whose messages name the option: see spelling.py.


def number(*names: str, shown: str, default: float | None = None, metavar: str = "N") -> Callable[[Any], Any]:
    """An option that takes a whole number: N, or any: X. `shown` tells what it is when there is no default."""
    kind: type = int if metavar == "N" else float
    return click.option(
        *names, type=kind, metavar=metavar, default=default, show_default=default is not None, help=shown
    )


def run_options(function: F) -> F:
    """-o, --resume, --device: where a run is kept and computed."""
    return with_options(
        function,
        click.option("-o", "--output", metavar="DIR", required=True, help="Folder of the run, and of its model."),
        click.option("--resume", is_flag=True, help="Continue the run in DIR where it was stopped or killed."),
        click.option("--device", metavar="DEVICE", help="cpu, cuda, cuda:1 … [default: cuda if available]"),
    )


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
    options = (
        number("--epochs", metavar="X", default=epochs, shown="Times through the data."),
        number("--lr", "learning_rate", metavar="X", default=learning_rate, shown="Peak learning rate."),
        number("--batch-size", default=batch_size, shown="Examples in a step, over all processes."),
        number("--max-steps", shown="Steps instead of epochs. [default: epochs]"),
        number("--seed", default=42, shown="Random seed."),
        number("--warmup", metavar="X", default=warmup, shown="Share of the steps, or from 1 up their number."),
        choice_option(
            "--schedule",
            *get_args(ScheduleName),
            metavar="NAME",
            default="linear",
            shown=f"Rate after the warm-up: {', '.join(get_args(ScheduleName))}.",
        ),
        choice_option(
            "--optimizer",
            *get_args(OptimizerName),
            metavar="NAME",
            default="adamw",
            shown="adamw, adam-weight-decay (Google's: no bias correction), lamb.",
        ),
        number("--weight-decay", metavar="X", default=0.01, shown="Not on bias and LayerNorm."),
        number("--layer-decay", metavar="X", default=1.0, shown="Rate of a layer relative to the next."),
        number("--clip", metavar="X", default=1.0, shown="Largest gradient norm; 0 is off."),
        number("--ema", metavar="X", default=0.0, shown="Decay of averaged weights; 0 is off."),
        number("--batch-tokens", shown="Tokens in a step. [default: count examples]"),
        number(
            "--micro-batch-tokens",
            default=micro_batch_tokens,
            shown="Tokens in memory at once; a step is done in pieces. Halved when memory runs out.",
        ),
        click.option("--gradient-checkpointing", is_flag=True, help="Less memory, a third more time."),
        number("--workers", default=0, shown="Processes that make batches; 0 is a thread."),
        choice_option(
            "--precision",
            *get_args(Precision),
            metavar="NAME",
            default="auto",
            shown="float32, bfloat16, or auto: bfloat16 on GPUs that have it.",
        ),
        click.option("--fused/--no-fused", default=True, help="Our kernels on a GPU, in bfloat16. [default: on]"),
        click.option("--compile", "compile_layers", is_flag=True, help="torch.compile instead (slow first steps)."),
        click.option("--shard", is_flag=True, help="Under torchrun: split the model itself (FSDP2)."),
        number("--evaluate-every", shown=f"Steps between two evaluations on the dev data. [default: {evaluated}]"),
        number("--patience", shown="Stop after N evaluations without a better one. [default: never]"),
        number("--save-every", shown=f"Steps between two checkpoints. [default: {saved}]"),
        number("--keep", default=2, shown="Checkpoints to keep."),
        number("--log-every", default=10, shown="Steps between two lines."),
        click.option("--tensorboard", is_flag=True, help="Write TensorBoard files into DIR/tensorboard."),
    )
    return lambda function: with_options(function, *options)


def distillation_options(function: F) -> F:
    """--teacher and what of it counts; `distillation_of` reads the weights."""
    shown = "Learn from this larger model too. [default: from the data alone]"
    return with_options(
        function,
        click.option("--teacher", metavar="MODEL", help=shown),
        click.option(
            "--distil",
            nargs=4,
            type=float,
            default=(0.5, 0.5, 0.0, 0.0),
            show_default=True,
            metavar="T L H A",
            help="Weights of the losses: task, its logits, hidden states, attention.",
        ),
        number("--temperature", metavar="X", default=2.0, shown="Softens its probabilities."),
        number("--student-layers", shown="Begin with N of its layers, evenly spaced. [default: with -m]"),
    )


def distillation_of(values: dict[str, Any]) -> Weights:
    task, logits, hidden, attention = values.pop("distil")
    return training.Weights(task=task, logits=logits, hidden=hidden, attention=attention)


def settings_of(values: dict[str, Any], **more: Any) -> Settings:
    """The training settings among an invocation's values, taken out of them."""
    from dataclasses import fields

    own = {field.name: values.pop(field.name) for field in fields(Settings) if field.name in values}
    return Settings(**own, **more)


def command_line() -> str:
    """What was typed, as the report shows it; under torchrun of one host, with that before it."""
    line = shlex.join(["bertie", *sys.argv[1:]])
    if "RANK" not in os.environ:
        return line
    if os.environ.get("GROUP_WORLD_SIZE", "1") == "1":
        return f"torchrun --nproc-per-node {os.environ.get('WORLD_SIZE', '1')} -m {line}"
    return f"torchrun … -m {line}"


def finished(context: click.Context, work: Callable[[], Result]) -> int:
    """Do the work and say what came of it; 130 when it was interrupted.

    Under torchrun every process does, and one speaks: mistakes in what was asked are the same for all of a host.
    """
    interrupted = training.Interrupted  # imports torch: not while an error is looked at
    first = os.environ.get("LOCAL_RANK", "0") == "0"
    try:
        if context.params.get("device") is not None:
            check_device(context.params["device"])
        result = work()
    except interrupted as error:
        if is_main():
            line = command_line()
            again = line if not error.began or "--resume" in sys.argv else f"{line} --resume"
            click.echo(f"\n{error.cause}", err=True)
            click.echo(f"{'Continue' if error.kept else 'Start again'} with: {again}", err=True)
        return 130
    except BertieError as error:
        if first or not _is_everyones(error):
            raise
        return 2
    if is_main():
        click.echo(_outcome(result))
    return 0


def is_main() -> bool:
    """Whether this process speaks for all that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def _is_everyones(error: BertieError) -> bool:
    """Whether all processes of a host meet this error: it is in what was asked, and not in what this one did."""
    asked = (ConfigError, InputError, DataError, TokenizerError, CheckpointError, MissingExtra)
    return isinstance(error, asked) and not isinstance(error.__cause__, RuntimeError)


def _outcome(result: Result) -> str:
    figures = "  ".join(f"{name} {value:.4f}" for name, value in result.metrics.items())
    where = f"step {result.best_step}" if result.best_step is not None else f"step {result.steps}, the last"
    lines = [f"{result.output}: the model of {where}" + (f"  {figures}" if figures else "")]
    lines.append(f"report: {result.output / 'report.md'}")
    return "\n".join(lines)
