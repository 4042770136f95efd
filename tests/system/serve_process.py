"""`bertie serve` as a process of its own, on a free port of this machine, stopped however a test ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from scripts.serve_clients import processes_of

if TYPE_CHECKING:
    import httpx
else:
    httpx = pytest.importorskip("httpx", reason="the client needs the extra: serve")
    pytest.importorskip("fastapi", reason="the server needs the extra: serve")

# Options of the two forms that a server has, and how tests are named for them.
FORMS = (("--workers", "1"), ("--workers", "4", "--device", "cpu,cpu"))
FORM_NAMES = ("one process", "4 fronts, 2 engines")
START_SECONDS = 120
STOP_SECONDS = 30


@dataclass(frozen=True)
class Server:
    """A server that is ready."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path
    host: str = "127.0.0.1"

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        with httpx.Client(base_url=self.url, timeout=60) as client:
            return client.request(method, path, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return self.request("POST", path, json=body, **options)

    def descriptors(self) -> int:
        """Files and sockets the server holds open, in all its processes. Each opens its few files of metrics when it
        first counts something, which for some fronts may be late: they are left out."""
        held = 0
        for pid in processes_of(self.process.pid):
            for one in os.scandir(f"/proc/{pid}/fd"):
                with suppress(FileNotFoundError):  # it was closed since
                    held += not os.readlink(one.path).endswith(".db")
        return held

    def metric(self, pattern: str) -> float:
        """The sum of the metrics whose name and labels match the pattern."""
        lines = self.get("/metrics").text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if re.match(pattern, line))


@contextmanager
def serving(folder: Path, *arguments: str, environment: dict[str, str] | None = None) -> Iterator[Server]:
    """Run `bertie serve ARGUMENTS` on a free port until the block ends; `folder` takes its log."""
    log = folder / f"serve-{time.monotonic_ns()}.log"
    command = [sys.executable, "-m", "bertie", "serve", *arguments, "--port", "0"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("BERTIE_")}
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=clean | (environment or {}))
        try:
            yield _when_ready(process, log)
        finally:
            stop(process)


def _when_ready(process: subprocess.Popen[bytes], log: Path) -> Server:
    """The server says where it listens at once, and that it is ready when its models are warm."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        said = log.read_text(encoding="utf-8", errors="replace")
        if found := re.search(r"^Ready: http://[^:\s]+:(\d+)", said, re.MULTILINE):
            return Server(int(found[1]), process, log)
        time.sleep(0.05)
    raise AssertionError(f"the server did not become ready:\n{log.read_text(errors='replace')[-4000:]}")


def stop(process: subprocess.Popen[bytes]) -> int:
    """SIGTERM; kill if that is not enough. The exit code."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return process.returncode
