"""`bertie embed`: vectors of texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from bertie import tasks
from bertie.cli.support.options import (
    DEFAULT_MODEL,
    Chosen,
    choice_option,
    input_options,
    listed,
    long_option,
    model_options,
    output_options,
)
from bertie.cli.support.show import Out
from bertie.cli.support.texts import Given, beside
from bertie.cli.support.views import EMBEDDED

if TYPE_CHECKING:
    from bertie.running.precision import Numbers

EXAMPLES = """\b
Examples:
  bertie embed "A sentence." "Another one."
  bertie embed -f texts.txt -o vectors.parquet
  echo "From a pipe." | bertie embed --truncate-dim 64
  bertie embed -m ./my-bert --pooling cls -f texts.csv --column review
"""


truncate_dim_option = click.option(
    "--truncate-dim", type=click.IntRange(min=1), metavar="N", help="Keep the first N numbers. [default: all]"
)


@click.command("embed", epilog=EXAMPLES)
@input_options()
@model_options(default=DEFAULT_MODEL)
@click.option("--pooling", metavar="MODE", help="mean, cls, max, … or several with commas. [default: the model's own]")
@click.option(
    "--normalize/--no-normalize", default=None, help="Vectors of length 1, or as they are. [default: the model's own]"
)
@truncate_dim_option
@choice_option(
    "--precision", "float32", "int8", "uint8", "binary", "ubinary", default="float32",
    shown="Type of the numbers. int8 and uint8 read all texts before they write.",
)  # fmt: skip
@click.option(
    "--prompt-name", metavar="NAME", help="A prompt of the model: query, document, … [default: the model's own]"
)
@click.option("--prompt", metavar="TEXT", help="Put this text before every text. [default: nothing]")
@long_option("truncate")
@output_options
def command(
    given: Given,
    chosen: Chosen,
    pooling: str | None,
    normalize: bool | None,
    truncate_dim: int | None,
    precision: str,
    prompt_name: str | None,
    prompt: str | None,
    long: str,
    out: Out,
) -> None:
    """Turn TEXTs into vectors.

    A sentence-transformers model is used as its folder says: pooling, prompts, normalising. On a terminal and
    in a .txt file the first numbers are shown; in a pipe and in other files, all of them.
    """
    embedder = tasks.Embedder(
        **chosen.settings, pooling=listed(pooling), normalize=normalize, truncate_dim=truncate_dim
    )

    def vectors(texts: Iterator[str]) -> Iterable[Numbers]:
        # The steps of int8 lie between the least and greatest values of all vectors.
        given = list(texts) if precision in ("int8", "uint8") else texts
        return embedder.embed(
            given, prompt_name=prompt_name, prompt=prompt, precision=precision, long=long, progress=out.progress
        )

    out.emit(beside(given.read(), vectors), *EMBEDDED)
