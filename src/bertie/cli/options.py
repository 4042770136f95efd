"""Options that many commands share, so that they are spelled and explained the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

FORMATS = ("text", "json", "jsonl", "csv", "tsv", "parquet")


def model_options(default: str | None = None) -> Callable[[F], F]:
    """--model, --device, --dtype; `default` says in words what is used when no model is named."""

    def decorate(function: F) -> F:
        shown = f"Folder or hub name of the model.{f' [default: {default}]' if default else ''}"
        function = click.option("--dtype", help="float32, bfloat16 or float16. [default: float32]")(function)
        function = click.option("--device", help="cpu, cuda, cuda:1 … [default: cuda where there is one]")(function)
        return click.option("-m", "--model", required=default is None, help=shown)(function)

    return decorate


def input_options(function: F) -> F:
    """TEXTS, --file, --input-format, --column, --skip-bad."""
    function = click.option("--skip-bad", is_flag=True, help="Pass over rows that cannot be read, and count them.")(
        function
    )
    function = click.option("--column", help="Which column holds the text. [default: found by its name]")(function)
    function = click.option(
        "--input-format", type=click.Choice(["txt", "jsonl", "json", "csv", "tsv", "parquet", "arrow"]),
        help="Format of the file. [default: by its ending]",
    )(function)  # fmt: skip
    function = click.option("-f", "--file", "file", help="Read texts from a file; - is standard input.")(function)
    return click.argument("texts", nargs=-1)(function)


def output_options(function: F) -> F:
    """--format, --output."""
    function = click.option(
        "--format", "format_", type=click.Choice(FORMATS),
        help="How to print answers. [default: text on a terminal, jsonl in a pipe; for a file, by its ending]",
    )(function)  # fmt: skip
    return click.option("-o", "--output", help="Write to a file instead of standard output.")(function)
