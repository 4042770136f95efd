"""A front process's view of the engines: their models, and how rows and requests reach them.

A front speaks HTTP, checks requests, and answers what it can by itself: for the routes that embed it makes rows, puts
them into memory that it shares with an engine, and encodes the vectors that come back (`RemoteQueue`). Every other
request goes to an engine whole (`Engines.forward`). Work goes to the engine with the least to do. When an engine ends,
what it had is given to another one, once, or told to try again; the front connects again as soon as it is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TypeVar, cast

import msgspec

from bertie.serve.embedding import EmbedRows, EmbedSettings, EmbedTexts, Floats
from bertie.serve.failures import ClientLeft, EngineDown, Refusal, overloaded, unhealthy
from bertie.serve.models import Models, ServedModel
from bertie.serve.processes.messages import (
    Answer,
    AnyMessage,
    Done,
    Forward,
    Leave,
    Link,
    ModelState,
    Refused,
    States,
    Work,
)
from bertie.serve.processes.shared import Blocks, Layout, SharedMemory
from bertie.serve.queues import AnyLane, Job, Lane
from bertie.serve.service import Answered, Call, Service
from bertie.serve.settings import ModelChoice
from bertie.text import BertTokenizer

logger = logging.getLogger("bertie.serve")

I = TypeVar("I")  # noqa: E741
A = TypeVar("A")
WORK, REQUESTS = b"w", b"r"  # what a connection is for
_RETRY_SECONDS = 0.02
_AWAY_SECONDS = 5.0
_ADMIN, _EXPLORE = "/admin/models", "/explore/"
_CHARACTERS_PER_TOKEN = 4  # about, of a request that is not tokenized here
_NO_ROOM = Layout(0, 0, 0)


def address_of(folder: Path, engine: int) -> str:
    return str(folder / f"engine-{engine}")


class FrontModels(Models):
    """The models that the engines say they have."""

    _links: Sequence[EngineLink] = ()

    def update(self, links: Sequence[EngineLink], choices: Sequence[ModelChoice]) -> None:
        """A model is ready if one engine has it ready, and its tokenizer is here."""
        self._links = links
        found: dict[str, list[ModelState]] = {}
        for link in links:
            for state in link.states.values():
                found.setdefault(state.name, []).append(state)
        if not any(link.connected for link in links):  # none has said anything yet, or all have ended
            for choice in choices:
                self._served.setdefault(choice.name, ServedModel(choice))
            for model in self._served.values():
                model.state = "loading" if model.remote is None else "restarting"
            return
        for name in [name for name in self._served if name not in found]:
            del self._served[name]
        for name, states in found.items():
            best = next((one for one in states if one.state == "ready"), states[0])
            model = self._served.setdefault(name, ServedModel(ModelChoice(name, "")))
            model.device, model.dtype, model.since = best.device, best.dtype, best.since
            if best.state != "ready":
                model.state = "restarting" if model.runners and best.state == "loading" else best.state
            elif best.embeds is not None and self._outdated(model, best.embeds):
                model.state = "loading"
                future = asyncio.get_running_loop().run_in_executor(self._loader, _open_texts, best.embeds)
                future.add_done_callback(partial(self._opened, model))
            else:
                self._set_ready(model, best)

    def _outdated(self, model: ServedModel, settings: EmbedSettings) -> bool:
        texts = model.get("embed", EmbedTexts)
        return texts is None or texts.settings != settings

    def _opened(self, model: ServedModel, future: asyncio.Future[EmbedTexts]) -> None:
        if future.cancelled():  # the front is ending
            return
        try:
            texts = future.result()
        except Exception as error:
            model.state, model.reason = "failed", str(error)
            logger.exception("a tokenizer could not be loaded", extra={"model": model.name})
        else:
            if self._outdated(model, texts.settings):  # or two engines have said the same
                model.runners = {**model.runners, "embed": texts}
            self.update(self._links, self.settings.models)  # engines may have come or gone meanwhile

    def _set_ready(self, model: ServedModel, state: ModelState) -> None:
        texts = model.get("embed", EmbedTexts)
        model.runners = {**dict.fromkeys(state.tasks, state), **({} if texts is None else {"embed": texts})}
        model.state, model.reason = "ready", ""
        self.on_change()


def _open_texts(settings: EmbedSettings) -> EmbedTexts:
    if settings.folder is None:
        raise RuntimeError("the model was not opened from a folder")
    return EmbedTexts(BertTokenizer.from_pretrained(settings.folder), settings, Lane("embed", _elsewhere))


def _elsewhere(rows: list[EmbedRows]) -> Sequence[Floats]:
    raise RuntimeError("vectors are computed by an engine")


@dataclass(eq=False, slots=True)
class FrontJob(Job[EmbedRows, Floats]):
    """Rows at an engine. `at` and `layout` are its block of the shared memory."""

    model: str = ""
    link: EngineLink | None = None
    number: int = 0
    at: int = 0
    layout: Layout = _NO_ROOM
    tries: int = 0

    def leave(self) -> None:
        Job.leave(self)
        if self.link is not None:
            self.link.send(Leave(self.number))


class EngineLink:
    """The two connections to one engine: one for rows, and one for whole requests, which may be large."""

    def __init__(self, index: int, address: str, engines: Engines) -> None:
        self.index, self._address, self._engines = index, address, engines
        self.states: dict[str, ModelState] = {}
        self.tokens = 0  # on their way there or back
        self.last = 0  # when it was last given something, among all engines
        self._numbers = count(1)
        self._jobs: dict[int, FrontJob] = {}
        self._calls: dict[int, asyncio.Future[Answer]] = {}
        self._links: dict[bytes, Link] = {}
        self._lost = asyncio.Event()
        self._told = False  # what models there are

    @property
    def connected(self) -> bool:
        return self._told and len(self._links) == 2

    @property
    def is_loading(self) -> bool:
        return any(state.state == "loading" for state in self.states.values())

    async def keep_connected(self) -> None:
        while True:
            try:
                await self._connect()
            except (OSError, TimeoutError):
                pass
            else:
                await self._lost.wait()
                logger.warning("an engine is gone", extra={"engine": self.index})
            self._end()
            await asyncio.sleep(_RETRY_SECONDS)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        self._lost.clear()
        for kind in (WORK, REQUESTS):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.settimeout(2)
                sock.connect(self._address)
                if kind == WORK:
                    fd = SharedMemory.create()
                    try:
                        socket.send_fds(sock, [kind], [fd])
                        self._memory = SharedMemory(os.dup(fd))
                    finally:
                        os.close(fd)
                    self._blocks = Blocks(self._memory.size)
                else:
                    sock.sendall(kind)
                sock.setblocking(False)
                _, self._links[kind] = await loop.create_unix_connection(
                    lambda: Link(self._take, self._lost.set), sock=sock
                )
            except BaseException:
                sock.close()
                raise
        self._engines.changed()

    def _end(self) -> None:
        """The engine is gone: what it had goes to another one, or hears of it."""
        for link in self._links.values():
            link.close()
        jobs, calls = list(self._jobs.values()), list(self._calls.values())
        self._links, self._jobs, self._calls, self.states, self.tokens = {}, {}, {}, {}, 0
        self._told = False
        self._engines.changed()
        for job in jobs:
            self._engines.again(job)
        for future in calls:
            if not future.done():
                future.set_exception(EngineDown())

    # -- to the engine ----------------------------------------------------------------------------------------------

    def send(self, message: AnyMessage, kind: bytes = WORK) -> None:
        if (link := self._links.get(kind)) is not None:
            link.send(message)

    def start(self, job: FrontJob) -> None:
        state = self.states[job.model]
        assert state.embeds is not None
        rows = cast(EmbedRows, job.items)
        layout = Layout(len(rows), len(rows.ids), state.embeds.dimension)
        at = self._blocks.take(layout.size)
        if at is None:
            raise overloaded("Too much is on its way to the engine.", retry_after=1)
        ids, lengths = self._memory.rows(at, layout)
        ids[:], lengths[:] = rows.ids, rows.lengths
        job.link, job.number, job.at, job.layout = self, next(self._numbers), at, layout
        job.tries += 1
        self._jobs[job.number] = job
        self.tokens += layout.tokens
        work = Work(
            job.number, job.model, job.client, layout.rows, layout.tokens, at, job.seconds, state.load,
            rows.skipped, rows.raw,
        )  # fmt: skip
        self.send(work)

    async def ask(self, call: Call) -> Answered:
        """A whole request, answered by the engine."""
        if call.gone:  # while the engine was away
            raise ClientLeft
        number = next(self._numbers)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._calls[number] = future
        tokens = 1 + len(call.body) // _CHARACTERS_PER_TOKEN
        self.tokens += tokens

        def leave() -> None:
            self.send(Leave(number), REQUESTS)
            if not future.done():
                future.set_exception(ClientLeft())

        call.on_leave.append(leave)
        request = Forward(number, call.id, call.method, call.path, call.key, call.client, call.body, call.as_bytes)
        self.send(request, REQUESTS)
        try:
            found = await future
        finally:
            if self._calls.pop(number, None) is not None:  # or the engine is gone, and all that it had
                self.tokens -= tokens
            call.on_leave.remove(leave)
        call.tokens = found.tokens
        return found.status, found.headers, found.body

    def refuse_all(self, error: Refusal) -> None:
        for job in self._jobs.values():
            job.settle(error)
        for future in self._calls.values():
            if not future.done():
                future.set_exception(error)

    # -- from the engine --------------------------------------------------------------------------------------------

    def _take(self, message: AnyMessage) -> None:
        match message:
            case Done():
                job = self._taken(message.number)
                job.started = job.queued + message.waited
                job.finished = job.started + message.computed
                job.give(cast(Sequence[Floats], self._memory.vectors(job.at, job.layout).copy()))
                self._blocks.give(job.at, job.layout.size)
                job.settle(None)
            case Refused():
                job = self._taken(message.number)
                self._blocks.give(job.at, job.layout.size)
                if message.down:
                    self._engines.again(job)
                else:
                    job.settle(message.as_error())
            case Answer():
                future = self._calls.get(message.number)
                if future is not None and not future.done():
                    future.set_result(message)
            case States():
                self.states, self._told = {state.name: state for state in message.models}, True
                self._engines.changed()

    def _taken(self, number: int) -> FrontJob:
        job = self._jobs.pop(number)
        self.tokens -= job.layout.tokens
        return job


class Engines:
    """All engines of a server, as one of its fronts sees them."""

    def __init__(self, service: Service, models: FrontModels, folder: Path, number: int) -> None:
        self._service, self._models = service, models
        self._loop = asyncio.get_running_loop()
        self.links = [EngineLink(index, address_of(folder, index), self) for index in range(number)]
        self._turns = count(1)
        self._tasks = [self._loop.create_task(link.keep_connected()) for link in self.links]
        self.changed()

    def changed(self) -> None:
        self._models.update(self.links, self._service.settings.models)
        for model in self._models.all:
            model.remote = model.remote or RemoteQueue(model.name, self)

    def choose(self, model: str, but: EngineLink | None = None) -> EngineLink | None:
        """The engine with the least to do of those where the model is ready."""
        able = [one for one in self.links if one is not but and _is_ready(one, model)]
        return self._least(able) if able else None

    def _least(self, links: Sequence[EngineLink]) -> EngineLink:
        """The one with the least to do; among equals, the one that has been left in peace longest."""
        found = min(links, key=lambda link: (link.tokens, link.last))
        found.last = next(self._turns)
        return found

    def makes(self, model: str, lane: AnyLane) -> bool:
        """Whether the rows of this lane are still those that the model takes: another may have its name by now."""
        texts = self._models.get(model).get("embed", EmbedTexts) if self._models.knows(model) else None
        return texts is not None and texts.vectors is lane

    def again(self, job: FrontJob) -> None:
        """An engine ended with this job in hand: it is given to another one, once."""
        other = self.choose(job.model, but=job.link)
        if job.future.done():
            return
        if job.tries > 1 or other is None:
            job.settle(EngineDown())
            return
        try:
            other.start(job)
        except Refusal as refusal:
            job.settle(refusal)

    @property
    def away(self) -> bool:
        """No engine has a model that is ready, and one had."""
        return any(model.state == "restarting" for model in self._models.all)

    def states(self) -> dict[str, str]:
        names = {True: "ready", False: "restarting"}
        return {str(link.index): names[link.connected and not link.is_loading] for link in self.links}

    async def come_back(self) -> None:
        """Wait for an engine that is being restarted, a few seconds at most: whoever asks meanwhile is not refused."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_AWAY_SECONDS):
                while self.away and not self._service.stopped:
                    await asyncio.sleep(_RETRY_SECONDS)

    async def forward(self, call: Call) -> Answered:
        """Let an engine answer; all of them where models are changed."""
        links = [link for link in self.links if link.connected]
        if not links:
            return unhealthy("The engine is not there; it is being restarted.").answer(call.path)
        try:
            if call.path.startswith(_ADMIN):
                return await self._change_models(call)
            if call.path.startswith(_EXPLORE):  # whose sessions and long computations are in one engine
                return await links[0].ask(call)
            return await self._ask_any(call, links)
        except EngineDown:
            return unhealthy("The engine broke down and is being restarted; try again.").answer(call.path)

    async def _ask_any(self, call: Call, links: list[EngineLink]) -> Answered:
        first = self._least(links)
        try:
            return await first.ask(call)
        except EngineDown:
            alive = [link for link in links if link is not first and link.connected]
            if not alive:
                raise
            return await self._least(alive).ask(call)

    async def _change_models(self, call: Call) -> Answered:
        """In every engine, or in none: where one of them could not load a model, the others unload it again."""
        if not all(link.connected and not link.is_loading for link in self.links):
            raise EngineDown
        found = await asyncio.gather(*(link.ask(call) for link in self.links), return_exceptions=True)
        answers: dict[EngineLink, Answered] = {}
        for link, one in zip(self.links, found, strict=True):
            match one:
                case EngineDown():
                    pass
                case BaseException():  # the client has left; engines go on
                    raise one
                case _:
                    answers[link] = one
        done = [link for link, one in answers.items() if one[0] == 200]
        if call.method == "POST" and 0 < len(done) < len(found):
            path = f"{_ADMIN}/{msgspec.json.decode(call.body)['name']}"
            undo = replace(call, method="DELETE", path=path, body=b"", on_leave=[])
            await asyncio.gather(*(link.ask(undo) for link in done), return_exceptions=True)
        if len(answers) < len(found):
            raise EngineDown
        if call.method == "DELETE" and done:  # also where only one of them still had it
            return answers[done[0]]
        return max(answers.values(), key=lambda answer: answer[0])

    def stop(self) -> None:
        """Whoever still waits is told that the server ends."""
        for link in self.links:
            link.refuse_all(unhealthy("The server is shutting down and did not get to the end of this request."))


def _is_ready(link: EngineLink, model: str) -> bool:
    state = link.states.get(model)
    return state is not None and state.state == "ready"


class RemoteQueue:
    """The queue of a model that is in other processes."""

    def __init__(self, model: str, engines: Engines) -> None:
        self._model, self._engines = model, engines

    def check_room(self, client: str = "", work: int = 0) -> None:
        """The engine itself says so when there is none."""

    def submit(
        self, lane: Lane[I, A], items: Sequence[I], lengths: Sequence[int], *, seconds: float, client: str = "",
        work: int | None = None,
    ) -> Job[I, A]:  # fmt: skip
        link = self._engines.choose(self._model)
        if link is None or not self._engines.makes(self._model, lane):
            raise EngineDown
        future: asyncio.Future[Sequence[Floats]] = asyncio.get_running_loop().create_future()
        rows = cast(EmbedRows, items)  # nothing else is computed for a front
        job = FrontJob(
            cast(Lane[EmbedRows, Floats], lane), rows, lengths, seconds, client, future=future, model=self._model
        )
        link.start(job)
        return cast(Job[I, A], job)
