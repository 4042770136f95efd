"""What waits before a model: items of requests (`Queued`), in an order that is fair to all clients (`FairQueue`).

- **Turns.** In a queue, clients take turns, and so do the jobs of a client: an equal part of the batch each, of at
  least a few hundred tokens. A job waits for one turn of every other client at most. A client may hold four times
  what it leaves free to others, and a single job counts as a quarter of all the room at most, so that no client and
  no request fills a queue.
- **Fair devices.** Models on one device compute in the order in which they asked for it (`Turns`).
"""

from __future__ import annotations

import asyncio
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Generic, Protocol, TypeVar

from bertie.serve.failures import ClientLeft

_TURN = 256  # tokens a job may take at least before it is the next one's turn: each part of a job costs time
_SHARE = 4  # what a client may hold of a queue, as a multiple of what is free
_MOST_OF_ROOM = 4  # one job counts as this part of a queue's room at most

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
            self.future.set_exception(ClientLeft())

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
        left, turn, served = 1, _TURN, True
        while left > 0 and served:
            served = False
            for client in list(self._clients):
                job = next((job for job in self._clients[client] if lane is None or job.lane is lane), None)
                if job is None:
                    continue
                if lane is None:
                    lane, left = job.lane, room(job.lane)
                    turn = max(_TURN, left // self.jobs)
                used = self._serve(job, batch, min(turn, left), left)
                if not used:  # its next item does not fit: it is the first of the next batch
                    left = 0
                    break
                served = True
                left -= used
                if left <= 0:
                    break
        return batch

    def _serve(self, job: AnyJob, batch: Batch, turn: int, left: int) -> int:
        """One turn of a job, which then goes to the end, and so does its client; the tokens it took."""
        first, ends = job.taken, job.ends
        begin = ends[first - 1] if first else 0
        if batch and ends[first] - begin > left:
            return 0
        stop = max(first + 1, bisect_right(ends, begin + turn, first))
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

    def enter_now(self) -> bool:
        """Take it if nobody has it."""
        with self._guard:
            if not self._waiting:
                self._waiting.append(threading.Event())
                return True
        return False

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
