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
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Generic, Protocol, TypeVar

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

    Only items of one lane share a batch. `budget` (tokens of a batch) replaces the engine's where less fits. With
    `in_parts` the function is given slices of jobs' items, and not items one by one: an item is then a slice of one.
    """

    name: str
    run: Callable[[list[I]], Sequence[A] | Later[A]]
    budget: int | None = None
    in_parts: bool = False


class Later(Generic[A]):
    """Answers that a GPU is still computing when a lane gives them."""

    def __init__(self, read: Callable[[], Sequence[A]]) -> None:
        self.read = read


@dataclass(eq=False, slots=True)
class Queued(Generic[I, A]):
    """Items of one request, on their way through an engine. Times are `time.perf_counter()`."""

    lane: Lane[I, A]
    items: Sequence[I]
    lengths: Sequence[int]  # their tokens
    seconds: float  # that it may wait for its next turn: a large job is not late as long as it gets on
    client: str = ""
    queued: float = field(default_factory=time.perf_counter)
    started: float = 0.0
    finished: float = 0.0
    deadline: float = 0.0
    ends: list[int] = field(default_factory=list)  # of its tokens, item by item
    taken: int = 0
    missing: int = 0
    gone: bool = False  # its client has left: what is not running yet will not be run

    def __post_init__(self) -> None:
        self.missing = len(self.items)
        self.ends = list(accumulate(self.lengths))
        self.deadline = self.queued + self.seconds

    @property
    def tokens(self) -> int:
        return self.ends[-1] if self.ends else 0

    @property
    def left(self) -> int:
        """Tokens of the items that no batch has taken."""
        return self.tokens - (self.ends[self.taken - 1] if self.taken else 0)

    def give(self, answers: Sequence[A]) -> None:
        """The answers of its next part: parts are run in their order."""
        raise NotImplementedError

    def settle(self, error: Exception | None) -> None:
        """It is at an end: with all its answers, or with an error."""
        raise NotImplementedError


@dataclass(eq=False, slots=True)
class Job(Queued[I, A]):
    """One whose answers are waited for on the event loop of this process."""

    future: asyncio.Future[Sequence[A]] = field(kw_only=True)
    answers: list[Sequence[A]] = field(default_factory=list)  # of its parts

    def give(self, answers: Sequence[A]) -> None:
        self.answers.append(answers)
        self.missing -= len(answers)

    def leave(self) -> None:
        """Its client has left: nobody waits for its answers."""
        self.gone = True
        if not self.future.done():
            self.future.set_exception(failures.ClientLeft())

    def settle(self, error: Exception | None) -> None:
        if self.future.done():  # its client has left
            return
        if error is not None:
            self.future.set_exception(error)
        else:
            first, *rest = self.answers
            self.future.set_result([answer for part in (first, *rest) for answer in part] if rest else first)


AnyLane = Lane[Any, Any]
AnyJob = Queued[Any, Any]
Batch = list[tuple[AnyJob, int, int]]  # a job and which of its items: from, and up to
Outcomes = Sequence[tuple[AnyJob, Exception | None]]


class Queue(Protocol):
    """What routes see of an engine: this one, or one in another process."""

    def submit(
        self, lane: Lane[I, A], items: Sequence[I], lengths: Sequence[int], *, seconds: float, client: str = "",
        work: int | None = None,
    ) -> Job[I, A]: ...  # fmt: skip

    def check_room(self, client: str = "", work: int = 0) -> None: ...


class FairQueue:
    """Jobs with items that no batch has taken yet. Its owner holds a lock around every call."""

    def __init__(self, most_tokens: int, most_jobs: int, lock: threading.Lock) -> None:
        self._most_tokens, self._most_jobs = most_tokens, most_jobs
        self.filled = threading.Condition(lock)
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
        self.tokens -= job.left
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
        first, ends = job.taken, job.ends
        begin = ends[first - 1] if first else 0
        if batch and ends[first] - begin > left:
            return 0
        stop = max(first + 1, bisect_right(ends, begin + min(_TURN, left), first))
        batch.append((job, first, stop))
        job.taken = stop
        used = ends[stop - 1] - begin
        self.tokens -= used
        now = time.perf_counter()
        job.started = job.started or now
        job.deadline = now + job.seconds
        jobs = self._clients[job.client] = self._clients.pop(job.client)
        if stop == len(ends):
            self.remove(job)
        else:
            del jobs[job]
            jobs[job] = None
        return max(1, used)


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
    owns it makes a new one. A job of at most `short_tokens` stands in the queue for little work. `deliver` is called in
    a thread with jobs that are at an end; by default they are settled on the event loop. `launching` is held while a
    batch is made and given to the device, and not while the device computes.
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
        launching: AbstractContextManager[object] | None = None,
        deliver: Callable[[Outcomes], None] | None = None,
    ) -> None:
        self.name, self.budget = name, budget
        self.short_tokens = budget // 8 if short_tokens is None else short_tokens
        self.device = device or Device()
        self._loop = loop
        self._on_crash, self._on_batch, self._start = on_crash, on_batch, start
        self._deliver = deliver or self._deliver_here
        self._launching = launching or nullcontext()
        self._lock = threading.Lock()
        self._short, self._long = (FairQueue(queue_tokens, queue_requests, self._lock) for _ in range(2))
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
        job = Job(lane, items, lengths, seconds, client, future=self._loop.create_future())
        refused = self.submit_all([(job, work)])
        if refused:
            raise refused[0][1]
        if not items:
            job.future.set_result([])
        return job

    def submit_all(self, given: Sequence[tuple[AnyJob, int | None]]) -> list[tuple[AnyJob, Exception]]:
        """Queue jobs, each with the tokens of all its request's jobs; those that are refused, and why."""
        refused: list[tuple[AnyJob, Exception]] = []
        filled: set[FairQueue] = set()
        with self._lock:
            for job, work in given:
                queue = self._queue(job.tokens if work is None else work)
                if self._down or self._closing:
                    refused.append((job, EngineDown()))
                elif not queue.has_room(job.client, job.tokens):
                    refused.append((job, self._overloaded(queue)))
                elif job.ends:
                    queue.add(job)
                    filled.add(queue)
            for queue in filled:
                queue.filled.notify()
        return refused

    def check_room(self, client: str = "", work: int = 0) -> None:
        """Refuse work of about so many tokens if its queue has no room at all."""
        with self._lock:
            queue = self._queue(work)
            if not queue.has_room(client):
                raise self._overloaded(queue)

    def _queue(self, work: int) -> FairQueue:
        return self._short if work <= self.short_tokens else self._long

    def _overloaded(self, queue: FairQueue) -> Exception:
        return overloaded(
            f"Model is overloaded: {queue.jobs} requests with {queue.tokens} tokens are waiting.",
            retry_after=queue.tokens / self._rate if self._rate else 0.0,
        )

    def stop(self, *, wait: float = 1.0) -> None:
        """End after the batches that are running; whoever is not answered then is told to ask elsewhere."""
        with self._lock:
            self._closing = True
            left = [*self._short.clear(), *self._long.clear()]
        refusal = unhealthy("The server is shutting down and did not get to the end of this request.")
        self._deliver([(job, refusal) for job in left])
        self.close(wait=wait)

    def close(self, *, wait: float = 5.0) -> None:
        """Finish what is queued, then end the threads."""
        with self._lock:
            self._closing = True
            self._wake_up()
        ends = time.monotonic() + wait
        for thread in self._threads:
            if threading.current_thread() is not thread:
                thread.join(max(0.0, ends - time.monotonic()))

    # -- the threads ----------------------------------------------------------------------------------------------

    def _work(self, queue: FairQueue, turns: Turns) -> None:
        try:
            self._start()
            while True:
                with self._lock:
                    while not (queue.jobs or self._closing or self._down):
                        queue.filled.wait()
                    if self._down or not queue.jobs:
                        return
                # Whoever comes while the device is busy elsewhere is still in the batch.
                with turns:
                    with self._lock:
                        dropped = queue.drop()
                        batch = queue.take(self._room)
                    if batch:
                        self._run(queue, batch)
                self._drop(dropped)
        except BaseException as error:  # the thread's last words: nobody may be left waiting
            self._break_down(error)

    def _room(self, lane: AnyLane) -> int:
        return min(lane.budget or self.budget, max(_LEAST_BATCH, int(self._rate * _BATCH_SECONDS)))

    def _wake_up(self) -> None:
        for queue in (self._short, self._long):
            queue.filled.notify_all()

    def _run(self, queue: FairQueue, batch: Batch) -> None:
        lane = batch[0][0].lane
        queue.running = {job for job, _, _ in batch}
        begin = time.perf_counter()
        try:
            answers = self._through(lane, batch)
        except Exception as error:
            if failures.device_failed(error):
                raise
            self._one_by_one(lane, batch, error)
        else:
            self._failures = 0
            seconds = time.perf_counter() - begin
            tokens = sum(job.ends[stop - 1] - (job.ends[start - 1] if start else 0) for job, start, stop in batch)
            self._rate = tokens / seconds if not self._rate else 0.9 * self._rate + 0.1 * tokens / seconds
            self._on_batch(lane.name, len(answers), tokens, seconds)
            self._give(batch, answers)
        queue.running = set()

    def _through(self, lane: AnyLane, batch: Batch) -> Sequence[object]:
        with self._launching:
            parts = [job.items[start:stop] for job, start, stop in batch]
            found = lane.run(parts if lane.in_parts else [item for part in parts for item in part])
        answers = found.read() if isinstance(found, Later) else found
        wanted = sum(stop - start for _, start, stop in batch)
        if len(answers) != wanted:
            raise RuntimeError(f"{lane.name} gave {len(answers)} answers for {wanted} items")
        return answers

    def _one_by_one(self, lane: AnyLane, batch: Batch, error: Exception) -> None:
        """A batch has failed: each job's part by itself, so that only the one at fault hears of it."""
        jobs = list(dict.fromkeys(job for job, _, _ in batch))
        if not failures.is_told(error):
            logger.error("a batch of %s failed", lane.name, exc_info=error)
        failed = 0
        for job in jobs:
            own = [(job, n, n + 1) for other, start, stop in batch if other is job for n in range(start, stop)]
            try:
                if len(jobs) == 1 and len(own) == 1:
                    raise error
                # Item by item: what was too much at once may fit so.
                answers = [self._through(lane, [one])[0] for one in own]
            except Exception as own_error:
                if failures.device_failed(own_error):
                    raise
                expected = failures.is_told(own_error) or failures.out_of_memory(own_error)
                failed += not expected
                with self._lock:
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
        complete: list[tuple[AnyJob, None]] = []
        at = 0
        for job, start, stop in batch:
            begin, at = at, at + stop - start
            job.give(answers[begin:at])
            if not job.missing:
                job.finished = now
                complete.append((job, None))
        if complete:
            self._deliver(complete)

    def _drop(self, jobs: list[AnyJob]) -> None:
        if not jobs:
            return
        self.skipped += sum(job.gone for job in jobs)
        retry = self.waiting[1] / self._rate if self._rate else 0.0
        error = overloaded("Model is overloaded: the request waited longer than it may.", retry_after=retry)
        self._deliver([(job, error) for job in jobs])

    def _deliver_here(self, outcomes: Outcomes) -> None:
        try:
            self._loop.call_soon_threadsafe(settle, outcomes)
        except RuntimeError:  # the event loop has ended, and with it everyone who waited
            logger.warning("%d answers came after the server had stopped", len(outcomes))

    def _break_down(self, error: BaseException) -> None:
        logger.critical("the engine of %s broke down", self.name, exc_info=error)
        with self._lock:
            first = not self._down
            self._down = True
            jobs = {job for queue in (self._short, self._long) for job in (*queue.clear(), *queue.running)}
            self._wake_up()
        try:  # first, so that whoever hears of it finds the model broken and not ready
            if first:
                self._on_crash(error)
        finally:
            self._deliver([(job, EngineDown()) for job in jobs if job.missing])


def settle(outcomes: Outcomes) -> None:
    for job, error in outcomes:
        job.settle(error)
