"""`bertie next`: how likely one text is to follow another."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from bertie.cli.support.options import Chosen, columns_option, input_options, model_options, output_options
from bertie.cli.support.show import Out, clipped, scored
from bertie.cli.support.texts import Given, beside

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
    from bertie.tasks.next_sentence import NextSentencePredictor

    task = NextSentencePredictor(**chosen.settings)
    out.emit(beside(given.read_pairs(columns), partial(task, progress=out.progress)), row=_row, text=_shown)


def _row(answer: tuple[tuple[str, str], Any]) -> dict[str, Any]:
    (first, second), found = answer
    return {"first": first, "second": second, "probability": found.probability, "follows": found.follows}


def _shown(answer: tuple[tuple[str, str], Any]) -> Any:
    from rich.text import Text

    (first, second), found = answer
    verdict = ("follows", "bold green") if found.follows else ("does not follow", "bold yellow")
    arrow = (" → ", "dim")
    return Text.assemble(scored(found.probability), "  ", verdict, "\n", clipped(first), arrow, clipped(second))
