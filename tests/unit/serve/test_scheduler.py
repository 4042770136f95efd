"""The queue before a model: what shares a batch, whose turn it is, and what happens when something goes wrong."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bertie.errors import InputError
from bertie.serve.failures import EngineDown, InferenceFailed, Refusal, device_failed
from bertie.serve.queues import Device, FairQueue, Job, Lane, Turns
from bertie.serve.scheduler import Engine


class Model:
    """Doubles numbers; can be held, and remembers its batches."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.free = threading.Event()
        self.free.set()
        self.begun = threading.Event()

    def run(self, items: list[int]) -> list[int]:
        self.batches.append(items)
        self.begun.set()
        assert self.free.wait(10)
        return [2 * item for item in items]


def with_engine(work: Callable[[Engine, Model, Lane], Awaitable[Any]], **settings: Any) -> Any:
    async def inside() -> Any:
        model = Model()
        values: dict[str, Any] = {"budget": 100, "queue_tokens": 1000, "queue_requests": 50, "short_tokens": 0}
        values |= settings
        engine = Engine("m", loop=asyncio.get_running_loop(), **values)
        try:
            return await asyncio.wait_for(work(engine, model, Lane("double", model.run)), 20)
        finally:
            model.free.set()
            engine.close()

    return asyncio.run(inside())


def submit(
    engine: Engine, lane: Lane, *items: int, length: int = 10, seconds: float = 30, client: str = "", **given: Any
) -> Job:
    return engine.submit(lane, items, [length] * len(items), seconds=seconds, client=client, **given)


async def hold(engine: Engine, model: Model, lane: Lane) -> Job:
    """Keep the engine busy with one item, so that what comes next queues up."""
    model.free.clear()
    first = submit(engine, lane, 0)
    await asyncio.to_thread(model.begun.wait, 5)
    return first


def test_what_waits_shares_a_batch_and_everyone_gets_their_own() -> None:
    async def work(engine: Engine, model: Model, lane: Lane) -> None:
        first = await hold(engine, model, lane)
        jobs = [submit(engine, lane, number, number + 100) for number in range(1, 4)]
        model.free.set()
        assert await first.future == [0]
        assert [await job.future for job in jobs] == [[2, 202], [4, 204], [6, 206]]
        assert [len(batch) for batch in model.batches] == [1, 6]

    with_engine(work)


def test_a_batch_holds_no_more_tokens_than_its_budget() -> None:
    async def work(engine: Engine, model: Model, lane: Lane) -> None:
        await hold(engine, model, lane)
        job = submit(engine, lane, *range(7), length=40)
        huge = submit(engine, lane, 9, length=500)  # more than a batch: alone
        model.free.set()
        assert await job.future == [2 * number for number in range(7)]
        assert await huge.future == [18]
        assert all(len(batch) <= 2 for batch in model.batches)
        assert [9] in model.batches

    with_engine(work)


def test_a_small_request_does_not_wait_for_a_large_one() -> None:
    async def work(engine: Engine, model: Model, lane: Lane) -> None:
        await hold(engine, model, lane)
        large = submit(engine, lane, *range(100), length=100)
        small = submit(engine, lane, 1000, length=100)
        model.free.set()
        await small.future
        assert [1000 in batch for batch in model.batches].index(True) <= 2
        assert await large.future == [2 * number for number in range(100)]

    with_engine(work, budget=400, queue_tokens=1 << 20)


def test_a_newcomer_waits_for_a_few_batches_whatever_others_have_sent() -> None:
    """Other clients, other jobs of its own client, and jobs in another lane: all take turns."""

    async def work(engine: Engine, model: Model, lane: Lane) -> None:
        other = Lane("other", model.run)
        first = await hold(engine, model, lane)
        for number in range(10):
            submit(engine, other if number % 2 else lane, *[number] * 100, length=100, client="heavy")
        mine = submit(engine, lane, 1000, 1001, length=100, client="light")
        model.free.set()
        await mine.future
        assert 1 + max(n for n, batch in enumerate(model.batches) if 1000 in batch or 1001 in batch) <= 4
        engine.stop()
        assert await first.future == [0]

    with_engine(work, budget=300, queue_tokens=1 << 20)


def test_clients_get_equal_shares_however_many_requests_each_sends() -> None:
    async def work(engine: Engine, model: Model, lane: Lane) -> None:
        await hold(engine, model, lane)
        many = [submit(engine, lane, *[1] * 20, length=100, client="many") for _ in range(8)]
        one = submit(engine, lane, *[2] * 20, length=100, client="one")
        model.free.set()
        await one.future
        served = [item for batch in model.batches for item in batch]
        before = served[: len(served) - served[::-1].index(2)]
        assert 15 <= before.count(1) <= 25  # as much as the other
        await asyncio.gather(*(job.future for job in many))

    with_engine(work, budget=200, queue_tokens=1 << 20)


def test_one_client_does_not_fill_the_queue_for_others() -> None:
    async def work(engine: Engine, model: Model, lane: Lane) -> None:
        await hold(engine, model, lane)
        huge = submit(engine, lane, *range(1000), client="heavy")  # ten times the queue
        refused = 0
        for number in range(60):
            try:
                submit(engine, lane, number, client="heavy")
            except Refusal as refusal:
                refused += refusal.status == 429
        assert refused
        others = [submit(engine, lane, number, client=f"client {number}") for number in range(5)]
        model.free.set()
        assert [await job.future for job in others] == [[2 * number] for number in range(5)]
        assert len(await huge.future) == 1000

    with_engine(work, queue_tokens=1000, queue_requests=50)


def test_little_work_has_a_line_of_its_own() -> None:
    """On a CPU it does not wait for a large batch at all, and large jobs do not take its places in the queue."""

    async def work(engine: Engine, model: Model, lane: Lane) -> None:
        quick = Lane("quick", lambda items: [-item for item in items])
        model.free.clear()
        large = [submit(engine, lane, *range(50))]
        await asyncio.to_thread(model.begun.wait, 5)
        for _ in range(20):
            try:
                large.append(submit(engine, lane, *range(50)))
            except Refusal:
                break
        else:
            raise AssertionError("the line for large jobs has no end")
        assert await submit(engine, quick, 5).future == [-5]
        assert not any(job.future.done() for job in large)
        model.free.set()
        assert [len(await job.future) for job in large] == [50] * len(large)

    with_engine(work, short_tokens=20, device=Device(side_by_side=True))


def test_a_part_of_much_work_is_not_little_work() -> None:
    async def work(engine: Engine, model: Model, lane: Lane) -> None:
        model.free.clear()
        submit(engine, lane, *range(50))
        await asyncio.to_thread(model.begun.wait, 5)
        part = submit(engine, Lane("part", list), 5, work=1000)
        await asyncio.sleep(0.1)
        assert not part.future.done()
        model.free.set()
        assert await part.future == [5]

    with_engine(work, short_tokens=20, device=Device(side_by_side=True))


def test_a_large_job_is_not_late_while_it_gets_on() -> None:
    def run(items: list[int]) -> list[int]:
        time.sleep(0.05)
        return items

    async def work(engine: Engine, model: Model, lane: Lane) -> None:
        job = submit(engine, Lane("slow", run), *range(20), length=100, seconds=0.5)
        assert await job.future == list(range(20))
        assert job.finished - job.queued > 0.9

    with_engine(work)


def test_batches_are_short_where_the_model_is_slow() -> None:
    """What a newcomer waits for is a time, not a number of tokens."""
    sizes = []

    def run(items: list[int]) -> list[int]:
        sizes.append(100 * len(items))
        time.sleep(0.02 * len(items))  # 5,000 tokens a second
        return items

    async def work(engine: Engine, model: Model, lane: Lane) -> None:
        await submit(engine, Lane("slow", run), *range(60), length=100).future
        assert max(sizes[3:]) <= 500

    with_engine(work, budget=4000, queue_tokens=1 << 20)


def test_what_is_left_of_a_job_is_skipped_when_its_client_leaves() -> None:
    async def work(engine: Engine, model: Model, lane: Lane) -> None:
        model.free.clear()
        job = submit(engine, lane, *range(100), length=50)
        await asyncio.to_thread(model.begun.wait, 5)
        job.gone = True
        model.free.set()
        await submit(engine, lane, 7).future
        assert sum(map(len, model.batches)) < 10
        assert engine.waiting == (0, 0)

    with_engine(work, queue_tokens=1 << 20)


def test_a_batch_is_shared_in_few_parts() -> None:
    """Every waiting job has an equal part of it at once: a part costs time, and turns of a few tokens would be many."""

    async def work() -> None:
        queue, lane = FairQueue(1 << 20, 50, threading.Lock()), Lane("double", lambda items: items)
        jobs = [queued(lane, *range(100), length=100) for _ in range(3)] + [queued(lane, 1, length=100)]
        for job, client in zip(jobs, "aabc", strict=True):
            job.client = client
            queue.add(job)
        batch = queue.take(lambda _: 8000)
        parts = {job: [stop - start for other, start, stop in batch if other is job] for job in jobs}
        assert [sum(parts[job]) for job in jobs] == [20, 20, 39, 1]
        assert len(batch) <= 6

    asyncio.run(work())


def test_a_device_goes_round_its_models() -> None:
    """A model with much to do does not keep the device: `threading.Lock` would go to whoever is quickest."""
    turns, order = Turns(), []
    done = threading.Event()

    def keep(name: str) -> None:
        while not done.is_set():
            with turns:
                order.append(name)
                time.sleep(0.002)
                if len(order) >= 60:
                    done.set()

    threads = [threading.Thread(target=keep, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    together = order[10:50]
    assert min(together.count(name) for name in "abc") >= 11


def test_stopping_tells_those_who_wait() -> None:
    async def work(engine: Engine, model: Model, lane: Lane) -> None:
        first = await hold(engine, model, lane)
        jobs = [submit(engine, lane, *range(30)) for _ in range(3)]
        engine.stop(wait=0)
        for job in jobs:
            with pytest.raises(Refusal, match="shutting down") as refused:
                await job.future
            assert refused.value.status == 503
        with pytest.raises(EngineDown):
            submit(engine, lane, 1)
        model.free.set()
        assert await first.future == [0]
        assert model.batches == [[0]]

    with_engine(work)


def test_lanes_do_not_mix() -> None:
    async def work(engine: Engine, model: Model, lane: Lane) -> None:
        other = Lane("triple", lambda items: [3 * item for item in items])
        await hold(engine, model, lane)
        jobs = [submit(engine, lane if number % 2 else other, number) for number in range(1, 7)]
        model.free.set()
        assert [await job.future for job in jobs] == [[2], [6], [6], [12], [10], [18]]
        assert model.batches[1:] == [[1, 3, 5]]

    with_engine(work)


def test_work_of_clients_that_left_is_skipped() -> None:
    async def work(engine: Engine, model: Model, lane: Lane) -> None:
        first = await hold(engine, model, lane)
        jobs = [submit(engine, lane, number) for number in range(1, 5)]
        jobs[1].gone = True
        jobs[2].gone = True
        model.free.set()
        await first.future
        assert [await jobs[0].future, await jobs[3].future] == [[2], [8]]
        assert model.batches == [[0], [1, 4]]
        for _ in range(1000):  # the other line's thread may be the one that finds them
            if engine.skipped == 2:
                break
            await asyncio.sleep(0.01)
        assert engine.skipped == 2
        assert engine.waiting == (0, 0)

    with_engine(work)


def test_a_full_queue_is_refused_with_the_time_to_come_again() -> None:
    async def work(engine: Engine, model: Model, lane: Lane) -> None:
        await hold(engine, model, lane)
        jobs = [submit(engine, lane, number) for number in range(5)]
        with pytest.raises(Refusal, match="overloaded") as refused:
            submit(engine, lane, 6)
        assert refused.value.status == 429
        assert int(dict(refused.value.headers())[b"retry-after"]) >= 1
        model.free.set()
        assert [await job.future for job in jobs] == [[2 * number] for number in range(5)]

    with_engine(work, queue_tokens=50)


def test_a_job_larger_than_the_queue_is_taken_when_nothing_waits() -> None:
    async def work(engine: Engine, model: Model, lane: Lane) -> None:
        assert await submit(engine, lane, *range(20)).future == [2 * number for number in range(20)]

    with_engine(work, queue_tokens=50)


def test_waiting_too_long_ends_with_an_error() -> None:
    async def work(engine: Engine, model: Model, lane: Lane) -> None:
        first = await hold(engine, model, lane)
        late = submit(engine, lane, 1, seconds=0.01)
        await asyncio.sleep(0.05)
        model.free.set()
        assert await first.future == [0]
        with pytest.raises(Refusal, match="waited longer"):
            await late.future
        assert model.batches == [[0]]

    with_engine(work)


def test_only_the_job_at_fault_hears_of_a_failure() -> None:
    def run(items: list[int]) -> list[int]:
        if 3 in items:
            raise InputError("Three is refused.")
        if 5 in items:
            raise ValueError("five")
        return items

    async def work(engine: Engine, model: Model, lane: Lane) -> None:
        await hold(engine, model, lane)
        picky = Lane("picky", run)
        jobs = [submit(engine, picky, number, number + 10) for number in range(1, 7)]
        model.free.set()
        found = await asyncio.gather(*(job.future for job in jobs), return_exceptions=True)
        assert isinstance(found[2], InputError)
        assert isinstance(found[4], InferenceFailed)
        assert [found[place] for place in (0, 1, 3, 5)] == [[1, 11], [2, 12], [4, 14], [6, 16]]
        assert await submit(engine, lane, 8).future == [16]

    with_engine(work)


def test_what_is_too_much_at_once_is_tried_item_by_item() -> None:
    def run(items: list[int]) -> list[int]:
        if len(items) > 1:
            raise MemoryError
        return items

    async def work(engine: Engine, model: Model, lane: Lane) -> None:
        assert await submit(engine, Lane("small", run), 1, 2, 3).future == [1, 2, 3]

    with_engine(work)


@pytest.mark.parametrize("error", [SystemExit(1), RuntimeError("CUDA error: an illegal memory access")], ids=repr)
def test_a_crash_answers_everyone_and_is_reported(error: BaseException) -> None:
    crashed: list[BaseException] = []

    def run(items: list[int]) -> list[int]:
        time.sleep(0.05)
        raise error

    async def work(engine: Engine, model: Model, lane: Lane) -> None:
        jobs = [submit(engine, Lane("crash", run), number) for number in range(4)]
        found = await asyncio.gather(*(job.future for job in jobs), return_exceptions=True)
        assert all(isinstance(one, EngineDown) for one in found)
        assert [type(one) for one in crashed] == [type(error)]
        with pytest.raises(EngineDown):
            submit(engine, lane, 1)

    with_engine(work, on_crash=crashed.append)


def test_failures_in_a_row_are_a_crash() -> None:
    crashed: list[BaseException] = []

    def run(items: list[int]) -> list[int]:
        raise ValueError("always")

    async def work(engine: Engine, model: Model, lane: Lane) -> None:
        for expected in (InferenceFailed, InferenceFailed, (InferenceFailed, EngineDown)):
            with pytest.raises(expected):
                await submit(engine, Lane("broken", run), 1).future
        await asyncio.sleep(0.1)
        assert [type(one) for one in crashed] == [EngineDown]

    with_engine(work, on_crash=crashed.append)


def test_closing_finishes_what_is_queued() -> None:
    async def work(engine: Engine, model: Model, lane: Lane) -> None:
        await hold(engine, model, lane)
        jobs = [submit(engine, lane, number) for number in range(1, 4)]
        model.free.set()
        await asyncio.to_thread(engine.close)
        assert [await job.future for job in jobs] == [[2], [4], [6]]

    with_engine(work)


def test_errors_of_a_device_are_told_from_others() -> None:
    assert device_failed(RuntimeError("CUDA error: device-side assert triggered"))
    assert not device_failed(RuntimeError("CUDA out of memory. CUDA error: out of memory"))
    assert not device_failed(ValueError("CUDA error"))


def queued(lane: Lane, *items: int, length: int = 10) -> Job:
    """A job that nobody has been woken for."""
    future = asyncio.get_running_loop().create_future()
    return Job(lane, items, [length] * len(items), 30.0, future=future)


@pytest.mark.parametrize(
    ("at_once", "short_tokens", "here"), [(True, 100, True), (True, 0, False), (False, 100, False)]
)
def test_little_work_is_run_where_it_arrives_if_the_device_is_free(
    at_once: bool, short_tokens: int, here: bool
) -> None:
    threads = []

    def run(items: list[int]) -> list[int]:
        threads.append(threading.current_thread())
        return [2 * item for item in items]

    async def work(engine: Engine, _: Model, lane: Lane) -> None:
        lane = Lane("double", run)
        jobs = [queued(lane, 3), queued(lane, 4, 5)]
        assert not engine.submit_all([(job, None) for job in jobs], wake=False)
        engine.run_waiting()
        assert [list(await job.future) for job in jobs] == [[6], [8, 10]]
        assert (threads[-1] is threading.current_thread()) is here
        assert len(threads) == 1
        assert engine.waiting == (0, 0)

    with_engine(work, at_once=at_once, short_tokens=short_tokens)


def test_work_that_arrives_while_the_device_computes_waits_for_its_thread() -> None:
    async def work(engine: Engine, model: Model, lane: Lane) -> None:
        first = await hold(engine, model, lane)
        job = queued(lane, 2)
        engine.submit_all([(job, None)], wake=False)
        engine.run_waiting()  # and comes back
        assert not job.future.done()
        model.free.set()
        assert await first.future == [0]
        assert await job.future == [4]

    with_engine(work, at_once=True, short_tokens=100)


def test_a_device_that_fails_where_work_arrives_is_a_breakdown() -> None:
    crashed: list[BaseException] = []

    def run(items: list[int]) -> list[int]:
        if 13 in items:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return items

    async def work(engine: Engine, _: Model, lane: Lane) -> None:
        lane = Lane("double", run)
        job = queued(lane, 13)
        engine.submit_all([(job, None)], wake=False)
        engine.run_waiting()
        with pytest.raises(EngineDown):
            await job.future
        assert len(crashed) == 1
        assert [type(error) for _, error in engine.submit_all([(queued(lane, 1), None)])] == [EngineDown]

    with_engine(work, at_once=True, short_tokens=100, on_crash=crashed.append)


def test_how_long_a_batch_has_been_under_way_is_known() -> None:
    async def work(engine: Engine, model: Model, lane: Lane) -> None:
        assert engine.busy_seconds == 0
        first = await hold(engine, model, lane)
        await asyncio.sleep(0.2)
        assert 0.2 <= engine.busy_seconds < 20
        model.free.set()
        await first.future
        await asyncio.to_thread(engine.close)
        assert engine.busy_seconds == 0

    with_engine(work)
