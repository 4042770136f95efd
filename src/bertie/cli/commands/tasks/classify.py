"""`bertie classify`: labels for texts or pairs; your own labels with --labels."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import click

from bertie import tasks
from bertie.cli.support.options import (
    Chosen,
    Long,
    columns_option,
    input_options,
    listed,
    long_option,
    model_options,
    output_options,
)
from bertie.cli.support.show import Out
from bertie.cli.support.texts import Given, beside
from bertie.cli.support.views import CLASSIFIED
from bertie.errors import InputError

EXAMPLES = """\b
Examples:
  bertie classify -m ./my-sentiment "A fine film." "Two hours I want back."
  bertie classify -m ./my-sentiment -f reviews.csv --column review -o out.csv
  bertie classify -m ./my-nli --pairs "It rains." "It is wet." --top-k 3
  bertie classify -m ./my-nli "Shares fell." --labels sports,business,weather
"""
HYPOTHESIS = "This example is {}."
NEEDS = "a text classifier (BertForSequenceClassification); with --labels, one trained for inference (NLI)"


@click.command("classify", epilog=EXAMPLES)
@input_options()
@model_options(needs=NEEDS)
@click.option("--labels", metavar="A,B,C", help="Your own labels, judged by an inference model (zero-shot).")
@click.option(
    "--hypothesis", metavar="TEXT", help=f"With --labels: the sentence a label goes into. [default: {HYPOTHESIS}]"
)
@click.option("--pairs", is_flag=True, help="Texts are pairs: two arguments, or two columns of a file.")
@columns_option
@click.option(
    "-k",
    "--top-k",
    type=click.IntRange(min=1),
    metavar="K",
    help="Labels to give. [default: 1; all of --labels]",
)
@click.option(
    "--multi-label/--one-label",
    default=None,
    help="Whether several labels may hold at once. [default: the model's own]",
)
@long_option("truncate")
@output_options
def command(
    given: Given,
    chosen: Chosen,
    labels: str | None,
    hypothesis: str | None,
    pairs: bool,
    columns: tuple[str, str] | None,
    top_k: int | None,
    multi_label: bool | None,
    long: Long,
    out: Out,
) -> None:
    """Give TEXTs the labels of a classifier, or with --labels your own."""
    if labels is not None:
        if pairs or columns:
            raise InputError("--labels and --pairs were both given.", "Your own labels are for single texts.")
        judge = tasks.ZeroShotClassifier(
            listed(labels) or [], **chosen.required, hypothesis=hypothesis or HYPOTHESIS,
            multi_label=bool(multi_label), top_k=top_k, long=long,
        )  # fmt: skip
        out.emit(beside(given.read(), partial(judge, progress=out.progress)), *CLASSIFIED)
        return
    if hypothesis is not None:
        raise InputError("--hypothesis was given without --labels.", "Name the labels that go into it: --labels a,b,c.")
    task = tasks.Classifier(**chosen.required, top_k=top_k or 1, multi_label=multi_label, long=long)
    items: Iterator[str | tuple[str, str]] = given.read_pairs(columns) if pairs or columns else given.read()
    out.emit(beside(items, partial(task, progress=out.progress)), *CLASSIFIED)
