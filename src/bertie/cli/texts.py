"""Where a command's texts come from: its arguments, a file, or standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from bertie.errors import InputError


def given_texts(
    arguments: tuple[str, ...],
    file: str | None,
    *,
    input_format: str | None = None,
    column: str | None = None,
    skip_bad: bool = False,
) -> Iterable[str]:
    """The texts, lazily where they come from a file."""
    from bertie.data import texts

    rows = _rows(arguments, file, input_format, skip_bad)
    return arguments if rows is None else texts(rows, column)


def given_pairs(
    arguments: tuple[str, ...],
    file: str | None,
    *,
    input_format: str | None = None,
    columns: tuple[str, str] | None = None,
    skip_bad: bool = False,
) -> Iterable[tuple[str, str]]:
    """Pairs of texts: two arguments, or two columns of a file."""
    from bertie.data import pairs

    rows = _rows(arguments, file, input_format, skip_bad)
    if rows is not None:
        return pairs(rows, columns)
    if len(arguments) != 2:
        raise InputError(
            f"{len(arguments)} texts were given; a pair is two.",
            "Give both in quotes, or a file with two columns (-f).",
        )
    return [(arguments[0], arguments[1])]


def _rows(arguments: tuple[str, ...], file: str | None, input_format: str | None, skip_bad: bool) -> object | None:
    """Rows of the file; None when the arguments themselves are the texts."""
    from bertie.data import read_rows

    if arguments and file is not None:
        raise InputError("Texts were given both as arguments and in a file.", "Give one or the other.")
    if arguments:
        return None
    if file is None:
        if sys.stdin is None or sys.stdin.isatty():
            raise InputError(
                "No text was given.",
                "Give it in quotes, in a file with -f FILE, or on standard input: echo … | bertie …",
            )
        file = "-"
    return read_rows(file, format=input_format, skip_bad=skip_bad)
