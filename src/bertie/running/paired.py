"""Tasks about two texts, a question and a context say: called with one of each, with as many of each, or with pairs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import zip_longest
from typing import ClassVar, TypeVar, overload

from bertie.data import RowReader, as_rows, pairs
from bertie.data.lists import Table, listed
from bertie.errors import InputError
from bertie.running.task import Streamed, Task, checked_text, described, is_collection

Answer = TypeVar("Answer")


class PairedTask(Task[tuple[str, str], Answer]):
    """A task about two texts, called with one of each, with as many of each, or with (first, second) pairs."""

    names: ClassVar[tuple[str, str]]  # of the two texts, for people
    single: ClassVar[tuple[type, ...]] = (tuple,)

    def from_file(self, rows: RowReader) -> Iterable[object]:
        return pairs(rows)

    def from_table(self, table: Table) -> Iterable[object]:
        return pairs(as_rows(table))

    def checked(self, item: object, where: str) -> tuple[str, str]:
        first, second = self.names
        match item:
            case tuple() | list() if len(item) == 2:
                return checked_text(item[0], f"{where}, the {first},"), checked_text(item[1], f"{where}, the {second},")
        raise InputError(
            f"{where} is {described(item)}; it must be a pair ({first}, {second}).",
            f"Pass pairs, or the {first}s and the {second}s as two lists.",
        )

    @overload
    def __call__(
        self,
        given: Iterator[str] | Streamed[tuple[str, str]],
        second: Iterator[str] | None = None,
        *,
        progress: bool | None = None,
    ) -> Iterator[Answer]: ...

    @overload
    def __call__(
        self, given: str | tuple[str, str], second: str | None = None, *, progress: bool | None = None
    ) -> Answer: ...

    @overload
    def __call__(
        self,
        given: list[str] | Collection[tuple[str, str]],
        second: list[str] | None = None,
        *,
        progress: bool | None = None,
    ) -> list[Answer]: ...

    def __call__(
        self, given: object, second: object = None, *, progress: bool | None = None
    ) -> Answer | list[Answer] | Iterator[Answer]:
        return self.paired(given, second, progress)

    def paired(
        self, first: object, second: object, progress: bool | None = None
    ) -> Answer | list[Answer] | Iterator[Answer]:
        """As a call, for what is known to be right or wrong only when it is looked at."""
        return self.answered(self._paired(first, second), progress)

    def _paired(self, first: object, second: object) -> object:
        """(first, second), a list or an iterator of them, from two texts, two lists or two iterators."""
        names = self.names
        match first, second:
            case str(), None:
                raise InputError(
                    f"{self.name} was given a {names[0]} without a {names[1]}.",
                    f"Pass the {names[1]} as well, or ({names[0]}, {names[1]}) pairs.",
                )
            case _, None:
                return first
            case tuple(), tuple():
                first, second = list(first), list(second)
        several = [not isinstance(one, tuple) and is_collection(one) for one in (first, second)]
        for name, value, others in zip(names, (first, second), reversed(several), strict=True):
            if isinstance(value, str) and others:
                raise InputError(
                    f"{self.name} was given one {name} and several of the other.",
                    f"Repeat the {name} for each of them, or pass ({names[0]}, {names[1]}) pairs.",
                )
        if any(isinstance(one, Iterator) for one in (first, second)):
            return self._zipped(*(_several(one, name) for one, name in zip((first, second), names, strict=True)))
        if not any(several):
            return first, second
        firsts, seconds = (listed(one, f"{name}s") for one, name in zip((first, second), names, strict=True))
        if len(firsts) != len(seconds):
            raise InputError(
                f"{self.name} was given {len(firsts)} {names[0]}s and {len(seconds)} {names[1]}s.",
                f"Pass one {names[1]} to each {names[0]}.",
            )
        return list(zip(firsts, seconds, strict=True))

    def _zipped(self, firsts: Iterable[object], seconds: Iterable[object]) -> Iterator[tuple[object, object]]:
        missing = object()
        for number, both in enumerate(zip_longest(firsts, seconds, fillvalue=missing)):
            if missing in both:
                absent = both.index(missing)
                raise InputError(
                    f"There is a {self.names[1 - absent]} {number}, and no {self.names[absent]} for it.",
                    "Pass as many of each.",
                )
            yield both


def _several(values: object, name: str) -> Iterable[object]:
    if not is_collection(values):
        raise InputError(f"The {name}s are {described(values)}; they must be a list or an iterator.")
    return values
