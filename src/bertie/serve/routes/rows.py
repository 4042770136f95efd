"""The routes of the tasks that turn items into rows, made of their declarations in `bertie.serve.tasks`, and what runs
those tasks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, TypeVar, cast

import msgspec

from bertie.answers import TASK_ROUTES
from bertie.running.open import OpenModel
from bertie.running.rows import Row, TextOrPair
from bertie.running.task import RowTask
from bertie.serve.bodies import encode_answer
from bertie.serve.failures import too_large
from bertie.serve.queues import Lane
from bertie.serve.schemas import Answer, Request, answer_of
from bertie.serve.service import Call, Route, text_size

# Lanes that are kept, for a task whose options are part of its lane.
_MOST_LANES = 64

Options = Mapping[str, Any]  # of a task, as its constructor takes them
B = TypeVar("B", bound=Request)
T = TypeVar("T")
A = TypeVar("A")
AnyTask = RowTask[Any, Any, Any, Any]


class RowRunner:
    """A `RowTask`, made for every request and not kept: what a client sends as its labels must not stay here.

    `run` is the task's own where rows of requests with different options may share a batch. Otherwise `apart` gives
    what has to be the same in those that share one; None for a batch of its own. `repeats` is how often a text is read
    with these options.
    """

    def __init__(
        self,
        name: str,
        loaded: OpenModel,
        make: Callable[..., AnyTask],
        *,
        run: Callable[[list[Row]], Sequence[object]] | None = None,
        apart: Callable[[Options], object] | None = None,
        warm: str | tuple[str, str] | None = None,
        repeats: Callable[[Options], int] = lambda options: 1,
    ) -> None:
        self.name, self.loaded, self.make, self.repeats = name, loaded, make, repeats
        self._apart, self._warm = apart, warm
        self._shared = None if run is None else Lane(name, run)
        self._lanes: OrderedDict[object, Lane[Row, object]] = OrderedDict()

    def warm_up(self) -> None:
        if self._warm is not None:
            task = self.make(self.loaded)
            self.lane(task, {}).run(task.rows(self._warm)[1])

    def lane(self, task: AnyTask, options: Options) -> Lane[Row, object]:
        """The lane of a task with its options."""
        if self._shared is not None:
            return self._shared
        option = None if self._apart is None else self._apart(options)
        if option is None:
            return Lane(self.name, task.run)
        lane = self._lanes.setdefault(option, Lane(self.name, task.run))
        self._lanes.move_to_end(option)
        if len(self._lanes) > _MOST_LANES:
            self._lanes.popitem(last=False)
        return lane

    def prepared(
        self, task: AnyTask, options: Options, item: object, number: int, longest: int
    ) -> tuple[object, list[Row]]:
        """(what `decode` needs, rows) of an item. One of more than `longest` tokens is refused, before its tokens are
        made into Python's objects where it can be."""
        checked = task.checked(item, f"Input {number}")
        repeats = self.repeats(options)
        parts = (checked,) if isinstance(checked, str) else checked
        # A text that is not cut, or tokenized again for every label.
        whole = repeats > 1 or options.get("long", "windows") == "windows"
        if whole and sum(map(len, parts)) * repeats > longest:
            size = int(self.loaded.tokenizer.encode_flat(parts)[1].sum()) * repeats
            if size > longest:
                raise too_large(f"Input {number} takes {size} tokens; {longest} are allowed.")
        context, rows = task.rows(checked)
        if (size := sum(map(len, rows))) > longest:
            raise too_large(f"Input {number} takes {size} tokens; {longest} are allowed.")
        return context, rows


@dataclass(frozen=True, kw_only=True)
class RowRoute(Generic[B, A]):
    """The route of a task that turns items into rows. `show` gives an answer as it is sent.

    The size of an answer is counted before the work where it can be known (`answer_bytes`, from the task and the
    number of tokens), otherwise when it is there; `remedy` is what to do about one that is too large.
    """

    summary: str
    request: type[B]
    items: Callable[[B], Sequence[TextOrPair]]
    options: Callable[[B], Options]
    show: Callable[[A], object] = lambda answer: answer
    answer_bytes: Callable[[Any, int], int] | None = None
    remedy: str
    examples: Mapping[str, object]


async def run_rows(
    call: Call,
    task: str,
    name: str | None,
    items: Sequence[TextOrPair],
    options: Options,
    show: Callable[[A], T],
    route: RowRoute[Any, A] | None = None,
) -> Answer[T]:
    """The task's answers in JSON, its rows in batches with everyone's. Without a `route`, their size was counted."""
    model, runner = call.find(task, name, RowRunner)
    made = runner.make(runner.loaded, **options)
    longest, sizes = call.limits.text_tokens, list(map(text_size, items))

    def rows_of(first: int, some: Sequence[TextOrPair]) -> list[tuple[object, list[Row]]]:
        return [runner.prepared(made, options, item, number, longest) for number, item in enumerate(some, first)]

    prepared = await call.each(items, rows_of, sizes=sizes)
    call.cuts.count(sum(any(row.is_cut for row in own) for _, own in prepared), len(prepared))
    rows = [row for _, own in prepared for row in own]
    lengths = [len(row) for row in rows]
    if route is not None and route.answer_bytes is not None:
        call.reserve(route.answer_bytes(made, sum(lengths)), route.remedy)
    outputs = iter(await call.compute(model, runner.lane(made, options), rows, lengths))

    def decoded(_: int, some: Sequence[tuple[object, list[Row]]]) -> list[msgspec.Raw]:
        found = []
        for context, own in some:
            one = encode_answer(show(made.decode(context, list(islice(outputs, len(own))))))
            if route is not None and route.answer_bytes is None:
                call.reserve(len(one), route.remedy)
            found.append(msgspec.Raw(one))
        return found

    results = await call.each(prepared, decoded, sizes=sizes)
    return Answer(model.name, cast("list[T]", results), call.usage())  # their JSON


def make_route(task: str, declared: RowRoute[Request, Any]) -> Route[Request]:
    where = TASK_ROUTES[task]

    def handler(call: Call, body: Request) -> Awaitable[object]:
        items = declared.items(body)
        call.check_texts(items)
        return run_rows(call, task, body.model, items, declared.options(body), declared.show, declared)

    handler.__name__ = task
    return Route(
        where.path, handler, declared.summary, "Bertie", declared.request, answer_of(task, where.sent), timed=True,
        examples=declared.examples,
    )  # fmt: skip
