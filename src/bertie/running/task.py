"""What a task is: items in, answers out, in the shape that was given; and the function that is a task in one call.

A single item gives one answer, a list (or any other collection) a list in its order, an iterator an iterator that
reads only a little ahead of what it gives; a file, given as a `Path`, is such a stream too. A task says how a *stream*
of items is answered; the shapes are here, once. Most tasks judge rows, and are a `RowTask`: items → rows → what the
model says of each row → an answer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import zip_longest
from os import PathLike
from typing import ClassVar, Generic, Literal, ParamSpec, Protocol, TypeVar, cast, overload

from bertie.data import Reader, RowReader, as_rows, choose_pair, pairs, read_rows, texts
from bertie.data.lists import Table, is_table, listed, text_columns
from bertie.errors import DataError, InputError
from bertie.running.batching import Row
from bertie.running.open import OpenModel
from bertie.running.progress import with_progress
from bertie.running.rows import Cuts, TextOrPair
from bertie.running.stream import answered

Item = TypeVar("Item")
Answer = TypeVar("Answer")
Item_contra = TypeVar("Item_contra", contravariant=True)
Text = TypeVar("Text", bound=str | tuple[str, ...])
Context = TypeVar("Context")
Judged = TypeVar("Judged")
P = ParamSpec("P")

Streamed = Iterator[Item] | Reader[Item] | PathLike[str]
Shape = Literal["one", "list", "stream"]


class Task(Generic[Item, Answer]):
    """Items in, answers out. A task has a `name`, says how a stream is answered and, if not texts, what an item is."""

    name: ClassVar[str]
    progress: bool | None = None  # a bar for long work; by default on a terminal

    def stream(self, items: Iterable[Item]) -> Iterator[Answer]:
        """The answers, in order, reading `items` a little ahead."""
        raise NotImplementedError

    def checked(self, item: object, where: str) -> Item:
        """The item as `stream` takes it, or an error that says what is wrong at `where`."""
        raise NotImplementedError

    def is_one(self, given: object) -> bool:
        """Is this a single item, not a collection of them?"""
        return isinstance(given, str)

    def from_file(self, rows: RowReader) -> Iterable[object]:
        """The items in the rows of a file."""
        return texts(rows)

    def from_table(self, table: Table) -> Iterable[object]:
        """The items of a pandas, polars or Arrow table or a `datasets.Dataset`: its one column of text."""
        return listed(table)

    def shaped(self, given: object) -> tuple[Shape, Iterable[Item]]:
        """What was given, and its items, checked: all of a list before any of it is worked on, a stream's as they
        come."""
        if isinstance(given, PathLike):
            given = iter(self.from_file(read_rows(given)))
        elif isinstance(given, Reader):
            given = iter(given)
        if self.is_one(given):
            return "one", [self.checked(given, "The text")]
        if isinstance(given, Iterator):
            return "stream", self.each_checked(given)
        if not is_collection(given):
            self.checked(given, "The text")  # says what it takes
            raise InputError(f"{self.name} was given {described(given)}.", "Pass a text, a list or an iterator.")
        collected = self.from_table(given) if is_table(given) else listed(given)
        return "list", list(self.each_checked(collected))

    def each_checked(self, items: Iterable[object]) -> Iterator[Item]:
        return (self.checked(item, f"Text {number}") for number, item in enumerate(items))

    @overload
    def __call__(self, given: Streamed[Item], *, progress: bool | None = None) -> Iterator[Answer]: ...

    @overload
    def __call__(self, given: Item, *, progress: bool | None = None) -> Answer: ...

    @overload
    def __call__(self, given: Collection[Item], *, progress: bool | None = None) -> list[Answer]: ...

    def __call__(self, given: object, *, progress: bool | None = None) -> Answer | list[Answer] | Iterator[Answer]:
        """One answer, a list or an iterator of them, as `given` is. `progress`: a bar for long work."""
        return self.answered(given, progress)

    def answered(self, given: object, progress: bool | None) -> Answer | list[Answer] | Iterator[Answer]:
        shape, items = self.shaped(given)
        total = len(items) if isinstance(items, list) else None
        show = self.progress if progress is None else progress
        answers = with_progress(self.stream(items), what=self.name, total=total, show=show)
        if shape == "stream":
            return answers
        found = list(answers)
        return found[0] if shape == "one" else found


class TextTask(Task[str, Answer]):
    """A task whose items are texts."""

    def checked(self, item: object, where: str) -> str:
        return checked_text(item, where)


class PairTask(Task[TextOrPair, Answer]):
    """A task whose items are texts or pairs. A tuple is always one pair; inside a list, a list of two is one too."""

    def is_one(self, given: object) -> bool:
        return isinstance(given, (str, tuple))

    def checked(self, item: object, where: str) -> TextOrPair:
        return checked_text_or_pair(item, where)

    def from_file(self, rows: RowReader) -> Iterable[object]:
        """Pairs where the file has the columns of one, texts otherwise."""
        first = next(iter(rows), None)
        columns = None if first is None else _pair_columns(list(first.values))
        return texts(rows) if columns is None else pairs(rows, columns)

    def from_table(self, table: Table) -> Iterable[object]:
        """The one column of text, or two that are named as a pair."""
        names = text_columns(table)
        columns = _pair_columns([str(name) for name in names]) if len(names) > 1 else None
        return listed(table) if columns is None else pairs(as_rows(table), columns)


def _pair_columns(names: list[str]) -> tuple[str, str] | None:
    try:
        return choose_pair(names)
    except DataError:
        return None


class RowTask(Task[Text, Answer], Generic[Text, Context, Judged, Answer]):
    """A task that judges rows. The server calls the same three steps, with batches of its own.

    `rows`: an item → what is known of it, and its rows. `run`: a batch of rows → what the model says of each; rows of
    many items may be mixed. `decode`: what is known of an item, and what was said of its rows → the answer.
    """

    loaded: OpenModel

    def cuts(self) -> Cuts:
        """The account of one call's long texts; by default nothing is cut."""
        return Cuts("windows", self.loaded.max_length)

    def tokenized(self, items: list[Text], cuts: Cuts) -> Iterable[tuple[Context, list[Row]]]:
        """`rows` of several items at once; those that are cut are counted in `cuts`, or refused."""
        raise NotImplementedError

    def start(self, rows: list[Row]) -> Callable[[], list[Judged]]:
        """As `run`, to be read later: a GPU works meanwhile."""
        raise NotImplementedError

    def decode(self, context: Context, judged: list[Judged]) -> Answer:
        raise NotImplementedError

    def rows(self, item: Text) -> tuple[Context, list[Row]]:
        (found,) = self.tokenized([item], self.cuts())
        return found

    def run(self, rows: list[Row]) -> list[Judged]:
        return self.start(rows)()

    def stream(self, items: Iterable[Text]) -> Iterator[Answer]:
        with self.cuts().told() as cuts:
            yield from self.counted(items, cuts)

    def counted(self, items: Iterable[Text], cuts: Cuts) -> Iterator[Answer]:
        """As `stream`, for whoever keeps the account of long texts himself."""
        for context, judged in answered(self.loaded, items, lambda some: list(self.tokenized(some, cuts)), self.start):
            yield self.decode(context, judged)


class PairedTask(Task[tuple[str, str], Answer]):
    """A task about two texts, called with one of each, with as many of each, or with (first, second) pairs."""

    names: ClassVar[tuple[str, str]]  # of the two texts, for people

    def is_one(self, given: object) -> bool:
        return isinstance(given, tuple)

    def from_file(self, rows: RowReader) -> Iterable[object]:
        return pairs(rows)

    def from_table(self, table: Table) -> Iterable[object]:
        return pairs(as_rows(table))

    def checked(self, item: object, where: str) -> tuple[str, str]:
        first, second = self.names
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise InputError(
                f"{where} is {described(item)}; a pair ({first}, {second}) was wanted.",
                f"Pass pairs, or the {first}s and the {second}s as two lists.",
            )
        return checked_text(item[0], f"{where}, the {first},"), checked_text(item[1], f"{where}, the {second},")

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
        if second is None:
            if isinstance(first, str):
                raise InputError(
                    f"{self.name} was given a {names[0]} without a {names[1]}.",
                    f"Pass the {names[1]} as well, or ({names[0]}, {names[1]}) pairs.",
                )
            return first
        if isinstance(first, tuple) and isinstance(second, tuple):
            first, second = list(first), list(second)
        several = [not isinstance(one, tuple) and is_collection(one) for one in (first, second)]
        for name, value, others in zip(names, (first, second), reversed(several), strict=True):
            if isinstance(value, str) and others:
                raise InputError(
                    f"{self.name} was given one {name} and several of the other.",
                    f"Repeat the {name} for each of them, or pass ({names[0]}, {names[1]}) pairs.",
                )
        if isinstance(first, Iterator) or isinstance(second, Iterator):
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
    if not isinstance(values, Iterable) or not is_collection(values):
        raise InputError(f"The {name}s are {described(values)}; a list or an iterator was wanted.")
    return values


# -- checks ------------------------------------------------------------------------------------------------------------


def is_collection(given: object) -> bool:
    """Several items: not one text, bytes or a dictionary."""
    return not isinstance(given, (str, bytes, bytearray, dict)) and (isinstance(given, Iterable) or is_table(given))


def checked_text(item: object, where: str) -> str:
    if not isinstance(item, str):
        raise InputError(
            f"{where} is {described(item)}; a string was wanted.", "Decode bytes, and leave out or fill in None."
        )
    return item


def checked_text_or_pair(item: object, where: str) -> TextOrPair:
    """A string, or two of them as a tuple (from a list of two as well, as JSON has them)."""
    match item:
        case str():
            return item
        case [str() as first, str() as second] if isinstance(item, (tuple, list)):
            return first, second
        case tuple() | list():
            parts = ", ".join(type(part).__name__ for part in item[:4])
            raise InputError(
                f"{where} is a {type(item).__name__} of {len(item)} ({parts}); a pair is two strings.",
                "Pass (text, second text) for a pair, and a list for several texts.",
            )
    raise InputError(
        f"{where} is {described(item)}; a string or a pair (text, second text) was wanted.",
        "Decode bytes, and leave out or fill in None.",
    )


def described(item: object) -> str:
    """What something is, for an error: its type and, if it is short, its value."""
    if item is None:
        return "None"
    shown = repr(item)
    return f"{type(item).__name__} {shown}" if len(shown) <= 40 else f"of type {type(item).__name__}"


# -- a task as one function --------------------------------------------------------------------------------------------


class TaskFunction(Protocol[Item_contra, Answer, P]):
    """A function that makes a task and calls it once: the answers have the shape of what is given."""

    @overload
    def __call__(self, texts: Streamed[Item_contra], *args: P.args, **settings: P.kwargs) -> Iterator[Answer]: ...

    @overload
    def __call__(self, texts: Item_contra, *args: P.args, **settings: P.kwargs) -> Answer: ...

    @overload
    def __call__(self, texts: Collection[Item_contra], *args: P.args, **settings: P.kwargs) -> list[Answer]: ...


def function_of(
    make: Callable[P, Task[Item, Answer]], name: str, *, first: str = "texts", positional: int = 0
) -> TaskFunction[Item, Answer, P]:
    """`name(texts, model=…, **settings)` is `make(model, **settings)(texts)`.

    Its parameters, defaults and description are the class's; all of them are given by name, but for `positional`.
    """

    def call(*args: object, **settings: object) -> object:
        try:
            given = call_signature.bind(*args, **settings).arguments
        except TypeError as error:
            raise TypeError(f"{name}(): {error}") from None
        items = given.pop(first)
        return make(**given)(items)  # type: ignore[call-arg]  # bound just now, to the parameters of `make`

    call.__name__ = call.__qualname__ = name
    call.__module__ = make.__module__
    call_signature = described_as(call, make, [inspect.Parameter(first, _EITHER)], positional)
    return cast("TaskFunction[Item, Answer, P]", call)


_EITHER, _NAMED = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY


def described_as(
    call: Callable[..., object],
    make: Callable[..., object],
    given: Sequence[inspect.Parameter] = (),
    positional: int = 0,
) -> inspect.Signature:
    """Let help and editors see, on the function that calls `make`, its own parameters (or those given) and make's."""
    own = given or [one for one in inspect.signature(call).parameters.values() if one.kind in (_EITHER, _NAMED)]
    settings = [
        setting if number < positional else setting.replace(kind=_NAMED)
        for number, setting in enumerate(inspect.signature(make).parameters.values())
    ]
    signature = inspect.Signature(sorted([*own, *settings], key=lambda one: one.kind))
    call.__dict__["__signature__"] = signature
    call.__doc__ = make.__doc__
    return signature
