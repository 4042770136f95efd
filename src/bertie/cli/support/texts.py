"""Where a command's texts come from: its arguments, one or more files, or standard input."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import length_hint
from typing import Generic, TypeVar

import click

from bertie.data import Reader, RowReader, pairs, read_rows, texts
from bertie.data.rows import estimated_rows
from bertie.errors import DataError, InputError

T = TypeVar("T")
R = TypeVar("R")
Fault = Callable[[str], tuple[str, str] | None]


@dataclass(frozen=True)
class Given:
    """What was given to a command to work on."""

    texts: tuple[str, ...]
    files: tuple[str, ...]
    input_format: str | None
    encoding: str
    delimiter: str | None
    column: str | None
    skip_bad: bool

    def read(self, fault: Fault | None = None) -> Iterator[str]:
        """The texts, one by one; of files they are read as they are needed. `fault` is that of `bertie.data.texts`."""
        files = self.rows()
        if files:
            return self._estimated(all_of(*(texts(rows, self.column, fault=fault) for rows in files)))
        for number, text in enumerate(self.texts, start=1):
            if fault is not None and (found := fault(text)) is not None:
                wrong, remedy = found
                raise InputError(f"Text {number} {wrong}", remedy)
        return iter(self.texts)

    def read_pairs(self, columns: tuple[str, str] | None = None) -> Iterator[tuple[str, str]]:
        """Pairs of texts: two arguments, or two columns of each file."""
        files = self.rows()
        if files:
            return self._estimated(all_of(*(pairs(rows, columns) for rows in files)))
        if len(self.texts) != 2:
            raise InputError(
                f"A pair is two texts; {len(self.texts)} {'was' if len(self.texts) == 1 else 'were'} given.",
                "Give both in quotes, or a file with two columns (-f).",
            )
        return iter([(self.texts[0], self.texts[1])])

    def _estimated(self, items: Iterator[T]) -> Iterator[T]:
        def total() -> int:
            counts = [estimated_rows(file) for file in self.files]
            return sum(counts) if all(counts) else 0

        return Estimated(items, total)

    def rows(self) -> list[RowReader]:
        """A reader for each file, in order; none when the arguments themselves are the texts."""
        if self.texts and self.files:
            raise InputError("Texts were given both as arguments and in a file.", "Give one or the other.")
        if self.texts:
            return []
        files = self.files
        if not files:
            if sys.stdin is None or sys.stdin.isatty():
                raise InputError(
                    "No text was given.",
                    "Give it in quotes, in a file with -f FILE, or on standard input: echo … | bertie …",
                )
            files = ("-",)
        return open_files(
            files, self.input_format, skip_bad=self.skip_bad, encoding=self.encoding, delimiter=self.delimiter
        )


class Estimated(Iterator[T], Generic[T]):
    """Items of which `operator.length_hint` tells about how many there are, for the bar that asks."""

    def __init__(self, items: Iterator[T], total: Callable[[], int]) -> None:
        self._items, self._total = items, total

    def __next__(self) -> T:
        return next(self._items)

    def __length_hint__(self) -> int:
        return self._total()


def open_files(
    files: Sequence[str],
    input_format: str | None,
    *,
    skip_bad: bool = False,
    encoding: str = "utf-8",
    delimiter: str | None = None,
) -> list[RowReader]:
    """A reader for each file. One that cannot be opened is refused before any is read."""
    if list(files).count("-") > 1:
        raise InputError("Standard input (-) was given twice, and it can be read only once.", "Give it once.")
    return [
        read_rows(file, format=input_format, skip_bad=skip_bad, encoding=encoding, delimiter=delimiter)
        for file in files
    ]


def beside(items: Iterable[T], answer: Callable[[Iterator[T]], Iterable[R]]) -> Iterator[tuple[T, R]]:
    """Each item with its answer; `answer` takes an iterator, may read ahead of what it gives, and keeps the order."""
    waiting: deque[T] = deque()

    def passed() -> Iterator[T]:
        for item in items:
            waiting.append(item)
            yield item

    for found in answer(Estimated(passed(), lambda: length_hint(items))):
        yield waiting.popleft(), found


def all_of(*readers: Reader[T]) -> Iterator[T]:
    """All of one reader after the other. An empty one is a mistake; skipped rows are counted on standard error."""
    for reader in readers:
        count = 0
        for item in reader:
            count += 1
            yield item
        if summary := reader.bad.summary():
            click.echo(f"{click.style('note:', fg='yellow')} {summary}", err=True)
        if not count:
            raise DataError(f"{reader.name}: there is nothing in it to work on.", "Give a file with at least one text.")


def chunked(items: Iterable[T], size: int = 256) -> Iterator[list[T]]:
    """Lists of `size` items; the last may be shorter."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
