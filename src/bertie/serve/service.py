"""What the routes work with: the server's state (`Service`), and one request on its way through it (`Call`).

`Route` is what the application, its document and the middleware are made of.
"""

from __future__ import annotations

import logging
import mmap
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

import msgspec

from bertie.errors import BertieError
from bertie.running.rows import Cuts
from bertie.serve.aside import Answers, HelperThreads
from bertie.serve.bodies import INLINE_BYTES, encode, encode_answer, read_body
from bertie.serve.failures import (
    UNREADABLE,
    ClientLeft,
    EngineDown,
    InferenceFailed,
    Refusal,
    as_refusal,
    empty,
    too_large,
    unhealthy,
    unreadable,
)
from bertie.serve.metrics import Metrics
from bertie.serve.models import Models, ServedModel, ServedTask
from bertie.serve.queues import Lane, Queue
from bertie.serve.schemas import SimilarityParameters, TeiRequest, Usage
from bertie.serve.settings import Limits, Settings, Truncation
from bertie.serve.traces import Traces

logger = logging.getLogger("bertie.serve")

B = TypeVar("B")
T = TypeVar("T")
R = TypeVar("R")
K = TypeVar("K")
P = ParamSpec("P")
Sized = str | tuple[str, str] | list[int]
Header = tuple[bytes, bytes]
Answered = tuple[int, list[Header], bytes]  # status, headers, body

# Work on more than this is not done on the event loop: others would wait.
_INLINE_CHARACTERS = 8192
_INLINE_TEXTS = 64
# And in a helper thread not more than this in one go: the work of others comes in between.
_SLICE_CHARACTERS = 32768
_SLICE_TEXTS = 64
# An answer of as many bytes costs the model's queue about what a token does: thousands of candidates for a short text
# are no small request.
_BYTES_A_TOKEN = 4096


class Forwards(Protocol):
    """Engines in other processes, as a front sees them."""

    @property
    def away(self) -> bool: ...

    def states(self) -> dict[str, str]: ...

    def come_back(self) -> Awaitable[None]: ...

    def forward(self, call: Call) -> Awaitable[Answered]: ...

    def stop(self) -> None: ...


class Service:
    """A running server, without its HTTP."""

    def __init__(self, settings: Settings, tasks: Mapping[str, ServedTask], *, models: type[Models] = Models) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.models = models(settings, tasks, self.metrics)
        self.engines: Forwards | None = None  # in other processes, of which this one is a front
        self.rate_buckets: mmap.mmap | None = None  # where fronts count together
        self.answers = Answers(settings.limits.made_bytes)
        self.traces: Traces | None = None
        self.draining = False
        self.in_flight = 0
        self.at_work = 0  # requests whose body is here, and that were not refused
        self.failure: Exception | None = None  # why the models could not be loaded
        self.lost_device = False  # the process has to be replaced
        self.stopped = False
        self.helpers = 1 if (os.cpu_count() or 1) <= 2 else 2  # they compete with the event loop
        self.helper_threads = HelperThreads(self.helpers)

    @property
    def ready(self) -> bool:
        return self.models.ready and not self.draining

    def stop(self) -> None:
        """There is no more time: whoever still waits for an answer is told so."""
        self.stopped = True
        self.models.stop()
        if self.engines is not None:
            self.engines.stop()

    def close(self) -> None:
        self.models.close()
        if self.traces is not None:
            self.traces.close()
        self.helper_threads.close()

    def set_gauges(self) -> None:
        for model in self.models.all:
            if model.engines:
                jobs, tokens = zip(*(engine.waiting for engine in model.engines), strict=True)
                self.metrics.queue_jobs.labels(model.name).set(sum(jobs))
                self.metrics.queue_tokens.labels(model.name).set(sum(tokens))
                self.metrics.skipped.labels(model.name).set(sum(engine.skipped for engine in model.engines))


@dataclass(eq=False)
class Route(Generic[B]):
    """`body` is None for a route that reads none. A handler gives an object for JSON, or bytes of JSON."""

    path: str
    handler: Callable[[Call, B], Awaitable[object]]
    summary: str
    group: str
    body: type[B] | None = None
    answer: object = None
    method: str = "POST"
    examples: Mapping[str, object] = field(default_factory=dict)
    timed: bool = False  # text-embeddings-inference's timing headers
    media_type: str = "application/json"
    errors: tuple[int, ...] = (400, 413, 415, 422, 424, 429, 503)
    parameters: tuple[str, ...] = ()
    at_front: bool = False  # a front answers it itself, with no more of an engine than the engine's rows

    def __post_init__(self) -> None:
        self.decoder = None if self.body is None else msgspec.json.Decoder(self.body)
        self.content_type = b"content-type", self.media_type.encode()


AnyRoute = Route[Any]


@dataclass(eq=False)
class Call:
    """One request on its way, and what its route does with it. Times are in seconds."""

    service: Service
    id: str
    method: str
    path: str
    began: float
    body: bytes = b""
    route: str = ""
    key: str = ""
    client: str = ""
    gone: bool = False
    outcome: str = ""
    status: int = 0
    characters: int = 0
    size: int = 0  # characters and ids, of everything that was sent
    tokens: int = 0
    answer_bytes: int = 0  # that the answer will have, at most
    is_large: bool = False  # the answer was, at some time, reckoned to be one that counts for the whole server
    cuts: Cuts = field(default_factory=lambda: Cuts("truncate", 0))  # its texts that were cut to the model's length
    tokenization: float = 0.0
    queue: float = 0.0
    inference: float = 0.0
    device: str = "cpu"
    as_bytes: bool = False  # the client accepts application/octet-stream, and nothing else
    binary: tuple[Header, ...] = ()  # what is said about an answer that is not JSON
    on_leave: list[Callable[[], None]] = field(default_factory=list)

    @property
    def limits(self) -> Limits:
        return self.service.settings.limits

    @property
    def who(self) -> str:
        """Whose request it is, for fair shares."""
        return self.key or self.client

    def leave(self) -> None:
        """The client has gone: its work is not wanted any more."""
        self.gone = True
        for leave in self.on_leave:
            leave()

    def cut_headers(self) -> list[Header]:
        """How many of its texts were cut to the model's length; nothing where none was."""
        return [(b"x-truncated-texts", b"%d" % self.cuts.cut)] if self.cuts.cut else []

    def timing_headers(self) -> list[Header]:
        """text-embeddings-inference's, in milliseconds."""
        total = b"%d" % round((time.perf_counter() - self.began) * 1e3)
        return [
            (b"x-compute-type", b"gpu" if self.device.startswith("cuda") else b"cpu"),
            (b"x-compute-time", total),
            (b"x-compute-characters", b"%d" % self.characters),
            (b"x-compute-tokens", b"%d" % self.tokens),
            (b"x-total-time", total),
            (b"x-tokenization-time", b"%d" % round(self.tokenization * 1e3)),
            (b"x-queue-time", b"%d" % round(self.queue * 1e3)),
            (b"x-inference-time", b"%d" % round(self.inference * 1e3)),
        ]

    def usage(self) -> Usage:
        return Usage(self.tokens, self.tokens, self.cuts.cut or msgspec.UNSET)

    async def answer(self, route: AnyRoute) -> Answered:
        """What the route gives; errors are answers too. What a front cannot answer is answered by an engine."""
        engines = self.service.engines
        if engines is not None:
            if engines.away and self.method not in ("GET", "HEAD"):
                await engines.come_back()
            if not route.at_front:
                return await engines.forward(self)
        try:
            body = None if route.decoder is None else await self.read(route.decoder)
            found = await self.write(await route.handler(self, body))
        except (Refusal, BertieError, EngineDown, InferenceFailed, MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError):
                logger.error("a request failed", exc_info=error, extra={"request_id": self.id, "path": self.path})
            return as_refusal(error).answer(self.path)  # kept in a variable, it would keep this frame, and that it
        finally:
            if self.is_large:
                self.service.answers.forget(self)
        kind = self.binary or (route.content_type,)
        headers = [*kind, *self.cut_headers(), *(self.timing_headers() if route.timed else [])]
        return 200, headers, found

    async def read(self, decoder: msgspec.json.Decoder[T]) -> T:
        """The request's body, decoded; the bytes are let go."""
        body, self.body = self.body, b""
        if len(body) > INLINE_BYTES:
            return await self.aside(read_body, decoder, body, self.limits)
        try:
            return decoder.decode(body)
        except UNREADABLE as error:
            raise unreadable(error) from None

    async def write(self, found: object) -> bytes:
        """A handler's answer as bytes."""
        inline = self.answer_bytes <= INLINE_BYTES
        if isinstance(found, bytes):
            body = found
        else:
            body = encode(found) if inline else await self.aside(encode_answer, found)
        self.answer_bytes = 0
        self.reserve(len(body))  # whatever was reckoned before: no answer is larger than it may be
        return body

    def check_texts(self, texts: Sequence[Sized], *, what: str = "inputs") -> None:
        """Refuse nothing, too many and too much, before anything is done with it."""
        if not texts:
            raise empty(what)
        limits = self.limits
        if len(texts) > limits.batch:
            raise too_large(f"batch size {len(texts)} > maximum allowed batch size {limits.batch}")
        longest = limits.text_tokens * limits.characters_per_token
        for number, text in enumerate(texts):
            size = text_size(text)
            self.size += size
            if isinstance(text, list):
                if size == 0:
                    raise empty(f"{what}[{number}]")
                if size > limits.text_tokens:
                    raise too_large(f"Input {number} has {size} token ids; {limits.text_tokens} are allowed.")
                continue
            if size > longest:
                raise too_large(f"Input {number} has {size} characters; {longest} are allowed.")
            self.characters += size
        if self.characters > limits.request_characters:
            raise too_large(f"The texts have {self.characters} characters; {limits.request_characters} are allowed.")

    def find(self, task: str, name: str | None, kind: type[K]) -> tuple[ServedModel, K]:
        """The model for a task, and what runs it, if that can take work of this size now."""
        model = self.service.models.find(task, name)
        return model, self.runner(model, task, kind)

    def runner(self, model: ServedModel, task: str, kind: type[K]) -> K:
        return model.runner(task, kind, client=self.who, characters=self.characters)

    async def prepare(self, texts: Sequence[object], work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Tokenize: here where it is little, in a helper thread where it is much."""
        begin = time.perf_counter()
        if len(texts) <= _INLINE_TEXTS and self.size <= _INLINE_CHARACTERS:
            found = work(*args, **kwargs)
        else:
            found = await self.aside(work, *args, **kwargs)
        self.tokenization += time.perf_counter() - begin
        return found

    async def aside(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` in a helper thread: for all that grows with a request."""
        if self.gone:
            raise ClientLeft
        if self.service.stopped:
            raise unhealthy("The server is shutting down.")
        return await self.service.helper_threads.run(self, partial(work, *args, **kwargs))

    async def each(
        self, items: Sequence[T], work: Callable[[int, Sequence[T]], list[R]], *, sizes: Sequence[int]
    ) -> list[R]:
        """`work` for all items: here where it is little, and where it is much in a helper thread, some at a time.

        `work` takes the number of the first item and the items. `sizes` are those of their texts.
        """
        begin = time.perf_counter()
        if len(items) <= _INLINE_TEXTS and self.size <= _INLINE_CHARACTERS and self.answer_bytes <= INLINE_BYTES:
            found = work(0, items)
        else:
            found = []
            for start, stop in _slices(sizes):
                found += await self.aside(work, start, items[start:stop])
        self.tokenization += time.perf_counter() - begin
        return found

    async def compute(
        self,
        model: ServedModel,
        lane: Lane[T, R],
        items: Sequence[T],
        lengths: Sequence[int],
        *,
        work: int | None = None,
        tokens: int | None = None,
        queue: Queue | None = None,
    ) -> Sequence[R]:
        """The lane's answers, one to an item. `work`: tokens of the whole request, if this is only a part of it;
        `tokens`: how many the client is told, if not the sum of `lengths`; `queue`: not the model's own."""
        if self.gone:
            raise ClientLeft
        limits = self.limits
        if max(lengths, default=0) > limits.text_tokens:
            raise too_large(f"A text asks for the work of {max(lengths)} tokens; {limits.text_tokens} are allowed.")
        work = sum(lengths) if work is None else work
        if work > limits.request_tokens:
            raise too_large(
                f"The request asks for the work of {work} tokens; {limits.request_tokens} are allowed.",
                "Send fewer texts at once, or shorter ones.",
            )
        engine = queue or model.running()
        work = max(work, self.answer_bytes // _BYTES_A_TOKEN)
        job = engine.submit(lane, items, lengths, seconds=limits.request_seconds, client=self.who, work=work)
        self.on_leave.append(job.leave)
        self.device = model.device
        answers = await job.future
        self.tokens += job.tokens if tokens is None else tokens
        self.queue += job.started - job.queued
        self.inference += job.finished - job.started
        self.service.metrics.waiting(model.name).observe(job.started - job.queued)
        return answers

    def reserve(self, size: int, remedy: str = "Send fewer texts at once.") -> None:
        """Count bytes that the answer will have; an answer that would be too large is refused here."""
        self.answer_bytes += size
        limit = self.limits.answer_bytes
        if self.answer_bytes > limit:
            raise too_large(f"The answer would have more than the {limit} bytes that are allowed.", remedy)
        if self.answer_bytes > INLINE_BYTES:
            self.is_large = True
            self.service.answers.hold(self)

    def truncation(self, *, asked: bool | None, direction: str = "right", default: bool = True) -> Truncation:
        """What happens to a text that is too long, by the server's policy and what the request asks."""
        policy = self.service.settings.truncation
        if policy != "request" and not (policy in ("left", "right") and asked is False):
            return policy
        cut = default if asked is None else asked
        if not cut:
            return "error"
        return "left" if direction.lower() == "left" else "right"

    def tei_truncation(self, body: TeiRequest | SimilarityParameters) -> Truncation:
        """The same, as text-embeddings-inference has it."""
        return self.truncation(asked=body.truncate, direction=body.truncation_direction, default=False)


def text_size(item: Sized) -> int:
    """Characters of a text or a pair, or ids of a list."""
    return sum(map(len, item)) if isinstance(item, tuple) else len(item)


def _slices(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(start, stop) of parts that take a helper thread a moment each.

    >>> list(_slices([20_000, 20_000, 5, 5]))
    [(0, 1), (1, 4)]
    """
    start, size = 0, 0
    for number, own in enumerate(sizes):
        if number > start and (size + own > _SLICE_CHARACTERS or number - start >= _SLICE_TEXTS):
            yield start, number
            start, size = number, 0
        size += own
    if start < len(sizes):
        yield start, len(sizes)
