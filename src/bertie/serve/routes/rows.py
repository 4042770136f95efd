"""The routes of the tasks that turn items into rows, made of their declarations in `bertie.serve.tasks`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Any, TypeVar

import msgspec

from bertie.answers import TASK_ROUTES
from bertie.running.rows import Row, TextOrPair
from bertie.serve.bodies import encode_answer
from bertie.serve.routes import Route
from bertie.serve.runners import Options, RowRunner
from bertie.serve.schemas import Answer, Request, answer_of
from bertie.serve.service import Call, text_size
from bertie.serve.tasks import TASKS, RowRoute

T = TypeVar("T")
A = TypeVar("A")


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

    def rows_of(first: int, some: Sequence[TextOrPair]) -> list[tuple[Any, list[Row]]]:
        return [runner.prepared(made, options, item, number, longest) for number, item in enumerate(some, first)]

    prepared = await call.each(items, rows_of, sizes=sizes)
    call.cuts.count(sum(any(row.is_cut for row in own) for _, own in prepared), len(prepared))
    rows = [row for _, own in prepared for row in own]
    lengths = [len(row) for row in rows]
    if route is not None and route.answer_bytes is not None:
        call.reserve(route.answer_bytes(made, sum(lengths)), route.remedy)
    outputs = iter(await call.compute(model, runner.lane(made), rows, lengths))

    def decoded(_: int, some: Sequence[tuple[Any, list[Row]]]) -> list[msgspec.Raw]:
        found = []
        for context, own in some:
            one = encode_answer(show(made.decode(context, list(islice(outputs, len(own))))))
            if route is not None and route.answer_bytes is None:
                call.reserve(len(one), route.remedy)
            found.append(msgspec.Raw(one))
        return found

    results: list[Any] = await call.each(prepared, decoded, sizes=sizes)
    return Answer(model.name, results, call.usage())


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


def make_routes() -> list[Route[Request]]:
    return [make_route(task.name, task.route) for task in TASKS.values() if task.route is not None]
