"""`AsyncClient`: the same questions for asyncio. One text and lists give awaitables, iterators async iterators."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Iterable
from itertools import count
from typing import Any

from bertie.client.requests import Call
from bertie.client.tasks import A, I, L, Plan, TaskMethods, checked_item, shaped


class AsyncClient(TaskMethods):
    """A server's tasks for asyncio: `await client.embed(texts)`. Close it, or use it in an `async with`."""

    def __init__(self, url: str | None = None, **settings: Any) -> None:
        super().__init__(url, **settings)
        self._http = self._httpx.AsyncClient(**self._connection(100, pool=None))

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _send(self, call: Call[A]) -> A:
        for attempt in count(1):
            try:
                response = await self._http.request(call.method, call.path, content=call.content)
            except self._httpx.TransportError as problem:
                pause = self._pause_after(problem, attempt)
            else:
                if response.status_code == 200:
                    break
                pause = self._pause_for(response, attempt)
            await asyncio.sleep(pause)
        return call.answer(response.content)

    def _asked(self, given: Any, plan: Plan[I, A, L]) -> Awaitable[A] | Awaitable[L] | AsyncIterator[A]:
        shape, items = shaped(given, plan)
        if shape == "one":
            return self._first(plan.make(items))
        return self._stream(items, plan) if shape == "stream" else self._list(items, plan)

    async def _all(self, plan: Plan[I, A, L]) -> L:
        if plan.items is None:
            return plan.finish(await self._send(plan.make([])))
        return await self._list(plan.items, plan)

    async def _first(self, call: Call[list[A]]) -> A:
        return (await self._send(call))[0]

    async def _list(self, items: Iterable[I], plan: Plan[I, A, L]) -> L:
        return plan.finish([answer async for answer in self._stream(items, plan)])

    async def _stream(self, items: Iterable[I] | AsyncIterable[I], plan: Plan[I, A, L]) -> AsyncIterator[A]:
        """Answers in the order of the items; at most `concurrency` batches are read ahead."""
        chunks = self._async_chunks(items)
        waiting: deque[asyncio.Task[list[A]]] = deque()
        more, place = True, 0
        try:
            while more or waiting:
                while more and len(waiting) < self.concurrency:
                    chunk = await anext(chunks, None)
                    more = chunk is not None
                    if chunk is not None:
                        waiting.append(asyncio.create_task(self._send(plan.make(chunk))))
                if waiting:
                    for answer in await waiting.popleft():
                        yield plan.number(place, answer)
                        place += 1
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _async_chunks(self, items: Iterable[I] | AsyncIterable[I]) -> AsyncIterator[list[I]]:
        """Lists of `batch_size` checked items; the last may be shorter."""
        if not isinstance(items, AsyncIterable):
            for chunk in self._chunks(items):
                yield chunk
            return
        chunk, number = [], 0
        async for item in items:
            chunk.append(checked_item(item, number))
            number += 1
            if len(chunk) == self.batch_size:
                yield chunk
                chunk = []
        if chunk:
            yield chunk
