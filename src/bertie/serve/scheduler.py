"""The queues before a model, and the threads that empty them: the rows of all clients in batches bounded by tokens.

A batch is made of whatever waits when the engine is free, so a request that comes to an empty queue goes at once, and
what arrives while a batch runs makes the next one: nobody waits for a batch to fill. Work whose client has left, or
which has waited too long without any progress, is skipped. Answers go back to the event loop in one call per batch.

Nobody can use up what others need:

- **Two queues.** Requests of little work stand in one, the others in another, each with its own room. On a CPU a
  batch of either may run at the same time, so a small request does not wait for a large one at all.
- **Turns.** In a queue, clients take turns, and so do the jobs of a client, a few hundred tokens each: a job waits for
  one turn of every other client at most. A client may hold four times what it leaves free to others, and a single job
  counts as a quarter of all the room at most, so that no client and no request fills a queue.
- **Short batches.** A batch is as many tokens as the model does in a twentieth of a second, so a turn comes soon.
- **Fair devices.** Models on one device compute in the order in which they asked for it (`Turns`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from bertie.serve import failures
from bertie.serve.failures import EngineDown, InferenceFailed, overloaded, unhealthy

logger = logging.getLogger("bertie.serve")

_TURN = 256  # tokens a job may take before it is the next one's turn
_SHARE = 4  # what a client may hold of a queue, as a multiple of what is free
_MOST_OF_ROOM = 4  # one job counts as this part of a queue's room at most
_FAILURES_IN_A_ROW = 3  # so many batches that fail mean that the engine, not the texts, is broken
_BATCH_SECONDS = 0.05  # how long a batch may take: what a newcomer waits for
_LEAST_BATCH = 256  # fewer tokens than this would not keep the engine busy

I = TypeVar("I")  # noqa: E741
A = TypeVar("A")


@dataclass(eq=False)
class Lane(Generic[I, A]):
    """One way through the model (embed, tag with certain options …): a function from items to as many answers.

    Only items of one lane share a batch. `budget` (tokens of a batch) replaces the engine's where less fits.
    """

    name: str
    run: Callable[[list[I]], Sequence[A]]
    budget: int | None = None


@dataclass(eq=False, slots=True)
class Job(Generic[I, A]):
    """Items of one request. Times are `time.perf_counter()`."""

    lane: Lane[I, A]
    items: Sequence[I]
    lengths: Sequence[int]  # their tokens
    future: asyncio.Future[list[A]]
    seconds: float  # that it may wait for its next turn: a large job is not late as long as it gets on
    client: str = ""
    queued: float = field(default_factory=time.perf_counter)
    started: float = 0.0
    finished: float = 0.0
    deadline: float = 0.0
    tokens: int = 0
    taken: int = 0
    missing: int = 0
    gone: bool = False  # its client has left: what is not running yet will not be run
    answers: dict[int, A] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.missing = len(self.items)
        self.tokens = sum(self.lengths)
        self.deadline = self.queued + self.seconds


AnyLane = Lane[Any, Any]
AnyJob = Job[Any, Any]
Batch = list[tuple[AnyJob, int]]  # a job and the number of one of its items


class FairQueue:
    """Jobs with items that no batch has taken yet. Its owner holds a lock around every call."""

    def __init__(self, most_tokens: int, most_jobs: int) -> None:
        self._most_tokens, self._most_jobs = most_tokens, most_jobs
        self._clients: dict[str, dict[AnyJob, None]] = {}  # in the order of their turns, and so are a client's jobs
        self._charges: dict[str, int] = {}  # of each client's jobs
        self.jobs = 0
        self.tokens = 0  # of items that no batch has taken
        self.running: set[AnyJob] = set()

    def has_room(self, client: str, tokens: int = 0) -> bool:
        """May a client add a job? One that has nothing here may, whatever the job's size, while there is a place."""
        own_jobs = len(self._clients.get(client, ()))
        places, free = self._most_jobs - self.jobs, self._most_tokens - sum(self._charges.values())
        if not own_jobs:
            return places > 0
        own = self._charges[client]
        return places > 0 and own_jobs <= _SHARE * places and self._charge(tokens) <= free and own <= _SHARE * free

    def _charge(self, tokens: int) -> int:
        return min(tokens, self._most_tokens // _MOST_OF_ROOM)

    def add(self, job: AnyJob) -> None:
        self._clients.setdefault(job.client, {})[job] = None
        self._charges[job.client] = self._charges.get(job.client, 0) + self._charge(job.tokens)
        self.jobs += 1
        self.tokens += job.tokens

    def remove(self, job: AnyJob) -> None:
        """Take a job out with what is left of it; nothing happens where it is not here."""
        jobs = self._clients.get(job.client)
        if jobs is None or job not in jobs:
            return
        del jobs[job]
        self._charges[job.client] -= self._charge(job.tokens)
        self.jobs -= 1
        self.tokens -= sum(job.lengths[job.taken :])
        if not jobs:
            del self._clients[job.client], self._charges[job.client]

    def clear(self) -> list[AnyJob]:
        """Take all jobs out."""
        return self._remove_all([job for jobs in self._clients.values() for job in jobs])

    def drop(self) -> list[AnyJob]:
        """Take out the jobs that nobody waits for any more, or that have waited too long."""
        now = time.perf_counter()
        waiting = (job for jobs in self._clients.values() for job in jobs)
        return self._remove_all([job for job in waiting if job.gone or job.deadline < now])

    def _remove_all(self, found: list[AnyJob]) -> list[AnyJob]:
        for job in found:
            self.remove(job)
        return found

    def take(self, room: Callable[[AnyLane], int]) -> Batch:
        """The next batch: items of the lane whose turn it is, of at most `room` tokens, or one item that is longer."""
        batch: Batch = []
        lane: AnyLane | None = None
        left, served = 1, True
        while left > 0 and served:
            served = False
            for client in list(self._clients):
                job = next((job for job in self._clients[client] if lane is None or job.lane is lane), None)
                if job is None:
                    continue
                if lane is None:
                    lane, left = job.lane, room(job.lane)
                used = self._serve(job, batch, left)
                if not used:  # its next item does not fit: it is the first of the next batch
                    left = 0
                    break
                served = True
                left -= used
                if left <= 0:
                    break
        return batch

    def _serve(self, job: AnyJob, batch: Batch, left: int) -> int:
        """One turn of a job, which then goes to the end, and so does its client; the tokens it took."""
        first, used = job.taken, 0
        while job.taken < len(job.items):
            length = job.lengths[job.taken]
            if (batch and length > left - used) or (used and used + length > _TURN):
                break
            batch.append((job, job.taken))
            job.taken += 1
            used += max(1, length)
        if job.taken == first:
            return 0
        self.tokens -= sum(job.lengths[first : job.taken])
        now = time.perf_counter()
        job.started = job.started or now
        job.deadline = now + job.seconds
        jobs = self._clients[job.client] = self._clients.pop(job.client)
        if job.taken == len(job.items):
            self.remove(job)
        else:
            del jobs[job]
            jobs[job] = None
        return used


class Turns:
    """A lock that is given in the order in which it was asked for; `threading.Lock` goes to whoever is quickest."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: deque[threading.Event] = deque()  # the first one has it

    def __enter__(self) -> None:
        mine = threading.Event()
        with self._guard:
            self._waiting.append(mine)
            if len(self._waiting) == 1:
                return
        mine.wait()

    def __exit__(self, *_: object) -> None:
        with self._guard:
            self._waiting.popleft()
            if self._waiting:
                self._waiting[0].set()


class Device:
    """Who computes on a device: one batch at a time; on a CPU, one of each queue."""

    def __init__(self, *, side_by_side: bool = False) -> None:
        self.long = Turns()
        self.short = Turns() if side_by_side else self.long


class Engine:
    """The queues of a model and the threads that empty them. All but the threads' own work is for the event loop.

    `on_crash` is called in a thread when the engine has broken down; by then all its work is answered, and whoever
    owns it makes a new one. A job of at most `short_tokens` stands in the queue for little work.
    """

    def __init__(
        self,
        name: str,
        *,
        budget: int,
        queue_tokens: int,
        queue_requests: int,
        loop: asyncio.AbstractEventLoop,
        short_tokens: int | None = None,
        device: Device | None = None,
        on_crash: Callable[[BaseException], None] = lambda error: None,
        on_batch: Callable[[str, int, int, float], None] = lambda lane, rows, tokens, seconds: None,
        start: Callable[[], None] = lambda: None,
    ) -> None:
        self.name, self.budget = name, budget
        self.short_tokens = budget // 8 if short_tokens is None else short_tokens
        self.device = device or Device()
        self._loop = loop
        self._on_crash, self._on_batch, self._start = on_crash, on_batch, start
        self._wake = threading.Condition()
        self._short, self._long = (FairQueue(queue_tokens, queue_requests) for _ in range(2))
        self._closing = self._down = False
        self._failures = 0
        self._rate = 0.0  # tokens a second, lately
        self.skipped = 0
        self._threads = []
        for queue in ((self._short, self.device.short), (self._long, self.device.long)):
            self._threads.append(threading.Thread(target=self._work, args=queue, name=f"engine-{name}", daemon=True))
            self._threads[-1].start()

    # -- for the event loop ---------------------------------------------------------------------------------------

    @property
    def waiting(self) -> tuple[int, int]:
        """(jobs, tokens) in both queues."""
        return self._short.jobs + self._long.jobs, self._short.tokens + self._long.tokens

    def submit(
        self, lane: Lane[I, A], items: Sequence[I], lengths: Sequence[int], *, seconds: float, client: str = "",
        work: int | None = None,
    ) -> Job[I, A]:  # fmt: skip
        """Queue work; its answers, one to an item, arrive in the job's future. A full queue is refused at once.

        `seconds`: how long it may wait without any of it being run. `work`: the tokens of all the request's jobs, where
        this is one of several.
        """
        job = Job(lane, items, lengths, self._loop.create_future(), seconds, client)
        with self._wake:
            if self._down or self._closing:
                raise EngineDown
            if not items:
                job.future.set_result([])
                return job
            queue = self._queue(job.tokens if work is None else work)
            self._check(queue, client, job.tokens)
            queue.add(job)
            self._wake.notify_all()
        return job

    def check_room(self, client: str = "", work: int = 0) -> None:
        """Refuse work of about this many tokens if its queue has no room at all."""
        with self._wake:
            self._check(self._queue(work), client, 0)

    def _queue(self, work: int) -> FairQueue:
        return self._short if work <= self.short_tokens else self._long

    def _check(self, queue: FairQueue, client: str, tokens: int) -> None:
        if not queue.has_room(client, tokens):
            raise overloaded(
                f"Model is overloaded: {queue.jobs} requests with {queue.tokens} tokens are waiting.",
                retry_after=queue.tokens / self._rate if self._rate else 0.0,
            )

    def stop(self, *, wait: float = 1.0) -> None:
        """End after the batches that are running; whoever is not answered then is told to ask elsewhere."""
        with self._wake:
            self._closing = True
            left = [*self._short.clear(), *self._long.clear()]
        refusal = unhealthy("The server is shutting down and did not get to the end of this request.")
        self._deliver([(job, refusal) for job in left])
        self.close(wait=wait)

    def close(self, *, wait: float = 5.0) -> None:
        """Finish what is queued, then end the threads."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        ends = time.monotonic() + wait
        for thread in self._threads:
            if threading.current_thread() is not thread:
                thread.join(max(0.0, ends - time.monotonic()))

    # -- the threads ----------------------------------------------------------------------------------------------

    def _work(self, queue: FairQueue, turns: Turns) -> None:
        try:
            self._start()
            while True:
                with self._wake:
                    while not (queue.jobs or self._closing or self._down):
                        self._wake.wait()
                    if self._down or not queue.jobs:
                        return
                # Whoever comes while the device is busy elsewhere is still in the batch.
                with turns:
                    with self._wake:
                        dropped = queue.drop()
                        batch = queue.take(self._room)
                    if batch:
                        self._run(queue, batch)
                self._drop(dropped)
        except BaseException as error:  # the thread's last words: nobody may be left waiting
            self._break_down(error)

    def _room(self, lane: AnyLane) -> int:
        return min(lane.budget or self.budget, max(_LEAST_BATCH, int(self._rate * _BATCH_SECONDS)))

    def _run(self, queue: FairQueue, batch: Batch) -> None:
        lane = batch[0][0].lane
        queue.running = {job for job, _ in batch}
        begin = time.perf_counter()
        try:
            answers = _through(lane, [job.items[number] for job, number in batch])
        except Exception as error:
            if failures.device_failed(error):
                raise
            self._one_by_one(lane, batch, error)
        else:
            self._failures = 0
            seconds = time.perf_counter() - begin
            tokens = sum(job.lengths[number] for job, number in batch)
            self._rate = tokens / seconds if not self._rate else 0.9 * self._rate + 0.1 * tokens / seconds
            self._on_batch(lane.name, len(batch), tokens, seconds)
            self._give(batch, answers)
        queue.running = set()

    def _one_by_one(self, lane: AnyLane, batch: Batch, error: Exception) -> None:
        """A batch has failed: each job's part by itself, so that only the one at fault hears of it."""
        jobs = list(dict.fromkeys(job for job, _ in batch))
        if not failures.is_told(error):
            logger.error("a batch of %s failed", lane.name, exc_info=error)
        failed = 0
        for job in jobs:
            own = [(other, number) for other, number in batch if other is job]
            try:
                if len(jobs) == 1 and len(own) == 1:
                    raise error
                # Item by item: what was too much at once may fit so.
                answers = [_through(lane, [job.items[number]])[0] for _, number in own]
            except Exception as own_error:
                if failures.device_failed(own_error):
                    raise
                expected = failures.is_told(own_error) or failures.out_of_memory(own_error)
                failed += not expected
                with self._wake:
                    self._short.remove(job)
                    self._long.remove(job)
                self._deliver([(job, own_error if expected else InferenceFailed(str(own_error)))])
            else:
                self._give(own, answers)
        self._failures = self._failures + 1 if failed == len(jobs) else 0
        if self._failures >= _FAILURES_IN_A_ROW:
            raise EngineDown(f"{self._failures} batches failed one after another") from error

    def _give(self, batch: Batch, answers: Sequence[object]) -> None:
        now = time.perf_counter()
        complete = []
        for (job, number), answer in zip(batch, answers, strict=True):
            job.answers[number] = answer
            job.missing -= 1
            if not job.missing:
                job.finished = now
                complete.append((job, None))
        self._deliver(complete)

    def _drop(self, jobs: list[AnyJob]) -> None:
        if not jobs:
            return
        self.skipped += sum(job.gone for job in jobs)
        retry = self.waiting[1] / self._rate if self._rate else 0.0
        error = overloaded("Model is overloaded: the request waited longer than it may.", retry_after=retry)
        self._deliver([(job, error) for job in jobs if not job.gone])

    def _deliver(self, outcomes: Sequence[tuple[AnyJob, Exception | None]]) -> None:
        if not outcomes:
            return
        try:
            self._loop.call_soon_threadsafe(_settle, outcomes)
        except RuntimeError:  # the event loop has ended, and with it everyone who waited
            logger.warning("%d answers came after the server had stopped", len(outcomes))

    def _break_down(self, error: BaseException) -> None:
        logger.critical("the engine of %s broke down", self.name, exc_info=error)
        with self._wake:
            first = not self._down
            self._down = True
            jobs = {job for queue in (self._short, self._long) for job in (*queue.clear(), *queue.running)}
            self._wake.notify_all()
        try:  # first, so that whoever hears of it finds the model broken and not ready
            if first:
                self._on_crash(error)
        finally:
            self._deliver([(job, EngineDown()) for job in jobs if job.missing])


def _through(lane: AnyLane, items: list[object]) -> Sequence[object]:
    answers = lane.run(items)
    if len(answers) != len(items):
        raise RuntimeError(f"{lane.name} gave {len(answers)} answers for {len(items)} items")
    return answers


def _settle(outcomes: Sequence[tuple[AnyJob, Exception | None]]) -> None:
    for job, error in outcomes:
        if job.future.done():  # cancelled: its client has left
            continue
        if error is None:
            job.future.set_result([job.answers[number] for number in range(len(job.items))])
        else:
            job.future.set_exception(error)
