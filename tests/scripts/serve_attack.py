"""What one client can cost another: a small request's times on an idle server, and while another client attacks.

    python tests/scripts/serve_attack.py
    python tests/scripts/serve_attack.py --only fill --seconds 10

The server runs as a process of its own on a loopback port, on the CPU, with the models that `bertie serve` has by
default. Beside each attack one client sends small /embed requests, one after another, and another one asks /live.
Attacks are bounded in number and time, and attackers use another address than the client, as they would.

The last line is the verdict: a small request's p99 under each attack is at most 5 times its p99 on the idle server,
none fails, and /live answers within 100 ms. `ratio` compares with the idle times before the attack in question.

`machine` is the longest that a process which has nothing to do with the server waited for a processor meanwhile: it
sleeps 2 ms at a time and notes how much later it woke. What other programs of the machine cost is in every other
figure, too; the /live bound is for a machine that has processors to spare.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.serve_clients import Server

ATTACKER, VICTIM, PROBE = "127.0.0.2", "127.0.0.3", "127.0.0.4"
MOST_RATIO, MOST_LIVE = 5.0, 0.100
WORDS = ("the", "river", "ran", "past", "a", "quiet", "town", "where", "people", "sold", "bread", "and", "letters")


def text_of(count: int, seed: int) -> str:
    chance = random.Random(seed)
    return " ".join(chance.choices(WORDS, k=count))


def small_body(number: int) -> dict[str, Any]:
    return {"inputs": text_of(8, number)}


# -- plain sockets, so that an attack may do what no client library would -------------------------------------------


def request(path: str, body: Any = None) -> bytes:
    if body is None:
        return f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode()
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n" % len(data) + data


class Line:
    """A kept-alive connection from an address of its own."""

    def __init__(self, port: int, address: str) -> None:
        self._port, self._address = port, address
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.reader is None or self.writer is None:
            place = (self._address, 0)
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port, local_addr=place)
        return self.reader, self.writer

    async def ask(self, raw: bytes) -> int:
        """The status; 0 where there was none. The answer is read and thrown away."""
        try:
            reader, writer = await self.open()
            writer.write(raw)
            await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
            left = int(fields.get(b"content-length", b"0"))
            while left:
                part = await reader.read(min(left, 1 << 20))
                if not part:
                    raise ConnectionError
                left -= len(part)
            if fields.get(b"connection") == b"close":
                self.close()
            return int(head.split(b" ", 2)[1])
        except (OSError, asyncio.IncompleteReadError, ConnectionError):
            self.close()
            return 0

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.reader = self.writer = None


# -- the attacks ----------------------------------------------------------------------------------------------------


async def repeat(port: int, raw: bytes, ends: float, *, clients: int) -> list[int]:
    """Several clients send the same again and again."""

    async def one() -> list[int]:
        line, found = Line(port, ATTACKER), []
        while time.monotonic() < ends:
            try:
                found.append(await asyncio.wait_for(line.ask(raw), max(0.1, ends - time.monotonic())))
            except TimeoutError:
                line.close()
            await asyncio.sleep(0.01)
        line.close()
        return found

    return [status for found in await asyncio.gather(*(one() for _ in range(clients))) for status in found]


async def fill_many_masks(port: int, ends: float) -> list[int]:
    return await repeat(port, request("/v1/fill", {"inputs": "[MASK] " * 20000, "joint": False}), ends, clients=2)


async def fill_large_answers(port: int, ends: float) -> list[int]:
    body = {"inputs": "[MASK] " * 100, "joint": False, "top_k": 100}
    return await repeat(port, request("/v1/fill", body), ends, clients=2)


async def decode_many_ids(port: int, ends: float) -> list[int]:
    return await repeat(port, request("/decode", {"ids": [[1999] * 1000] * 1020}), ends, clients=2)


async def decode_too_many_ids(port: int, ends: float) -> list[int]:
    return await repeat(port, request("/decode", {"ids": [[7] * 4000] * 1020}), ends, clients=2)


async def tokenize_marks(port: int, ends: float) -> list[int]:
    return await repeat(port, request("/tokenize", {"inputs": ["!" * 524_288] * 15}), ends, clients=2)


async def many_lists(port: int, ends: float) -> list[int]:
    body = b'{"inputs":[' + b",".join([b'["a"]'] * 1_000_000) + b"]}"
    return await repeat(port, request("/v1/features", body), ends, clients=2)


async def large_batch(port: int, ends: float) -> list[int]:
    """A legal one, several at once; it is left to finish."""
    texts = [text_of(254, seed) for seed in range(1024)]
    return await repeat(port, request("/embed", {"inputs": texts, "truncate": True}), ends, clients=2)


async def large_batch_of_another_model(port: int, ends: float) -> list[int]:
    texts = [text_of(100, seed) + " [MASK]" for seed in range(1024)]
    return await repeat(port, request("/v1/fill", {"inputs": texts}), ends, clients=2)


async def empty_lines(port: int, ends: float) -> list[int]:
    """`\\r\\n` on kept-alive connections after an answer, for as long as they are left open."""
    lines = [Line(port, ATTACKER) for _ in range(300)]
    found = [await line.ask(request("/live")) for line in lines]
    while time.monotonic() < ends:
        for line in lines:
            if line.writer is not None and not line.writer.is_closing():
                line.writer.write(b"\r\n")
        await asyncio.sleep(0.5)
    for line in lines:
        line.close()
    return found


async def unread_answers(port: int, ends: float) -> list[int]:
    """Large answers that nobody reads."""
    raw = request("/embed", {"inputs": [text_of(4, seed) for seed in range(64)]})
    sockets = []
    for _ in range(30):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.bind((ATTACKER, 0))
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        sockets.append(sock)
    while time.monotonic() < ends:
        for sock in sockets:
            try:
                sock.send(raw)
            except OSError:
                continue
        await asyncio.sleep(1)
    for sock in sockets:
        sock.close()
    return []


async def explore_at_length(port: int, ends: float) -> list[int]:
    """A computation of minutes that has the explored model again and again, and questions that wait for it."""
    text = "He drank a cup of [MASK]."
    lines = "\n".join(text_of(12, seed) for seed in range(5000))
    long = {"text": text, "model": "bertie-mini", "name": "a.txt", "content": lines, "method": "leave_one_out"}
    question = request("/explore/answer", {"text": text, "model": "bertie-mini"})
    line = Line(port, ATTACKER)
    found = [await line.ask(request("/explore/importance", long))]
    line.close()
    return found + await repeat(port, question, ends, clients=2)


Attack = Callable[[int, float], Awaitable[list[int]]]
ATTACKS: dict[str, Attack] = {
    "1 fill, 20,000 masks": fill_many_masks,
    "1 fill, 100 masks, top_k 100": fill_large_answers,
    "2 decode, 1,020 x 4,000 ids": decode_too_many_ids,
    "2 decode, 1,020 x 1,000 ids": decode_many_ids,
    "2 a million lists": many_lists,
    "3 tokenize, 15 x 524,288 !": tokenize_marks,
    "4 empty lines, kept alive": empty_lines,
    "5 answers not read": unread_answers,
    "6 batch of 1,024 x 256": large_batch,
    "6 another model's batch": large_batch_of_another_model,
    "7 a model explored at length": explore_at_length,
}


# -- measuring ------------------------------------------------------------------------------------------------------


@dataclass
class Times:
    seconds: list[float] = field(default_factory=list)
    failures: int = 0

    def at(self, part: float) -> float:
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else float("inf")


async def ask_until(port: int, address: str, make: Callable[[int], bytes], ends: float, pause: float) -> Times:
    line, found, number = Line(port, address), Times(), 0
    while time.monotonic() < ends:
        begin = time.perf_counter()
        status = await line.ask(make(number))
        found.seconds.append(time.perf_counter() - begin)
        found.failures += status != 200
        number += 1
        await asyncio.sleep(pause)
    line.close()
    return found


async def victims(port: int, seconds: float) -> tuple[Times, Times]:
    """(small /embed requests, /live)"""
    ends = time.monotonic() + seconds
    small = ask_until(port, VICTIM, lambda number: request("/embed", small_body(number)), ends, 0.02)
    live = ask_until(port, PROBE, lambda _: request("/live"), ends, 0.02)
    return await asyncio.gather(small, live)


@dataclass
class Result:
    attack: str
    idle: Times
    idle_live: Times
    small: Times
    live: Times
    machine: float
    statuses: str

    @property
    def ratio(self) -> float:
        return self.small.at(0.99) / self.idle.at(0.99)

    @property
    def good(self) -> bool:
        return self.ratio <= MOST_RATIO and max(self.live.seconds) <= MOST_LIVE and not self.failures

    @property
    def failures(self) -> int:
        return self.small.failures + self.live.failures


async def measure(name: str, port: int, seconds: float) -> Result:
    # What one attack left behind is over before the idle times of the next are taken.
    await asyncio.sleep(1)
    idle, idle_live = await victims(port, seconds / 2)
    # In a process of its own, so that what the attacker does with answers does not count as the server's time.
    command = [sys.executable, __file__, "--attack", name, "--port", str(port), "--seconds", str(seconds + 0.5)]
    attacker = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert attacker.stdout is not None
        await asyncio.wait_for(attacker.stdout.readline(), 20)
        await asyncio.sleep(0.5)
        small, live, machine = await watched(victims(port, seconds))
        said = await asyncio.wait_for(attacker.stdout.readline(), 20)
    finally:
        if attacker.returncode is None:
            attacker.kill()
        await attacker.wait()
    return Result(name, idle, idle_live, small, live, machine, said.decode().strip())


# Sleeps, and says how late it was at worst (in seconds) when its input ends.
WATCHER = """
import select, sys, time
worst = 0.0
while True:
    begin = time.perf_counter()
    if select.select([sys.stdin], [], [], 0.002)[0]:
        break
    worst = max(worst, time.perf_counter() - begin - 0.002)
print(worst)
"""


async def watched(work: Awaitable[tuple[Times, Times]]) -> tuple[Times, Times, float]:
    """What `work` gives, and how late a process of its own woke meanwhile."""
    pipe = asyncio.subprocess.PIPE
    watcher = await asyncio.create_subprocess_exec(sys.executable, "-c", WATCHER, stdin=pipe, stdout=pipe)
    small, live = await work
    said, _ = await asyncio.wait_for(watcher.communicate(b""), 20)
    return small, live, float(said)


def attack(name: str, port: int, seconds: float) -> None:
    """The attacker's process: one line when it begins, and one with the statuses that it got."""
    print("begins", flush=True)
    found = asyncio.run(asyncio.wait_for(ATTACKS[name](port, time.monotonic() + seconds), seconds + 10))
    print(json.dumps(Counter(found)), flush=True)


async def whole_batch(port: int) -> tuple[int, float]:
    """(status, seconds) of a large legal batch by itself: it is accepted work, so it is answered."""
    texts = [text_of(254, seed) for seed in range(64)]
    line, begin = Line(port, ATTACKER), time.perf_counter()
    status = await asyncio.wait_for(line.ask(request("/embed", {"inputs": texts, "truncate": True})), 90)
    line.close()
    return status, time.perf_counter() - begin


async def run(seconds: float, only: str) -> bool:
    with Server("--device", "cpu", threads=2) as server:
        await victims(server.port, 2)  # what the first requests cost
        heads = ["idle p50", "p99", "p50", "p99", "ratio", "/live idle", "max", "machine"]
        print(f"{'attack':30} {' '.join(f'{head:>10}' for head in heads)} failures")
        results = []
        for name in ATTACKS:
            if only not in name:
                continue
            one = await measure(name, server.port, seconds)
            results.append(one)
            times = [one.idle.at(0.5), one.idle.at(0.99), one.small.at(0.5), one.small.at(0.99)]
            lives = [max(one.idle_live.seconds), max(one.live.seconds), one.machine]
            cells = [*(value * 1e3 for value in times), one.ratio, *(value * 1e3 for value in lives)]
            print(
                f"{name:30} {' '.join(f'{cell:>10.1f}' for cell in cells)} {one.failures} of {len(one.small.seconds)}"
                f"  (attacker got {one.statuses})",
                flush=True,
            )
        status, taken = await whole_batch(server.port)
        print(f"a batch of 64 x 256 tokens by itself: {status} in {taken:.1f} s")
        memory = server.memory
    worst = max(one.ratio for one in results)
    live = max(max(one.live.seconds) for one in results)
    failures = sum(one.failures for one in results)
    good = all(one.good for one in results) and status == 200
    print(
        f"{'good' if good else 'NOT good'}: worst p99 ratio {worst:.1f} (at most {MOST_RATIO:g}), /live at most "
        f"{live * 1e3:.0f} ms (at most {MOST_LIVE * 1e3:.0f}), {failures} failures, {memory >> 20} MiB at the end"
    )
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5, help="of each attack")
    parser.add_argument("--attack", help="be the attacker (internal)")
    parser.add_argument("--port", type=int, help="of the attacker's server (internal)")
    parser.add_argument("--only", default="", help="attacks whose name has this in it")
    given = parser.parse_args()
    if given.attack is not None:
        attack(given.attack, given.port, given.seconds)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the server is ended, too
    return 0 if asyncio.run(run(given.seconds, given.only)) else 1


if __name__ == "__main__":
    sys.exit(main())
