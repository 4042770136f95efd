"""`bertie pretrain`: make a BERT from raw text, or train one further."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from bertie import training
from bertie.cli.support.options import choice_option, encoding_option, files_option
from bertie.cli.support.training_help import SCREEN, SectionedCommand
from bertie.cli.support.training_options import (
    command_line,
    distillation_of,
    distillation_options,
    finished,
    number,
    run_options,
    settings_of,
    training_options,
)
from bertie.errors import InputError

if TYPE_CHECKING:
    from bertie.training import Result

EXAMPLES = """\b
Examples:
  bertie pretrain --corpus texts.txt -o my-new-bert --size tiny --epochs 1
  bertie pretrain --corpus texts.txt -m ./my-bert -o more --max-length 48

\b
Stopped or killed? The same line with --resume continues it, bit for bit.
Several GPUs? Put this before the line: torchrun --nproc-per-node 4 -m
"""


@click.command("pretrain", cls=SectionedCommand, epilog=EXAMPLES, context_settings=SCREEN)
@click.argument("more", nargs=-1, metavar="[FILE]...")
@files_option("--corpus", shown="Text to learn from (.gz, .xz too). Needed; may be many.")
@files_option("--dev", shown="Text to judge by. [default: a share of the corpus]")
@number("--dev-share", metavar="X", default=0.01, shown="Share of the corpus for that; at most 2000 sequences.")
@click.option("-m", "--model", metavar="MODEL", help="Continue from this checkpoint. [default: a new model]")
@choice_option(
    "--size", "tiny", "mini", "small", "medium", "base", "large", metavar="NAME", default="mini",
    shown="Size of a new model: tiny 2×128, mini 4×256, small 4×512, medium 8×512, base 12×768, large 24×1024.",
)  # fmt: skip
@click.option("--vocab", metavar="PATH", help="vocab.txt or a folder with one. [default: learned from the corpus]")
@number("--vocab-size", default=30522, shown="Size of a learned vocabulary.")
@click.option(
    "--lowercase/--cased", default=True, help="Whether a learned vocabulary is lower-cased. [default: lowercase]"
)
@click.option(
    "--nsp/--no-nsp",
    default=False,
    help="Pairs with next-sentence prediction, as Google did it; or masked words alone. [default: no-nsp]",
)
@number("--max-length", default=128, shown="Tokens of a sequence.")
@choice_option(
    "--lines", "auto", "sentences", "paragraphs", metavar="KIND", default="auto",
    shown="What a line is: sentences, paragraphs, or auto: detected. Blank lines are between documents.",
)  # fmt: skip
@encoding_option
@click.option("--skip-bad", is_flag=True, help="Skip lines that cannot be read, and count them.")
@number("--processes", shown="Processes that prepare the text. [default: one for each core, 8 at most, from 20 MB on]")
@number("--mask-probability", metavar="X", default=0.15, shown="Share of words to predict.")
@number("--max-predictions", shown="At most this many in a sequence. [default: no limit]")
@click.option("--whole-words", is_flag=True, help="Mask all pieces of a word, or none.")
@choice_option(
    "--masking", "static", "dynamic", metavar="KIND",
    shown="static: once; dynamic: again in every epoch. [default: static with --nsp, else dynamic]",
)  # fmt: skip
@number("--dupe-factor", default=10, shown="--nsp: times through the text to make pairs.")
@number("--short-seq-prob", metavar="X", default=0.1, shown="--nsp: share of short pairs.")
@number("--dropout", metavar="X", default=0.1, shown="Of hidden states.")
@number("--attention-dropout", metavar="X", default=0.0, shown="0 is fastest on GPUs.")
@distillation_options
@run_options
@training_options(epochs=10.0, learning_rate=1e-4, batch_size=256, warmup=0.05, micro_batch_tokens=32768, every=1000)
@click.pass_context
def command(context: click.Context, /, **values: Any) -> int:
    """Train a BERT on raw text: a new one, or continue with an existing one.

    Documents are divided by blank lines; a line is a sentence or a paragraph. The vocabulary is learned from the text
    unless one is given. What is prepared stays in DIR/data. An interrupted run continues with --resume.
    """
    return finished(context, lambda: _pretrain(values))


def _pretrain(values: dict[str, Any]) -> Result:
    for name in ("save_every", "evaluate_every"):
        values[name] = getattr(training.PRETRAINING, name) if values[name] is None else values[name]
    settings = settings_of(values)
    corpus = [*values.pop("corpus"), *values.pop("more")]
    if not corpus:
        raise InputError("No corpus was given.", "Name a text file or more: --corpus books.txt.")
    dev, output, resume = list(values.pop("dev")), values.pop("output"), values.pop("resume")
    model, device, teacher = values.pop("model"), values.pop("device"), values.pop("teacher")
    student_layers = values.pop("student_layers")
    options = training.PretrainOptions(distillation=distillation_of(values), **values)
    return training.pretrain(
        corpus=corpus, dev=dev or None, output=output, model=model, teacher=teacher, settings=settings,
        student_layers=student_layers, options=options, resume=resume, device=device, command=command_line(),
    )  # fmt: skip
