"""Several processes behind one port: one to a device, or to a share of the cores.

The parent binds the socket and starts the workers, which accept from it side by side; it starts a worker again that
has died (with a pause that grows), passes signals on, and ends when they have. Each worker is this same command with
`--fd`, so nothing is shared but the socket and the folder of the metrics. The parent does not load torch.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from bertie.serve.metrics import MULTIPROCESS
from bertie.serve.settings import Settings
from bertie.serve.sockets import address, bind

_LONGEST_PAUSE = 30.0
_SPARE_SECONDS = 5.0  # beyond a worker's own drain


def serve_workers(settings: Settings, count: int, *, say: Callable[[str], None] = print) -> int:
    sock = bind(settings)
    sock.listen(2048)
    folder = tempfile.mkdtemp(prefix="bertie-metrics-")
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: stopping.append(received))
    say(f"Bertie listens on {address(sock)} with {count} workers …")
    workers = [_Worker(index, count, settings, sock, folder) for index in range(count)]
    try:
        while not stopping:
            for worker in workers:
                worker.keep_alive()
            if all(worker.hopeless for worker in workers):
                break
            time.sleep(0.1)
        for worker in workers:
            worker.terminate()
        ends = time.monotonic() + settings.drain_seconds + _SPARE_SECONDS
        codes = [worker.wait(ends) for worker in workers]
        return 0 if stopping and not any(codes) else max(codes, default=1) or 1
    finally:
        for worker in workers:
            worker.end()
        sock.close()
        shutil.rmtree(folder, ignore_errors=True)


class _Worker:
    """One process, started again when it dies."""

    def __init__(self, index: int, count: int, settings: Settings, sock: socket.socket, folder: str) -> None:
        self._index, self._count, self._settings, self._sock = index, count, settings, sock
        self._folder = folder
        self._pause, self._next, self._since = 0.5, 0.0, 0.0
        self._deaths = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def hopeless(self) -> bool:
        """It has ended five times, and never after it had worked for a while."""
        return self._deaths >= 5

    def keep_alive(self) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            return
        now = time.monotonic()
        if process is not None:
            self._buried(process.pid)
            lived = now - self._since
            self._deaths = self._deaths + 1 if lived < 30 else 1
            # A mistake in what was asked will not go away by trying again.
            self._deaths = 5 if process.returncode == 2 else self._deaths
            self._pause = min(self._pause * 2, _LONGEST_PAUSE) if lived < 30 else 0.5
            self._next = now + self._pause
            self._process = None
        if now >= self._next and not self.hopeless:
            self._since = now
            self._process = self._start()

    def terminate(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)

    def wait(self, ends: float) -> int:
        """Its exit code; 1 if it has not ended by then."""
        process = self._process
        if process is None:
            return 1 if self.hopeless else 0
        try:
            code = process.wait(max(0.1, ends - time.monotonic()))
            return 0 if code == -signal.SIGTERM else code  # it was still starting, and had accepted nothing
        except subprocess.TimeoutExpired:
            return 1

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        fd = self._sock.fileno()
        environment = os.environ | {MULTIPROCESS: self._folder}
        command = [sys.executable, "-m", "bertie", *sys.argv[1:], "--fd", str(fd), "--parent", str(os.getpid())]
        if self._deaths:  # the others accept meanwhile
            command.append("--when-ready")
        device, cores = share(self._index, self._count, self._settings.device)
        if device is not None:
            command += ["--device", device]
        if cores and not self._settings.threads:
            command += ["--threads", str(len(cores))]
        process = subprocess.Popen(command, env=environment, pass_fds=[fd])
        if cores and hasattr(os, "sched_setaffinity"):
            with contextlib.suppress(OSError):
                os.sched_setaffinity(process.pid, cores)
        return process

    def _buried(self, pid: int) -> None:
        from prometheus_client.multiprocess import mark_process_dead

        with contextlib.suppress(OSError):
            mark_process_dead(pid, path=self._folder)


def share(index: int, count: int, device: str | None) -> tuple[str | None, list[int]]:
    """(device, cores) of a worker: a GPU of its own where there are GPUs, otherwise its part of the cores."""
    if device is None and os.path.exists("/dev/nvidiactl"):  # torch is slow to import, and a parent needs it only here
        import torch

        if torch.cuda.is_available():
            return f"cuda:{index % torch.cuda.device_count()}", []
    if device is not None and device != "cpu":
        return None, []
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    if count >= len(cores):
        return None, [cores[index % len(cores)]]
    return None, [core for place, core in enumerate(cores) if place * count // len(cores) == index]
