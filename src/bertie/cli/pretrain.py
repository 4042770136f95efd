"""`bertie pretrain`: raw text in, a BERT out."""

from __future__ import annotations

from typing import Any

import click

from bertie.cli.training_options import (
    command_line,
    distillation_of,
    distillation_options,
    finished,
    run_options,
    settings_of,
    training_options,
)
from bertie.errors import InputError

EXAMPLES = """\b
Examples:
  bertie pretrain --corpus texts.txt -o my-new-bert --size tiny --epochs 1
  bertie pretrain --corpus texts.txt -m ./my-bert -o more --max-length 48

\b
Stopped or killed? The same line with --resume goes on, bit for bit.
Several GPUs? Put this before the line: torchrun --nproc-per-node 4 -m
"""


@click.command("pretrain", epilog=EXAMPLES)
@click.argument("more", nargs=-1, metavar="[FILE]...")
@click.option("--corpus", metavar="FILE", multiple=True, help="Text to learn from (.gz, .xz too). Needed; may be many.")
@click.option("--dev", metavar="FILE", multiple=True, help="Text to judge by. [default: a share of the corpus]")
@click.option("--dev-share", type=float, default=0.01, show_default=True, help="That share; at most 2000 sequences.")
@click.option("-m", "--model", metavar="MODEL", help="Go on from this checkpoint. [default: a new model]")
@click.option(
    "--size",
    type=click.Choice(["tiny", "mini", "small", "medium", "base", "large"]),
    default="mini",
    show_default=True,
    help="Of a new model: 2×128, 4×256, 4×512, 8×512, 12×768, 24×1024.",
)
@click.option("--vocab", metavar="PATH", help="vocab.txt or a folder with one. [default: learned from the corpus]")
@click.option("--vocab-size", type=click.IntRange(min=1), default=30522, show_default=True, help="Of a learned one.")
@click.option("--lowercase/--cased", default=True, show_default=True, help="Whether a learned one folds case.")
@click.option(
    "--nsp/--no-nsp",
    default=False,
    show_default=True,
    help="Pairs with next-sentence prediction, as Google did it; or masked words alone.",
)
@click.option("--max-length", type=click.IntRange(min=8), default=128, show_default=True, help="Tokens of a sequence.")
@click.option(
    "--lines",
    type=click.Choice(["auto", "sentences", "paragraphs"]),
    default="auto",
    show_default=True,
    help="What a line of the corpus is. Blank lines are between documents.",
)
@click.option("--skip-bad", is_flag=True, help="Pass over lines that cannot be read, and count them.")
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    metavar="N",
    help="That prepare the text. [default: one for each core, 8 at most, from 20 MB on]",
)
@click.option("--mask-probability", type=float, default=0.15, show_default=True, help="Share of words to predict.")
@click.option("--max-predictions", type=click.IntRange(min=1), metavar="N", help="To a sequence. [default: no limit]")
@click.option("--whole-words", is_flag=True, help="Mask all pieces of a word, or none.")
@click.option("--masking", type=click.Choice(["static", "dynamic"]), help="[default: static with --nsp, else dynamic]")
@click.option("--dupe-factor", type=click.IntRange(min=1), default=10, show_default=True, help="--nsp: data sets made.")
@click.option("--short-seq-prob", type=float, default=0.1, show_default=True, help="--nsp: share of short pairs.")
@click.option("--dropout", type=float, default=0.1, show_default=True, help="Of hidden states.")
@click.option("--attention-dropout", type=float, default=0.0, show_default=True, help="0 is fastest on GPUs.")
@distillation_options
@run_options
@training_options(epochs=10.0, learning_rate=1e-4, batch_size=256, warmup=0.05, micro_batch_tokens=32768, every=1000)
def command(**values: Any) -> int:
    """Train a BERT on raw text: a new one, or an old one some more.

    Documents are divided by blank lines; a line is a sentence or a paragraph. The vocabulary is learned from the text
    unless one is given. What is prepared stays in DIR/data. An interrupted run goes on with --resume.
    """
    from bertie.training.pretrain import PRETRAINING, PretrainOptions, pretrain

    for name in ("save_every", "evaluate_every"):
        values[name] = values[name] or getattr(PRETRAINING, name)
    settings = settings_of(values)
    corpus = [*values.pop("corpus"), *values.pop("more")]
    if not corpus:
        raise InputError("No corpus was given.", "Name a text file or more: --corpus books.txt.")
    dev, output, resume = list(values.pop("dev")), values.pop("output"), values.pop("resume")
    model, device, teacher = values.pop("model"), values.pop("device"), values.pop("teacher")
    student_layers = values.pop("student_layers")
    options = PretrainOptions(distillation=distillation_of(values), **values)
    return finished(
        lambda: pretrain(
            corpus=corpus, dev=dev or None, output=output, model=model, teacher=teacher, settings=settings,
            student_layers=student_layers, options=options, resume=resume, device=device, command=command_line(),
        ),
        device,
    )  # fmt: skip
