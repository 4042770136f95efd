"""Rows out of what a Python program holds: lists, generators, `datasets.Dataset`, pandas, polars and Arrow tables.

None of those packages is imported; a table is known by what it can do.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from bertie.data.reading import SKIP_REMEDY, BadRows, Reader
from bertie.data.rows import Row, RowReader, read_rows
from bertie.errors import DataError

_ACCEPTED = "Give a list of texts, of (text, text) pairs or of dicts, a table, or read_rows(path)."


def as_rows(given: object, *, skip_bad: bool = False) -> RowReader:
    """The rows of an object: strings become `{"text": …}`, pairs `{"text_a": …, "text_b": …}`, dicts stay as they are.

    >>> [dict(row.values) for row in as_rows(["one", ("two", "three")])]
    [{'text': 'one'}, {'text_a': 'two', 'text_b': 'three'}]
    """
    if isinstance(given, Reader):
        return cast(RowReader, given)
    if isinstance(given, os.PathLike):
        return read_rows(given, skip_bad=skip_bad)
    if isinstance(given, str | bytes):
        raise DataError(
            f"{given[:60]!r} is one string: it could be a text or the name of a file.",
            "Give [text] for a text, read_rows(path) for a file.",
        )
    values = _values(given)
    name = f"the {type(given).__name__} given"

    def read(bad: BadRows) -> Iterator[Row]:
        for number, value in enumerate(values, start=1):
            row = _row(value, number, name, bad)
            if row is not None:
                yield row

    return RowReader(name, read, skip_bad=skip_bad, once=isinstance(values, Iterator))


def _values(given: object) -> Iterable[Any]:
    if isinstance(given, Mapping):
        return _columns(given)
    if hasattr(given, "to_batches"):  # pyarrow.Table
        return _Again(lambda: (row for batch in given.to_batches(max_chunksize=1024) for row in batch.to_pylist()))
    if hasattr(given, "columns") and hasattr(given, "itertuples"):  # pandas.DataFrame, which iterates over names
        columns = [str(column) for column in given.columns]
        return _Again(
            lambda: (dict(zip(columns, row, strict=True)) for row in given.itertuples(index=False, name=None))
        )
    if hasattr(given, "iter_rows"):  # polars.DataFrame, which iterates over columns
        return _Again(lambda: given.iter_rows(named=True))
    if isinstance(given, Iterable):
        return given
    raise DataError(f"Rows were wanted, and {type(given).__name__} is not iterable.", _ACCEPTED)


class _Again(Iterable[Any]):
    """An iterable that makes its iterator anew each time."""

    def __init__(self, start: Any) -> None:
        self._start = start

    def __iter__(self) -> Iterator[Any]:
        return iter(self._start())


def _columns(given: Mapping[Any, Any]) -> Iterable[Any]:
    """A mapping of columns, as slicing a `datasets.Dataset` gives it."""
    lists = {str(name): column for name, column in given.items()}
    if lists and all(hasattr(column, "column_names") for column in lists.values()):
        raise DataError(
            f"A collection of data sets was given: {', '.join(lists)}.", f"Choose one of them: [{next(iter(lists))!r}]."
        )
    lengths = {name: len(column) for name, column in lists.items() if isinstance(column, list | tuple)}
    if len(lengths) < len(lists):
        raise DataError("One dict of single values was given.", "Put it in a list: [row].")
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise DataError(f"The columns are of different lengths: {told}.", "Give columns of one length.")
    return _Again(lambda: (dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)))


def _row(value: Any, number: int, name: str, bad: BadRows) -> Row | None:
    if isinstance(value, Row):
        return value
    if isinstance(value, str):
        return Row({"text": value}, number, name, "item")
    if isinstance(value, Mapping):
        return Row(value, number, name, "item")
    if isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(text, str) for text in value):
        return Row({"text_a": value[0], "text_b": value[1]}, number, name, "item")
    bad.report(DataError(f"{name}, item {number}: {type(value).__name__} is not a row. {_ACCEPTED}", SKIP_REMEDY))
    return None
