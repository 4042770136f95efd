"""The server under load: 64 clients with one text each, beside the same texts offline and beside a plain server.

    python -m benchmarks.serve [--model FOLDER] [--texts 1024] [--rounds 3] [--save]

In every round, one after another on the same texts: the embedder offline (all texts in one call), our server and a
plain FastAPI + sentence-transformers server, each from 64 clients; then texts one at a time, through our server and
straight through the embedder. Medians over the rounds. The clients are raw connections (load.py) that take little of
the processor, and what they take counts against the server. Expected before measuring: the server reaches 0.8 to 0.95
of the offline rate, because HTTP costs about half a millisecond a text and 64 texts batch less evenly than all of
them; 3 to 6 times the plain server, which runs texts one by one; 1 to 2 ms over the engine for a single text. The last
line is the shares.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import serve_device
from benchmarks.load import Load, OneClient, post, run_load, texts_of
from benchmarks.machine import describe, save_result

TARGETS = {"share of offline": 0.80, "times the plain server": 3.0, "added milliseconds": 3.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=None)
    parser.add_argument("--texts", type=int, default=1024)
    parser.add_argument("--singles", type=int, default=100, help="texts sent one at a time, for latency")
    parser.add_argument("--plain-texts", type=int, default=256, help="texts for the plain server, which is slow")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", action="store_true", help="write results/serve-DATE.json")
    parser.add_argument("--device", help="another than the CPU: benchmarks/serve_device.py, and the options below")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load")
    parser.add_argument("--processes", type=int, default=4, help="that make the load")
    parser.add_argument("--fronts", type=int, default=0, help="of the server; its own choice by default")
    parser.add_argument("--base", help="a BERT-base for paragraphs")
    parser.add_argument("--no-plain", action="store_true", help="leave out the plain server")
    arguments = parser.parse_args()
    from bertie.running.open import default_embedding_model
    from bertie.tasks.embed import Embedder

    folder = str(arguments.model or default_embedding_model())
    if arguments.device:
        arguments.model = folder
        return serve_device.main(arguments)
    texts = texts_of(arguments.texts)
    requests = [post("/embed", {"inputs": text}) for text in texts]
    embedder = Embedder(folder, device="cpu")
    embedder.embed(texts[:64], progress=False)
    rounds: list[dict[str, float]] = []
    with (
        tempfile.TemporaryDirectory() as place,
        ours(folder, Path(place)) as served,
        plain(folder, Path(place)) as beside,
    ):
        for target in (served, beside):
            checked(run_load("127.0.0.1", target.port, requests[:64], clients=arguments.clients))
        for number in range(arguments.rounds):
            found = one_round(embedder, texts, requests, served, beside, arguments)
            rounds.append(found)
            shown = ", ".join(f"{name} {value:.1f}" for name, value in found.items())
            print(f"round {number + 1}: {shown}", flush=True)
    median = {name: statistics.median(row[name] for row in rounds) for name in rounds[0]}
    report(median, rounds, arguments)


def one_round(
    embedder: Any, texts: list[str], requests: list[bytes], ours: Target, plain: Target, arguments: argparse.Namespace
) -> dict[str, float]:
    """Rates in texts a second, latencies in milliseconds, and the processor's milliseconds for a text."""
    started, used = time.perf_counter(), time.process_time()
    embedder.embed(texts, progress=False)
    offline, used = len(texts) / (time.perf_counter() - started), time.process_time() - used
    before = ours.cpu_seconds()
    served = checked(run_load("127.0.0.1", ours.port, requests, clients=arguments.clients))
    our_cpu = ours.cpu_seconds() - before
    before = plain.cpu_seconds()
    few = requests[: arguments.plain_texts]
    beside = checked(run_load("127.0.0.1", plain.port, few, clients=arguments.clients))
    plain_cpu = plain.cpu_seconds() - before
    return {
        "offline texts/s": offline,
        "server texts/s": served.rate,
        "plain texts/s": beside.rate,
        "offline CPU ms": used / len(texts) * 1000,
        "server CPU ms": our_cpu / len(texts) * 1000,
        "plain CPU ms": plain_cpu / len(few) * 1000,
        "server p50 ms": served.percentile(50),
        "server p99 ms": served.percentile(99),
        "plain p50 ms": beside.percentile(50),
        "plain p99 ms": beside.percentile(99),
        **one_by_one(embedder, texts[: arguments.singles], requests, ours.port),
    }


def one_by_one(embedder: Any, texts: list[str], requests: list[bytes], port: int) -> dict[str, float]:
    """Milliseconds of a single text straight through the embedder, and of what HTTP adds; the two in turn.

    Medians, and the least of ten: the median of a busy machine is that of its queue.
    """
    engine, http = [], []
    client = OneClient("127.0.0.1", port)
    for text, request in zip(texts, requests, strict=False):
        started = time.perf_counter()
        embedder.embed(text, progress=False)
        between = time.perf_counter()
        client.ask(request)
        http.append((time.perf_counter() - between) * 1000)
        engine.append((between - started) * 1000)
    client.close()
    added = statistics.median(b - a for a, b in zip(engine, http, strict=True))
    best = statistics.quantiles(http, n=10)[0] - statistics.quantiles(engine, n=10)[0]
    return {"engine one text ms": statistics.median(engine), "added by HTTP ms": added, "added at best ms": best}


def report(median: dict[str, float], rounds: list[dict[str, float]], arguments: argparse.Namespace) -> None:
    share = median["server texts/s"] / median["offline texts/s"]
    times = median["server texts/s"] / median["plain texts/s"]
    added = median["added by HTTP ms"]
    own_cpu = median["offline CPU ms"] / median["server CPU ms"]
    by_cpu = median["plain CPU ms"] / median["server CPU ms"]
    print(describe(("torch", "fastapi", "uvicorn", "sentence-transformers")))
    for name, value in median.items():
        print(f"{name:20} {value:9.1f}")
    if arguments.save:
        rows = {"median": median, "rounds": rounds, "share": share, "times": times, "added_ms": added}
        rows |= {"share_by_cpu": own_cpu, "times_by_cpu": by_cpu}
        given = {name: getattr(arguments, name) for name in ("texts", "plain_texts", "clients", "rounds", "singles")}
        print(
            save_result("serve", f"python -m benchmarks.serve {' '.join(sys.argv[1:])}", rows, targets=TARGETS, **given)
        )
    print(f"by processor time: {own_cpu:.2f} of the offline rate, {by_cpu:.1f} times the plain server")
    print(
        f"{arguments.clients} clients: {share:.2f} of the offline rate, {times:.1f} times a plain server, "
        f"p50 {median['server p50 ms']:.0f} ms, p99 {median['server p99 ms']:.0f} ms; one text {added:+.1f} ms"
    )
    if share < TARGETS["share of offline"] or times < TARGETS["times the plain server"] or added > 3.0:
        sys.exit(1)


def checked(load: Load) -> Load:
    if load.failed:
        first = load.failed[0]
        sys.exit(f"{len(load.failed)} of {len(load.replies)} requests failed: {first.status} {first.body[:300]!r}")
    return load


@dataclass(frozen=True)
class Target:
    """A server: where it listens, and its process."""

    port: int
    pid: int

    def cpu_seconds(self) -> float:
        """What it has used of the processor: on a busy machine, rates depend on who else is there, this hardly does."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def ours(folder: str, place: Path) -> Iterator[Target]:
    port = free_port()
    command = [sys.executable, "-m", "bertie", "serve", "-m", folder, "--device", "cpu", "--port", str(port)]
    with process(command, port, place / "ours.log") as target:
        yield target


@contextmanager
def plain(folder: str, place: Path) -> Iterator[Target]:
    port = free_port()
    script = place / "plain_server.py"
    script.write_text(serve_device.PLAIN_SERVER)
    with process([sys.executable, str(script), folder, str(port), "cpu", "1"], port, place / "plain.log") as target:
        yield target


@contextmanager
def process(command: list[str], port: int, log: Path, seconds: float = 120) -> Iterator[Target]:
    """A server until the block ends; it is ready when /ready says so."""
    with log.open("wb") as out:
        started = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        until = time.monotonic() + seconds
        while not is_ready(port):
            if started.poll() is not None or time.monotonic() > until:
                sys.exit(f"this server did not start: {' '.join(command)}\n{log.read_text()[-2000:]}")
            time.sleep(0.2)
        yield Target(port, started.pid)
    finally:
        started.terminate()
        try:
            started.wait(30)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
