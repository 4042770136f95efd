"""A server in a process of its own, and clients that cost little: what the scripts about the server share."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from tiny_models import saved


class Server:
    """`bertie serve` with these options; ready when entered, ended when left."""

    def __init__(self, *options: str, threads: int = 1, own_group: bool = False) -> None:
        command = [sys.executable, "-m", "bertie", "serve", "--port", "0", "--threads", str(threads), *options]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment,
            start_new_session=own_group,
        )  # fmt: skip
        self.port = 0

    def __enter__(self) -> Server:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if "http://" in line:
                self.port = int(line.split("http://")[1].split()[0].rpartition(":")[2])
            if line.startswith("Ready"):
                return self
        raise RuntimeError(f"the server ended with {self.process.wait()}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def press_ctrl_c(self) -> None:
        """As a terminal does: all processes of the group, which is this server's own, are told at once."""
        os.killpg(self.process.pid, signal.SIGINT)

    @property
    def memory(self) -> int:
        """Resident bytes of all its processes."""
        return sum(map(resident_bytes, processes_of(self.process.pid)))


def processes_of(pid: int) -> list[int]:
    """A server's first process, and those that it has forked."""
    return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no memory figure")


@dataclass
class Answer:
    """`status` 0: the connection ended without an answer. Times are `time.perf_counter()`."""

    status: int
    began: float
    ended: float
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def seconds(self) -> float:
        return self.ended - self.began


class Connection:
    """HTTP/1.1 on one kept connection, a request at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, path: str, body: Any = None) -> Answer:
        """An answer. ConnectionRefusedError: nobody listens, and nothing was sent."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nhost: localhost\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
        began = time.perf_counter()
        try:
            writer.write(head.encode() + content)
            first = await reader.readuntil(b"\r\n\r\n")
            status, *lines = first.decode("latin-1").split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            found = await reader.readexactly(int(headers["content-length"]))
        except (ConnectionError, asyncio.IncompleteReadError):
            self.close()
            return Answer(0, began, time.perf_counter())
        if headers.get("connection") == "close":
            self.close()
        return Answer(int(status.split()[1]), began, time.perf_counter(), headers, found)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def small_model(folder: Path) -> str:
    """A random BERT large enough that its engine, not HTTP, is what a load test fills."""
    size = {"hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 1024}
    return saved(folder, "BertModel", **size, initializer_range=0.02)
