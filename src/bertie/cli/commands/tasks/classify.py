"""`bertie classify`: labels for texts and pairs, trained or your own."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from bertie.cli.support.options import (
    Chosen,
    columns_option,
    input_options,
    listed,
    long_option,
    model_options,
    output_options,
)
from bertie.cli.support.show import Out, clipped, columns, scored, table
from bertie.cli.support.texts import Given, beside
from bertie.errors import InputError

EXAMPLES = """\b
Examples:
  bertie classify -m ./my-sentiment "A fine film." "Two hours I want back."
  bertie classify -m ./my-sentiment -f reviews.csv --column review -o out.csv
  bertie classify -m ./my-nli --pairs "It rains." "It is wet." --top-k 3
  bertie classify -m ./my-nli "Shares fell." --labels sports,business,weather
"""
NEEDS = "a text classifier (BertForSequenceClassification); with --labels, one trained for inference (NLI)"


@click.command("classify", epilog=EXAMPLES)
@input_options()
@model_options(needs=NEEDS)
@click.option("--labels", metavar="A,B,C", help="Your own labels, judged by an inference model (zero-shot).")
@click.option(
    "--hypothesis", metavar="TEXT", help="With --labels: the sentence a label goes into. [default: This example is {}.]"
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
    long: Any,
    out: Out,
) -> None:
    """Give TEXTs the labels of a classifier, or with --labels your own."""
    from bertie.tasks.classify import Classifier
    from bertie.tasks.zero_shot import HYPOTHESIS, ZeroShotClassifier

    task: Any
    items: Any
    if labels is not None:
        if pairs or columns:
            raise InputError("--labels and --pairs were both given.", "Your own labels are for single texts.")
        task = ZeroShotClassifier(
            listed(labels) or [], **chosen.settings, hypothesis=hypothesis or HYPOTHESIS,
            multi_label=bool(multi_label), top_k=top_k, long=long,
        )  # fmt: skip
    elif hypothesis is not None:
        raise InputError("--hypothesis was given without --labels.", "Name the labels that go into it: --labels a,b,c.")
    else:
        task = Classifier(**chosen.settings, top_k=top_k or 1, multi_label=multi_label, long=long)
    items = given.read_pairs(columns) if pairs or columns else given.read()
    out.emit(beside(items, partial(task, progress=out.progress)), row=_row, text=_shown)


def _row(answer: tuple[Any, Any]) -> dict[str, Any]:
    item, found = answer
    text = {"text": item} if isinstance(item, str) else {"text_a": item[0], "text_b": item[1]}
    row = {**text, "label": found.label, "score": found.score}
    if len(found.labels) > 1:
        row["labels"] = [{"label": label, "score": score} for label, score in found.labels]
    return row


def _shown(answer: tuple[Any, Any]) -> Any:
    from rich.console import Group

    item, found = answer
    text = item if isinstance(item, str) else " ↔ ".join(item)
    if len(found.labels) == 1:
        return columns(scored(found.score), clipped(found.label, style="bold green"), clipped(text))
    made = table("score", "label")
    made.show_header = False
    for label, score in found.labels:
        made.add_row(scored(score), clipped(label))
    return Group(clipped(text, style="bold"), made, "")
