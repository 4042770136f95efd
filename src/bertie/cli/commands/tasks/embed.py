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
from bertie.cli.support.views import EMBEDDED, REPRESENTED
from bertie.errors import InputError

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
@click.option(
    "--vectors",
    metavar="KINDS",
    help="dense, sparse, multi, or several with commas, where the model has them (BGE-M3, SPLADE, ColBERT). "
    "[default: one dense vector]",
)
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
    vectors: str | None,
    long: str,
    out: Out,
) -> None:
    """Turn TEXTs into vectors.

    A sentence-transformers model is used as its folder says: pooling, prompts, normalising. On a terminal and
    in a .txt file the first numbers are shown; in a pipe and in other files, all of them.
    """
    if vectors is not None:
        if chosen.model is None:
            raise InputError("{vectors} needs a model that has them.", "Name one: --model bge-m3.", vectors=vectors)
        other = {
            "pooling": pooling, "normalize": normalize, "truncate_dim": truncate_dim, "prompt": prompt,
            "prompt_name": None if prompt_name in ("query", "document") else prompt_name,
            "precision": None if precision == "float32" else precision,
        }  # fmt: skip
        for name, value in other.items():
            if value is not None:
                both = {"vectors": vectors, name: value}
                raise InputError(f"{{{name}}} does not go with {{vectors}}.", "Leave one of them out.", **both)
        query = prompt_name == "query"
        represent = tasks.Representer(**chosen.settings, vectors=listed(vectors), query=query, long=long)
        out.emit(beside(given.read(), represent.stream), *REPRESENTED)
        return
    embedder = tasks.Embedder(
        **chosen.settings, pooling=listed(pooling), normalize=normalize, truncate_dim=truncate_dim
    )

    def embedded(texts: Iterator[str]) -> Iterable[Numbers]:
        # The steps of int8 lie between the least and greatest values of all vectors.
        given = list(texts) if precision in ("int8", "uint8") else texts
        return embedder.embed(
            given, prompt_name=prompt_name, prompt=prompt, precision=precision, long=long, progress=out.progress
        )

    out.emit(beside(given.read(), embedded), *EMBEDDED)
