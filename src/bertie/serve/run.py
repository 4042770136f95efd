"""Listening, shutting down, starting again.

SIGTERM (and ctrl-C) drains: /ready is 503 at once, new requests are refused and told to come elsewhere, those accepted
are finished, and the process ends with 0. A second signal ends it now.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import mmap
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import uvicorn

from bertie.errors import BertieError
from bertie.serve.app import make_app
from bertie.serve.http.connection import Connection, Connections
from bertie.serve.http.sockets import address, bind
from bertie.serve.logs import JsonLines, start_logging
from bertie.serve.processes.front import Engines, FrontModels
from bertie.serve.service import Service
from bertie.serve.settings import LOOPBACK, Settings
from bertie.serve.tasks import TASKS
from bertie.serve.traces import traces_wanted

logger = logging.getLogger("bertie.serve")

# After the last answer the server still listens this long: whoever asks meanwhile is told that it is going.
_LAST_WORDS_SECONDS = 0.5
# For those whose requests could not be finished to be told so.
_REFUSING_SECONDS = 1.0
# How often threads take turns: an event loop at work must not hold up the engine's many small steps.
SWITCH_SECONDS = 0.0005
# A front that was started again waits this long for its engines before it accepts anyone.
_ENGINES_SECONDS = 3.0
_SPARE_DESCRIPTORS = 128
_STOPS = (signal.SIGTERM, signal.SIGINT)


class DrainingServer(uvicorn.Server):
    """uvicorn's server, with a drain before its shutdown."""

    def __init__(self, config: uvicorn.Config, service: Service, connections: Connections) -> None:
        super().__init__(config)
        self.service = service
        self.connections = connections
        self._drain: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.parent: int | None = None
        self._watching: list[asyncio.Task[None]] = []
        self.on_listening: Callable[[], None] = lambda: None
        self.beat: Callable[[], None] = lambda: None
        self.on_ready: Callable[[], None] = lambda: None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        handlers: dict[signal.Signals, Callable[[], None]] = dict.fromkeys(_STOPS, self.drain)
        if self.parent is not None:
            # A terminal sends ctrl-C to all processes, and the parent passes it on: the two of them mean one drain.
            handlers = {signal.SIGUSR1: self.end_now, **dict.fromkeys(_STOPS, self.drain_once)}
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_IGN)  # the process is ending already

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._watching = [self._loop.create_task(self.connections.watch())]
        if self.parent is not None:
            self._watching.append(self._loop.create_task(self._watch_parent(self.parent)))
        await super().startup(sockets)
        self.on_listening()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        if self.force_exit:
            # uvicorn leaves the rest out when it is forced. Requests and the application's own task would be cancelled
            # when the loop closes, and each would say so with a traceback.
            logging.getLogger("uvicorn.error").addFilter(_is_no_cancellation)
            await self.lifespan.shutdown()

    def drain(self) -> None:
        """Stop when what was accepted is answered; called again, stop now."""
        if self._drain is not None:
            self.end_now()
        else:
            self.drain_once()

    def drain_once(self) -> None:
        """The same, however often it is called."""
        if self._drain is None:
            self.service.draining = True
            logger.info("draining", extra={"in_flight": self.service.in_flight})
            self._drain = asyncio.get_running_loop().create_task(self._finish())

    def end_now(self) -> None:
        self.should_exit = self.force_exit = True
        self.service.lost_device = False

    async def _watch_parent(self, parent: int) -> None:
        """A worker whose parent was killed would go on for ever, and nobody would know."""
        while os.getppid() == parent:
            self.beat()
            await asyncio.sleep(0.5)
        self.drain_once()

    def drain_soon(self) -> None:
        """`drain`, from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.drain)

    async def _finish(self) -> None:
        ends = time.monotonic() + self.service.settings.drain_seconds
        quiet = time.monotonic() + _LAST_WORDS_SECONDS
        while time.monotonic() < ends and (self.service.in_flight or time.monotonic() < quiet):
            if self.service.at_work:
                quiet = time.monotonic() + _LAST_WORDS_SECONDS
            await asyncio.sleep(0.02)
        if self.service.in_flight:
            logger.error("requests were still under way", extra={"in_flight": self.service.in_flight})
            self.service.stop()
            ends = time.monotonic() + _REFUSING_SECONDS
            while time.monotonic() < ends and self.service.in_flight:
                await asyncio.sleep(0.02)
        self.should_exit = True


def make_server(settings: Settings) -> DrainingServer:
    """A server, to be run on a bound socket. Models are loaded once it accepts: /live and /ready answer meanwhile."""
    service = Service(settings, TASKS)
    loading: set[asyncio.Task[None]] = set()

    async def startup() -> None:
        loading.add(asyncio.get_running_loop().create_task(load_all()))

    async def load_all() -> None:
        try:
            for choice in settings.models:
                await service.models.load(choice)
        except Exception as error:
            if not isinstance(error, BertieError):
                logger.exception("a model could not be loaded")
            service.failure = error
            server.should_exit = True
            return
        # What is here now stays: the collector need not look through it again and again.
        gc.collect()
        gc.freeze()
        logger.info("ready", extra={"models": [model.name for model in service.models.all]})
        server.on_ready()

    server = _listening(service, startup)

    def lost() -> None:  # in an engine's thread
        if not service.draining:
            service.lost_device = True
            server.drain_soon()

    service.models.on_lost = lost
    return server


def make_front(
    settings: Settings, folder: Path, engines: int, *, again: bool = False, rate_buckets: mmap.mmap | None = None
) -> DrainingServer:
    """A server whose models are in other processes, which are found in `folder`.

    One that was started `again` accepts nobody before it has found them, for a while: others accept meanwhile.
    """
    service = Service(settings, {}, models=FrontModels)
    models = cast(FrontModels, service.models)
    service.rate_buckets = rate_buckets

    async def startup() -> None:
        service.engines = Engines(service, models, folder, engines)
        ends = time.monotonic() + _ENGINES_SECONDS
        while again and not service.ready and time.monotonic() < ends:
            await asyncio.sleep(0.01)

    server = _listening(service, startup)

    def changed() -> None:
        if service.ready:
            server.on_ready()

    service.models.on_change = changed
    return server


def _listening(service: Service, startup: Callable[[], Awaitable[None]]) -> DrainingServer:
    limits = service.settings.limits
    service.traces = traces_wanted()
    connections = Connections(limits, lambda reason: service.metrics.connections_refused.labels(reason).inc())
    config = uvicorn.Config(
        make_app(service, startup=startup),
        http=type("Protocol", (Connection,), {"connections_of_server": connections}),
        ws="none",
        loop="uvloop" if _has_uvloop() else "asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=2,
        backlog=2048,
    )
    return DrainingServer(config, service, connections)


def serve_front(
    settings: Settings, sock: socket.socket, folder: Path, engines: int, *, name: str, parent: int, again: bool,
    rate_buckets: mmap.mmap, on_ready: Callable[[], None], beat: Callable[[], None],
) -> int:  # fmt: skip
    """A front process: HTTP, until told to stop or until the parent is gone; the exit code.

    `beat` is called now and then while its loop runs.
    """
    handler = _begin(settings)
    settings = replace(settings, limits=replace(settings.limits, connections=allowed_connections(settings)))
    server = make_front(settings, folder, engines, again=again, rate_buckets=rate_buckets)
    server.service.metrics.settle(name)
    server.parent, server.on_ready, server.beat = parent, on_ready, beat
    try:
        server.run([sock])
    finally:
        handler.close()
    return 0


def warn_if_open(settings: Settings) -> None:
    if settings.host not in LOOPBACK and not settings.keys:
        logger.warning("open to the network without API keys", extra={"host": settings.host})


def _begin(settings: Settings) -> JsonLines:
    sys.setswitchinterval(SWITCH_SECONDS)
    # Texts come one by one: handing each to Rust's threads would cost more than it takes.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    return start_logging(settings.log_level)


def serve(
    settings: Settings, sock: socket.socket, *, say: Callable[[str], None] = print,
    on_ready: Callable[[str], None] | None = None,
) -> int:  # fmt: skip
    """Serve in this one process until told to stop; the exit code.

    `on_ready` is given the address when the models are there; without it, that is said.

    A model that cannot be loaded is the error it is everywhere else.
    """
    handler = _begin(settings)
    settings = replace(settings, limits=replace(settings.limits, connections=allowed_connections(settings)))
    kept = os.dup(sock.fileno())
    warn_if_open(settings)
    server = make_server(settings)
    url = address(sock)
    server.on_listening = lambda: say(f"Bertie listens on {url} and loads its models …")
    server.on_ready = lambda: say(f"Ready: {url}") if on_ready is None else on_ready(url)
    try:
        server.run([sock])
    finally:
        handler.close()
    failure = server.service.failure
    if isinstance(failure, BertieError):
        raise failure
    if server.service.lost_device:
        replace_process(kept)
    os.close(kept)
    return 0 if failure is None else 1


def replace_process(fd: int) -> None:
    """Begin again in a new process image, with the same socket: whoever connects meanwhile waits instead of failing."""
    given = sys.argv[1:]
    if "--fd" in given:  # of the last time
        place = given.index("--fd")
        del given[place : place + 2]
    os.set_inheritable(fd, True)
    for number in _STOPS:  # what is ignored here would be ignored there
        signal.signal(number, signal.SIG_DFL)
    os.execv(sys.executable, [sys.executable, "-m", "bertie", *given, "--fd", str(fd)])


def allowed_connections(settings: Settings) -> int:
    """As many as the system has file descriptors for, some kept for files."""
    try:
        import resource
    except ImportError:  # no such limit on this system
        return settings.limits.connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.limits.connections + _SPARE_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return max(16, min(settings.limits.connections, soft - _SPARE_DESCRIPTORS))
    return settings.limits.connections


class Running:
    """A server in a thread of this process, for tests and notebooks.

    with Running(Settings(models=(ModelChoice("m", path),), port=0)) as server:
        httpx.get(server.url + "/ready")
    """

    def __init__(self, settings: Settings) -> None:
        self._sock = bind(settings)
        self.url = address(self._sock)
        self.server = make_server(settings)
        self.service = self.server.service
        self._ready = threading.Event()
        self.server.on_ready = self._ready.set
        self._thread = threading.Thread(target=self.server.run, args=([self._sock],), daemon=True)

    def __enter__(self) -> Running:
        self._thread.start()
        while not self._ready.wait(0.05):
            if not self._thread.is_alive():
                raise self.service.failure or RuntimeError("the server ended before it was ready")
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self._thread.join(10)


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


def _has_uvloop() -> bool:
    try:
        import uvloop  # noqa: F401
    except ImportError:
        return False
    return os.name == "posix"


def new_loop() -> asyncio.AbstractEventLoop:
    """The fastest event loop there is."""
    if not _has_uvloop():
        return asyncio.new_event_loop()
    import uvloop

    return uvloop.new_event_loop()
