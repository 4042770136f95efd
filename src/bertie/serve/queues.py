"""Who is next: jobs wait in a queue, where clients take turns, and so do the jobs of a client.

A turn is a few hundred tokens. Whoever had one goes to the end, so a job waits for one turn of every other client at
most, whatever those have sent. A queue has room for a number of jobs and tokens; a client may hold four times what it
leaves free to others, and a single job counts as a quarter of all the room at most, so that no client and no request
fills it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

# Tokens a job may take before it is the next one's turn.
_TURN = 256
# What a client may hold of a queue, as a multiple of what is free.
_SHARE = 4
# One job counts as this part of a queue's room at most.
_MOST_OF_ROOM = 4


I = TypeVar("I")  # noqa: E741
A = TypeVar("A")


@dataclass(eq=False)
class Lane(Generic[I, A]):
    """A way through the model. `budget` (tokens of a batch) replaces the engine's where less fits."""

    name: str
    run: Callable[[list[I]], Sequence[A]]
    budget: int | None = None


@dataclass(eq=False, slots=True)
class Job(Generic[I, A]):
    """Items of one request. `lengths` are their tokens. Times are `time.perf_counter()`.

    `seconds` is how long it may wait for its next turn: a large job is not late as long as it gets on.
    """

    lane: Lane[I, A]
    items: Sequence[I]
    lengths: Sequence[int]
    future: asyncio.Future[list[A]]
    seconds: float
    client: str = ""
    queued: float = field(default_factory=time.perf_counter)
    started: float = 0.0
    finished: float = 0.0
    deadline: float = 0.0
    tokens: int = 0
    taken: int = 0
    missing: int = 0
    gone: bool = False
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
        found = [job for jobs in self._clients.values() for job in jobs]
        for job in found:
            self.remove(job)
        return found

    def drop(self) -> list[AnyJob]:
        """Take out the jobs that nobody waits for any more, or that have waited too long."""
        now = time.perf_counter()
        found = [job for jobs in self._clients.values() for job in jobs if job.gone or job.deadline < now]
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
        jobs = self._clients.pop(job.client)
        if job.taken == len(job.items):
            self._clients[job.client] = jobs
            self.remove(job)
        else:
            del jobs[job]
            jobs[job] = None
            self._clients[job.client] = jobs
        return used
