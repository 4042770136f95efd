"""`bertie rerank`: documents sorted by how well they answer a query."""

from __future__ import annotations

import click

import bertie
from bertie.cli.support.options import (
    DEFAULT_MODEL,
    Chosen,
    Long,
    input_options,
    long_option,
    model_options,
    output_options,
)
from bertie.cli.support.show import Out
from bertie.cli.support.texts import Given
from bertie.cli.support.views import RANKED

EXAMPLES = """\b
Examples:
  bertie rerank "Who wrote Faust?" "Goethe wrote Faust." "It rains."
  bertie rerank "Who wrote Faust?" -f documents.txt -m ./my-cross-encoder -k 3
  bertie rerank "Who wrote Faust?" -f documents.txt -o ranking.csv
"""


@click.command("rerank", epilog=EXAMPLES)
@click.argument("query")
@input_options("[DOCUMENT]...", what="documents")
@model_options(default=f"{DEFAULT_MODEL}, by cosine")
@click.option("-k", "--top-k", type=click.IntRange(min=1), metavar="K", help="Give the best K only. [default: all]")
@click.option(
    "--relevant", metavar="LABEL", help="Which label to rank by. [default: the only one, or relevant, yes, true]"
)
@long_option("windows")
@output_options
def command(
    query: str, given: Given, chosen: Chosen, top_k: int | None, relevant: str | None, long: Long, out: Out
) -> None:
    """Sort DOCUMENTs by how well they answer QUERY.

    A cross-encoder (a text classifier) reads query and document together; an embedding model compares their vectors.
    """
    found = bertie.rerank(query, given.read(), **chosen.settings, top_k=top_k, relevant=relevant, long=long)
    out.emit([(query, found)], *RANKED)
