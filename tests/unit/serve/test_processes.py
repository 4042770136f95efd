"""What several processes share: cores and devices, a port, memory, messages; and heads their weights."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.errors import InputError
from bertie.serve import run
from bertie.serve import settings as module
from bertie.serve.embedding import EmbedRows, EmbedTexts
from bertie.serve.failures import ClientLeft, EngineDown, InferenceFailed, overloaded
from bertie.serve.http.sockets import beside, bind
from bertie.serve.models import Place, chosen_tasks, open_runners
from bertie.serve.processes.engine_host import EngineHost, FrontRows, WorkLink
from bertie.serve.processes.front import EngineLink, Engines, FrontModels, address_of
from bertie.serve.processes.messages import (
    AnyMessage,
    Done,
    Leave,
    ModelState,
    Refused,
    States,
    Unpacker,
    Work,
    packed,
)
from bertie.serve.processes.shared import Blocks, Layout, SharedMemory
from bertie.serve.processes.supervisor import _Child
from bertie.serve.queues import Lane
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
    with pytest.raises(InputError, match="names no device"):
        chosen_devices(",")


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


def test_a_process_that_hangs_is_killed_once_however_long_it_takes_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    child = _Child("front-0", lambda: 0, memoryview(bytearray(8)).cast("Q"))
    assert [child.silent_seconds() for _ in range(3)] == [0, 0, 0]  # it has not begun
    child.beat()
    assert [child.silent_seconds() for _ in range(4)] == [0, 1, 2, 3]
    child.kill_hung()
    assert [child.silent_seconds() for _ in range(4)] == [0, 0, 0, 0]


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
        [Work(1, "m", "a", 1, 20, 64, 60.0, 1), Leave(1)],
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


class Host:
    """An engine's end of a link to a front, in this process."""

    def __init__(self, folder: Path) -> None:
        self.service = Service(Settings((), threads=1), TASKS)
        self.host = EngineHost(self.service, folder / "models.json")
        ours, theirs = socket.socketpair()
        fd = SharedMemory.create(1 << 16)
        self.link = WorkLink(theirs, SharedMemory(fd), self.host)
        self.host.links.add(self.link)
        self._front, self._unpacker = ours, Unpacker()
        ours.setblocking(False)

    async def heard(self) -> list[AnyMessage]:
        async with asyncio.timeout(30):
            data = await asyncio.get_running_loop().sock_recv(self._front, 1 << 16)
        return list(self._unpacker.feed(data))

    async def answer(self) -> AnyMessage:
        """The next message about a job."""
        while not (found := [one for one in await self.heard() if not isinstance(one, States)]):
            pass
        (answer,) = found
        return answer

    def close(self) -> None:
        self.link.close()
        self._front.close()
        self.service.close()


def test_rows_made_for_another_model_of_the_same_name_are_refused(tmp_path: Path) -> None:
    """Its vectors may be longer than the room that was left for them: another request lies behind it."""

    async def run() -> None:
        host = Host(tmp_path)
        wide = saved(tmp_path / "wide", "BertModel", hidden_size=64)
        narrow = saved(tmp_path / "narrow", "BertModel", hidden_size=32)
        first = await host.service.models.load(ModelChoice("m", narrow, ("embed",)))
        ids, lengths = host.link.memory.rows(0, Layout(1, 4, 32))
        ids[:], lengths[:] = [2, 5, 6, 3], [4]
        host.host.take_rows(host.link, [Work(1, "m", "a", 1, 4, 0, 60.0, first.load)])
        assert isinstance(await host.answer(), Done)
        vector = host.link.memory.vectors(0, Layout(1, 4, 32)).copy()
        assert np.abs(vector).sum() > 0
        await host.service.models.unload("m")
        second = await host.service.models.load(ModelChoice("m", wide, ("embed",)))
        assert second.load != first.load
        host.host.take_rows(host.link, [Work(2, "m", "a", 1, 4, 0, 60.0, first.load)])
        refused = await host.answer()
        assert isinstance(refused, Refused)
        assert refused.down  # so another engine, or the client, tries again
        assert (host.link.memory.vectors(0, Layout(1, 4, 32)) == vector).all()
        host.close()

    asyncio.run(run())


def test_a_front_hears_of_a_job_once(tmp_path: Path) -> None:
    """A breakdown names all jobs of its batch, also those that had failed by themselves before it."""

    async def run() -> None:
        host = Host(tmp_path)
        rows = EmbedRows(np.array([2, 3]), np.array([2]))
        room = np.zeros((1, 8), np.float32)
        job = FrontRows(Lane("embed", list), rows, [2], 60.0, link=host.link, number=7, room=room)
        host.link.jobs[7] = job
        host.host._deliver([(job, InferenceFailed("it does"))])
        host.host._deliver([(job, EngineDown())])
        host.link.send([States(0, [])])
        heard = await host.heard()
        while not isinstance(heard[-1], States):
            heard += await host.heard()
        assert [(one.number, type(one)) for one in heard] == [(7, Refused), (0, States)]
        host.close()

    asyncio.run(run())


@dataclass
class OneLink:
    """What a front knows of an engine."""

    states: dict[str, ModelState]
    connected: bool = True


def test_a_front_is_not_ready_without_an_engine_though_its_tokenizer_is(tmp_path: Path) -> None:
    async def run() -> list[str]:
        host = Host(tmp_path)
        folder = saved(tmp_path / "model", "BertModel")
        await host.service.models.load(ModelChoice("m", folder, ("embed",)))
        states = {one.name: one for one in host.host._states().models}
        host.close()
        models = FrontModels(Settings(()), {}, host.service.metrics)
        link = OneLink(states)
        links = cast(list[EngineLink], [link])
        models.update(links, ())
        seen = [models.get("m").state]
        link.states, link.connected = {}, False  # it ends while the tokenizer is read
        models.update(links, ())
        ends = time.monotonic() + 20
        while models.get("m").get("embed", EmbedTexts) is None and time.monotonic() < ends:
            await asyncio.sleep(0.01)
        seen.append("ready" if models.ready else "not ready")
        link.states, link.connected = states, True
        models.update(links, ())
        seen.append(models.get("m").state)
        models.close()
        return seen

    assert asyncio.run(run()) == ["loading", "not ready", "ready"]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs Linux's /proc")
def test_an_engine_that_ends_while_a_front_connects_costs_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise BrokenPipeError

    async def run() -> int:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address_of(tmp_path, 0))
            listener.listen(64)
            service = Service(Settings(()), {}, models=FrontModels)
            link = EngineLink(0, address_of(tmp_path, 0), cast(Engines, service))
            before = len(os.listdir("/proc/self/fd"))
            for _ in range(10):
                with pytest.raises(BrokenPipeError):
                    await link._connect()
            return len(os.listdir("/proc/self/fd")) - before

    monkeypatch.setattr(socket, "send_fds", broken)
    assert asyncio.run(run()) == 0


def test_tasks_of_one_head_share_its_weights(tmp_path: Path) -> None:
    folder = saved(tmp_path, "BertForMaskedLM")
    _, tasks = chosen_tasks(TASKS, ModelChoice("m", folder))
    made = open_runners(tasks, folder, Place("cpu", None))
    assert set(made) == {"embed", "features", "fill", "embed_sparse", "explore"}
    assert made["embed"].loaded.model is made["features"].loaded.model
    assert made["fill"].loaded.model is made["embed_sparse"].loaded.model
