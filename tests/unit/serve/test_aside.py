"""Helper threads: clients take turns, and a request is done with before the next of its client takes memory."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import cast

import pytest

from bertie.serve.aside import HelperThreads
from bertie.serve.service import Call, Service


def call(client: str, began: float) -> Call:
    return Call(cast("Service", None), "1", "POST", "/tokenize", began, client=client)


def test_clients_take_turns_and_the_first_request_of_each_is_done_first() -> None:
    order: list[str] = []

    async def scenario() -> None:
        helpers, let_go = HelperThreads(1), threading.Event()
        busy = asyncio.create_task(helpers.run(call("c", 0.0), lambda: let_go.wait(10)))
        await asyncio.sleep(0.05)
        requests = [("a", 2), ("a", 1), ("b", 9)]  # the second began before the first
        steps = [
            helpers.run(one, partial(order.append, f"{one.client}{one.began:g}"))
            for one in [call(client, float(began)) for client, began in requests]
            for _ in range(3)
        ]
        tasks = [asyncio.create_task(step) for step in steps]
        await asyncio.sleep(0.05)
        let_go.set()
        await asyncio.gather(busy, *tasks)
        helpers.close()

    asyncio.run(scenario())
    assert order == ["a1", "b9", "a1", "b9", "a1", "b9", "a2", "a2", "a2"]


def test_what_goes_wrong_reaches_the_request_and_a_request_that_left_is_skipped() -> None:
    async def scenario() -> None:
        helpers, let_go, run = HelperThreads(1), threading.Event(), list[int]()
        with pytest.raises(ZeroDivisionError):
            await helpers.run(call("a", 0.0), lambda: 1 / 0)
        busy = asyncio.create_task(helpers.run(call("a", 0.0), lambda: let_go.wait(10)))
        await asyncio.sleep(0.05)
        left = asyncio.create_task(helpers.run(call("a", 1.0), lambda: run.append(1)))
        await asyncio.sleep(0.05)
        left.cancel()
        await asyncio.sleep(0)
        let_go.set()
        await busy
        assert await helpers.run(call("a", 2.0), lambda: "done") == "done"
        assert not run
        helpers.close()

    asyncio.run(scenario())
