"""`bertie similarity`: how similar texts are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from bertie import tasks
from bertie.cli.support.options import (
    DEFAULT_MODEL,
    Chosen,
    columns_option,
    input_options,
    long_option,
    model_options,
    output_options,
)
from bertie.cli.support.show import Out, Rows, clipped, columns, number, scored, table
from bertie.cli.support.texts import Given
from bertie.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.console import RenderableType

EXAMPLES = """\b
Examples:
  bertie similarity "He plays guitar." "She makes music." "It rained."
  bertie similarity -f texts.txt --format csv
  bertie similarity --columns sentence1,sentence2 -f pairs.csv
"""
# A matrix of more columns does not fit a terminal; its best pairs are listed instead.
_MOST_COLUMNS = 8
_BEST_PAIRS = 20


@click.command("similarity", epilog=EXAMPLES)
@input_options()
@click.option("--pairs", is_flag=True, help="Compare the two columns of a file row by row, or the two texts given.")
@columns_option
@model_options(default=DEFAULT_MODEL)
@click.option(
    "--function",
    type=click.Choice(["cosine", "dot", "euclidean", "manhattan"]),
    help="What is computed; distances are negative: larger is more similar. [default: the model's own, or cosine]",
)
@long_option("truncate")
@output_options
def command(
    given: Given,
    pairs: bool,
    columns: tuple[str, str] | None,
    chosen: Chosen,
    function: str | None,
    long: str,
    out: Out,
) -> None:
    """Show how similar TEXTs are: each with every other, or row by row with --pairs."""
    embedder = tasks.Embedder(**chosen.settings)
    function = function or embedder.similarity_fn_name
    if pairs or columns:
        both = list(given.read_pairs(columns))
        first, second = (embedder.embed([pair[side] for pair in both], long=long) for side in (0, 1))
        found = [
            (*pair, float(score)) for pair, score in zip(both, tasks.score_pairs(first, second, function), strict=True)
        ]
        out.emit(found, lambda one: dict(zip(("text_a", "text_b", "score"), one, strict=True)), _pair)
        return
    texts = several_texts(given)
    vectors = embedder.embed(texts, long=long)
    emit_matrix(out, texts, tasks.score_matrix(vectors, vectors, function))


def several_texts(given: Given) -> list[str]:
    texts = list(given.read())
    if len(texts) < 2:
        raise InputError(f"{len(texts)} text was given; there is nothing to compare it with.", "Give at least two.")
    return texts


def emit_matrix(out: Out, texts: list[str], scores: NDArray[np.floating]) -> None:
    """The score of each text with every other, `[texts, texts]`."""

    def rows(_: None) -> Rows:
        return [{"text": text, "scores": row} for text, row in zip(texts, scores, strict=True)]

    out.emit([None], rows, lambda _: _matrix(texts, scores.tolist()))


def _pair(found: tuple[str, str, float]) -> RenderableType:
    from rich.text import Text

    return columns(scored(found[2]), Text("\n").join([clipped(found[0]), clipped(found[1])]))


def _matrix(texts: list[str], scores: list[list[float]]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    count = len(texts)
    if count > _MOST_COLUMNS:
        best = sorted(((scores[a][b], a, b) for a in range(count) for b in range(a)), reverse=True)[:_BEST_PAIRS]
        made = table("score", "text")
        for score, a, b in best:
            made.add_row(scored(score), Text("\n").join([clipped(texts[b]), clipped(texts[a])]))
        return Group(Text(f"the {len(best)} most similar pairs of {count} texts", style="bold"), made)
    # Beside more columns than this a text would be a tower of words; it goes above them.
    is_legend = count > 4
    made = table("", *([] if is_legend else ["text"]), *map(str, range(1, count + 1)))
    for row, (text, values) in enumerate(zip(texts, scores, strict=True), start=1):
        cells = [f"[dim]{number(x)}[/]" if column == row else number(x) for column, x in enumerate(values, start=1)]
        made.add_row(str(row), *([] if is_legend else [clipped(text)]), *cells)
    legend = [columns(Text(str(row), style="dim"), clipped(text)) for row, text in enumerate(texts, start=1)]
    return Group(*legend, "", made) if is_legend else made
