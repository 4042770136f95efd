"""`bertie search`: the texts of an index that are nearest to a query."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

import bertie
from bertie.answers import Hit
from bertie.cli.support.options import Chosen, input_options, model_options, output_options
from bertie.cli.support.show import Out
from bertie.cli.support.texts import Given, chunked
from bertie.cli.support.views import FOUND
from bertie.errors import DataError

EXAMPLES = """\b
Examples:
  bertie search ./index "How do birds find their way?"
  bertie search ./index "one question" "another" -k 3 --format jsonl
  bertie search ./index -f queries.txt -o hits.csv
"""


@click.command("search", epilog=EXAMPLES)
@click.argument("index")
@input_options("[QUERY]...", what="queries")
@click.option(
    "-k", "--top-k", "k", type=click.IntRange(min=1), metavar="K", default=5, show_default=True,
    help="How many texts to give per query.",
)  # fmt: skip
@click.option("--partial", is_flag=True, help="Search an index whose building has not finished.")
@model_options(default="the one the index was built with")
@output_options
def command(index: str, given: Given, k: int, partial: bool, chosen: Chosen, out: Out) -> None:
    """Find the K texts in the folder INDEX that are nearest to each QUERY, exactly."""
    if not Path(index).exists():  # found before torch is imported
        raise DataError(f"There is no folder {index}.", "Build an index first: bertie index CORPUS -o FOLDER.")
    opened = bertie.Index.open(index, **chosen.settings, partial=partial)

    def answers() -> Iterator[tuple[str, list[Hit]]]:
        for queries in chunked(given.read()):
            yield from zip(queries, opened.search(queries, k), strict=True)

    out.emit(answers(), *FOUND)
