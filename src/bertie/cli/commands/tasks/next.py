"""`bertie next`: how likely one text is to follow another."""

from __future__ import annotations

from functools import partial

import click

from bertie import tasks
from bertie.cli.support.options import Chosen, columns_option, input_options, model_options, output_options
from bertie.cli.support.show import Out
from bertie.cli.support.texts import Given, beside
from bertie.cli.support.views import NEXT

EXAMPLES = """\b
Examples:
  bertie next "She opened the door." "The room was empty."
  bertie next -f pairs.csv -o follows.csv
  bertie next -m ./my-bert "She opened the door." "The room was empty."
"""


@click.command("next", epilog=EXAMPLES)
@input_options("[A B]", what="pairs")
@columns_option
@model_options(default="bertie-mini")
@output_options
def command(given: Given, columns: tuple[str, str] | None, chosen: Chosen, out: Out) -> None:
    """Say how likely the text B is to follow the text A: the question BERT was pretrained on.

    A model of your own is a next-sentence model (BertForNextSentencePrediction or BertForPreTraining), such as
    bert-base-uncased.
    """
    task = tasks.NextSentencePredictor(**chosen.settings)
    out.emit(beside(given.read_pairs(columns), partial(task, progress=out.progress)), *NEXT)
