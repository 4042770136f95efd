"""`Client`: asks and waits. Batches of a list or stream are under way side by side, in a few threads."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from typing import Any

from bertie.client.requests import Call
from bertie.client.retries import BUSY, refusal, retry_after, too_slow, unreachable
from bertie.client.tasks import Asking, Make, checked_item, is_stream
from bertie.data.lists import listed
from bertie.errors import BertieError, InputError, MissingExtra


class Client(Asking):
    """A server's tasks, asked and waited for. Safe to use from several threads; close it, or use it in a `with`."""

    def __init__(self, url: str | None = None, **settings: Any) -> None:
        super().__init__(url, **settings)
        httpx = import_httpx()
        self._http = httpx.Client(
            base_url=self.url,
            headers=self._headers,
            timeout=httpx.Timeout(self.timeout, connect=10.0),
            limits=httpx.Limits(max_connections=max(self.concurrency, 10)),
        )

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, call: Call[Any]) -> Any:
        attempt = 1
        while True:
            pause, outcome = self._try(call, attempt)
            if pause is None:
                if isinstance(outcome, BertieError):
                    raise outcome
                return outcome
            time.sleep(pause)
            attempt += 1

    def _try(self, call: Call[Any], attempt: int) -> tuple[float | None, Any]:
        """(None, the answer or the final error), or how long to wait before the next attempt."""
        httpx = import_httpx()
        try:
            response = self._http.request(call.method, call.path, content=encoded(call.body))
        except httpx.TransportError as problem:
            return judged(self, problem, attempt)
        return read_response(self, call, response, attempt)

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
            return self._send(make([checked_item(given, 0)]))[0]
        if is_stream(given):
            return self._stream(given, make, number)
        # All of a list is looked at before any of it is sent.
        items = [checked_item(item, place) for place, item in enumerate(listed(given))]
        return finish(list(self._stream(items, make, number)))

    def _stream(self, items: Iterable[Any], make: Make, number: Callable[[int, Any], Any] | None) -> Iterator[Any]:
        """Answers in the order of the items."""
        for place, answer in enumerate(self._in_order(items, make)):
            yield answer if number is None else number(place, answer)

    def _in_order(self, items: Iterable[Any], make: Make) -> Iterator[Any]:
        """At most `concurrency` batches are read ahead. A single batch needs no thread."""
        checked = (checked_item(item, place) for place, item in enumerate(items))
        chunks = iter(lambda: list(islice(checked, self.batch_size)), [])
        first, second = next(chunks, None), next(chunks, None)
        if first is None or second is None:
            yield from self._send(make(first)) if first else []
            return
        chunks = chain([first, second], chunks)
        with ThreadPoolExecutor(self.concurrency, thread_name_prefix="bertie-client") as threads:
            waiting: deque[Future[list[Any]]] = deque()
            try:
                while True:
                    for chunk in islice(chunks, self.concurrency - len(waiting)):
                        waiting.append(threads.submit(self._send, make(chunk)))
                    if not waiting:
                        return
                    yield from waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()

    def _then(self, value: Any, change: Callable[[Any], Any]) -> Any:
        return change(value)


def import_httpx() -> Any:
    try:
        import httpx
    except ImportError:
        raise MissingExtra("httpx", "serve", "Asking a server") from None
    return httpx


def encoded(body: dict[str, Any] | None) -> bytes | None:
    """JSON in ASCII, so that lone surrogates, which UTF-8 has no form for, reach the server as they are."""
    try:
        return None if body is None else json.dumps(body, allow_nan=False).encode()
    except ValueError as problem:
        raise InputError(f"This cannot be sent as JSON: {problem}.") from None


def judged(client: Asking, problem: Exception, attempt: int) -> tuple[float | None, Any]:
    """What follows from a connection that failed: a pause, or the final error."""
    httpx = import_httpx()
    if isinstance(problem, httpx.TimeoutException) and not isinstance(problem, httpx.ConnectTimeout):
        return None, too_slow(client.url, client.timeout)  # it may be working on it: asking again makes it worse
    if isinstance(problem, (httpx.UnsupportedProtocol, httpx.LocalProtocolError)):
        return None, unreachable(client.url, problem)
    pause = client.retrying.pause(attempt)
    return pause, unreachable(client.url, problem) if pause is None else None


def read_response(client: Asking, call: Call[Any], response: Any, attempt: int) -> tuple[float | None, Any]:
    """The answer in a response; a pause when the server is busy; its refusal otherwise."""
    try:
        payload = json.loads(response.content) if response.content else None
    except ValueError:
        payload = None
    if response.status_code == 200:
        return None, call.answer(payload)
    if response.status_code in BUSY:
        pause = client.retrying.pause(attempt, retry_after(response.headers))
        if pause is not None:
            return pause, None
    return None, refusal(response.status_code, payload, url=client.url)
