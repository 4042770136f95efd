"""One text, a list or a stream: what people hand to a task, checked, and the answers in the same shape.

A single item gives one answer, a list (or any other collection) a list in its order, an iterator an iterator that
reads only a little ahead of what it gives; a file, given as a `Path`, is such a stream too. A
task says how a *stream* of items is answered; the shapes are here, once.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import Any, ClassVar, Generic, TypeVar, overload

from bertie.data import Reader, RowReader, as_rows, choose_pair, pairs, read_rows, texts
from bertie.data.lists import is_table, listed, text_columns
from bertie.errors import DataError, InputError
from bertie.running.progress import with_progress

TextOrPair = str | tuple[str, str]

Item = TypeVar("Item")
Answer = TypeVar("Answer")
T = TypeVar("T")

# Texts tokenized in one call: Rust works on them side by side, and a stream is not held up for long.
TEXTS_AT_ONCE = 64


class Task(Generic[Item, Answer]):
    """Items in, answers out. A task has a `name`, says how a stream is answered and, if not texts, what an item is."""

    name: ClassVar[str]

    def stream(self, items: Iterable[Item]) -> Iterator[Answer]:
        """The answers, in order, reading `items` a little ahead."""
        raise NotImplementedError

    def is_one(self, given: Any) -> bool:
        """Is this a single item, not a collection of them?"""
        return isinstance(given, str)

    def checked(self, item: Any, where: str) -> Item:
        """The item as `stream` takes it, or an error that says what is wrong at `where`."""
        checked: Any = checked_text(item, where)
        return checked  # type: ignore[no-any-return]

    def read(self, rows: RowReader) -> Iterable[Any]:
        """The items in the rows of a file."""
        return texts(rows)

    def read_table(self, table: Any) -> Iterable[Any]:
        """The items of a pandas, polars or Arrow table or a `datasets.Dataset`: its one column of text."""
        return listed(table)

    @overload
    def __call__(self, given: os.PathLike[str], *, progress: bool | None = None) -> Iterator[Answer]: ...

    @overload
    def __call__(self, given: Iterator[Item], *, progress: bool | None = None) -> Iterator[Answer]: ...

    @overload
    def __call__(self, given: list[Item], *, progress: bool | None = None) -> list[Answer]: ...

    @overload
    def __call__(self, given: Item, *, progress: bool | None = None) -> Answer: ...

    def __call__(self, given: Any, *, progress: bool | None = None) -> Any:
        """One answer, a list or an iterator of them, as `given` is. `progress`: a bar for long work."""
        if isinstance(given, os.PathLike):
            given = iter(self.read(read_rows(given)))
        elif isinstance(given, Reader):
            given = iter(given)
        if self.is_one(given):
            items = [self.checked(given, "The text")]
            (answer,) = with_progress(self.stream(items), what=self.name, total=1, show=progress)
            return answer
        if isinstance(given, Iterator):
            checked = (self.checked(item, f"Text {number}") for number, item in enumerate(given))
            return with_progress(self.stream(checked), what=self.name, show=progress)
        if isinstance(given, (bytes, bytearray, dict)) or not (hasattr(given, "__iter__") or is_table(given)):
            self.checked(given, "The text")  # says what it takes
            raise InputError(f"{self.name} was given {described(given)}.", "Pass a text, a list or an iterator.")
        # All of a list is looked at before any of it is worked on.
        collected = self.read_table(given) if is_table(given) else listed(given)
        items = [self.checked(item, f"Text {number}") for number, item in enumerate(collected)]
        return list(with_progress(self.stream(items), what=self.name, total=len(items), show=progress))


class PairTask(Task[TextOrPair, Answer]):
    """A task whose items are texts or pairs. A tuple is always one pair; inside a list, a list of two is one too."""

    def is_one(self, given: Any) -> bool:
        return isinstance(given, (str, tuple))

    def checked(self, item: Any, where: str) -> TextOrPair:
        return checked_text_or_pair(item, where)

    def read(self, rows: RowReader) -> Iterable[Any]:
        """Pairs where the file has the columns of one, texts otherwise."""
        first = next(iter(rows), None)
        try:
            columns = choose_pair(list(first.values)) if first is not None else None
        except DataError:
            columns = None
        return texts(rows) if columns is None else pairs(rows, columns)

    def read_table(self, table: Any) -> Iterable[Any]:
        """The one column of text, or two that are named as a pair."""
        names = text_columns(table)
        try:
            columns = choose_pair([str(name) for name in names]) if len(names) > 1 else None
        except DataError:
            columns = None
        return listed(table) if columns is None else pairs(as_rows(table), columns)


def checked_text(item: Any, where: str) -> str:
    if not isinstance(item, str):
        raise InputError(
            f"{where} is {described(item)}; a string was wanted.", "Decode bytes, and leave out or fill in None."
        )
    return item


def checked_text_or_pair(item: Any, where: str) -> TextOrPair:
    """A string, or two of them as a tuple (from a list of two as well, as JSON has them)."""
    if isinstance(item, str):
        return item
    if isinstance(item, (tuple, list)):
        if len(item) != 2 or not all(isinstance(part, str) for part in item):
            parts = ", ".join(type(part).__name__ for part in item[:4])
            raise InputError(
                f"{where} is a {type(item).__name__} of {len(item)} ({parts}); a pair is two strings.",
                "Pass (text, second text) for a pair, and a list for several texts.",
            )
        return item[0], item[1]
    raise InputError(
        f"{where} is {described(item)}; a string or a pair (text, second text) was wanted.",
        "Decode bytes, and leave out or fill in None.",
    )


def checked_choice(name: str, value: Any, known: Collection[Any]) -> None:
    """Refuse an option that is none of the `known` ones, and list those."""
    if value not in known:
        raise InputError(f"{name}={value!r} is not known.", f"Use one of {', '.join(map(repr, known))}.")


def checked_count(name: str, value: Any, *, none_means: str | None = None) -> None:
    """Refuse anything but a whole number of at least 1 (or None, where that means something)."""
    if value is None and none_means is not None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        extra = "" if none_means is None else f", or None for {none_means}"
        raise InputError(f"{name} is {value!r}; it takes a whole number of at least 1{extra}.")


def described(item: Any) -> str:
    """What something is, for an error: its type and, if it is short, its value."""
    if item is None:
        return "None"
    shown = repr(item)
    return f"{type(item).__name__} {shown}" if len(shown) <= 40 else f"of type {type(item).__name__}"


def shortened(text: str, size: int = 60) -> str:
    """The beginning of a text, for an error."""
    return text if len(text) <= size else text[: size - 1] + "…"


def chunked(items: Iterable[T], size: int = TEXTS_AT_ONCE) -> Iterator[list[T]]:
    """Lists of `size` items; the last may be shorter.

    >>> list(chunked("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
