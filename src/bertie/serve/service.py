"""What the routes work with: the models, the server's state, and the way of one request through an engine."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ParamSpec, TypeVar

import msgspec

from bertie.running.rows import Cuts
from bertie.serve.bodies import INLINE_BYTES, encode, encode_answer, read_body
from bertie.serve.failures import ClientLeft, empty, too_large, unhealthy
from bertie.serve.metrics import Metrics
from bertie.serve.models import Models, ServedModel
from bertie.serve.queues import Job, Lane
from bertie.serve.scheduler import Engine
from bertie.serve.settings import Settings, Truncation

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")

# Work on more than this is not done on the event loop: others would wait.
_INLINE_CHARACTERS = 8192
_INLINE_TEXTS = 64
# And in a helper thread not more than this in one go: the work of others comes in between.
_SLICE_CHARACTERS = 32768
_SLICE_TEXTS = 64


@dataclass(eq=False)
class Call:
    """One request on its way. Times are in seconds."""

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
    cuts: Cuts = field(default_factory=lambda: Cuts("truncate", 0))  # its texts that were cut to the model's length
    tokenization: float = 0.0
    queue: float = 0.0
    inference: float = 0.0
    device: str = "cpu"
    jobs: list[tuple[Engine, Job]] = field(default_factory=list)

    @property
    def who(self) -> str:
        """Whose request it is, for fair shares."""
        return self.key or self.client

    def leave(self) -> None:
        """The client has gone: its work is not wanted any more."""
        self.gone = True
        for engine, job in self.jobs:
            engine.forget(job)
            if not job.future.done():
                job.future.set_exception(ClientLeft())

    def cut_headers(self) -> list[tuple[bytes, bytes]]:
        """How many of its texts were cut to the model's length; nothing where none was."""
        return [(b"x-truncated-texts", b"%d" % self.cuts.cut)] if self.cuts.cut else []

    def timing_headers(self) -> list[tuple[bytes, bytes]]:
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


class Service:
    """A running server, without its HTTP."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.models = Models(settings, on_batch=self.metrics.batch, on_restart=self.metrics.restarts.inc)
        self.draining = False
        self.in_flight = 0
        self.failure: Exception | None = None  # why the models could not be loaded
        self.lost_device = False  # the process has to be replaced
        self._stopped = False
        self.helpers = 1 if (os.cpu_count() or 1) <= 2 else 2  # they compete with the event loop
        self._pool = ThreadPoolExecutor(self.helpers, thread_name_prefix="tokenize")

    @property
    def ready(self) -> bool:
        return self.models.ready and not self.draining

    def stop(self) -> None:
        """There is no more time: whoever still waits for an answer is told so."""
        self._stopped = True
        self.models.stop()

    def close(self) -> None:
        self.models.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    # -- one request ----------------------------------------------------------------------------------------------

    async def read(self, call: Call, decoder: msgspec.json.Decoder[Any]) -> Any:
        """The request's body, decoded; the bytes are let go."""
        body, call.body = call.body, b""
        limits = self.settings.limits
        if len(body) <= INLINE_BYTES:
            return read_body(decoder, body, limits)
        return await self.aside(call, read_body, decoder, body, limits)

    async def write(self, call: Call, found: Any) -> bytes:
        """A handler's answer as bytes."""
        inline = call.answer_bytes <= INLINE_BYTES
        if isinstance(found, bytes):
            body = found
        else:
            body = encode(found) if inline else await self.aside(call, encode_answer, found)
        call.answer_bytes = 0
        self.reserve(call, len(body))  # whatever was reckoned before: no answer is larger than it may be
        return body

    def check_texts(self, call: Call, texts: Sequence[Any], *, what: str = "inputs") -> None:
        """Refuse nothing, too many and too much, before anything is done with it."""
        if not texts:
            raise empty(what)
        limits = self.settings.limits
        if len(texts) > limits.batch:
            raise too_large(f"batch size {len(texts)} > maximum allowed batch size {limits.batch}")
        longest = limits.text_tokens * limits.characters_per_token
        for number, text in enumerate(texts):
            size = text_size(text)
            call.size += size
            if isinstance(text, list):
                if size == 0:
                    raise empty(f"{what}[{number}]")
                if size > limits.text_tokens:
                    raise too_large(f"Input {number} has {size} token ids; {limits.text_tokens} are allowed.")
                continue
            if size > longest:
                raise too_large(f"Input {number} has {size} characters; {longest} are allowed.")
            call.characters += size
        if call.characters > limits.request_characters:
            raise too_large(f"The texts have {call.characters} characters; {limits.request_characters} are allowed.")

    async def prepare(
        self, call: Call, texts: Sequence[Any], work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Tokenize: here where it is little, in a helper thread where it is much."""
        begin = time.perf_counter()
        if len(texts) <= _INLINE_TEXTS and call.size <= _INLINE_CHARACTERS:
            found = work(*args, **kwargs)
        else:
            found = await self.aside(call, work, *args, **kwargs)
        call.tokenization += time.perf_counter() - begin
        return found

    async def aside(self, call: Call, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` in a helper thread: for all that grows with a request."""
        if call.gone:
            raise ClientLeft
        if self._stopped:
            raise unhealthy("The server is shutting down.")
        return await asyncio.get_running_loop().run_in_executor(self._pool, partial(work, *args, **kwargs))

    async def each(
        self,
        call: Call,
        items: Sequence[T],
        work: Callable[[int, Sequence[T]], list[R]],
        *,
        sizes: Sequence[int] | None = None,
    ) -> list[R]:
        """`work` for all items: here where it is little, and where it is much in a helper thread, some at a time.

        `work` takes the number of the first item and the items. `sizes` are those of their texts.
        """
        begin = time.perf_counter()
        sizes = [text_size(item) for item in items] if sizes is None else sizes
        if len(items) <= _INLINE_TEXTS and call.size <= _INLINE_CHARACTERS and call.answer_bytes <= INLINE_BYTES:
            found = work(0, items)
        else:
            found = []
            for start, stop in _slices(sizes):
                found += await self.aside(call, work, start, items[start:stop])
        call.tokenization += time.perf_counter() - begin
        return found

    async def compute(
        self,
        call: Call,
        model: ServedModel,
        lane: Lane,
        items: Sequence[Any],
        lengths: Sequence[int],
        *,
        work: int | None = None,
        tokens: int | None = None,
    ) -> list[Any]:
        """The lane's answers, one to an item. `work`: tokens of the whole request, if this is only a part of it;
        `tokens`: how many the client is told, if not the sum of `lengths`."""
        if call.gone:
            raise ClientLeft
        limits = self.settings.limits
        if max(lengths, default=0) > limits.text_tokens:
            raise too_large(f"A text asks for the work of {max(lengths)} tokens; {limits.text_tokens} are allowed.")
        work = sum(lengths) if work is None else work
        if work > limits.request_tokens:
            raise too_large(
                f"The request asks for the work of {work} tokens; {limits.request_tokens} are allowed.",
                "Send fewer texts at once, or shorter ones.",
            )
        engine = model.running()
        job = engine.submit(lane, items, lengths, seconds=limits.request_seconds, client=call.who, work=work)
        call.jobs.append((engine, job))
        call.device = model.device
        answers = await job.future
        call.tokens += job.tokens if tokens is None else tokens
        call.queue += job.started - job.queued
        call.inference += job.finished - job.started
        self.metrics.waited(model.name, job.started - job.queued)
        return answers

    def reserve(self, call: Call, size: int, remedy: str = "Send fewer texts at once.") -> None:
        """Count bytes that the answer will have; an answer that would be too large is refused here."""
        call.answer_bytes += size
        limit = self.settings.limits.answer_bytes
        if call.answer_bytes > limit:
            raise too_large(f"The answer would have more than the {limit} bytes that are allowed.", remedy)

    def truncation(self, *, asked: bool | None, direction: str = "right", default: bool = True) -> Truncation:
        """What happens to a text that is too long, by the server's policy and what the request asks."""
        policy = self.settings.truncation
        if policy != "request" and not (policy in ("left", "right") and asked is False):
            return policy
        cut = default if asked is None else asked
        if not cut:
            return "error"
        return "left" if direction.lower() == "left" else "right"

    def set_gauges(self) -> None:
        for model in self.models.all:
            if model.engine is not None:
                jobs, tokens = model.engine.waiting
                self.metrics.queue_jobs.labels(model.name).set(jobs)
                self.metrics.queue_tokens.labels(model.name).set(tokens)
                self.metrics.skipped.labels(model.name).set(model.engine.skipped)


def text_size(item: Any) -> int:
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
