"""`Client`: asks and waits. Batches of a list or stream are under way side by side, in a few threads."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, count, islice
from typing import Any

from bertie.client.requests import Call
from bertie.client.tasks import A, I, L, Plan, TaskMethods, shaped


class Client(TaskMethods):
    """A server's tasks, asked and waited for. Safe to use from several threads; close it, or use it in a `with`."""

    def __init__(self, url: str | None = None, **settings: Any) -> None:
        super().__init__(url, **settings)
        self._http = self._httpx.Client(**self._connection(10))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, call: Call[A]) -> A:
        for attempt in count(1):
            try:
                response = self._http.request(call.method, call.path, content=call.content)
            except self._httpx.TransportError as problem:
                pause = self._pause_after(problem, attempt)
            else:
                if response.status_code == 200:
                    break
                pause = self._pause_for(response, attempt)
            time.sleep(pause)
        return call.answer(response.content)

    def _asked(self, given: Any, plan: Plan[I, A, L]) -> A | L | Iterator[A]:
        shape, items = shaped(given, plan)
        if shape == "one":
            return self._send(plan.make(items))[0]
        stream = self._stream(items, plan)
        return stream if shape == "stream" else plan.finish(list(stream))

    def _all(self, plan: Plan[I, A, L]) -> L:
        if plan.items is None:
            return plan.finish(self._send(plan.make([])))
        return plan.finish(list(self._stream(plan.items, plan)))

    def _stream(self, items: Iterable[I], plan: Plan[I, A, L]) -> Iterator[A]:
        """Answers in the order of the items."""
        for place, answer in enumerate(self._in_order(items, plan)):
            yield plan.number(place, answer)

    def _in_order(self, items: Iterable[I], plan: Plan[I, A, L]) -> Iterator[A]:
        """At most `concurrency` batches are read ahead. A single batch needs no thread."""
        chunks = self._chunks(items)
        first, second = next(chunks, None), next(chunks, None)
        if first is None or second is None:
            yield from self._send(plan.make(first)) if first else []
            return
        chunks = chain([first, second], chunks)
        with ThreadPoolExecutor(self.concurrency, thread_name_prefix="bertie-client") as threads:
            waiting: deque[Future[list[A]]] = deque()
            try:
                while True:
                    for chunk in islice(chunks, self.concurrency - len(waiting)):
                        waiting.append(threads.submit(self._send, plan.make(chunk)))
                    if not waiting:
                        return
                    yield from waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()
