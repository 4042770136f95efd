"""Ten times what a server can do: refusals at once, with Retry-After, memory flat, and normal again within 5 s.

    python tests/scripts/serve_overload.py --seconds 20 [--options "--workers 4 --device cpu,cpu"]

First the server's own rate is measured with as many clients as it serves without refusing. Then requests are sent at
ten times that rate, each on time whatever became of the others. The last line is the figure.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.serve_clients import Answer, Connection, Server, small_model

TEXTS = ["the quick brown fox jumps over the lazy dog and the dog sleeps on " * 2] * 8
QUEUE = 16


@dataclass
class Overload:
    factor: float
    accepted: int
    refused: int
    others: int
    refusal_p50: float  # seconds
    refusal_p99: float
    without_retry_after: int
    slowest_accepted: float
    memory_growth: float  # a fraction
    recovered_after: float  # seconds


async def drive(port: int, seconds: float) -> tuple[float, list[Answer]]:
    """(requests a second, answers) of four clients one after another."""

    async def client(ends: float) -> list[Answer]:
        connection, found = Connection(port), []
        while time.perf_counter() < ends:
            found.append(await connection.ask("/embed", {"inputs": TEXTS, "truncate": True}))
        connection.close()
        return found

    begin = time.perf_counter()
    answers = [one for found in await asyncio.gather(*(client(begin + seconds) for _ in range(4))) for one in found]
    return len(answers) / (time.perf_counter() - begin), answers


async def flood(port: int, rate: float, seconds: float) -> list[Answer]:
    """Requests on a clock; each takes a connection that is free, or a new one."""
    free: list[Connection] = []
    answers: list[Answer] = []

    async def one() -> None:
        connection = free.pop() if free else Connection(port)
        answers.append(await connection.ask("/embed", {"inputs": TEXTS, "truncate": True}))
        free.append(connection)

    begin, tasks = time.perf_counter(), set()
    while (elapsed := time.perf_counter() - begin) < seconds:
        while len(tasks) < elapsed * rate:
            tasks.add(asyncio.create_task(one()))
        await asyncio.sleep(0.005)
    await asyncio.wait_for(asyncio.gather(*tasks), 60)
    for connection in free:
        connection.close()
    return answers


async def run(model: str, seconds: float, options: tuple[str, ...] = (), factor: float = 10) -> Overload:
    with Server("-m", f"m={model}", "--task", "embed", "--queue-requests", str(QUEUE), *options) as server:
        rate, _ = await drive(server.port, max(2.0, seconds / 5))
        await flood(server.port, factor * rate, 1.0)  # what the first flood costs once: connections, buffers
        before = server.memory
        answers = await flood(server.port, factor * rate, seconds)
        growth = server.memory / before - 1
        ended = time.perf_counter()
        again = Connection(server.port)
        while (await again.ask("/embed", {"inputs": "a text"})).status != 200:
            await asyncio.sleep(0.02)
        recovered = time.perf_counter() - ended
        again.close()
        await asyncio.sleep(0.05)  # for connections to end
        refused = sorted(one.seconds for one in answers if one.status == 429)
        accepted = [one for one in answers if one.status == 200]
        return Overload(
            factor=len(answers) / max(1, len(accepted)),
            accepted=len(accepted),
            refused=len(refused),
            others=len(answers) - len(accepted) - len(refused),
            refusal_p50=refused[len(refused) // 2] if refused else -1,
            refusal_p99=refused[int(len(refused) * 0.99)] if refused else -1,
            without_retry_after=sum(one.status == 429 and "retry-after" not in one.headers for one in answers),
            slowest_accepted=max((one.seconds for one in accepted), default=-1),
            memory_growth=growth,
            recovered_after=recovered,
        )


def measure(seconds: float, options: tuple[str, ...] = ()) -> Overload:
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(run(small_model(Path(folder)), seconds, options))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--options", default="", help="of the server")
    given = parser.parse_args()
    found = measure(given.seconds, tuple(given.options.split()))
    print(found)
    good = not found.others and not found.without_retry_after and found.refusal_p99 <= 0.1
    good = good and found.memory_growth <= 0.05 and found.recovered_after <= 5
    print(
        f"{found.factor:.1f}x overload: {found.refused} refused, p99 {found.refusal_p99 * 1e3:.0f} ms, "
        f"{found.accepted} answered, memory {found.memory_growth:+.1%}, normal after {found.recovered_after:.2f} s"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
