"""`AsyncClient`: the same questions for asyncio. One text and lists give awaitables, iterators async iterators."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

from bertie.client.requests import Call
from bertie.client.synchronous import encoded, import_httpx, judged, read_response
from bertie.client.tasks import Asking, Make, checked_item, is_stream
from bertie.data.lists import listed
from bertie.errors import BertieError


class AsyncClient(Asking):
    """A server's tasks for asyncio: `await client.embed(texts)`. Close it, or use it in an `async with`."""

    def __init__(self, url: str | None = None, **settings: Any) -> None:
        super().__init__(url, **settings)
        httpx = import_httpx()
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers=self._headers,
            timeout=httpx.Timeout(self.timeout, connect=10.0, pool=None),
            limits=httpx.Limits(max_connections=max(self.concurrency, 100)),
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _send(self, call: Call[Any]) -> Any:
        httpx = import_httpx()
        attempt = 1
        while True:
            try:
                response = await self._http.request(call.method, call.path, content=encoded(call.body))
            except httpx.TransportError as problem:
                pause, outcome = judged(self, problem, attempt)
            else:
                pause, outcome = read_response(self, call, response, attempt)
            if pause is None:
                if isinstance(outcome, BertieError):
                    raise outcome
                return outcome
            await asyncio.sleep(pause)
            attempt += 1

    def _answers(
        self,
        given: Any,
        make: Make,
        *,
        one: bool,
        finish: Callable[[list[Any]], Any] = list,
        number: Callable[[int, Any], Any] | None = None,
    ) -> Any:
        if one:
            return self._first(make([checked_item(given, 0)]))
        if is_stream(given):
            return self._stream(given, make, number)
        items = [checked_item(item, place) for place, item in enumerate(listed(given))]
        return self._list(self._stream(items, make, number), finish)

    async def _first(self, call: Call[list[Any]]) -> Any:
        return (await self._send(call))[0]

    async def _list(self, stream: AsyncIterator[Any], finish: Callable[[list[Any]], Any]) -> Any:
        return finish([answer async for answer in stream])

    async def _stream(
        self, items: Iterable[Any] | AsyncIterable[Any], make: Make, number: Callable[[int, Any], Any] | None
    ) -> AsyncIterator[Any]:
        """Answers in the order of the items; at most `concurrency` batches are read ahead."""
        chunks = _chunked(items, self.batch_size)
        waiting: deque[asyncio.Task[list[Any]]] = deque()
        more, place = True, 0
        try:
            while more or waiting:
                while more and len(waiting) < self.concurrency:
                    chunk = await anext(chunks, None)
                    more = chunk is not None
                    if chunk is not None:
                        waiting.append(asyncio.create_task(self._send(make(chunk))))
                if waiting:
                    for answer in await waiting.popleft():
                        yield answer if number is None else number(place, answer)
                        place += 1
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    def _then(self, value: Any, change: Callable[[Any], Any]) -> Any:
        async def changed(awaited: Awaitable[Any]) -> Any:
            return change(await awaited)

        return changed(value)


async def _chunked(items: Iterable[Any] | AsyncIterable[Any], size: int) -> AsyncIterator[list[Any]]:
    """Lists of `size` checked items; the last may be shorter."""
    chunk: list[Any] = []
    number = 0
    if isinstance(items, AsyncIterable):
        async for item in items:
            chunk.append(checked_item(item, number))
            number += 1
            if len(chunk) == size:
                yield chunk
                chunk = []
    else:
        for number, item in enumerate(items):
            chunk.append(checked_item(item, number))
            if len(chunk) == size:
                yield chunk
                chunk = []
    if chunk:
        yield chunk
