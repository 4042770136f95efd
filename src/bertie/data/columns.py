"""Which columns hold the text, the second text and the label, and their values out of rows.

A column that is named is taken; otherwise the names that public data sets use are tried in order. What cannot be
settled is an error that lists the columns there are.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bertie.data.lists import as_rows
from bertie.data.reading import Reader, bad_row, converted
from bertie.data.rows import Row
from bertie.errors import DataError
from bertie.json_values import text

TEXT_COLUMNS = ("text", "sentence", "content", "document", "passage", "query", "question", "sentence1", "text_a")
PAIR_COLUMNS = (
    ("text_a", "text_b"), ("sentence1", "sentence2"), ("text1", "text2"), ("sentence_a", "sentence_b"),
    ("premise", "hypothesis"), ("question1", "question2"), ("question", "context"), ("question", "sentence"),
    ("question", "passage"), ("question", "answer"), ("query", "document"), ("query", "passage"), ("query", "text"),
    ("query", "positive"), ("anchor", "positive"), ("#1 string", "#2 string"),
)  # fmt: skip
LABEL_COLUMNS = ("label", "labels", "gold_label", "score", "similarity", "target", "class", "category", "quality")
_NOT_TEXT = {*LABEL_COLUMNS, "id", "_id", "idx", "index", "guid", "uid", "split", "line", ""}


@dataclass(frozen=True, slots=True)
class Example:
    """One text or pair to classify or score. `label` is None where there is none, a float where it is a score."""

    guid: str
    text_a: str
    text_b: str | None
    label: str | float | None


def choose_text(columns: Sequence[str], *, given: str | None = None, source: str = "the rows") -> str:
    """The column of the text."""
    if given is not None:
        return _named(columns, given, source)
    known, left = _folded(columns)
    found = next((known[name] for name in TEXT_COLUMNS if name in known), left[0] if len(left) == 1 else None)
    if found is not None:
        return found
    raise DataError(f"{source}: which column is the text? There are: {_listed(columns)}.", "Name it with {column=}.")


def choose_pair(
    columns: Sequence[str], *, given: tuple[str, str] | None = None, source: str = "the rows"
) -> tuple[str, str]:
    """The columns of the two texts of a pair."""
    if given is not None:
        return _named(columns, given[0], source), _named(columns, given[1], source)
    known, left = _folded(columns)
    for first, second in PAIR_COLUMNS:
        if first in known and second in known:
            return known[first], known[second]
    if len(left) == 2:
        return left[0], left[1]
    raise DataError(
        f"{source}: which two columns are the pair? There are: {_listed(columns)}.", "Name both with {columns=}."
    )


def choose_label(columns: Sequence[str], *, given: str | None = None, source: str = "the rows") -> str:
    """The column of the label."""
    if given is not None:
        return _named(columns, given, source)
    known, _ = _folded(columns)
    for name in LABEL_COLUMNS:
        if name in known:
            return known[name]
    raise DataError(f"{source}: which column is the label? There are: {_listed(columns)}.", "Name it with {label=}.")


def _folded(columns: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The columns by their names in lower case; and those of them that could be a text."""
    folded = {column.strip().lower(): column for column in columns}
    return folded, [column for name, column in folded.items() if name not in _NOT_TEXT]


def text_of(row: Row, column: str) -> str:
    """The text in `column`, or a `DataError` saying what is there instead."""
    if column not in row.values:
        raise bad_row(f"{row.where}: there is no column {column!r}; there are: {_listed(list(row.values))}.")
    value = row.values[column]
    if (found := text(value)) is not None:
        return found
    got = "nothing" if value is None else f"{type(value).__name__} {str(value)[:40]}"
    raise bad_row(f"{row.where}: the column {column!r} should be text, and holds {got}.")


def texts(
    rows: object, column: str | None = None, *, fault: Callable[[str], tuple[str, str] | None] | None = None
) -> Reader[str]:
    """The text of every row of whatever `as_rows` takes.

    `fault` makes a bad row of a text that is of no use: it gives what is wrong with it and the remedy, or None.

    >>> list(texts([{"review": "Good.", "label": 1}]))
    ['Good.']
    """
    reader = as_rows(rows)

    def begin(first: Row) -> Callable[[Row], str]:
        chosen = choose_text(list(first.values), given=column, source=reader.name)

        def checked(row: Row) -> str:
            text = text_of(row, chosen)
            if fault is not None and (found := fault(text)) is not None:
                wrong, remedy = found
                raise bad_row(f"{row.where}: {wrong}", remedy)
            return text

        return checked

    return converted(reader, begin)


def pairs(rows: object, columns: tuple[str, str] | None = None) -> Reader[tuple[str, str]]:
    """Both texts of every row.

    >>> list(pairs([{"premise": "It rains.", "hypothesis": "It is wet.", "label": "entailment"}]))
    [('It rains.', 'It is wet.')]
    """
    reader = as_rows(rows)

    def begin(first: Row) -> Callable[[Row], tuple[str, str]]:
        left, right = choose_pair(list(first.values), given=columns, source=reader.name)
        return lambda row: (text_of(row, left), text_of(row, right))

    return converted(reader, begin)


def examples(
    rows: object,
    *,
    column: str | None = None,
    columns: tuple[str, str] | None = None,
    label: str | None = None,
    paired: bool = False,
    scored: bool = False,
) -> Reader[Example]:
    """Labelled texts for training and evaluation; pairs with `paired` or two `columns`; number labels with `scored`.

    >>> list(examples([{"text": "Good.", "label": 1}]))
    [Example(guid='1', text_a='Good.', text_b=None, label='1')]
    """
    reader = as_rows(rows)

    def begin(first: Row) -> Callable[[Row], Example]:
        names = list(first.values)
        second: str | None = None
        if paired or columns is not None:
            main, second = choose_pair(names, given=columns, source=reader.name)
        else:
            main = choose_text(names, given=column, source=reader.name)
        answer = choose_label(names, given=label, source=reader.name)

        def example(row: Row) -> Example:
            text_b = None if second is None else text_of(row, second)
            return Example(str(row.line), text_of(row, main), text_b, label_of(row, answer, scored=scored))

        return example

    return converted(reader, begin)


def label_of(row: Row, column: str, *, scored: bool = False) -> str | float:
    """The label in `column`: its text, or with `scored` a finite number."""
    value: Any = row.values.get(column)
    value = value.tolist() if hasattr(value, "tolist") else value
    if scored:
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = float("nan")
        if number - number == 0:  # neither infinite nor NaN
            return number
        raise bad_row(f"{row.where}: the column {column!r} should be a number, and holds {value!r}.")
    match value:
        case float() if value.is_integer():  # a whole number from a table that has gaps
            return str(int(value))
        case str() | int() if str(value).strip():
            return str(value)
    raise bad_row(f"{row.where}: the column {column!r} should be a label, and holds {value!r}.")


def _named(columns: Sequence[str], name: str, source: str) -> str:
    if name in columns:
        return name
    close = difflib.get_close_matches(name, columns, n=2, cutoff=0.6) or [
        column for column in columns if column.strip().lower() == name.strip().lower()
    ]
    remedy = f"Did you mean {' or '.join(map(repr, close))}?" if close else "Name one of these."
    raise DataError(f"{source}: there is no column {name!r}; there are: {_listed(columns)}.", remedy)


def _listed(columns: Sequence[str]) -> str:
    shown = ", ".join(map(repr, columns[:12]))
    return (shown + " …" if len(columns) > 12 else shown) or "none"
