"""`bertie features`: a vector for every token, as Google's extract_features writes."""

from __future__ import annotations

import click

from bertie import tasks
from bertie.cli.support.options import Chosen, Long, input_options, long_option, model_options, output_options
from bertie.cli.support.show import Out
from bertie.cli.support.texts import Given
from bertie.cli.support.views import FEATURES
from bertie.errors import InputError

EXAMPLES = """\b
Examples:
  bertie features "Who? ||| Ada." --format jsonl
  bertie features -f texts.txt --layers -1,-2 -o out.jsonl
  bertie features -m ./my-bert -f texts.txt -o my-features.jsonl
"""


@click.command("features", epilog=EXAMPLES)
@input_options()
@model_options(default="bertie-mini")
@click.option("--layers", metavar="N,N", help="0 is the first layer, -1 the last. [default: -1,-2,-3,-4]")
@click.option("--max-length", type=click.IntRange(min=2), metavar="N", help="Tokens of a text. [default: the model's]")
@long_option("truncate")
@output_options
def command(given: Given, chosen: Chosen, layers: str | None, max_length: int | None, long: Long, out: Out) -> None:
    """Give a vector for every token of TEXTs from chosen layers, in the jsonl of Google's extract_features.py.

    `A ||| B` is a pair. A model of your own may be any BERT.
    """
    task = tasks.FeatureExtractor(**chosen.settings, layers=layer_numbers(layers), max_length=max_length, long=long)
    out.emit(task(given.read(), progress=out.progress), *FEATURES)


def layer_numbers(layers: str | None) -> list[int] | None:
    try:
        return None if layers is None else [int(part) for part in layers.split(",") if part.strip()]
    except ValueError:
        raise InputError(
            f"--layers is {layers!r}; it must be whole numbers separated by commas.", "Write it like --layers -1,-2."
        ) from None
