"""What several processes share: cores and devices, a port, memory, messages; and heads their weights."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.errors import InputError
from bertie.serve import run
from bertie.serve import settings as module
from bertie.serve.failures import ClientLeft, EngineDown, overloaded
from bertie.serve.http.sockets import beside, bind
from bertie.serve.models import Place, chosen_tasks, open_runners
from bertie.serve.processes.front import EngineLink, Engines
from bertie.serve.processes.messages import Done, Leave, Refused, Unpacker, Work, packed
from bertie.serve.processes.shared import Blocks, Layout, SharedMemory
from bertie.serve.service import Call, Service
from bertie.serve.settings import ModelChoice, Settings, chosen_devices, core_shares, default_fronts
from bertie.serve.tasks import TASKS
from tiny_models import saved


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 16])
def test_engines_share_the_cores_without_overlap(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    parts = core_shares(count)
    assert len(parts) == count
    assert all(parts)
    if count <= 8:
        assert sorted(core for part in parts for core in part) == list(range(8))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_devices_that_were_named_get_an_engine_each() -> None:
    assert chosen_devices("cuda:1") == ["cuda:1"]
    assert chosen_devices("cpu, cpu") == ["cpu", "cpu"]


@pytest.mark.parametrize(
    ("cores", "device", "fronts"), [(2, "cuda:0", 1), (3, "cpu", 1), (4, "cpu", 2), (16, "cpu", 4)]
)
def test_small_machines_have_one_process(cores: int, device: str, fronts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "available_cores", lambda: list(range(cores)))
    assert default_fronts([device]) == fronts


@pytest.mark.skipif(not hasattr(socket, "SO_REUSEPORT") or os.name != "posix", reason="needs Linux")
def test_a_port_is_shared_by_fronts_and_by_no_other_server() -> None:
    settings = Settings((), port=0)
    with bind(settings) as first, beside(first) as second:
        assert first.getsockname() == second.getsockname()
        first.listen()
        second.listen()
        with pytest.raises(InputError, match="cannot listen"):
            bind(Settings((), port=first.getsockname()[1]))


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=60))
def test_blocks_never_overlap_and_come_back_whole(steps: list[tuple[bool, int]]) -> None:
    blocks, held = Blocks(64 * 64), list[tuple[int, int]]()
    for takes, number in steps:
        if takes:
            at = blocks.take(64 * number)
            if at is None:
                assert sum(size for _, size in held) + 64 * number > 0
                continue
            assert at + 64 * number <= 64 * 64
            assert all(at + 64 * number <= start or start + size <= at for start, size in held)
            held.append((at, 64 * number))
        elif held:
            blocks.give(*held.pop(number % len(held)))
    for block in held:
        blocks.give(*block)
    assert blocks.take(64 * 56) == 0  # all but what is kept for small ones


@pytest.mark.parametrize("again", [True, False])
def test_a_front_that_was_started_again_accepts_nobody_before_it_has_found_its_engines(
    again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_ENGINES_SECONDS", 30.0)
    choices = (ModelChoice("m", str(tmp_path)),)
    server = run.make_front(Settings(choices, port=0, log_level="error"), tmp_path, 1, again=again)

    async def scenario() -> None:
        with bind(server.service.settings) as sock:
            task = asyncio.create_task(server.serve([sock]))
            await asyncio.sleep(0.3)
            assert server.started is not again
            monkeypatch.setattr(type(server.service.models), "ready", property(lambda self: True))  # they are there
            async with asyncio.timeout(10):
                while not server.started:
                    await asyncio.sleep(0.01)
            server.should_exit = True
            await task

    asyncio.run(scenario())


def test_large_blocks_leave_room_for_small_ones() -> None:
    blocks = Blocks(1 << 20)
    while blocks.take(1 << 14) is not None:
        pass
    assert blocks.take(1 << 12) is not None
    while (last := blocks.take(1 << 12)) is not None:
        assert last + (1 << 12) <= 1 << 20


def test_nothing_is_forwarded_for_a_client_that_has_left() -> None:
    async def scenario() -> None:
        link = EngineLink(0, "nowhere", cast("Engines", None))
        call = Call(cast("Service", None), "1", "POST", "/v1/fill", 0.0, gone=True)
        with pytest.raises(ClientLeft):
            await asyncio.wait_for(link.ask(call), 5)

    asyncio.run(scenario())


def test_both_ends_see_the_same_memory() -> None:
    fd = SharedMemory.create(1 << 16)
    here, there = SharedMemory(os.dup(fd)), SharedMemory(fd)
    layout = Layout(rows=3, tokens=7, dimension=5)
    ids, lengths = here.rows(64, layout)
    ids[:], lengths[:] = np.arange(7), [2, 4, 1]
    found, sizes = there.rows(64, layout)
    assert (found.tolist(), sizes.tolist()) == (list(range(7)), [2, 4, 1])
    there.vectors(64, layout)[:] = np.arange(15).reshape(3, 5)
    assert here.vectors(64, layout).tolist() == np.arange(15.0).reshape(3, 5).tolist()
    assert ids.tolist() == list(range(7))  # vectors lie behind them
    assert layout.size >= 8 * 10 + 4 * 15


@given(st.lists(st.integers(1, 40), max_size=20), st.integers(0, 5))
def test_messages_arrive_whole_however_the_stream_is_cut(cuts: list[int], number: int) -> None:
    sent = [
        [Work(1, "m", "a", 1, 20, 64, 60.0), Leave(1)],
        [Refused.of(2, EngineDown()), Refused.of(3, overloaded("Too much.", 2.0))],
        [Done(n, 0.1, 0.2) for n in range(number)],
    ]
    stream = b"".join(packed(messages) for messages in sent)
    unpacker, found = Unpacker(), []
    for size in [*cuts, len(stream)]:
        found += unpacker.feed(stream[:size])
        stream = stream[size:]
    assert found == [message for messages in sent for message in messages]
    assert found[2].down
    assert str(found[3].as_error()) == "Too much."


def test_tasks_of_one_head_share_its_weights(tmp_path: Path) -> None:
    folder = saved(tmp_path, "BertForMaskedLM")
    _, tasks = chosen_tasks(TASKS, ModelChoice("m", folder))
    made = open_runners(tasks, folder, Place("cpu", None))
    assert set(made) == {"embed", "features", "fill", "embed_sparse", "explore"}
    assert made["embed"].loaded.model is made["features"].loaded.model
    assert made["fill"].loaded.model is made["embed_sparse"].loaded.model
