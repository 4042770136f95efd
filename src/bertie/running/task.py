"""What a task is: items in, answers out, in the shape that was given; and the function that is a task in one call.

A single item gives one answer, a list (or any other collection) a list in its order, an iterator an iterator that
reads only a little ahead of what it gives; a file, given as a `Path`, is such a stream too. A task says how a *stream*
of items is answered; the shapes are here, once. Most tasks judge rows, and are a `RowTask`: items → rows → what the
model says of each row → an answer. Tasks about two texts are in paired.py.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from operator import length_hint
from os import PathLike
from types import GenericAlias
from typing import (
    Any,
    ClassVar,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeGuard,
    TypeVar,
    cast,
    get_args,
    overload,
)

import torch

from bertie.data import Reader, RowReader, as_rows, choose_pair, pairs, read_rows, texts
from bertie.data.lists import Table, is_table, listed, text_columns
from bertie.data.rows import estimated_rows
from bertie.errors import DataError, InputError
from bertie.model import BertPreTrainedModel
from bertie.running.open import ModelLike, OpenModel, open_model
from bertie.running.progress import with_progress
from bertie.running.rows import Cuts, Long, Reading, Row, Sliding, TextOrPair, readings
from bertie.running.stream import answered, run_in_order, windows_ahead
from bertie.text import BertTokenizer

T = TypeVar("T")
Item = TypeVar("Item")
Answer = TypeVar("Answer")
Item_contra = TypeVar("Item_contra", contravariant=True)
Text = TypeVar("Text", bound=str | tuple[str, ...])
Whole = TypeVar("Whole", bound=TextOrPair)
Context = TypeVar("Context")
Judged = TypeVar("Judged")
P = ParamSpec("P")

Streamed = Iterator[Item] | Reader[Item] | PathLike[str]
Shape = Literal["one", "list", "stream"]


class RunSettings(TypedDict, total=False):
    """What every task takes: the tokenizer of a model object, where and in which type it runs, a bar for long work."""

    tokenizer: BertTokenizer | None
    device: torch.device | str | None
    dtype: torch.dtype | str | None
    progress: bool | None


class Task(Generic[Item, Answer]):
    """Items in, answers out. A task has a `name`, says how a stream is answered and, if not texts, what an item is."""

    name: ClassVar[str]
    loaded: OpenModel
    single: ClassVar[tuple[type, ...]] = (str,)  # what is one item, and not a collection of them
    progress: bool | None = None  # a bar for long work; by default on a terminal

    def open(
        self,
        model: ModelLike | None,
        kind: type[BertPreTrainedModel],
        settings: RunSettings,
        *,
        default: Callable[[], str] | None = None,
        **construct: Any,
    ) -> None:
        """Open the model, one of class `kind`, as `loaded`; `default` names one where none is given."""
        for name in settings.keys() - RunSettings.__annotations__.keys():
            raise TypeError(f"{type(self).__name__}.__init__() got an unexpected keyword argument {name!r}")
        self.progress = settings.pop("progress", None)
        self.loaded = open_model(model, kind, task=self.name, default=default, **settings, **construct)

    def stream(self, items: Iterable[Item]) -> Iterator[Answer]:
        """The answers, in order, reading `items` a little ahead."""
        raise NotImplementedError

    def alone(self, item: Item) -> Answer:
        """The answer to a single item."""
        return next(iter(self.stream([item])))

    def checked(self, item: object, where: str) -> Item:
        """The item as `stream` takes it, or an error that says what is wrong at `where`."""
        raise NotImplementedError

    def is_one(self, given: object) -> bool:
        """Is this a single item, not a collection of them?"""
        return isinstance(given, self.single)

    def from_file(self, rows: RowReader) -> Iterable[object]:
        """The items in the rows of a file."""
        return texts(rows)

    def from_table(self, table: Table) -> Iterable[object]:
        """The items of a pandas, polars or Arrow table or a `datasets.Dataset`: its one column of text."""
        return listed(table)

    def shaped(self, given: object) -> tuple[Shape, Iterable[Item]]:
        """What was given, and its items, checked: all of a list before any of it is worked on, a stream's as they
        come."""
        match given:
            case PathLike():
                given = iter(self.from_file(read_rows(given)))
            case Reader():
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
        answers = map(self.alone, items) if shape == "one" else self.stream(items)
        show = wants_bar(self.progress if progress is None else progress)
        total = expected(given if shape == "stream" else items) if show else None
        answers = with_bar(answers, self.name, total, show)
        if shape == "stream":
            return answers
        found = list(answers)
        return found[0] if shape == "one" else found


def wants_bar(show: bool | None) -> bool:
    """Whether a bar is shown: by default, on a terminal and in notebooks."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules if show is None else show


def expected(given: object) -> int | None:
    """How many items there are, or about how many, where that can be told."""
    return (estimated_rows(given) if isinstance(given, PathLike) else length_hint(given)) or None


def with_bar(items: Iterable[T], what: str, total: int | None, show: bool | None) -> Iterator[T]:
    """The same items, with a progress bar where one is wanted."""
    return with_progress(items, what, total) if wants_bar(show) else iter(items)


class TextTask(Task[str, Answer]):
    """A task whose items are texts."""

    def checked(self, item: object, where: str) -> str:
        return checked_text(item, where)


class PairTask(Task[TextOrPair, Answer]):
    """A task whose items are texts or pairs. A tuple is always one pair; inside a list, a list of two is one too."""

    single: ClassVar[tuple[type, ...]] = (str, tuple)

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

    def alone(self, item: Text) -> Answer:
        """A single item needs no stream; most are one row."""
        with self.cuts().told() as cuts:
            ((context, rows),) = self.tokenized([item], cuts)
            if len(rows) == 1:
                return self.decode(context, self.run(rows))
            model = self.loaded
            judged = run_in_order(rows, self.start, budget=model.budget, ahead=windows_ahead(model.device))
            return self.decode(context, list(judged))

    def stream(self, items: Iterable[Text]) -> Iterator[Answer]:
        with self.cuts().told() as cuts:
            yield from self.counted(items, cuts)

    def counted(self, items: Iterable[Text], cuts: Cuts) -> Iterator[Answer]:
        """As `stream`, for callers that count long texts themselves."""
        for context, judged in answered(self.loaded, items, lambda some: list(self.tokenized(some, cuts)), self.start):
            yield self.decode(context, judged)


class ScoringTask(RowTask[Whole, Reading, Judged, Answer], Generic[Whole, Judged, Answer]):
    """A task that judges texts or pairs whole, read in one row that is cut, or in windows, as `long` says."""

    long: Long
    stride: int
    sliding: ClassVar[Sliding] = "longer"

    def cuts(self) -> Cuts:
        return Cuts(self.long, self.loaded.max_length)

    def tokenized(self, items: list[Whole], cuts: Cuts) -> Iterator[tuple[Reading, list[Row]]]:
        length = self.loaded.max_length
        return readings(self.loaded.tokenizer, items, cuts, max_length=length, stride=self.stride, sliding=self.sliding)


# -- checks ------------------------------------------------------------------------------------------------------------


def is_collection(given: object) -> TypeGuard[Iterable[object]]:
    """Several items: not one text, bytes or a dictionary."""
    match given:
        case str() | bytes() | bytearray() | dict():
            return False
        case Iterable():
            return True
    return is_table(given)


def checked_text(item: object, where: str) -> str:
    if not isinstance(item, str):
        raise InputError(
            f"{where} is {described(item)}; it must be a string.", "Decode bytes, and remove or replace None."
        )
    return item


def checked_text_or_pair(item: object, where: str) -> TextOrPair:
    """A string, or two of them as a tuple (from a list of two as well, as JSON has them)."""
    match item:
        case str():
            return item
        case tuple() | list():
            match item:
                case [str() as first, str() as second]:
                    return first, second
            parts = ", ".join(type(part).__name__ for part in item[:4])
            raise InputError(
                f"{where} is a {type(item).__name__} of {len(item)} ({parts}); a pair is two strings.",
                "Pass (text, second text) for a pair, and a list for several texts.",
            )
    raise InputError(
        f"{where} is {described(item)}; it must be a string or a pair (text, second text).",
        "Decode bytes, and remove or replace None.",
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
    # A task's class names the types of its items and its answers: `RowTask[str, …, Filled]`, `TextTask[Filled]`.
    *items_first, answer = get_args(vars(make)["__orig_bases__"][0])
    item = items_first[0] if items_first else str
    kinds = item | GenericAlias(Collection, item) | GenericAlias(Iterator, item) | PathLike[str]
    answers = answer | GenericAlias(list, answer) | GenericAlias(Iterator, answer)
    call_signature = described_as(
        call, make, [inspect.Parameter(first, _EITHER, annotation=kinds)], positional, answers
    )
    return cast("TaskFunction[Item, Answer, P]", call)


# What help() says of the parameters that all tasks have.
_EVERY_TASK = {
    "texts": "one text, which gives one answer; a list, which gives a list; or an iterator, which gives an iterator.",
    "prompts": "one text, which gives one answer; a list, which gives a list; or an iterator, which gives an iterator.",
    "model": "a folder, a hub name, or a model object with its `tokenizer`. Tasks that have a default model use it.",
    "tokenizer": "replaces the one beside the model's files; a model object needs one.",
    "device": '"cpu", "cuda", "cuda:1" …; by default a GPU if PyTorch finds one.',
    "dtype": '"float32", "bfloat16", "float16", "int8" (CPU) or "fp8" (GPU); float32 by default.',
    "progress": "True shows a progress bar, False hides it; by default it appears when a call takes long.",
}
_EITHER, _NAMED = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY


def described_as(
    call: Callable[..., object],
    make: Callable[..., object],
    given: Sequence[inspect.Parameter] = (),
    positional: int = 0,
    answer: object = inspect.Signature.empty,
) -> inspect.Signature:
    """Let help and editors see, on the function that calls `make`, its own parameters (or those given) and make's."""
    own = given or [one for one in inspect.signature(call).parameters.values() if one.kind in (_EITHER, _NAMED)]
    settings = [
        setting if number < positional else setting.replace(kind=_NAMED)
        for number, setting in enumerate(inspect.signature(make).parameters.values())
        if setting.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    if len(settings) < len(inspect.signature(make).parameters):  # the rest is `RunSettings`
        hints = {name: hint.__forward_arg__ for name, hint in RunSettings.__annotations__.items()}
        settings += [inspect.Parameter(name, _NAMED, default=None, annotation=hint) for name, hint in hints.items()]
    if not given:
        answer = inspect.signature(call).return_annotation
    signature = inspect.Signature(sorted([*own, *settings], key=lambda one: one.kind), return_annotation=answer)
    call.__dict__["__signature__"] = signature
    call.__doc__ = f"{inspect.getdoc(make)}\n\n" + "".join(
        f"- `{name}`: {said}\n" for name, said in _EVERY_TASK.items() if name in signature.parameters
    )
    return signature
