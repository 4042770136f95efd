"""An engine process: models and their queues, for the requests of all fronts.

Fronts connect through a Unix socket. What they send as rows (`Work`) goes into the model's queue beside everything
else, and its vectors are written straight into the front's memory by the engine's thread; what they forward whole is
answered by the same routes as in a server of one process. A front that ends takes its requests with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bertie.errors import BertieError
from bertie.files import replace_file
from bertie.serve.app import ROUTES
from bertie.serve.embedding import EmbedRows, EmbedRunner, Floats
from bertie.serve.failures import EngineDown, unhealthy
from bertie.serve.logs import start_logging
from bertie.serve.models import ServedModel
from bertie.serve.processes.front import WORK, address_of
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
    Unpacker,
    Work,
    packed,
)
from bertie.serve.processes.shared import Layout, SharedMemory
from bertie.serve.queues import AnyJob, Outcomes, Queued
from bertie.serve.run import SWITCH_SECONDS, new_loop
from bertie.serve.scheduler import Engine, settle
from bertie.serve.service import AnyRoute, Call, Service
from bertie.serve.settings import ModelChoice, Settings
from bertie.serve.tasks import TASKS

logger = logging.getLogger("bertie.serve")

_AT_ONCE = 1 << 16  # bytes of messages
_HELLO_SECONDS = 5.0
_ADMIN = "/admin/models"
_FOLDERS = ("/v1/models/", _ADMIN + "/")
_LOOK_SECONDS = 0.5  # between two looks at what waits, and at whether anybody is left
_LOST_SECONDS = 0.2
MODELS_FILE = "models-{}.json"  # what an engine has after models were loaded or unloaded, for when it starts again


@dataclass(eq=False, slots=True, kw_only=True)
class FrontRows(Queued[EmbedRows, Floats]):
    """Rows of a front's request. Vectors go into `room`, `[rows, d]` of its memory."""

    link: WorkLink
    number: int
    room: Floats

    def give(self, answers: Sequence[Floats]) -> None:
        done = len(self.room) - self.missing
        self.room[done : done + len(answers)] = answers
        self.missing -= len(answers)

    def reply(self, error: Exception | None) -> Done | Refused:
        if error is None:
            return Done(self.number, self.started - self.queued, self.finished - self.started)
        return Refused.of(self.number, error)


class WorkLink:
    """Rows from one front. It is written to by whichever thread has an answer, so it is no transport of the loop."""

    def __init__(self, sock: socket.socket, memory: SharedMemory, host: EngineHost) -> None:
        self.memory, self.jobs = memory, dict[int, FrontRows]()
        self._sock, self._host = sock, host
        self._loop = asyncio.get_running_loop()
        self._unpacker, self._buffer = Unpacker(), bytearray(_AT_ONCE)
        self._lock = threading.Lock()
        self._unsent = b""
        sock.setblocking(False)
        self._loop.add_reader(sock, self._read)

    def _read(self) -> None:
        try:
            size = self._sock.recv_into(self._buffer)
        except BlockingIOError:
            return
        except OSError:
            size = 0
        if not size:
            self.close()
            return
        with self._host.launching:
            self._host.take_rows(self, list(self._unpacker.feed(memoryview(self._buffer)[:size])))

    def send(self, messages: Sequence[AnyMessage]) -> None:
        """From any thread."""
        with self._lock:
            waited = bool(self._unsent)
            self._unsent += packed(messages)
            if not waited and not self._write():
                self._loop.call_soon_threadsafe(self._write_later)

    def _write(self) -> bool:
        """As much as the socket takes; whether that was all."""
        try:
            self._unsent = self._unsent[self._sock.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:  # the front has ended; its connection is about to say so
            self._unsent = b""
        return not self._unsent

    def _write_later(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.add_writer(self._sock, self._write_on)

    def _write_on(self) -> None:
        with self._lock:
            if self._write():
                self._loop.remove_writer(self._sock)

    def close(self) -> None:
        if self._sock.fileno() < 0:
            return
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        with self._lock:
            self._sock.close()
            self._unsent = b""
        for job in list(self.jobs.values()):
            job.gone = True
        self._host.links.discard(self)


class RequestLink(Link):
    """Whole requests from one front."""

    def __init__(self, host: EngineHost) -> None:
        super().__init__(self._take, self._gone)
        self._host = host
        self._calls: dict[int, tuple[Call, asyncio.Task[None]]] = {}

    def _take(self, message: AnyMessage) -> None:
        match message:
            case Forward():
                service = self._host.service
                call = Call(
                    service, message.id, message.method, message.path, self._loop.time(), message.body,
                    key=message.key, client=message.client, as_bytes=message.as_bytes,
                )  # fmt: skip
                task = self._loop.create_task(self._answer(message.number, call))
                self._calls[message.number] = call, task
            case Leave() if message.number in self._calls:
                self._calls[message.number][0].leave()

    async def _answer(self, number: int, call: Call) -> None:
        try:
            status, headers, body = await self._host.answer(call)
            self.send(Answer(number, status, headers, body, call.tokens))
        except Exception:  # the client has left, or worse
            if not call.gone:
                logger.exception("a request failed", extra={"request_id": call.id, "path": call.path[:200]})
                status, headers, body = unhealthy("Something went wrong here; it has been logged.").answer(call.path)
                self.send(Answer(number, status, headers, body, 0))
        finally:
            self._calls.pop(number, None)

    def _gone(self) -> None:
        for call, _ in self._calls.values():
            call.leave()


class EngineHost:
    """What a front finds at the other end."""

    def __init__(self, service: Service, models_file: Path) -> None:
        self.service, self._models_file = service, models_file
        self.links: set[WorkLink] = set()
        self._loop = asyncio.get_running_loop()
        self._routes = {(route.method, route.path): route for route in ROUTES}
        self._accepting: set[asyncio.Task[None]] = set()
        self._due: dict[Engine, None] = {}
        # Giving a batch to a GPU takes a hundred calls, each of which lets other threads of Python run; getting Python
        # back from one that is reading takes longer than the call. So nothing is read meanwhile.
        self.launching = threading.Lock()
        service.models.launching = self.launching
        service.models.deliver = self._deliver
        service.models.on_change = self._changed

    async def listen(self, address: str) -> None:
        """Accept fronts, for ever."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(address)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(address)
            listener.listen(128)
            listener.setblocking(False)
            while True:
                sock, _ = await self._loop.sock_accept(listener)
                task = self._loop.create_task(self._enter(sock))
                self._accepting.add(task)
                task.add_done_callback(self._accepting.discard)

    async def _enter(self, sock: socket.socket) -> None:
        try:
            sock.settimeout(_HELLO_SECONDS)
            kind, fds, _, _ = await self._loop.run_in_executor(None, socket.recv_fds, sock, 1, 1)
            if kind == WORK and fds:
                link = WorkLink(sock, SharedMemory(fds[0]), self)
                self.links.add(link)
                link.send([self._states()])
            else:
                sock.setblocking(False)
                await self._loop.create_unix_connection(lambda: RequestLink(self), sock=sock)
        except OSError:
            sock.close()

    # -- states -----------------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        """In any thread."""
        self._loop.call_soon_threadsafe(self.tell)

    def tell(self) -> None:
        """Tell all fronts what there is."""
        states = self._states()
        for link in list(self.links):
            link.send([states])

    def _states(self) -> States:
        return States(0, [_state_of(model) for model in self.service.models.all])

    # -- rows -------------------------------------------------------------------------------------------------------

    def take_rows(self, link: WorkLink, messages: Sequence[AnyMessage]) -> None:
        """Queue what came in one read, with one look at each queue."""
        by_model: dict[str, list[tuple[AnyJob, int | None]]] = {}
        refused: list[AnyMessage] = []
        models = self.service.models
        for message in messages:
            match message:
                case Work():
                    # A model of the same name may have taken its place: its ids and its vectors would be others.
                    model = models.get(message.model) if models.knows(message.model) else None
                    known = model is not None and model.load == message.load
                    runner = model.get("embed", EmbedRunner) if known and model is not None else None
                    if runner is None:
                        refused.append(Refused.of(message.number, EngineDown()))
                        continue
                    layout = Layout(message.rows, message.tokens, runner.dimension)
                    ids, lengths = link.memory.rows(message.at, layout)
                    job = link.jobs[message.number] = FrontRows(
                        runner.vectors,
                        EmbedRows(ids, lengths, message.skipped, message.raw),
                        [message.tokens] if message.rows == 1 else lengths.tolist(),
                        message.seconds,
                        message.client,
                        link=link,
                        number=message.number,
                        room=link.memory.vectors(message.at, layout),
                    )
                    by_model.setdefault(message.model, []).append((job, None))
                case Leave() if message.number in link.jobs:
                    link.jobs[message.number].gone = True
        for name, jobs in by_model.items():
            engine = models.get(name).engine
            failed = [(job, EngineDown()) for job, _ in jobs] if engine is None else engine.submit_all(jobs, wake=False)
            if failed:
                self._deliver(failed)
            if engine is not None:
                self._run_soon(engine)
        if refused:
            link.send(refused)

    def _run_soon(self, engine: Engine) -> None:
        """Once all that has arrived is read: what several fronts send at one time is one batch."""
        if not self._due:
            self._loop.call_soon(self._run_due)
        self._due[engine] = None

    def _run_due(self) -> None:
        due, self._due = self._due, {}
        for engine in due:
            engine.run_waiting()

    def _deliver(self, outcomes: Outcomes) -> None:
        """Answers to fronts from here, those of forwarded requests on the loop. In an engine's thread."""
        by_link: dict[WorkLink, list[AnyMessage]] = {}
        here: list[tuple[AnyJob, Exception | None]] = []
        for job, error in outcomes:
            match job:
                case FrontRows():
                    if job.link.jobs.pop(job.number, None) is not None:  # a breakdown names those that failed before it
                        by_link.setdefault(job.link, []).append(job.reply(error))
                case _:
                    here.append((job, error))
        for link, messages in by_link.items():
            link.send(messages)
        if here:
            self._loop.call_soon_threadsafe(settle, here)

    # -- whole requests ---------------------------------------------------------------------------------------------

    async def answer(self, call: Call) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        answered = await call.answer(self._route(call))
        if call.path.startswith(_ADMIN) and answered[0] == 200:
            choices = [model.choice for model in self.service.models.all]
            replace_file(self._models_file, msgspec.json.encode(choices).decode())
        return answered

    def choices(self, given: Sequence[ModelChoice]) -> Sequence[ModelChoice]:
        """The models to load: those given, or those that were there last."""
        try:
            return msgspec.json.decode(self._models_file.read_bytes(), type=list[ModelChoice])
        except FileNotFoundError:
            return given

    def _route(self, call: Call) -> AnyRoute:
        method = "GET" if call.method == "HEAD" else call.method
        folder = next((folder for folder in _FOLDERS if call.path.startswith(folder)), None)
        return self._routes[method, call.path if folder is None else folder + "{name}"]


def _state_of(model: ServedModel) -> ModelState:
    embeds = model.get("embed", EmbedRunner)
    settings = None if embeds is None else embeds.settings
    tasks = sorted(model.runners)
    return ModelState(model.name, model.state, model.device, model.dtype, tasks, model.since, model.load, settings)


# -- the process ------------------------------------------------------------------------------------------------------


def run_engine(
    settings: Settings, number: int, folder: Path, *, parent: int, again: bool,
    report: Callable[[BertieError | None], None], beat: Callable[[], None],
) -> int:  # fmt: skip
    """Serve fronts until SIGUSR1, or until nobody is left; the exit code. `report` is told of success or failure.

    `again`: another process of this number was ready before. `beat` is called now and then while all is well.
    SIGTERM and SIGINT are for fronts: a terminal or a service manager sends them to all processes, and what the fronts
    have accepted still has to be computed.
    """
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, signal.SIG_IGN)
    sys.setswitchinterval(SWITCH_SECONDS)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    handler = start_logging(settings.log_level)
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(_run(settings, number, folder, parent, again, report, beat))
    finally:
        handler.close()


async def _run(
    settings: Settings, number: int, folder: Path, parent: int, again: bool,
    report: Callable[[BertieError | None], None], beat: Callable[[], None],
) -> int:  # fmt: skip
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, ended.set)
    service = Service(settings, TASKS)
    if again:
        service.metrics.restarts.inc()
    host = EngineHost(service, folder / MODELS_FILE.format(number))

    def lost() -> None:  # in an engine's thread
        service.lost_device = True
        loop.call_soon_threadsafe(loop.call_later, _LOST_SECONDS, ended.set)  # until those who waited have been told

    service.models.on_lost = lost

    living = loop.create_task(_live(service, settings.hung_seconds, beat))
    listening = loop.create_task(host.listen(address_of(folder, number)))
    try:
        for choice in host.choices(settings.models):
            await service.models.load(choice)
    except BertieError as error:
        report(error)
        return 2
    gc.collect()
    gc.freeze()
    logger.info("engine ready", extra={"engine": number, "device": settings.device})
    report(None)
    while not ended.is_set() and (os.getppid() == parent or host.links):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), _LOOK_SECONDS)
        service.set_gauges()  # which fronts show
    listening.cancel()
    living.cancel()
    service.close()
    return 1 if service.lost_device else 0


async def _live(service: Service, hung_seconds: float, beat: Callable[[], None]) -> None:
    """Signs of life, while the loop runs and no batch takes far longer than batches do: then the device hangs."""
    while True:
        engines = [model.engine for model in service.models.all if model.engine is not None]
        if not any(engine.busy_seconds > hung_seconds for engine in engines):
            beat()
        await asyncio.sleep(_LOOK_SECONDS)
