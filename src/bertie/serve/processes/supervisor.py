"""A server of several processes: fronts that speak HTTP, engines that have the models, and this one, which keeps both.

It binds the sockets, imports everything once, and forks: a child that has died is back within a moment, its code and
its sockets are there already, and connections that come meanwhile wait. Every front has a listening socket of its own
on the one port, among which the kernel deals out connections. Children say through a pipe when they are ready, and give
signs of life in memory that they share with this process: one that hangs is killed, and so replaced. When told to stop,
fronts finish what they have accepted, and then the engines end.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import mmap
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import torch

from bertie.errors import BertieError, InputError
from bertie.serve.http.rates import shared_buckets
from bertie.serve.http.sockets import address, beside
from bertie.serve.logs import JsonLinesAtOnce, use_handler
from bertie.serve.metrics import MULTIPROCESS, forget_process, name_process
from bertie.serve.processes.engine_host import run_engine
from bertie.serve.run import serve_front, warn_if_open
from bertie.serve.settings import Settings, core_shares

logger = logging.getLogger("bertie.serve")

_LONGEST_PAUSE = 2.0  # with its start, less than the five seconds in which a server has to recover
_QUICK_SECONDS = 5.0  # a child that lives no longer than this is not started again at once
_SPARE_SECONDS = 5.0  # beyond a front's own drain
_LOOK_SECONDS = 0.05
_MOST_AT_A_LOOK = 1.0  # of silence: while this process itself did not run (Ctrl-Z), nobody else need have
_MOST_STARTS = 4
_STOPS = (signal.SIGTERM, signal.SIGINT)


class Report(msgspec.Struct):
    """What a child says: that it is ready, or why it never will be."""

    child: str
    cause: str | None = None
    remedy: str | None = None


def serve_processes(
    settings: Settings, sock: socket.socket, fronts: int, devices: list[str], *, say: Callable[[str], None] = print
) -> int:
    """Serve until told to stop; the exit code. A model that cannot be loaded is the error it is everywhere else."""
    if sys.platform != "linux":
        raise InputError("A server of several processes needs Linux.", "Use --workers 1, and one device.")
    folder = Path(tempfile.mkdtemp(prefix="bertie-serve-"))
    os.environ[MULTIPROCESS] = str(folder)
    try:
        return _Processes(settings, sock, fronts, devices, folder, say).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Processes:
    def __init__(
        self, settings: Settings, sock: socket.socket, fronts: int, devices: list[str], folder: Path,
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._settings, self._folder, self._say = settings, folder, say
        self._pid = os.getpid()
        self._url = address(sock)
        self._sockets = [sock, *(beside(sock) for _ in range(fronts - 1))]
        for one in self._sockets:
            one.listen(2048)
        self._heard, self._tell = os.pipe()
        self._ready: set[str] = set()
        self._rates = shared_buckets()
        self._pulses = memoryview(mmap.mmap(-1, 8 * (len(devices) + fronts))).cast("Q")
        self._stops = 0
        cores = core_shares(len(devices))
        self._engines = [
            self._child(f"engine-{number}", partial(self._run_engine, number, device, cores[number]), number)
            for number, device in enumerate(devices)
        ]
        self._fronts = [
            self._child(f"front-{number}", partial(self._run_front, number), len(devices) + number)
            for number in range(fronts)
        ]
        self._children = [*self._engines, *self._fronts]

    def run(self) -> int:
        use_handler(JsonLinesAtOnce(), self._settings.log_level)
        warn_if_open(self._settings)
        for number in _STOPS:
            signal.signal(number, self._stop)
        counts = f"{_counted(self._fronts, 'front')} and {_counted(self._engines, 'engine')}"
        self._announce(f"Bertie listens on {self._url} with {counts}, and loads its models …")
        gc.collect()
        gc.freeze()  # so that children do not write into pages that they could share
        said = False
        try:
            while not self._stops:
                for child in self._children:
                    if child.has_ended():
                        forget_process(child.name, self._folder)
                        if child.name not in self._ready and child.starts >= _MOST_STARTS:
                            return 1  # it never was ready, and has said why
                        child.start_when_due()
                    elif self._settings.hung_seconds and child.silent_seconds() > self._settings.hung_seconds:
                        logger.error("a process does not respond and is killed", extra={"child": child.name})
                        child.kill_hung()
                self._listen()
                if not said and len(self._ready) == len(self._children):
                    said = True
                    self._announce(f"Ready: {self._url}")
            return self._end()
        finally:
            for child in self._children:
                child.kill()
            for one in self._sockets:
                one.close()
            os.close(self._heard)
            os.close(self._tell)

    def _announce(self, text: str) -> None:
        with contextlib.suppress(OSError):  # nobody reads it; the server is not ended by that
            self._say(text)

    def _stop(self, *_: object) -> None:
        """Noted here, and passed on in `_end`: a child that is being forked at this moment has no number yet."""
        self._stops += 1
        with contextlib.suppress(OSError):  # so that it is seen at once
            os.write(self._tell, b"\n")

    def _listen(self) -> None:
        """What children say, for a moment at most."""
        if not select.select([self._heard], [], [], _LOOK_SECONDS)[0]:
            return
        for line in filter(None, os.read(self._heard, 1 << 16).splitlines()):
            report = msgspec.json.decode(line, type=Report)
            if report.cause is None:
                self._ready.add(report.child)
            elif report.child not in self._ready:
                raise InputError(report.cause, report.remedy or "")

    def _end(self) -> int:
        """Fronts first, they still need the engines: the first signal drains them, a second one ends them."""
        for child in self._fronts:
            child.send(signal.SIGTERM)
        for one in self._sockets:  # or whoever connects after a front has ended would wait for it
            one.close()
        ends = time.monotonic() + self._settings.drain_seconds + _SPARE_SECONDS
        while any(not child.has_ended() for child in self._fronts) and time.monotonic() < ends:
            if self._stops > 1:
                for child in self._fronts:
                    child.send(signal.SIGUSR1)
            time.sleep(_LOOK_SECONDS)
        for child in self._engines:
            child.send(signal.SIGUSR1)
        ends = time.monotonic() + _SPARE_SECONDS
        while any(not child.has_ended() for child in self._engines) and time.monotonic() < ends:
            time.sleep(_LOOK_SECONDS)
        # One that was still starting had accepted nothing.
        good = (0, -signal.SIGTERM, -signal.SIGINT, -signal.SIGUSR1, None)
        return 0 if all(child.code in good for child in self._fronts) else 1

    # -- in the children --------------------------------------------------------------------------------------------

    def _child(self, name: str, work: Callable[[], int], place: int) -> _Child:
        def run() -> int:
            name_process(name)
            try:
                return work()
            except BertieError as error:
                self._report(name, error)
                return 2

        return _Child(name, run, self._pulses[place : place + 1])

    def _report(self, name: str, error: BertieError | None = None) -> None:
        report = Report(name) if error is None else Report(name, error.cause, error.remedy)
        if error is not None and name in self._ready:  # the server goes on, so this is no reason to end it
            fields = {"child": name, "cause": error.cause, "remedy": error.remedy}
            logger.error("a process cannot be started again", extra=fields)
        with contextlib.suppress(OSError):
            os.write(self._tell, msgspec.json.encode(report) + b"\n")

    def _run_engine(self, number: int, device: str, cores: list[int]) -> int:
        name = f"engine-{number}"
        for one in self._sockets:
            one.close()
        settings = replace(self._settings, device=device)
        if device == "cpu" and len(self._engines) > 1:
            with contextlib.suppress(AttributeError, OSError):
                os.sched_setaffinity(0, cores)
            settings = replace(settings, threads=settings.threads or len(cores))
        code = run_engine(
            settings, number, self._folder, parent=self._pid, again=name in self._ready,
            report=lambda error: self._report(name, error), beat=self._engines[number].beat,
        )  # fmt: skip
        if os.getppid() != self._pid:  # whoever would remove it was killed, and the fronts have ended
            shutil.rmtree(self._folder, ignore_errors=True)
        return code

    def _run_front(self, number: int) -> int:
        name = f"front-{number}"
        for place, one in enumerate(self._sockets):
            if place != number:
                one.close()
        torch.set_num_threads(1)
        limits = self._settings.limits
        parts = len(self._fronts)
        limits = replace(
            limits,
            connections=max(16, 2 * limits.connections // parts),
            received_bytes=limits.received_bytes // parts + limits.body_bytes,
            made_bytes=limits.made_bytes // parts + limits.answer_bytes,
            unsent_bytes=limits.unsent_bytes // parts + limits.answer_bytes,
        )
        return serve_front(
            replace(self._settings, limits=limits), self._sockets[number], self._folder, len(self._engines),
            name=name, parent=self._pid, again=name in self._ready,
            rate_buckets=self._rates, on_ready=lambda: self._report(name), beat=self._fronts[number].beat,
        )  # fmt: skip


def _counted(children: Sequence[_Child], what: str) -> str:
    return f"{len(children)} {what}" if len(children) == 1 else f"{len(children)} {what}s"


class _Child:
    """One process, started again when it dies. `pulse` is a number in shared memory, which changes while it lives."""

    def __init__(self, name: str, work: Callable[[], int], pulse: memoryview) -> None:
        self.name, self._work, self._pulse = name, work, pulse
        self._last_pulse, self._last_look, self._silent = 0, 0.0, 0.0
        self.code: int | None = None
        self.starts = 0
        self._pid = 0
        self._pause, self._next, self._since = 0.0, 0.0, 0.0

    def has_ended(self) -> bool:
        """Whether it is not there; `code` is then how it ended."""
        if not self._pid:
            return True
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if not pid:
            return False
        self._pid, self.code = 0, os.waitstatus_to_exitcode(status)
        quick = time.monotonic() - self._since < _QUICK_SECONDS
        self._pause = min(self._pause * 2 + 0.2, _LONGEST_PAUSE) if quick else 0.0
        self._next = time.monotonic() + self._pause
        return True

    def beat(self) -> None:
        """A sign of life, from the child."""
        self._pulse[0] += 1

    def kill_hung(self) -> None:
        """Without waiting for its end, which may take a while."""
        self.send(signal.SIGKILL)
        self._pulse[0] = 0  # it is not expected to give another sign, and not killed again

    def silent_seconds(self) -> float:
        """How long there was no sign of life, counted from the first one on; to be asked again and again."""
        now, pulse = time.monotonic(), self._pulse[0]
        passed, self._last_look = now - self._last_look, now
        if pulse == self._last_pulse and pulse:
            self._silent += min(passed, _MOST_AT_A_LOOK)
        else:
            self._last_pulse, self._silent = pulse, 0.0
        return self._silent

    def start_when_due(self) -> None:
        if time.monotonic() < self._next:
            return
        if self.starts:
            logger.warning("a process is started again", extra={"child": self.name, "exit_code": self.code})
        self._since = time.monotonic()
        self.starts += 1
        self._pulse[0], self._silent = 0, 0.0
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)  # in the child until this process's handlers are gone there
        pid = os.fork()
        if pid:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
            self._pid = pid
            return
        code = 1
        try:
            for number in _STOPS:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
            code = self._work()
        except BaseException:
            traceback.print_exc()
        finally:
            try:
                logging.shutdown()
                sys.stdout.flush()
                sys.stderr.flush()
            finally:  # nobody may read them any more; and the supervisor's own end is not for its children
                os._exit(code)

    def send(self, number: signal.Signals) -> None:
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def kill(self) -> None:
        if not self.has_ended():
            self.send(signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0
