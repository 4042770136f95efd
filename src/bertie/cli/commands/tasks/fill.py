"""`bertie fill`: words for [MASK]."""

from __future__ import annotations

from functools import partial

import click

from bertie import tasks
from bertie.cli.support.options import Chosen, input_options, listed, model_options, output_options
from bertie.cli.support.show import Out
from bertie.cli.support.texts import Given, beside
from bertie.cli.support.views import FILLED

EXAMPLES = """\b
Examples:
  bertie fill "She opened the [MASK] and went in."
  bertie fill "He was [MASK]." --targets happy,sad
  bertie fill "The [MASK] fox [MASK]." --top-k 3 --format json
  bertie fill -m ./my-bert "Paris is the [MASK] of France."
"""


@click.command("fill", epilog=EXAMPLES)
@input_options()
@model_options(default="bertie-mini")
@click.option(
    "-k",
    "--top-k",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    metavar="K",
    help="Fillings to give.",
)
@click.option("--targets", metavar="A,B", help="Only these words; they may have several word pieces. [default: any]")
@click.option(
    "--beams", type=click.IntRange(min=1), help="Width of the search for several masks. [default: K, at least 5]"
)
@output_options
def command(given: Given, chosen: Chosen, top_k: int, targets: str | None, beams: int | None, out: Out) -> None:
    """Find the likeliest words for every [MASK] in TEXTs; several masks of a text are filled together.

    A model of your own is a masked-word model (BertForMaskedLM or BertForPreTraining), such as bert-base-uncased.
    """
    task = tasks.MaskFiller(**chosen.settings, top_k=top_k, targets=listed(targets), num_beams=beams)
    out.emit(beside(given.read(task.fault), partial(task, progress=out.progress)), *FILLED)
