"""Where training data comes from: files of every format or rows a program holds, and the labels in them.

Everything keeps the place it was found at (`train.csv, line 17`), so that a label that turns out wrong much later is
still named by file and line. `BadRows` counts what `skip_bad` leaves out; strict reading raises at the first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bertie.arguments import is_path
from bertie.config import BertConfig
from bertie.data import GlueTask, RowReader, as_rows, glue_task
from bertie.data.glue import GLUE_TASKS
from bertie.data.reading import bad_row
from bertie.data.rows import read_rows
from bertie.errors import DataError
from bertie.json_values import items

_PREFIX_ORDER = {prefix: place for place, prefix in enumerate("BIMELSU")}


@dataclass(frozen=True)
class Columns:
    """Which columns hold what, where the usual names do not tell; `format` where the file's name does not.

    `glue` names a GLUE task, whose files are laid out in ways of their own; a .tsv file in a folder called like one
    (`MRPC/train.tsv`) is known by that. `separator` splits several labels in one cell. `encoding` and `delimiter` are
    those of `read_rows`.
    """

    text: str | None = None
    pair: tuple[str, str] | None = None
    label: str | None = None
    glue: str | None = None
    format: str | None = None
    separator: str = ","
    encoding: str = "utf-8"
    delimiter: str | None = None


@dataclass(frozen=True)
class Source:
    """One file (`path`), or rows of whatever else `as_rows` takes."""

    given: object
    path: str | None
    columns: Columns

    @property
    def name(self) -> str:
        return self.path if self.path is not None else f"the {type(self.given).__name__} given"

    def open(self, *, skip_bad: bool) -> RowReader:
        if self.path is None:
            return as_rows(self.given, skip_bad=skip_bad)
        how = self.columns
        return read_rows(
            self.path, format=how.format, encoding=how.encoding, skip_bad=skip_bad, delimiter=how.delimiter
        )

    @property
    def glue(self) -> GlueTask | None:
        """The GLUE task a file belongs to, by what was said or by the folder it is in."""
        how = self.columns
        if self.path is None:
            return None
        if how.glue is not None:
            return glue_task(how.glue)
        path = Path(self.path)
        own_columns = how.text or how.pair or how.label or how.format or how.delimiter
        if path.suffix.lower() != ".tsv" or own_columns or path.parent.name not in GLUE_TASKS:
            return None
        return GLUE_TASKS[path.parent.name]


def sources_of(given: object, columns: Columns | None = None) -> list[Source]:
    """One source, or a list of paths one after the other."""
    how = columns or Columns()
    several = items(given) or [given]
    paths = [each for each in several if is_path(each)]
    if len(paths) == len(several):
        return [Source(each, os.fspath(each), how) for each in paths]
    return [Source(given, None, how)]


# -- labels ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelNumbers:
    """Labels with their numbers; `source` is where they were learned."""

    names: tuple[str, ...]
    source: str = "the training data"

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    def __len__(self) -> int:
        return len(self.names)

    @property
    def id2label(self) -> dict[int, str]:
        return dict(enumerate(self.names))

    def number(self, label: str, where: str) -> int:
        """The number of a label, or a `DataError` that names the place and the labels there are."""
        if label in self._numbers:
            return self._numbers[label]
        shown = ", ".join(map(repr, self.names[:10])) + (" …" if len(self.names) > 10 else "")
        raise bad_row(f"{where}: the label {label!r} is not one of {self.source}'s: {shown}.")


def label_numbers(
    labels: Iterable[str], *, config: BertConfig | None = None, tags: bool = False, source: str = "the training data"
) -> LabelNumbers:
    """The labels that occur, numbered: numbers in the order of numbers, names in the alphabet's, tags with O first and
    then by type (B-LOC, I-LOC, B-PER …). A checkpoint that has labels of its own which cover the data's keeps them, so
    that its head stays right; LABEL_0, LABEL_1 … are what every config has that was given none.

    >>> label_numbers(["10", "9", "9"]).names, label_numbers(["I-X", "O", "B-X"], tags=True).names
    (('9', '10'), ('O', 'B-X', 'I-X'))
    """
    found = set(labels)
    if not found:
        raise DataError(f"{source}: there are no rows in it with labels.", "Give a file with texts and their labels.")
    if config is not None and any(name != f"LABEL_{number}" for number, name in config.id2label.items()):
        own = tuple(config.id2label[number] for number in range(config.num_labels))
        if found <= set(own):
            return LabelNumbers(own, "the checkpoint")
    if tags:
        names = sorted(found, key=_tag_key)
    elif all(re.fullmatch(r"0|-?[1-9][0-9]*", label) for label in found):
        names = sorted(found, key=int)
    else:
        names = sorted(found)
    return LabelNumbers(tuple(names), source)


def _tag_key(tag: str) -> tuple[bool, str, int, str]:
    prefix, dash, kind = tag.partition("-")
    if not dash or prefix not in _PREFIX_ORDER:
        return tag != "O", tag, 0, tag
    return True, kind, _PREFIX_ORDER[prefix], tag
