"""What runs the page's questions: sessions over one checkpoint, those used last kept, and what takes long beside them.

A question goes through the model's queue as every other request does, so that a server explores and answers fairly.
What takes long (attribution, patching, importance) runs in one thread of its own and is asked how far it is; it ends
when nobody has asked for a while.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch

from bertie.errors import BertieError, TruncationWarning
from bertie.explore.opening import open_for
from bertie.explore.page.queries import Report
from bertie.explore.session import Session, open_session
from bertie.explore.switches import encoder_of
from bertie.loading import load
from bertie.running.open import OpenModel
from bertie.serve.failures import Refusal, overloaded
from bertie.serve.models import Place, Source
from bertie.serve.queues import Lane

logger = logging.getLogger("bertie.serve")

_MOST_SESSIONS = 2  # a text, and the one whose states are put into it
_WARM_LENGTH = 64
_MOST_JOBS = 4
# A job that nobody has asked about for so long is nobody's.
_FORGOTTEN_SECONDS = 20.0
# Types that only the engine computes in; exploring needs the reference.
_ENGINE_TYPES = ("int8", "fp8")

Question = Callable[[], object]
Second = str | tuple[str, ...] | None


class ExploreRunner:
    """Sessions over one checkpoint. The model is opened when it is first looked into."""

    def __init__(self, source: Source, place: Place) -> None:
        self._source, self._device = source, place.device
        self._dtype = None if place.dtype in _ENGINE_TYPES else place.dtype
        self._sessions: OrderedDict[tuple[str, Second, str | None], Session] = OrderedDict()
        self._lock = threading.Lock()
        self.lane: Lane[Question, object] = Lane("explore", _ask_each)
        self.jobs = Jobs()

    @cached_property
    def loaded(self) -> OpenModel:
        return open_for(self._source, None, device=self._device, dtype=self._dtype)[0]

    def task(self) -> str:
        """The task that the checkpoint was made for."""
        return open_for(self._source, None, device=self._device, dtype=self._dtype)[1]

    @torch.no_grad()  # not inference mode: gradients go through the weights that are opened here
    def warm_up(self) -> None:
        length = min(_WARM_LENGTH, self.loaded.max_length)
        encoder_of(self.loaded.model)(torch.zeros((1, length), dtype=torch.long, device=self.loaded.device))

    def session(self, text: str, second: Second, task: str | None) -> Session:
        key = (text, second, task)
        with self._lock:
            if key in self._sessions:
                self._sessions.move_to_end(key)
                return self._sessions[key]
        with warnings.catch_warnings():  # the page says so itself
            warnings.simplefilter("ignore", TruncationWarning)
            made = open_session(
                text,
                second,
                model=self._source,
                task=task,
                device=self._device,
                dtype=self._dtype,
            )
        with self._lock:
            self._sessions[key] = made
            while len(self._sessions) > _MOST_SESSIONS:
                self._sessions.popitem(last=False)
        return made

    def save_pruned(self, heads: dict[int, list[int]], folder: Path) -> None:
        """The checkpoint without some heads, in a folder of its own."""
        model = load(self.loaded.name)
        model.prune_heads(heads)
        model.save_pretrained(folder)
        self.loaded.tokenizer.save_pretrained(folder)


def _ask_each(questions: Sequence[Question]) -> list[object]:
    return [question() for question in questions]


# -- what takes long ---------------------------------------------------------------------------------------------------


class Stopped(Exception):
    """Nobody wants the result any more."""


@dataclass(eq=False)
class Job:
    """Work under way. `partial` is what there is so far, where that can be shown."""

    name: str
    done: int = 0
    total: int = 1
    partial: object = None
    result: object = None
    error: Exception | None = None
    stopped: bool = False
    asked: float = field(default_factory=time.monotonic)

    def report(self, done: int, total: int, partial: object = None) -> None:
        if self.stopped or time.monotonic() - self.asked > _FORGOTTEN_SECONDS:
            raise Stopped
        self.done, self.total, self.partial = done, total, partial


class Jobs:
    """The long work of a model, one after the other."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="explore")

    def start(self, work: Callable[[Report], object]) -> Job:
        under_way = [job for job in self._jobs.values() if job.result is None and job.error is None and not job.stopped]
        if len(under_way) >= _MOST_JOBS:
            raise overloaded(f"{len(under_way)} long computations are under way.", retry_after=5)
        job = Job(secrets.token_hex(8))
        self._jobs[job.name] = job
        while len(self._jobs) > 4 * _MOST_JOBS:
            self._jobs.popitem(last=False)
        self._thread.submit(self._run, job, work)
        return job

    def find(self, name: str) -> Job | None:
        """The job of that name; it is wanted for a while longer."""
        job = self._jobs.get(name)
        if job is not None:
            job.asked = time.monotonic()
        return job

    def _run(self, job: Job, work: Callable[[Report], object]) -> None:
        try:
            job.report(0, 1)
            job.result = work(job.report)
        except Stopped:
            job.stopped = True
        except (BertieError, Refusal) as error:  # told to whoever asks next
            job.error = error
        except Exception as error:
            logger.exception("a long computation failed")
            job.error = error
