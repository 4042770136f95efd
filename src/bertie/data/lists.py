"""Rows and lists from what a Python program holds: lists, generators, arrays, series, tables, `datasets.Dataset`.

None of the packages behind them is imported; a table is known by what it can do. Iterating over a pandas table gives
the names of its columns, and over a set its items in no order: both look like texts, and neither is what was meant.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Protocol, TypeGuard, cast

from bertie.data.reading import BadRows, Reader, bad_row
from bertie.data.rows import Row, RowReader, read_rows
from bertie.errors import DataError, InputError
from bertie.json_values import text, texts

_LOOKED_AT = 100  # values of a column, until one is there that is not missing
_ACCEPTED = "Give a list of texts, of (text, text) pairs or of dicts, a table, or read_rows(path)."


def as_rows(given: object, *, skip_bad: bool = False) -> RowReader:
    """The rows of an object: strings become `{"text": …}`, pairs `{"text_a": …, "text_b": …}`, dicts stay as they are.

    >>> [dict(row.values) for row in as_rows(["one", ("two", "three")])]
    [{'text': 'one'}, {'text_a': 'two', 'text_b': 'three'}]
    """
    match given:
        case Reader():
            return cast(RowReader, given)
        case os.PathLike():
            return read_rows(given, skip_bad=skip_bad)
        case str() | bytes():
            raise DataError(
                f"{given[:60]!r} is one string: it could be a text or the name of a file.",
                "Give [text] for a text, read_rows(path) for a file.",
            )
    values = _items(given)
    name = f"the {type(given).__name__} given"

    def read(bad: BadRows) -> Iterator[Row]:
        for number, value in enumerate(values, start=1):
            row = _row(value, number, name, bad)
            if row is not None:
                yield row

    return RowReader(name, read, skip_bad=skip_bad, once=isinstance(values, Iterator))


def _items(given: object) -> Iterable[object]:
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
    raise DataError(f"Rows must be iterable, and {type(given).__name__} is not.", _ACCEPTED)


class _Again(Iterable[object]):
    """An iterable that makes a new iterator each time."""

    def __init__(self, start: Callable[[], Iterable[object]]) -> None:
        self._start = start

    def __iter__(self) -> Iterator[object]:
        return iter(self._start())


def _columns(given: Mapping[Any, Any]) -> Iterable[object]:
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


def _row(value: object, number: int, name: str, bad: BadRows) -> Row | None:
    match value:
        case Row():
            return value
        case str():
            return Row({"text": value}, number, name, "item")
        case Mapping():
            return Row(value, number, name, "item")
    pair = texts(value)
    if pair is not None and len(pair) == 2:
        return Row({"text_a": pair[0], "text_b": pair[1]}, number, name, "item")
    bad.report(bad_row(f"{name}, item {number}: {type(value).__name__} is not a row. {_ACCEPTED}"))
    return None


# -- lists of texts ---------------------------------------------------------------------------------------------------


class Table(Protocol):
    """A pandas, polars or Arrow table, or a `datasets.Dataset`, as far as it is used here: columns by name."""

    def __getitem__(self, column: str, /) -> Any: ...


def listed(given: object, what: str = "texts") -> list[Any]:
    """The items of a collection, in its order. Whether they are strings is for the task to say.

    >>> listed(("one", "two"))
    ['one', 'two']
    """
    if isinstance(given, set | frozenset):
        raise InputError(
            f"The {what} are a {type(given).__name__}, which has no order, so no answer could be matched to its text.",
            "Pass a list; sorted(…) makes one.",
        )
    if is_table(given):
        return text_column(given, what)
    if isinstance(given, str | bytes | bytearray | Mapping) or not isinstance(given, Iterable):
        raise InputError(
            f"The {what} are {_described(given)}.", "Pass a string, a list of strings, or an iterator of strings."
        )
    if getattr(given, "ndim", 1) == 0:
        raise InputError(f"The {what} are an array without a dimension.", "Pass a list of strings.")
    return _values(given)


def is_table(given: object) -> TypeGuard[Table]:
    """Whether this is a pandas, polars or Arrow table, or a `datasets.Dataset`."""
    return column_names(given) is not None


def column_names(given: object) -> list[str] | None:
    """The names of a table's columns; None for anything else."""
    if isinstance(given, Mapping):
        return None
    if hasattr(given, "collect") and hasattr(given, "collect_schema"):  # polars.LazyFrame
        raise InputError("A lazy table was given.", "Compute it first: frame.collect().")
    names: object = getattr(given, "column_names", None)  # Arrow, datasets
    if names is None and (hasattr(given, "itertuples") or hasattr(given, "iter_rows")):  # pandas, polars
        names = getattr(given, "columns", None)
    if names is None or isinstance(names, str) or not isinstance(names, Iterable) or not hasattr(given, "__getitem__"):
        return None
    return list(names)


def text_columns(given: Table) -> list[str]:
    """The columns of a table whose values are strings."""
    found = []
    for name in column_names(given) or ():
        first = next((value for value in _values(given[name][:_LOOKED_AT]) if not _missing(value)), None)
        if text(first) is not None:
            found.append(name)
    return found


def text_column(given: Table, what: str = "texts") -> list[Any]:
    """The values of the one column of a table that holds text; where there are several, or none, an error."""
    names = text_columns(given)
    if len(names) == 1:
        return _values(given[names[0]])
    everything = ", ".join(map(repr, column_names(given) or ())) or "no columns"
    said = f"columns of text: {', '.join(map(repr, names))}" if names else f"no column of text among {everything}"
    remedy = f"Pass one of them: table[{names[0]!r}]." if names else "Pass a column of strings."
    raise InputError(f"The {what} are a {type(given).__name__} with {said}.", remedy)


def _values(column: Iterable[object]) -> list[Any]:
    to_pylist = getattr(column, "to_pylist", None)  # Arrow, whose own items are not strings
    return list(column if to_pylist is None else to_pylist())


def _described(given: object) -> str:
    if isinstance(given, Mapping):
        return f"a {type(given).__name__} of {', '.join(repr(key) for key in islice(given, 6)) or 'nothing'}"
    shown = repr(given)
    return f"{type(given).__name__} {shown}" if len(shown) <= 40 else f"of type {type(given).__name__}"


def _missing(value: object) -> bool:
    return value is None or value != value
