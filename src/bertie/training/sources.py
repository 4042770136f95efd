"""Where training data comes from: files of every format, or rows a program holds, as labelled texts with their places.

Everything keeps the place it was found at (`train.csv, line 17`), so that a label that turns out wrong much later is
still told by file and line. `BadRows` counts what `skip_bad` leaves out; strict reading raises at the first.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from bertie.data import BadRows, GlueTask, RowReader, as_rows, choose_label, choose_pair, choose_text, glue_task
from bertie.data.columns import PAIR_COLUMNS, label_of, text_of
from bertie.data.glue import GLUE_TASKS, read_glue
from bertie.data.reading import SKIP_REMEDY
from bertie.data.rows import Row, read_rows
from bertie.errors import DataError

Kind = Literal["class", "several", "score"]
Choice = TypeVar("Choice")
_LOOKED_AT = 100  # rows, to tell which columns hold what


@dataclass(frozen=True)
class Columns:
    """Which columns hold what, where the usual names do not tell; `format` where the file's name does not.

    `glue` names a GLUE task, whose files are laid out in ways of their own; a .tsv file in a folder called like one
    (`MRPC/train.tsv`) is known by that. `separator` splits several labels in one cell.
    """

    text: str | None = None
    pair: tuple[str, str] | None = None
    label: str | None = None
    glue: str | None = None
    format: str | None = None
    separator: str = ","


@dataclass(frozen=True, slots=True)
class Labelled:
    """A text or pair with its label: a name, several names, or a number."""

    text_a: str
    text_b: str | None
    label: str | tuple[str, ...] | float
    where: str


def open_rows(given: object, *, skip_bad: bool, format: str | None = None) -> RowReader:  # noqa: A002
    """The rows of a file (a path as text or `Path`), or of whatever else `as_rows` takes."""
    if isinstance(given, str | os.PathLike):
        return read_rows(given, format=format, skip_bad=skip_bad)
    return as_rows(given, skip_bad=skip_bad)


def source_label(given: object) -> str:
    return os.fspath(given) if isinstance(given, str | os.PathLike) else f"the {type(given).__name__} given"


def read_labelled(
    given: object, *, kind: Kind, paired: bool | None, columns: Columns, bad: BadRows
) -> Iterator[Labelled]:
    """Labelled texts, or pairs. `paired=None` takes pairs where the columns are plainly those of one."""
    task = glue_of(given, columns)
    if task is not None:
        if kind == "several" or (kind == "score") != (task.labels is None):
            wanted = "a number" if task.labels is None else "one label"
            raise DataError(
                f"{task.name} has {wanted} to a text, which is not what was asked for.",
                "Use regress for STS-B, and classify or pairs for the others.",
            )
        for example in read_glue(task.name, os.fspath(given)).reading(bad):  # type: ignore[call-overload]
            where = f"{source_label(given)}, example {example.guid}"
            if example.label is None:
                bad.report(DataError(f"{where}: has no label.", "Test files have none: use train.tsv and dev.tsv."))
                continue
            yield Labelled(example.text_a, example.text_b, example.label, where)
        return
    yield from _from_rows(open_rows(given, skip_bad=bad.skip, format=columns.format), kind, paired, columns, bad)


def glue_of(given: object, columns: Columns) -> GlueTask | None:
    """The GLUE task a file belongs to, by what was said or by the folder it is in."""
    if not isinstance(given, str | os.PathLike):
        return None
    if columns.glue is not None:
        return glue_task(columns.glue)
    path = Path(given)
    own_columns = columns.text or columns.pair or columns.label or columns.format
    if path.suffix.lower() != ".tsv" or own_columns or path.parent.name not in GLUE_TASKS:
        return None
    return GLUE_TASKS[path.parent.name]


def _from_rows(
    reader: RowReader, kind: Kind, paired: bool | None, columns: Columns, bad: BadRows
) -> Iterator[Labelled]:
    rows = reader.reading(bad)
    head = list(islice(rows, _LOOKED_AT))
    if not head:
        return
    first, second, label = _most_choose(head, lambda names: _choose(names, paired, columns, reader.name))
    for row in chain(head, rows):
        try:
            text_b = None if second is None else text_of(row, second)
            found = Labelled(text_of(row, first), text_b, _label(row, label, kind, columns), row.where)
        except DataError as error:
            bad.report(error)
            continue
        yield found


def _most_choose(rows: Sequence[Row], choose: Callable[[Sequence[str]], Choice]) -> Choice:
    """The columns that most rows would choose, so that one odd row does not decide for the others."""
    choices: Counter[Choice] = Counter()
    failure: DataError | None = None
    for row in rows:
        try:
            choices[choose(list(row.values))] += 1
        except DataError as error:
            failure = failure or error
    if not choices and failure is not None:
        raise failure
    return choices.most_common(1)[0][0]


def _label_column(names: Sequence[str], columns: Columns, source: str) -> str:
    if len(names) == 1 and columns.label is None:
        raise DataError(
            f"{source}: there is only one column, {names[0]!r}; training needs a label beside every text.",
            "Give a csv, tsv or jsonl file with both.",
        )
    return choose_label(names, given=columns.label, source=source)


def _choose(names: Sequence[str], paired: bool | None, columns: Columns, source: str) -> tuple[str, str | None, str]:
    label = _label_column(names, columns, source)
    if paired is None:
        known = {name.strip().lower() for name in names}
        looks_paired = any(first in known and second in known for first, second in PAIR_COLUMNS)
        paired = columns.pair is not None or (columns.text is None and looks_paired)
    if paired:
        first, second = choose_pair(names, given=columns.pair, source=source)
        return first, second, label
    return choose_text([n for n in names if n != label], given=columns.text, source=source), None, label


def _label(row: Row, column: str, kind: Kind, columns: Columns) -> str | tuple[str, ...] | float:
    if kind != "several":
        value = row.values.get(column)
        if isinstance(value, bool):  # JSON's true and false are classes like others
            return float(value) if kind == "score" else str(value).lower()
        return label_of(row, column, scored=kind == "score")
    value = cast(Any, row.values.get(column))
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, str):
        value = [part.strip() for part in value.split(columns.separator) if part.strip()]
    if value is None:
        raise DataError(
            f"{row.where}: the column {column!r} should be a list of labels, and holds nothing.",
            f"Where no label applies, the list is empty: []. {SKIP_REMEDY}",
        )
    if not isinstance(value, list | tuple) or not all(isinstance(each, str | int) for each in value):
        raise DataError(f"{row.where}: the column {column!r} should be a list of labels: {value!r:.60}.", SKIP_REMEDY)
    return tuple(map(str, value))


def holds_lists(given: object, columns: Columns) -> bool:
    """Whether the first label there is is a list, so that several labels may apply to a text."""
    first = next(iter(several(given)))
    if isinstance(first, Iterator) or glue_of(first, columns) is not None:
        return False
    reader = open_rows(first, skip_bad=True, format=columns.format)
    head = [] if reader.once else list(islice(reader, _LOOKED_AT))
    if not head:
        return False
    column = _most_choose(head, lambda names: _label_column(names, columns, reader.name))
    labels = (row.values.get(column) for row in head)
    value: Any = next((label for label in labels if label is not None), None)
    return isinstance(value.tolist() if hasattr(value, "tolist") else value, list | tuple)


def several(given: object) -> Iterable[object]:
    """One source, or a list of paths one after the other."""
    if isinstance(given, list | tuple) and given and all(isinstance(each, str | os.PathLike) for each in given):
        return list(given)
    return [given]
