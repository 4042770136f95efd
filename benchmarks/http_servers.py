"""HTTP servers for Python with one small application: read a JSON body, answer with a vector of 384 numbers.

    python -m benchmarks.http_servers [--requests 10000] [--rounds 5] [--save]

What is measured is what a front of `bertie serve` does beside tokenizing: the cost of HTTP itself. The application is
plain ASGI, one process and one thread of it, without a framework; "ours" is uvicorn with Bertie's own connection, which
takes a body and writes an answer without ASGI's messages (serve/http). Servers that are not installed are left out:
pip install granian hypercorn.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import statistics
import subprocess
import sys
import time
from importlib.util import find_spec
from typing import Any

import msgspec
import numpy as np

from benchmarks.load import Load, post, run_load
from benchmarks.machine import describe, save_result

CLIENTS = 64
SERVERS = {
    "uvicorn (httptools, uvloop), ours": "uvicorn",
    "uvicorn (httptools, uvloop)": "uvicorn",
    "uvicorn (h11, asyncio)": "uvicorn",
    "granian (uvloop)": "granian",
    "hypercorn (uvloop)": "hypercorn",
}
PACKAGES = ("uvicorn", "uvloop", "httptools", "granian", "hypercorn")
HEADERS = [(b"content-type", b"application/json")]
_vector = np.random.default_rng(0).standard_normal(384, dtype=np.float32)
ANSWER = msgspec.json.encode([_vector.tolist()])


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    msgspec.json.decode(b"".join(parts))
    headers = [*HEADERS, (b"content-length", b"%d" % len(ANSWER))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": ANSWER})


async def short_app(scope: Any, receive: Any, send: Any) -> None:
    cycle = scope["state"]["cycle"]
    msgspec.json.decode(cycle.take_body())
    await cycle.answer(200, HEADERS, ANSWER)


def serve(name: str, port: int) -> None:
    """Be this server."""
    place: dict[str, Any] = {"host": "127.0.0.1", "port": port}
    if name.startswith("uvicorn"):
        import uvicorn

        from bertie.serve.http.connection import Connection, Connections
        from bertie.serve.settings import Limits

        made: dict[str, Any] = {"http": "httptools", "loop": "uvloop"}
        if "ours" in name:
            connections = Connections(Limits(), lambda reason: None)
            made["http"] = type("Protocol", (Connection,), {"connections_of_server": connections})
        elif "h11" in name:
            made = {"http": "h11", "loop": "asyncio"}
        uvicorn.run(short_app if "ours" in name else app, **place, **made, log_level="error", lifespan="off", ws="none")
    elif name.startswith("granian"):
        from granian import Granian

        Granian(
            "benchmarks.http_servers:app", address="127.0.0.1", port=port, interface="asginl", loop="uvloop",
            workers=1, websockets=False, log_enabled=False,
        ).serve()  # fmt: skip
    else:
        import uvloop
        from hypercorn.asyncio import serve as serve_hypercorn
        from hypercorn.config import Config

        config = Config()
        config.bind = [f"127.0.0.1:{port}"]
        uvloop.run(serve_hypercorn(app, config))


def measure(name: str, requests: list[bytes]) -> Load:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.http_servers", "--serve", name, "--port", str(port)])
    try:
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        run_load("127.0.0.1", port, requests[:500], clients=CLIENTS)  # what the first requests cost
        load = run_load("127.0.0.1", port, requests, clients=CLIENTS)
    finally:
        process.terminate()
        process.wait(20)
    assert not load.failed
    return load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save", action="store_true", help="write results/http-servers-DATE.json")
    parser.add_argument("--serve", choices=SERVERS, help="be this server (internal)")
    parser.add_argument("--port", type=int, help="of that server (internal)")
    given = parser.parse_args()
    if given.serve is not None:
        asyncio.set_event_loop(None)
        return serve(given.serve, given.port)
    requests = [post("/embed", {"inputs": f"a text with some words in it, number {n}"}) for n in range(given.requests)]
    names = [name for name, package in SERVERS.items() if find_spec(package) is not None]
    rounds = [{name: measure(name, requests) for name in names} for _ in range(given.rounds)]
    rows: dict[str, float] = {}
    print(describe(PACKAGES))
    for name in names:
        rows[f"{name}: requests/s"] = statistics.median(one[name].rate for one in rounds)
        rows[f"{name}: p99 ms"] = statistics.median(one[name].percentile(99) for one in rounds)
        print(f"{name:36} {rows[f'{name}: requests/s']:>8.0f} requests/s   p99 {rows[f'{name}: p99 ms']:>6.1f} ms")
    best = max(names, key=lambda name: rows[f"{name}: requests/s"])
    print(f"fastest of {len(names)} with {CLIENTS} clients: {best}")
    if given.save:
        command = f"python -m benchmarks.http_servers {' '.join(sys.argv[1:])}"
        save_result("http-servers", command, rows, servers=describe(PACKAGES), clients=CLIENTS)


if __name__ == "__main__":
    main()
