"""The queues before a model, and the threads that empty them: the rows of all clients in batches bounded by tokens.

A batch is made of whatever waits when the engine is free, so a request that comes to an empty queue goes at once, and
what arrives while a batch runs makes the next one: nobody waits for a batch to fill. Work whose client has left, or
which has waited too long without any progress, is skipped. Answers go back to the event loop in one call per batch.

Nobody can use up what others need:

- **Two queues.** Requests of little work stand in one, the others in another, each with its own room. On a CPU a
  batch of either may run at the same time, so a small request does not wait for a large one at all.
- **Turns** of clients and of models (queues.py).
- **Short batches.** A batch is as many tokens as the model does in a twentieth of a second, so a turn comes soon.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from bertie.serve import failures
from bertie.serve.failures import EngineDown, InferenceFailed, overloaded, unhealthy
from bertie.serve.queues import A, AnyJob, AnyLane, Batch, Device, FairQueue, I, Job, Lane, Later, Outcomes, Turns

logger = logging.getLogger("bertie.serve")

_FAILURES_IN_A_ROW = 3  # so many batches that fail mean that the engine, not the texts, is broken
_BATCH_SECONDS = 0.05  # how long a batch may take: what a newcomer waits for
_LEAST_BATCH = 256  # fewer tokens than this would not keep the engine busy
_AT_ONCE_SECONDS = 0.005  # how long work may take that `run_waiting` does itself


class Engine:
    """The queues of a model and the threads that empty them. All but the threads' own work is for the event loop.

    `on_crash` is called in a thread when the engine has broken down; by then all its work is answered, and whoever
    owns it makes a new one. A job of at most `short_tokens` stands in the queue for little work. `deliver` is called in
    a thread with jobs that are at an end; by default they are settled on the event loop. `launching` is held while a
    batch is made and given to the device, and not while the device computes. `at_once`: `run_waiting` may run work.
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
        at_once: bool = False,
    ) -> None:
        self.name, self.budget, self._at_once = name, budget, at_once
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
        self._begun: dict[int, float] = {}  # by thread: when what it runs on the device began
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

    @property
    def busy_seconds(self) -> float:
        """How long what runs on the device has been running: far more than a batch takes if the device hangs."""
        return max((time.perf_counter() - begun for begun in list(self._begun.values())), default=0.0)

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

    def submit_all(
        self, given: Sequence[tuple[AnyJob, int | None]], *, wake: bool = True
    ) -> list[tuple[AnyJob, Exception]]:
        """Queue jobs, each with the tokens of all its request's jobs; those that are refused, and why.

        Without `wake`, they wait for `run_waiting`.
        """
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
            for queue in filled if wake else ():
                queue.filled.notify()
        return refused

    def run_waiting(self) -> None:
        """See to it that what waits is run: by the threads, or here and now if it is little and the device is free.

        Another thread first has to be woken, and then both take turns at running Python, a switch after each call to
        the GPU. Where a batch takes a GPU a fraction of a millisecond, that takes longer than the batch.
        """
        turns = self.device.short
        with self._lock:
            most = max(_LEAST_BATCH, self._rate * _AT_ONCE_SECONDS)
            little = self._at_once and not (self._long.jobs or self._closing or self._down)
            if not (little and self._short.tokens <= most and turns.enter_now()):
                return self._wake_those_with_work()
        try:
            dropped = self._turn(self._short)
        except BaseException as error:
            dropped = []
            self._break_down(error)
        finally:
            turns.__exit__()
        self._drop(dropped)
        with self._lock:
            self._wake_those_with_work()

    def check_room(self, client: str = "", work: int = 0) -> None:
        """Refuse work of about this many tokens if its queue has no room at all."""
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
                    dropped = self._turn(queue)
                self._drop(dropped)
        except BaseException as error:  # the thread's last words: nobody may be left waiting
            self._break_down(error)

    def _turn(self, queue: FairQueue) -> list[AnyJob]:
        """Run one batch; the jobs that nobody waits for any more."""
        with self._lock:
            dropped = queue.drop()
            batch = queue.take(self._room)
        if batch:
            self._run(queue, batch)
        return dropped

    def _room(self, lane: AnyLane) -> int:
        return min(lane.budget or self.budget, max(_LEAST_BATCH, int(self._rate * _BATCH_SECONDS)))

    def _wake_those_with_work(self) -> None:
        for queue in (self._short, self._long):
            if queue.jobs:
                queue.filled.notify()

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
        self._begun[threading.get_ident()] = time.perf_counter()
        try:
            with self._launching:
                parts = [job.items[start:stop] for job, start, stop in batch]
                found = lane.run(parts if lane.in_parts else [item for part in parts for item in part])
            match found:
                case Later():
                    answers = found.read()
                case _:
                    answers = found
        finally:
            del self._begun[threading.get_ident()]
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
