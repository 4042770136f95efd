"""What runs the page's questions: sessions over one checkpoint, those used last kept, and what takes long beside them.

Questions have a queue of their own, in which clients take turns: one may take seconds, or wait for a job that has the
model, and no other request waits for that. One thread computes them all, however long their texts: the helpers of
several would be in each other's way (forks.py).
What takes long (attribution, patching, importance) is a job (jobs.py) that is asked how far it is.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import torch

from bertie.errors import TruncationWarning
from bertie.explore.opening import open_for
from bertie.explore.session import Session, open_session
from bertie.explore.switches import encoder_of
from bertie.loading import load
from bertie.ops.forks import dismiss_helpers
from bertie.running.open import OpenModel
from bertie.serve.jobs import Jobs
from bertie.serve.models import Place, Source
from bertie.serve.queues import Lane

# A text, and the one whose states are put into it; of long texts, whose states take 20 MB and more, the last alone.
_MOST_SESSIONS = 2
_MOST_TOKENS = 640
_WARM_LENGTH = 64
_IDLE_SECONDS = 0.2  # after the last answer, free memory goes back
# Types that only the engine computes in; exploring needs the reference.
_ENGINE_TYPES = ("int8", "fp8")

T = TypeVar("T")
Question = Callable[[], object]
Second = str | tuple[str, ...] | None


class ExploreRunner:
    """Sessions over one checkpoint. The model is opened when it is first looked into."""

    def __init__(self, source: Source, place: Place) -> None:
        self._source, self._device = source, place.device
        self._dtype = None if place.dtype in _ENGINE_TYPES else place.dtype
        self._sessions: OrderedDict[tuple[str, Second, str | None], Session] = OrderedDict()
        self._lock = threading.Lock()
        # One question to a batch: its answer does not wait for those of the others.
        self.lane: Lane[Question, object] = Lane("explore", self._ask, budget=1)
        self.jobs = Jobs()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="explore")
        self._tidying: threading.Timer | None = None

    @cached_property
    def loaded(self) -> OpenModel:
        return open_for(self._source, None, device=self._device, dtype=self._dtype)[0]

    def task(self) -> str:
        """The task that the checkpoint was made for."""
        return open_for(self._source, None, device=self._device, dtype=self._dtype)[1]

    def warm_up(self) -> None:
        """Where a server only explores: it is one person's, and a small one."""
        share_arenas()
        self._in_thread(self._run_once)
        dismiss_helpers()  # those that opened the model
        give_back()

    @torch.no_grad()  # not inference mode: gradients go through the weights that are opened here
    def _run_once(self) -> None:
        length = min(_WARM_LENGTH, self.loaded.max_length)
        encoder_of(self.loaded.model)(torch.zeros((1, length), dtype=torch.long, device=self.loaded.device))

    def _in_thread(self, work: Callable[[], T]) -> T:
        threads = torch.get_num_threads()

        def run() -> T:
            if torch.get_num_threads() != threads:  # the setting belongs to the thread that makes it
                torch.set_num_threads(threads)
            return work()

        return self._thread.submit(run).result()

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
            while len(self._sessions) > 1 and not self._fit():
                self._sessions.popitem(last=False)
        return made

    def _fit(self) -> bool:
        tokens = sum(len(row) for session in self._sessions.values() for row in session.rows)
        return len(self._sessions) <= _MOST_SESSIONS and tokens <= _MOST_TOKENS

    def _ask(self, questions: Sequence[Question]) -> list[object]:
        answers = self._in_thread(lambda: [question() for question in questions])
        if self._tidying is not None:
            self._tidying.cancel()
        # Not before the answers are given: it takes some time, and so does memory that has to come again.
        self._tidying = threading.Timer(_IDLE_SECONDS, give_back)
        self._tidying.daemon = True
        self._tidying.start()
        return answers

    def save_pruned(self, heads: dict[int, list[int]], folder: Path) -> None:
        """The checkpoint without some heads, in a folder of its own."""
        model = load(self.loaded.name)
        model.prune_heads(heads)
        model.save_pretrained(folder)
        self.loaded.tokenizer.save_pretrained(folder)


def give_back() -> None:
    """Memory that is free goes back to the system: glibc keeps hundreds of megabytes for the next long text."""
    if _glibc is not None:
        _glibc.malloc_trim(0)


def share_arenas() -> None:
    """All threads allocate from the same heap from now on: each would otherwise keep free memory of its own."""
    if _glibc is not None:
        _glibc.mallopt(_M_ARENA_MAX, 1)


_M_ARENA_MAX = -8  # malloc.h
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
_glibc = _libc if hasattr(_libc, "malloc_trim") else None
