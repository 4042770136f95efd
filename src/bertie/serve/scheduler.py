"""One thread to a model, and the queue before it: the rows of all clients in batches bounded by tokens.

A batch is made of whatever waits when the engine is free, so a request that comes to an empty queue goes at once, and
what arrives while a batch runs makes the next one: nobody waits for a batch to fill. Jobs take turns, a few hundred
tokens each, so a request of a thousand texts does not hold up one of a single text. Work whose client has left, or
whose time is up, is skipped. Answers go back to the event loop in one call per batch.

A `Lane` is one way through the model (embed, classify, tag with certain options …): a function from items to as many
answers. Only items of one lane share a batch.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bertie.errors import BertieError
from bertie.serve.failures import EngineDown, InferenceFailed, Refusal, overloaded

logger = logging.getLogger("bertie.serve")

# Tokens a job may take before it is the next one's turn.
_TURN = 256
# So many batches that fail one after another mean that the engine, not the texts, is broken.
_FAILURES_IN_A_ROW = 3


@dataclass(eq=False)
class Lane:
    """A way through the model. `budget` (tokens of a batch) replaces the engine's where less fits."""

    name: str
    run: Callable[[list[Any]], Sequence[Any]]
    budget: int | None = None


@dataclass(eq=False, slots=True)
class Job:
    """Items of one request. `lengths` are their tokens. Times are `time.perf_counter()`."""

    lane: Lane
    items: Sequence[Any]
    lengths: Sequence[int]
    future: asyncio.Future[list[Any]]
    deadline: float
    queued: float = field(default_factory=time.perf_counter)
    started: float = 0.0
    finished: float = 0.0
    taken: int = 0
    missing: int = 0
    gone: bool = False
    answers: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.missing = len(self.items)
        self.answers = [None] * self.missing

    @property
    def tokens(self) -> int:
        return sum(self.lengths)


Batch = list[tuple[Job, int]]  # a job and the number of one of its items


class Engine:
    """The queue of a model and the thread that empties it. Everything but the thread's own work is for the event loop.

    `on_crash` is called in the thread when the engine has broken down; by then all its work is answered, and whoever
    owns it makes a new one. `device_lock` keeps engines on one device from running at the same time.
    """

    def __init__(
        self,
        name: str,
        *,
        budget: int,
        queue_tokens: int,
        queue_requests: int,
        loop: asyncio.AbstractEventLoop,
        device_lock: threading.Lock | None = None,
        on_crash: Callable[[BaseException], None] | None = None,
        on_batch: Callable[[str, int, int, float], None] | None = None,
        start: Callable[[], None] | None = None,
    ) -> None:
        self.name, self.budget = name, budget
        self._most_tokens, self._most_jobs = queue_tokens, queue_requests
        self._loop, self._lock = loop, device_lock or threading.Lock()
        self._on_crash, self._on_batch, self._start = on_crash, on_batch, start
        self._wake = threading.Condition()
        self._jobs: dict[Job, None] = {}  # in order: those with items that no batch has taken
        self._tokens = 0  # of items that no batch has taken
        self._running: set[Job] = set()
        self._closing = False
        self._down = False
        self._failures = 0
        self._rate = 0.0  # tokens a second, lately
        self.skipped = 0
        self._thread = threading.Thread(target=self._work, name=f"engine-{name}", daemon=True)
        self._thread.start()

    # -- for the event loop ---------------------------------------------------------------------------------------

    @property
    def waiting(self) -> tuple[int, int]:
        """(jobs, tokens) in the queue."""
        return len(self._jobs), self._tokens

    @property
    def seconds_behind(self) -> float:
        """How long the queue will take."""
        return self._tokens / self._rate if self._rate else 0.0

    def submit(self, lane: Lane, items: Sequence[Any], lengths: Sequence[int], *, seconds: float) -> Job:
        """Queue work; its answers, one to an item, arrive in the job's future. A full queue is refused at once."""
        tokens = sum(lengths)
        with self._wake:
            if self._down or self._closing:
                raise EngineDown
            self.check_room(tokens)
            job = Job(lane, items, lengths, self._loop.create_future(), time.perf_counter() + seconds)
            if not items:
                job.future.set_result([])
                return job
            self._jobs[job] = None
            self._tokens += tokens
            self._wake.notify()
        return job

    def check_room(self, tokens: int = 0) -> None:
        """Refuse what does not fit into the queue. Whatever its size, a job that finds the queue empty is taken."""
        jobs, waiting = self.waiting
        if jobs and (jobs >= self._most_jobs or waiting + tokens > self._most_tokens):
            raise overloaded(
                f"Model is overloaded: {jobs} requests with {waiting} tokens are waiting.",
                retry_after=self.seconds_behind,
            )

    def forget(self, job: Job) -> None:
        """The client has left: what is not running yet will not be run."""
        job.gone = True

    def close(self, *, wait: float = 5.0) -> None:
        """Finish what is queued, then end the thread."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join(wait)

    # -- the thread -----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            if self._start is not None:
                self._start()
            while True:
                with self._wake:
                    while not self._jobs and not self._closing:
                        self._wake.wait()
                    if not self._jobs:
                        return
                    batch, dropped = self._take()
                self._drop(dropped)
                if batch:
                    self._run(batch)
        except BaseException as error:  # the thread's last words: nobody may be left waiting
            self._break_down(error)

    def _take(self) -> tuple[Batch, list[Job]]:
        """The next batch: items of the first job's lane, jobs taking turns; and the jobs not wanted any more."""
        now = time.perf_counter()
        dropped = [job for job in self._jobs if job.gone or job.deadline < now]
        for job in dropped:
            del self._jobs[job]
            self._tokens -= sum(job.lengths[job.taken :])
        if not self._jobs:
            return [], dropped
        lane = next(iter(self._jobs)).lane
        room = lane.budget or self.budget
        batch: Batch = []
        fellows = [job for job in self._jobs if job.lane is lane]
        while fellows and room > 0:
            unfinished = []
            for job in fellows:
                turn = _TURN
                while job.taken < len(job.items):
                    length = job.lengths[job.taken]
                    if batch and length > room:
                        room = 0
                        break
                    if turn < _TURN and length > turn:
                        break
                    batch.append((job, job.taken))
                    job.taken += 1
                    room -= length
                    turn -= length
                    self._tokens -= length
                if room <= 0:
                    break
                if job.taken < len(job.items):
                    unfinished.append(job)
            fellows = unfinished
        for job in {job for job, _ in batch}:
            if not job.started:
                job.started = now
            if job.taken == len(job.items):
                del self._jobs[job]
        return batch, dropped

    def _run(self, batch: Batch) -> None:
        lane = batch[0][0].lane
        self._running = {job for job, _ in batch}
        begin = time.perf_counter()
        try:
            answers = self._through(lane, [job.items[number] for job, number in batch])
        except Exception as error:
            if device_failed(error):
                raise
            self._one_by_one(lane, batch, error)
        else:
            self._failures = 0
            seconds = time.perf_counter() - begin
            tokens = sum(job.lengths[number] for job, number in batch)
            self._rate = tokens / seconds if not self._rate else 0.9 * self._rate + 0.1 * tokens / seconds
            if self._on_batch is not None:
                self._on_batch(lane.name, len(batch), tokens, seconds)
            self._give(batch, answers)
        self._running = set()

    def _through(self, lane: Lane, items: list[Any]) -> Sequence[Any]:
        with self._lock:
            answers = lane.run(items)
        if len(answers) != len(items):
            raise RuntimeError(f"{lane.name} gave {len(answers)} answers for {len(items)} items")
        return answers

    def _one_by_one(self, lane: Lane, batch: Batch, error: Exception) -> None:
        """A batch has failed: each job's part by itself, so that only the one at fault hears of it."""
        jobs = list(dict.fromkeys(job for job, _ in batch))
        if not isinstance(error, BertieError | Refusal):
            logger.error("a batch of %s failed", lane.name, exc_info=error)
        failed = 0
        for job in jobs:
            own = [(other, number) for other, number in batch if other is job]
            try:
                if len(jobs) == 1 and len(own) == 1:
                    raise error
                # Item by item: what was too much at once may fit so.
                answers = [self._through(lane, [job.items[number]])[0] for _, number in own]
            except Exception as own_error:
                if device_failed(own_error):
                    raise
                expected = isinstance(own_error, BertieError | Refusal | MemoryError) or _out_of_memory(own_error)
                failed += not expected
                self._abandon(job, own_error if expected else InferenceFailed(str(own_error)))
            else:
                self._give(own, answers)
        self._failures = self._failures + 1 if failed == len(jobs) else 0
        if self._failures >= _FAILURES_IN_A_ROW:
            raise EngineDown(f"{self._failures} batches failed one after another") from error

    def _give(self, batch: Batch, answers: Sequence[Any]) -> None:
        now = time.perf_counter()
        complete = []
        for (job, number), answer in zip(batch, answers, strict=True):
            job.answers[number] = answer
            job.missing -= 1
            if not job.missing:
                job.finished = now
                complete.append((job, None))
        self._deliver(complete)

    def _abandon(self, job: Job, error: Exception) -> None:
        with self._wake:
            if job in self._jobs:
                del self._jobs[job]
                self._tokens -= sum(job.lengths[job.taken :])
        self._deliver([(job, error)])

    def _drop(self, jobs: list[Job]) -> None:
        self.skipped += sum(job.gone for job in jobs)
        late = [job for job in jobs if not job.gone]
        retry = self.seconds_behind
        error = overloaded("Model is overloaded: the request waited longer than it may.", retry_after=retry)
        self._deliver([(job, error) for job in late])

    def _deliver(self, outcomes: Sequence[tuple[Job, Exception | None]]) -> None:
        if not outcomes:
            return
        try:
            self._loop.call_soon_threadsafe(_settle, outcomes)
        except RuntimeError:  # the event loop has ended, and with it everyone who waited
            logger.warning("%d answers came after the server had stopped", len(outcomes))

    def _break_down(self, error: BaseException) -> None:
        logger.critical("the engine of %s broke down", self.name, exc_info=error)
        with self._wake:
            self._down = True
            jobs = {*self._jobs, *self._running}
            self._jobs.clear()
            self._tokens = 0
        try:  # first, so that whoever hears of it finds the model broken and not ready
            if self._on_crash is not None:
                self._on_crash(error)
        finally:
            self._deliver([(job, EngineDown()) for job in jobs if job.missing])


def _settle(outcomes: Sequence[tuple[Job, Exception | None]]) -> None:
    for job, error in outcomes:
        if job.future.done():  # cancelled: its client has left
            continue
        if error is None:
            job.future.set_result(job.answers)
        else:
            job.future.set_exception(error)


def _out_of_memory(error: Exception) -> bool:
    return type(error).__name__ == "OutOfMemoryError"


def device_failed(error: Exception) -> bool:
    """Has the device itself failed? Every later call on it would fail too."""
    if type(error).__name__ == "AcceleratorError":
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and "CUDA error" in text and "out of memory" not in text
