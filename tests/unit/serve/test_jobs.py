"""Long work beside a server's requests: no client's jobs push out, starve or outlive those of others."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from bertie.serve import jobs as module
from bertie.serve.failures import Refusal
from bertie.serve.jobs import Job, Jobs


class Content:
    """What a request carries."""


def until(true: Callable[[], bool]) -> bool:
    ends = time.monotonic() + 10
    while not true() and time.monotonic() < ends:
        time.sleep(0.005)
    return true()


def endless(report: Any) -> None:
    while True:
        report(1, 2, "so far")


def held(jobs: Jobs, client: str) -> tuple[Job, threading.Event]:
    """A job that runs until the event is set."""
    begun, let_go = threading.Event(), threading.Event()

    def work(report: Any) -> object:
        begun.set()
        let_go.wait(10)
        return "done"

    job = jobs.start(work, client)
    assert begun.wait(10)
    return job, let_go


def test_a_stopped_job_keeps_nothing_of_its_request() -> None:
    jobs = Jobs()
    running, let_go = held(jobs, "a")
    kept = []
    for _ in range(20):
        content = Content()
        kept.append(weakref.ref(content))
        jobs.stop(jobs.start(lambda report, content=content: str(content), "b"))
        del content
    gc.collect()
    assert not any(one() for one in kept)
    let_go.set()
    assert until(lambda: running.result == "done")


def test_jobs_that_are_started_and_stopped_push_out_no_others() -> None:
    jobs = Jobs()
    ended = jobs.start(lambda report: "found", "a")
    assert until(lambda: ended.is_over)
    running, let_go = held(jobs, "a")
    for _ in range(40):
        jobs.stop(jobs.start(endless, "b"))
    assert jobs.find(running.name) is running
    assert jobs.find(ended.name) is ended
    let_go.set()
    assert until(lambda: running.result == "done")


def test_clients_take_turns_and_none_takes_the_last_place() -> None:
    jobs, order = Jobs(), list[str]()
    first, let_go = held(jobs, "a")
    own = [jobs.start(lambda report: order.append("a"), "a") for _ in range(3)]
    with pytest.raises(Refusal, match="under way"):
        jobs.start(endless, "a")
    other = jobs.start(lambda report: order.append("b"), "b")
    with pytest.raises(Refusal, match="under way"):
        jobs.start(endless, "c")
    let_go.set()
    assert until(lambda: len(order) == 4)
    assert order == ["b", "a", "a", "a"]
    assert first.result == "done"
    assert {job.work for job in (*own, other)} == {None}


def test_a_job_ends_after_its_turn_where_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TURN_SECONDS", 0.1)
    jobs = Jobs()
    long, again = jobs.start(endless, "a"), jobs.start(endless, "a")
    time.sleep(0.3)
    assert not long.is_over  # nobody else waits
    other = jobs.start(lambda report: "done", "b")
    assert until(lambda: other.result == "done")
    assert isinstance(long.error, Refusal)
    assert long.error.status == 429
    jobs.stop(again)
