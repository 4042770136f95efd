"""What every reader of this room has in common: it can be iterated again, and it keeps account of bad rows.

A reader is strict by default: the first bad row raises a `DataError` that names the file and the line. With
`skip_bad=True` bad rows are left out, counted, and the first few of them remembered:

    >>> reader = Reader("numbers", lambda bad: iter((1, 2, 3)))
    >>> list(reader), reader.bad.count
    ([1, 2, 3], 0)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from bertie.errors import DataError

S = TypeVar("S")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_SKIPPING = "leave such rows out and have them counted: {skip_bad}."
_REMEMBERED = 10


def bad_row(cause: str, remedy: str | None = None) -> DataError:
    """An error about one row, which could also be left out; `remedy` is what else there is to do."""
    skipping = f"Correct it, or {_SKIPPING}" if remedy is None else f"{remedy} Or {_SKIPPING}"
    return DataError(cause, skipping, skip_bad=True)


class BadRows:
    """Rows that could not be used. Strict: the first one is raised. Otherwise `count` counts, `first` remembers."""

    def __init__(self, *, skip: bool) -> None:
        self.skip = skip
        self.count = 0
        self.first: list[DataError] = []

    def report(self, error: DataError) -> None:
        """Raise `error`, or count it."""
        if not self.skip:
            raise error
        self.count += 1
        if len(self.first) < _REMEMBERED:
            self.first.append(error)

    def summary(self) -> str:
        """One line for people, e.g. `2 bad rows skipped; the first: a.jsonl, line 7: not JSON`. Empty for none."""
        if not self.count:
            return ""
        rows = "1 bad row" if self.count == 1 else f"{self.count} bad rows"
        return f"{rows} skipped; the first: {self.first[0].cause}"


class Reader(Generic[T_co]):
    """Yields one value after another. Each `iter` starts again at the top, with `bad` counting from nought.

    `once` marks what cannot be started again (standard input, a generator): the second `iter` is a `DataError`.
    """

    def __init__(
        self, name: str, read: Callable[[BadRows], Iterator[T_co]], *, skip_bad: bool = False, once: bool = False
    ) -> None:
        self.name = name
        self.skip_bad = skip_bad
        self.once = once
        self.bad = BadRows(skip=skip_bad)
        self._read = read
        self._started = False

    def __iter__(self) -> Iterator[T_co]:
        self.bad = BadRows(skip=self.skip_bad)
        return self.reading(self.bad)

    def reading(self, bad: BadRows) -> Iterator[T_co]:
        """The same values, with bad rows reported to another account: how one reader is built on another."""
        if self.once and self._started:
            raise DataError(
                f"{self.name} has been read already, and can be read only once.",
                "Read it into a list first, or give a file.",
            )
        self._started = True
        return self._read(bad)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


def converted(reader: Reader[S], begin: Callable[[S], Callable[[S], T]]) -> Reader[T]:
    """What is made of each value of a reader, one by one; what cannot be made of a value (`DataError`) is a bad row.

    `begin` is given the first value of each iteration and gives what converts all of them, the first one too.
    """

    def read(bad: BadRows) -> Iterator[T]:
        convert: Callable[[S], T] | None = None
        for value in reader.reading(bad):
            convert = convert or begin(value)
            try:
                made = convert(value)
            except DataError as error:
                bad.report(error)
                continue
            yield made

    return Reader(reader.name, read, skip_bad=reader.skip_bad, once=reader.once)
