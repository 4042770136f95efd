"""How answers go out: neat on a terminal, clean for machines in a pipe or a file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def emit(
    answers: Iterable[Any],
    *,
    row: Callable[[Any], Mapping[str, Any]],
    text: Callable[[Any], Any],
    format_: str | None,
    output: str | None,
) -> None:
    """Write every answer as soon as it is there.

    `row` turns an answer into one row of a machine format; `text` into something rich can print.
    """
    if output is None and format_ is None:
        format_ = "text" if sys.stdout.isatty() else "jsonl"
    if format_ == "text":
        _print(answers, text, output)
        return
    from bertie.data import RowWriter

    with RowWriter(output or "-", format=format_) as writer:
        for answer in answers:
            writer.write(row(answer))
            if writer.reader_gone:
                return


def _print(answers: Iterable[Any], text: Callable[[Any], Any], output: str | None) -> None:
    from rich.console import Console

    if output is None or output == "-":
        console = Console()
        for answer in answers:
            console.print(text(answer), highlight=False)
        return
    with open(output, "w", encoding="utf-8") as file:
        console = Console(file=file, width=120)
        for answer in answers:
            console.print(text(answer), highlight=False)


def number(value: float) -> str:
    """A score as people read it.

    >>> number(0.98765)
    '0.988'
    """
    return f"{value:.3f}"
