"""Lists out of the collections people hold: lists, tuples, arrays, series, columns, and tables with one text column.

None of the packages behind them is imported; a table is known by what it can do. Iterating over a pandas table gives
the names of its columns, and over a set its items in no order: both look like texts, and neither is what was meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from bertie.errors import InputError

_LOOKED_AT = 100  # values of a column, until one is there that is not missing


def listed(given: Any, what: str = "texts") -> list[Any]:
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


def is_table(given: object) -> bool:
    """Whether this is a pandas, polars or Arrow table, or a `datasets.Dataset`."""
    return column_names(given) is not None


def column_names(given: object) -> list[Any] | None:
    """The names of a table's columns; None for anything else."""
    if isinstance(given, Mapping):
        return None
    if hasattr(given, "collect") and hasattr(given, "collect_schema"):  # polars.LazyFrame
        raise InputError("A lazy table was given.", "Compute it first: frame.collect().")
    names: Any = getattr(given, "column_names", None)  # Arrow, datasets
    if names is None and (hasattr(given, "itertuples") or hasattr(given, "iter_rows")):  # pandas, polars
        names = getattr(given, "columns", None)
    if names is None or isinstance(names, str) or not isinstance(names, Iterable) or not hasattr(given, "__getitem__"):
        return None
    return list(names)


def text_columns(given: Any) -> list[Any]:
    """The columns of a table whose values are strings."""
    found = []
    for name in column_names(given) or ():
        first = next((value for value in islice(_peeked(given, name), _LOOKED_AT) if not _missing(value)), None)
        if isinstance(first, str):
            found.append(name)
    return found


def text_column(given: Any, what: str = "texts") -> list[Any]:
    """The values of the one column of a table that holds text; where there are several, or none, an error."""
    texts = text_columns(given)
    if len(texts) == 1:
        return _values(given[texts[0]])
    everything = ", ".join(map(repr, column_names(given) or ())) or "no columns"
    said = f"columns of text: {', '.join(map(repr, texts))}" if texts else f"no column of text among {everything}"
    remedy = f"Pass one of them: table[{texts[0]!r}]." if texts else "Pass a column of strings."
    raise InputError(f"The {what} are a {type(given).__name__} with {said}.", remedy)


def _values(column: Any) -> list[Any]:
    to_pylist = getattr(column, "to_pylist", None)  # Arrow, whose own items are not strings
    return list(column) if to_pylist is None else to_pylist()


def _peeked(given: Any, name: str) -> Iterable[Any]:
    return _values(given[name][:_LOOKED_AT])


def _described(given: Any) -> str:
    if isinstance(given, Mapping):
        return f"a {type(given).__name__} of {', '.join(repr(key) for key in islice(given, 6)) or 'nothing'}"
    shown = repr(given)
    return f"{type(given).__name__} {shown}" if len(shown) <= 40 else f"of type {type(given).__name__}"


def _missing(value: Any) -> bool:
    return value is None or value != value
