"""Many HTTP clients in one cheap loop: raw keep-alive connections that send prepared bytes.

A load generator shares the processor with the server it measures, so it does as little as it can: requests are bytes
made beforehand, responses are cut out by their Content-Length and not parsed, and every connection is an asyncio
protocol without a task of its own. Each connection has one request under way at a time, as a client that waits for its
answer has.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back for the request numbered `index`; `status` 0 means that the connection broke."""

    index: int
    status: int
    body: bytes
    seconds: float


@dataclass(frozen=True)
class Load:
    """All replies in the order of the requests, and how long it took."""

    replies: tuple[Reply, ...]
    seconds: float

    @property
    def rate(self) -> float:
        """Requests a second."""
        return len(self.replies) / self.seconds

    @property
    def failed(self) -> list[Reply]:
        return [reply for reply in self.replies if reply.status != 200]

    def percentile(self, percent: float) -> float:
        """Milliseconds."""
        return float(np.percentile([reply.seconds for reply in self.replies], percent)) * 1000


def post(path: str, body: Any, *, host: str = "127.0.0.1", headers: dict[str, str] | None = None) -> bytes:
    """A request as bytes."""
    data = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", f"Host: {host}", "Content-Type: application/json"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    lines.append(f"Content-Length: {len(data)}")
    return "\r\n".join([*lines, "", ""]).encode() + data


def run_load(host: str, port: int, requests: Sequence[bytes], *, clients: int = 64, limit: float = 600) -> Load:
    """Send all requests from `clients` connections; each takes the next one when it has its answer."""
    return asyncio.run(asyncio.wait_for(_run(host, port, requests, clients), limit))


async def _run(host: str, port: int, requests: Sequence[bytes], clients: int) -> Load:
    loop = asyncio.get_running_loop()
    replies: list[Reply] = []
    waiting = iter(enumerate(requests))
    done = [loop.create_future() for _ in range(min(clients, len(requests)))]
    lines = [_Line(waiting, replies, end) for end in done]
    for line in lines:
        await loop.create_connection(partial(_same, line), host, port)
    started = time.perf_counter()
    for line in lines:
        line.send_next()
    await asyncio.gather(*done)
    seconds = time.perf_counter() - started
    return Load(tuple(sorted(replies, key=lambda reply: reply.index)), seconds)


def _same(line: _Line) -> _Line:
    return line


class _Line(asyncio.Protocol):
    """One client: sends, waits for the whole answer, sends the next."""

    def __init__(self, waiting: Iterator[tuple[int, bytes]], replies: list[Reply], end: asyncio.Future[None]) -> None:
        self.waiting, self.replies, self.end = waiting, replies, end
        self.buffer = bytearray()
        self.body_at = self.whole = self.status = 0
        self.index = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def send_next(self) -> None:
        following = next(self.waiting, None)
        if following is None:
            self.index = -1
            self.transport.close()
            return
        self.index, request = following
        self.buffer.clear()
        self.whole = 0
        self.started = time.perf_counter()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if not self.whole and not self._read_head():
            return
        if len(self.buffer) >= self.whole:
            seconds = time.perf_counter() - self.started
            body = bytes(self.buffer[self.body_at : self.whole])
            self.replies.append(Reply(self.index, self.status, body, seconds))
            self.send_next()

    def _read_head(self) -> bool:
        at = self.buffer.find(b"\r\n\r\n")
        if at < 0:
            return False
        head = bytes(self.buffer[:at]).lower()
        length = head.find(b"content-length:")
        if length < 0:
            raise ValueError(f"a response without Content-Length: {head!r}")
        self.status = int(head[9:12])
        self.body_at = at + 4
        self.whole = self.body_at + int(head[length + 15 :].split(b"\r\n", 1)[0])
        return True

    def connection_lost(self, error: Exception | None) -> None:
        if self.index >= 0:  # it broke while an answer was due
            self.replies.append(Reply(self.index, 0, b"", time.perf_counter() - self.started))
        if not self.end.done():
            self.end.set_result(None)


def texts_of(count: int, *, seed: int = 0, words: Sequence[str] | None = None) -> list[str]:
    """`count` different texts of 4 to 40 words, about as long as sentences are; the number makes each unique."""
    chance = np.random.default_rng(seed)
    known = list(words or _WORDS.split())
    lengths = np.clip(chance.lognormal(2.6, 0.5, size=count).astype(int), 4, 40)
    return [f"{n} " + " ".join(chance.choice(known, size=length)) for n, length in enumerate(lengths)]


class OneClient:
    """A client that blocks: for the latency of a single text, one request after another."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request: bytes) -> tuple[int, bytes]:
        """Status and body."""
        self.socket.sendall(request)
        data = b""
        while (at := data.find(b"\r\n\r\n")) < 0:
            data += self._more()
        head = data[:at].lower()
        whole = at + 4 + int(head[head.index(b"content-length:") + 15 :].split(b"\r\n", 1)[0])
        while len(data) < whole:
            data += self._more()
        return int(head[9:12]), data[at + 4 :]

    def _more(self) -> bytes:
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError("the server closed the connection")
        return data

    def close(self) -> None:
        self.socket.close()


def bodies(load: Load) -> Iterable[Any]:
    """Every reply's JSON, in the order of the requests."""
    return (json.loads(reply.body) for reply in load.replies)


_WORDS = """the of and to in a is was he for it with as his on be at by had not are but from or have an they which one
you were her all she there would their we him been has when who will more no if out so said what up its about into than
them can only other new some could time these two may then do first any my now such like our over man me even most made
after also did many before must through back years where much your way well down should because each just those people
how too little state good very make world still own see men work long get here between both life being under never day
same another know while last might us great old year off come since against go came right used take three river music
garden winter market teacher engine letter bridge island doctor forest captain kitchen planet window summer"""
