"""Long work beside a server's requests: started by one request, asked about by others, ended when nobody asks.

One job runs at a time. Clients take turns: of those that wait, the one whose client had its turn longest ago is next,
the last place is kept for a client that has none, and a job that has had its minutes ends when others wait for it.

A job runs in a thread of the process that started it. Where several workers share a port, the next request may reach
another one, so its state is also a file in the folder that the workers share: any of them can say how far it is, and
stop it. Whoever asks leaves the time on a file beside it, so that the job knows that it is wanted.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from bertie.errors import BertieError
from bertie.explore.page.queries import Report
from bertie.files import replace_file
from bertie.ops.forks import dismiss_helpers
from bertie.serve.failures import Refusal, as_refusal, overloaded
from bertie.serve.metrics import MULTIPROCESS

logger = logging.getLogger("bertie.serve")

_MOST_JOBS = 5  # under way; a client has all but one
_MOST_KEPT = 16  # those that are over, too
_TURN_SECONDS = 120.0
# A job that nobody has asked about for so long is nobody's.
_FORGOTTEN_SECONDS = 20.0
_PUBLISHED_SECONDS = 0.1
_GIVE_WAY_SECONDS = 0.001  # between two parts of the work: for the questions that wait for the model
_NAME = re.compile(r"[0-9a-f]{16}")


class Stopped(Exception):
    """Nobody wants the result any more."""


@dataclass(eq=False)
class Job:
    """Work under way, here or in another worker. `partial` is what there is so far, where that can be shown."""

    name: str
    done: int = 0
    total: int = 1
    partial: object = None
    result: object = None
    error: Exception | None = None
    stopped: bool = False
    asked: float = field(default_factory=time.monotonic)
    client: str = ""
    work: Callable[[Report], object] | None = None  # until it begins; a stopped job keeps nothing of its request

    @property
    def is_over(self) -> bool:
        return self.stopped or self.result is not None or self.error is not None


class Jobs:
    """The long work of a model, one after the other. `start`, `find` and `stop` are for the event loop."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="explore")
        self._turns: dict[str, float] = {}  # of the clients that waited when the last one began: when theirs was
        shared = os.environ.get(MULTIPROCESS)
        self._folder = None if shared is None else _Folder(Path(shared))

    def start(self, work: Callable[[Report], object], client: str = "") -> Job:
        under_way = [job for job in self._jobs.values() if not job.is_over]
        has_one = any(job.client == client for job in under_way)
        if len(under_way) >= _MOST_JOBS - has_one:
            raise overloaded(f"{len(under_way)} long computations are under way.", retry_after=5)
        job = Job(secrets.token_hex(8), client=client, work=work)
        self._forget_old()
        self._jobs[job.name] = job
        if self._folder is not None:
            self._folder.publish(job)
        self._thread.submit(self._run_next)
        return job

    def _forget_old(self) -> None:
        """Of the jobs that are over: first those that nobody wants, then the oldest."""
        over = sorted((job for job in self._jobs.values() if job.is_over), key=lambda job: not job.stopped)
        for job in over[: len(self._jobs) + 1 - _MOST_KEPT]:
            del self._jobs[job.name]
            if self._folder is not None:
                self._folder.remove(job.name)

    def find(self, name: str) -> Job | None:
        """The job of that name; it is wanted for a while longer."""
        job = self._jobs.get(name)
        if job is not None:
            job.asked = time.monotonic()
        elif self._folder is not None and _NAME.fullmatch(name):
            job = self._folder.read(name)
        return job

    def stop(self, job: Job) -> None:
        job.stopped, job.work = True, None
        if self._folder is not None and job.name not in self._jobs:
            self._folder.stop(job.name)

    # -- in the thread ----------------------------------------------------------------------------------------------

    def _waiting(self) -> list[Job]:
        return [job for job in list(self._jobs.values()) if job.work is not None]

    def _run_next(self) -> None:
        """Once for every job that was started; nothing where one was stopped."""
        waiting = self._waiting()
        job = min(waiting, key=lambda job: self._turns.get(job.client, 0.0), default=None)
        if job is None:
            return
        work, job.work = job.work, None
        self._turns = {one.client: self._turns.get(one.client, 0.0) for one in waiting} | {job.client: time.monotonic()}
        if work is not None:
            self._run(job, work)

    def _run(self, job: Job, work: Callable[[Report], object]) -> None:
        published, began = 0.0, time.monotonic()

        def report(done: int, total: int, partial: object = None) -> None:
            nonlocal published
            time.sleep(_GIVE_WAY_SECONDS)
            now = time.monotonic()
            if now - began > _TURN_SECONDS and any(one.client != job.client for one in self._waiting()):
                why = f"The computation was ended after {_TURN_SECONDS:g} s: others wait for theirs."
                raise overloaded(why, retry_after=_TURN_SECONDS)
            if self._folder is not None and now - published > _PUBLISHED_SECONDS:
                self._folder.look(job)
                self._folder.publish(job)
                published = now
            if job.stopped or now - job.asked > _FORGOTTEN_SECONDS:
                raise Stopped
            job.done, job.total, job.partial = done, total, partial

        try:
            report(0, 1)
            job.result = work(report)
        except Stopped:
            job.stopped = True
        except (BertieError, Refusal) as error:  # told to whoever asks next
            job.error = error
        except Exception as error:
            logger.exception("a long computation failed")
            job.error = error
        dismiss_helpers()  # the next job may be a long time away
        if self._folder is not None:
            self._folder.publish(job)


class _Folder:
    """Jobs as files: the state of each, the time at which another worker was asked about it, and whether to stop."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _file(self, name: str, kind: str) -> Path:
        return self._folder / f"job-{name}.{kind}"

    def publish(self, job: Job) -> None:
        refused = None if job.error is None else as_refusal(job.error)
        state = {
            "done": job.done,
            "total": job.total,
            "partial": None if job.is_over else job.partial,
            "result": job.result,
            "refused": refused and [refused.status, refused.kind, refused.message, refused.remedy],
            "stopped": job.stopped,
        }
        with suppress(OSError):  # the server is ending, and the folder has gone
            replace_file(self._file(job.name, "json"), json.dumps(state))

    def read(self, name: str) -> Job | None:
        """The state of another worker's job, which learns that somebody asked."""
        try:
            state = json.loads(self._file(name, "json").read_text(encoding="utf-8"))
        except OSError:
            return None
        with suppress(OSError):
            self._file(name, "asked").touch()
        refused = state["refused"]
        return Job(
            name,
            state["done"],
            state["total"],
            state["partial"],
            state["result"],
            None if refused is None else Refusal(*refused[:3], remedy=refused[3]),
            state["stopped"],
        )

    def stop(self, name: str) -> None:
        with suppress(OSError):
            self._file(name, "stop").touch()

    def look(self, job: Job) -> None:
        """Has another worker been asked about this job, or told to stop it?"""
        with suppress(OSError):
            ago = time.time() - self._file(job.name, "asked").stat().st_mtime
            job.asked = max(job.asked, time.monotonic() - ago)
        job.stopped = job.stopped or self._file(job.name, "stop").exists()

    def remove(self, name: str) -> None:
        for kind in ("json", "asked", "stop"):
            self._file(name, kind).unlink(missing_ok=True)
