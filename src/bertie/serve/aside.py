"""What grows with a request, beside the event loop: whose turn it is there, and how much memory it may take."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from bertie.serve.failures import overloaded

if TYPE_CHECKING:
    from bertie.serve.service import Call

T = TypeVar("T")
_Step = tuple[float, int, Callable[[], Any], "Future[Any]"]  # when its request began, a number, the work


class HelperThreads:
    """A request's steps, in a few threads.

    Clients take turns, a step each; of one client, the request that began first is first. So it is at an end, or in the
    model's queue, before the next one takes memory, however many were sent at once.
    """

    def __init__(self, number: int) -> None:
        self._threads = ThreadPoolExecutor(number, thread_name_prefix="tokenize")
        self._lock = threading.Lock()
        self._numbers = count()
        self._waiting: dict[str, list[_Step]] = {}  # of each client, in the order of their turns

    async def run(self, call: Call, work: Callable[[], T]) -> T:
        future: Future[T] = Future()
        with self._lock:
            heappush(self._waiting.setdefault(call.who, []), (call.began, next(self._numbers), work, future))
        self._threads.submit(self._step)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _step(self) -> None:
        """Once for every step that was asked for."""
        with self._lock:
            client = next(iter(self._waiting))
            steps = self._waiting.pop(client)
            _, _, work, future = heappop(steps)
            if steps:
                self._waiting[client] = steps
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)


class Answers:
    """How large the answers are that are being made, so that all of them together do not fill the memory.

    What counts is reckoned before the work where it can be. A client that has no other large answer under way is never
    refused for those of others, and small answers are not counted.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[Call, int] = {}
        self._lock = threading.Lock()  # helper threads count, too

    def hold(self, call: Call) -> None:
        """Count a call's answer as it is reckoned now."""
        with self._lock:
            total = sum(self._held.values()) - self._held.get(call, 0) + call.answer_bytes
            if total > self._most and any(one.who == call.who for one in self._held if one is not call):
                raise overloaded("The answers that are being made fill the memory set aside for them.", retry_after=1)
            self._held[call] = call.answer_bytes

    def forget(self, call: Call) -> None:
        with self._lock:
            self._held.pop(call, None)
