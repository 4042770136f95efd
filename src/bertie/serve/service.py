"""What the routes work with: the models, the server's state, and the way of one request through an engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from bertie.serve.failures import ClientLeft, empty, too_large
from bertie.serve.metrics import Metrics
from bertie.serve.models import Models, ServedModel
from bertie.serve.scheduler import Engine, Job, Lane
from bertie.serve.settings import Settings, Truncation

T = TypeVar("T")
P = ParamSpec("P")

# Tokenizing more than this is not done on the event loop: others would wait.
_INLINE_CHARACTERS = 8192
_INLINE_TEXTS = 64


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
    tokens: int = 0
    tokenization: float = 0.0
    queue: float = 0.0
    inference: float = 0.0
    device: str = "cpu"
    jobs: list[tuple[Engine, Job]] = field(default_factory=list)

    def leave(self) -> None:
        """The client has gone: its work is not wanted any more."""
        self.gone = True
        for engine, job in self.jobs:
            engine.forget(job)
            if not job.future.done():
                job.future.set_exception(ClientLeft())

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
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="tokenize")

    @property
    def ready(self) -> bool:
        return self.models.ready and not self.draining

    def close(self) -> None:
        self.models.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    # -- one request ----------------------------------------------------------------------------------------------

    def check_texts(self, call: Call, texts: Sequence[Any], *, what: str = "inputs") -> None:
        """Refuse nothing, too many and too much, before anything is done with it."""
        if not texts:
            raise empty(what)
        limits = self.settings.limits
        if len(texts) > limits.batch:
            raise too_large(f"batch size {len(texts)} > maximum allowed batch size {limits.batch}")
        longest = limits.text_tokens * limits.characters_per_token
        for number, text in enumerate(texts):
            size = sum(map(len, text)) if isinstance(text, tuple) else len(text)
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
        if len(texts) <= _INLINE_TEXTS and call.characters <= _INLINE_CHARACTERS:
            found = work(*args, **kwargs)
        else:
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(self._pool, lambda: work(*args, **kwargs))
        call.tokenization += time.perf_counter() - begin
        return found

    async def compute(
        self, call: Call, model: ServedModel, lane: Lane, items: Sequence[Any], lengths: Sequence[int]
    ) -> list[Any]:
        """The lane's answers, one to an item."""
        if call.gone:
            raise ClientLeft
        longest = self.settings.limits.text_tokens
        if max(lengths, default=0) > longest:
            raise too_large(f"A text asks for the work of {max(lengths)} tokens; {longest} are allowed.")
        engine = model.running()
        job = engine.submit(lane, items, lengths, seconds=self.settings.limits.request_seconds)
        call.jobs.append((engine, job))
        call.device = model.device
        answers = await job.future
        call.tokens += job.tokens
        call.queue += job.started - job.queued
        call.inference += job.finished - job.started
        self.metrics.waited(model.name, job.started - job.queued)
        return answers

    def check_answer_size(self, tokens: int, numbers: int) -> None:
        """Refuse an answer of `numbers` for each of `tokens` that would be too large to send."""
        limit = self.settings.limits.answer_numbers
        if tokens * numbers > limit:
            raise too_large(f"The answer would have {tokens * numbers} numbers; {limit} are allowed. Send fewer texts.")

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
