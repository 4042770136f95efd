"""`bertie search`: the texts of an index nearest to a query."""

from __future__ import annotations

from typing import Any

import click

from bertie.cli.support.options import Chosen, input_options, model_options, output_options
from bertie.cli.support.show import Out, clipped, scored, table
from bertie.cli.support.texts import Given

EXAMPLES = """\b
Examples:
  bertie search ./index "How do birds find their way?"
  bertie search ./index "one question" "another" -k 3 --format jsonl
  bertie search ./index -f queries.txt -o hits.csv
"""


@click.command("search", epilog=EXAMPLES)
@click.argument("index")
@input_options("[QUERY]...", what="queries")
@click.option("-k", type=click.IntRange(min=1), default=5, show_default=True, help="How many texts to give per query.")
@click.option("--partial", is_flag=True, help="Search an index whose building has not finished.")
@model_options(default="the one the index was built with")
@output_options
def command(index: str, given: Given, k: int, partial: bool, chosen: Chosen, out: Out) -> None:
    """Find the K texts in the folder INDEX that are nearest to each QUERY, exactly."""
    from bertie.running.batching import chunked
    from bertie.search.index import Hit, Index

    opened = Index.open(index, **chosen.settings, partial=partial)

    def answers() -> Any:
        for queries in chunked(given.read()):
            yield from zip(queries, opened.search(queries, k), strict=True)

    def rows(answer: tuple[str, list[Hit]]) -> list[dict[str, Any]]:
        query, hits = answer
        return [
            {"query": query, "rank": rank, "id": hit.id, "score": hit.score, "text": hit.text}
            for rank, hit in enumerate(hits, start=1)
        ]

    out.emit(answers(), row=rows, text=_shown)


def _shown(answer: tuple[str, list[Any]]) -> Any:
    from rich.console import Group

    query, hits = answer
    made = table("", "score", "id", "text")
    for rank, hit in enumerate(hits, start=1):
        made.add_row(str(rank), scored(hit.score), clipped(hit.id, 24), clipped(hit.text))
    return Group(clipped(query, style="bold"), made, "")
