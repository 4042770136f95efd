"""Load from several processes: as many clients as a GPU serves are more than one process of Python can be.

Each process has its part of the connections and one loop over them (epoll). A connection has one request under way at
a time. Requests are bytes made beforehand; an answer is cut out by its Content-Length and thrown away, except a few
that the caller may look at. All processes begin together, and what ends within the measured time counts.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import select
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

_WARM_SECONDS = 1.0
_KEPT = 20  # answers of a process that come back


@dataclass(frozen=True)
class ManyLoad:
    """Answers in the measured time: how many of each status, how long the good ones took, and a few of them whole."""

    seconds: float
    statuses: dict[int, int]
    times: np.ndarray[Any, np.dtype[np.float64]]
    kept: list[tuple[int, bytes]]  # the number of a request, and its answer
    cpu_micros: float  # of the processor, for making a request and taking its answer

    @property
    def rate(self) -> float:
        """Good answers a second."""
        return len(self.times) / self.seconds

    @property
    def failed(self) -> int:
        return sum(count for status, count in self.statuses.items() if status != 200)

    def percentile(self, percent: float) -> float:
        """Milliseconds."""
        return float(np.percentile(self.times, percent)) * 1000 if len(self.times) else float("nan")


def run_many(
    port: int, requests: Sequence[bytes], *, clients: int, processes: int, seconds: float, host: str = "127.0.0.1"
) -> ManyLoad:
    """`clients` connections from several processes send the requests again and again for some seconds."""
    context = multiprocessing.get_context("fork")
    shares = [clients // processes + (n < clients % processes) for n in range(processes)]
    began = time.time() + 0.5
    children = []
    for number, share in enumerate(share for share in shares if share):
        own, theirs = context.Pipe(duplex=False)
        arguments = (theirs, host, port, requests, number * 7919, share, began, seconds)
        child = context.Process(target=_load, args=arguments, daemon=True)
        child.start()
        children.append((child, own))
    statuses: dict[int, int] = {}
    times, kept = [], []
    used = 0.0
    for child, own in children:
        if not own.poll(seconds + 60):
            raise TimeoutError("a process that makes load did not come back")
        found, seen, some, cpu = own.recv()
        child.join(10)
        used += cpu
        times.append(np.frombuffer(found))
        kept += some
        for status, count in seen.items():
            statuses[status] = statuses.get(status, 0) + count
    answers = sum(statuses.values())
    return ManyLoad(seconds, statuses, np.concatenate(times), kept, 1e6 * used / max(1, answers))


def _load(
    out: Connection, host: str, port: int, requests: Sequence[bytes], first: int, clients: int, began: float,
    seconds: float,
) -> None:  # fmt: skip
    poll = select.epoll()
    lines = {}
    for _ in range(clients):
        sock = socket.create_connection((host, port), timeout=30)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        lines[sock.fileno()] = _Line(sock)
        poll.register(sock.fileno(), select.EPOLLIN)
    time.sleep(max(0.0, began - time.time()))
    clock = time.perf_counter
    start = clock() + _WARM_SECONDS
    end = start + seconds
    following = first
    for line in lines.values():
        line.send(requests[following % len(requests)], following % len(requests), clock())
        following += 1
    times: list[float] = []
    statuses: dict[int, int] = {}
    kept: list[tuple[int, bytes]] = []
    buffer = bytearray(1 << 18)
    cpu: float | None = None  # at the beginning of the measured time
    while (now := clock()) < end:
        if cpu is None and now >= start:
            cpu = time.process_time()
        for number, _ in poll.poll(end - now):
            line = lines[number]
            if not line.receive(buffer, len(kept) < _KEPT):
                continue
            now = clock()
            if now >= start:
                if line.status == 200:
                    times.append(now - line.sent)
                statuses[line.status] = statuses.get(line.status, 0) + 1
                if len(kept) < _KEPT and line.status == 200 and line.body:
                    kept.append((line.index, bytes(line.body)))
            if line.broken:
                poll.unregister(number)
                continue
            line.send(requests[following % len(requests)], following % len(requests), now)
            following += 1
    out.send((np.array(times).tobytes(), statuses, kept, time.process_time() - (cpu or 0.0)))


class _Line:
    """One connection. `status` 0 means that it broke."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.broken = False

    def send(self, request: bytes, index: int, now: float) -> None:
        self.index, self.sent = index, now
        self.missing = -1
        with contextlib.suppress(OSError):  # the answer is the end of the connection
            self.sock.sendall(request)

    def receive(self, buffer: bytearray, keeps: bool) -> bool:
        """Whether the answer is here."""
        try:
            size = self.sock.recv_into(buffer)
        except OSError:
            size = 0
        if not size:
            self.status, self.broken = 0, True
            return True
        if self.missing < 0:  # a header comes in one piece
            end = buffer.index(b"\r\n\r\n", 0, size) + 4
            at = buffer.find(b"content-length:", 0, end)
            if at < 0:  # in other letters
                at = buffer[:end].lower().index(b"content-length:")
            self.status = int(buffer[9:12])
            self.missing = end + int(buffer[at + 15 : buffer.index(b"\r\n", at)])
            self.body = bytearray(buffer[end:size]) if keeps else bytearray()
        elif self.body:
            self.body += buffer[:size]
        self.missing -= size
        return self.missing <= 0


def vectors_of(load: ManyLoad) -> list[tuple[int, np.ndarray[Any, np.dtype[np.float32]]]]:
    """The kept answers of /embed: the number of the request, and its vectors."""
    return [(number, np.array(json.loads(body), dtype=np.float32)) for number, body in load.kept]
