"""SIGTERM under load: no accepted request lost, readiness 503 at once, exit 0 within 30 s.

    python tests/scripts/serve_drain.py --rounds 20 [--options "--workers 4 --device cpu,cpu"] [--ctrl-c]

Eight clients ask without a pause; at a random moment the server is told to stop, by SIGTERM or (--ctrl-c) as a terminal
does it, which sends SIGINT to all processes. Every request that was sent must be
answered: 200, or 503 once the server drains. The last line is the figure.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.serve_clients import Connection, Server, small_model

CLIENTS = 8
SENTENCE = "the quick brown fox jumps over the lazy dog and the dog sleeps on "


@dataclass
class Round:
    answered: int = 0
    refused: int = 0
    lost: int = 0
    unready_after: float = -1.0
    exit_after: float = -1.0
    exit_code: int = -1

    @property
    def good(self) -> bool:
        """Readiness may take a tenth of a second to be seen on a machine that is busy with the load itself."""
        ready = 0 <= self.unready_after <= 0.5
        return self.lost == 0 and self.answered > 0 and ready and self.exit_code == 0 and self.exit_after <= 30


async def one_round(model: str, chance: random.Random, options: tuple[str, ...], ctrl_c: bool) -> Round:
    result = Round()
    with Server("-m", f"m={model}", "--task", "embed", *options, own_group=ctrl_c) as server:
        stopped = asyncio.Event()

        async def client() -> None:
            connection = Connection(server.port)
            while True:
                try:
                    answer = await connection.ask("/embed", {"inputs": [SENTENCE] * chance.randint(1, 16)})
                except ConnectionError:  # nothing was sent
                    return
                if answer.status == 200:
                    result.answered += 1
                elif answer.status == 503:
                    result.refused += 1
                    return
                else:
                    result.lost += 1
                    return

        async def probe() -> None:
            connection = Connection(server.port)
            await stopped.wait()
            while True:
                try:
                    answer = await connection.ask("/ready")
                except ConnectionError:
                    return
                if answer.status != 200:
                    result.unready_after = answer.ended - sent
                    return

        tasks = [asyncio.create_task(client()) for _ in range(CLIENTS)] + [asyncio.create_task(probe())]
        await asyncio.sleep(0.2 + chance.random() * 0.5)
        sent = time.perf_counter()
        if ctrl_c:
            server.press_ctrl_c()
        else:
            server.terminate()
        stopped.set()
        await asyncio.wait_for(asyncio.gather(*tasks), 35)
        await asyncio.sleep(0.05)  # for connections to end
        result.exit_code = await asyncio.to_thread(server.process.wait, 35)
        result.exit_after = time.perf_counter() - sent
    return result


def run(rounds: int, seed: int = 0, options: tuple[str, ...] = (), *, ctrl_c: bool = False) -> list[Round]:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        model = small_model(Path(folder))
        return [asyncio.run(one_round(model, chance, options, ctrl_c)) for _ in range(rounds)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--options", default="", help="of the server")
    parser.add_argument("--ctrl-c", action="store_true", help="SIGINT to all processes instead of SIGTERM to the first")
    given = parser.parse_args()
    results = run(given.rounds, given.seed, tuple(given.options.split()), ctrl_c=given.ctrl_c)
    for number, one in enumerate(results):
        print(number, one, flush=True)
    good = sum(one.good for one in results)
    lost = sum(one.lost for one in results)
    slowest = max(one.exit_after for one in results)
    print(
        f"seed {given.seed}: {good} of {len(results)} drains good, {lost} requests lost, slowest exit {slowest:.1f} s"
    )
    return 0 if good == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
