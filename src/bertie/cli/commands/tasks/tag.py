"""`bertie tag`: entities, highlighted in the text."""

from __future__ import annotations

from functools import partial
from typing import Literal, get_args

import click

from bertie import tasks
from bertie.cli.support.options import Chosen, choice_option, input_options, listed, model_options, output_options
from bertie.cli.support.show import Out
from bertie.cli.support.texts import Given, beside
from bertie.cli.support.views import TAGGED

EXAMPLES = """\b
Examples:
  bertie tag -m ./my-ner "Ada Lovelace lived in London."
  bertie tag -m ./my-ner -f texts.txt --aggregation first -o entities.jsonl
  cat texts.txt | bertie tag -m ./my-ner --format jsonl
"""
Aggregation = Literal["none", "simple", "first", "average", "max"]
NEEDS = "a token classifier (BertForTokenClassification), such as one for named entities"


aggregation_option = choice_option(
    "--aggregation", *get_args(Aggregation), default="simple",
    shown="How tokens become entities: each token alone, joined, or one label per word first.",
)  # fmt: skip


@click.command("tag", epilog=EXAMPLES)
@input_options()
@model_options(needs=NEEDS)
@aggregation_option
@click.option("--ignore", metavar="A,B", default="O", show_default=True, help="Labels that are left out.")
@click.option(
    "--stride", type=click.IntRange(min=0), default=64, show_default=True, help="Tokens that two windows share."
)
@output_options
def command(given: Given, chosen: Chosen, aggregation: Aggregation, ignore: str, stride: int, out: Out) -> None:
    """Find the entities of TEXTs, with their exact characters. Long texts are read whole, in overlapping windows."""
    task = tasks.Tagger(**chosen.required, aggregation=aggregation, ignore_labels=listed(ignore) or [], stride=stride)
    out.emit(beside(given.read(), partial(task, progress=out.progress)), *TAGGED)
