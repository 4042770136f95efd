"""The models of a server: loaded and warmed up in a thread, found by name or by task, loaded again after a crash.

A model goes through `loading` → `ready`; `broken` when its engine broke down (it is then loaded again, after a pause
that grows), `failed` when it could not be loaded at all.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Protocol, TypeVar

import torch

from bertie.checkpoint.open_checkpoint import open_checkpoint
from bertie.errors import InputError
from bertie.family import kind_of
from bertie.loading import model_class
from bertie.running.open import OpenModel, forget_models
from bertie.running.rows import Row
from bertie.serve.failures import Refusal, device_failed, unhealthy
from bertie.serve.metrics import Metrics
from bertie.serve.queues import Device, Outcomes, Queue
from bertie.serve.scheduler import Engine
from bertie.serve.settings import ModelChoice, Settings

logger = logging.getLogger("bertie.serve")

K = TypeVar("K")

# Tokens of a batch at most; the scheduler makes them shorter where they take long.
_CPU_BUDGET = 2048
_CHARACTERS_PER_TOKEN = 4  # about
_WARM_LENGTHS = (1, 8, 32, 128)
_LONGEST_PAUSE = 60.0
_devices: dict[str, Device] = {}

Source = str | OpenModel


@dataclass(frozen=True)
class Place:
    """Where a model runs."""

    device: str | None = None
    dtype: str | None = None


class Runner(Protocol):
    """What the server asks of every runner."""

    @property
    def loaded(self) -> OpenModel: ...

    def warm_up(self) -> None:
        """What the first request would otherwise wait for, beside the first batches of the model."""


@dataclass(frozen=True)
class ServedTask:
    """A task under its name.

    `classes` of checkpoints are served for it when no task is named; `fits` judges whether one of them really can.
    Tasks of one `head` share one copy of the weights. What runs it does the tasks of `also` as well. A `late` one is
    served with every model; beside other tasks it opens the model itself, when it is first asked.
    """

    name: str
    open: Callable[[Source, Place], Runner]
    classes: tuple[str, ...] = ()
    head: str = ""
    fits: Callable[[OpenModel], bool] = lambda loaded: True
    also: Callable[[Any], tuple[str, ...]] = lambda runner: ()
    late: bool = False


@dataclass(eq=False)
class ServedModel:
    """A model under its name, with all it can do. `runners` are filled in when it is ready.

    Its `engine` is in this process, or its `remote` queue leads to engines in others. What is asked about its inside
    has a queue of its own, the `explorer`: a question may take seconds, and nothing else waits for it.
    """

    choice: ModelChoice
    state: str = "loading"
    reason: str = ""
    architecture: str = ""
    device: str = ""
    dtype: str = ""
    runners: Mapping[str, object] = field(default_factory=dict)
    opened: OpenModel | None = None
    engine: Engine | None = None
    explorer: Engine | None = None
    remote: Queue | None = None
    restarts: int = 0
    since: int = field(default_factory=lambda: int(time.time()))
    load: int = field(default_factory=count(1).__next__)  # no other model of this process has it, also of that name

    @property
    def name(self) -> str:
        return self.choice.name

    @property
    def engines(self) -> list[Engine]:
        return [engine for engine in (self.engine, self.explorer) if engine is not None]

    @property
    def loaded(self) -> OpenModel:
        if self.opened is None:
            raise unhealthy(f"Model {self.name} is {self.state}; try again.")
        return self.opened

    def get(self, task: str, kind: type[K]) -> K | None:
        """What runs a task, if it does that."""
        runner = self.runners.get(task)
        return runner if isinstance(runner, kind) else None

    def running(self) -> Queue:
        """Its queue, if the model is ready."""
        queue = self.engine or self.remote
        if queue is None or self.state != "ready":
            raise unhealthy(f"Model {self.name} is {self.state}; try again.")
        return queue

    def empty(self) -> None:
        """Nothing of it is used here any more."""
        self.runners, self.opened = {}, None

    def runner(self, task: str, kind: type[K], *, client: str = "", characters: int = 0) -> K:
        """What runs a task, if it can take work of so many characters from this client now: nothing is tokenized for
        a queue that is full."""
        self.running().check_room(client, characters // _CHARACTERS_PER_TOKEN)
        found = self.get(task, kind)
        if found is None:  # it has broken down just now
            raise unhealthy(f"Model {self.name} is {self.state}; try again.")
        return found


class Models:
    """All models of a server, by name. Methods are for the event loop; loading happens in a thread."""

    def __init__(self, settings: Settings, tasks: Mapping[str, ServedTask], metrics: Metrics) -> None:
        self.settings, self._tasks, self._metrics = settings, tasks, metrics
        self._served: dict[str, ServedModel] = {}
        self.on_lost: Callable[[], None] = lambda: None  # a GPU that only a new process can use again
        self.on_change: Callable[[], None] = lambda: None  # of a model's state; called in any thread
        self.launching: AbstractContextManager[object] | None = None  # held while a GPU is given a batch
        self.deliver: Callable[[Outcomes], None] | None = None  # to whom engines give answers; None: the event loop
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="loader")
        self._closed = threading.Event()

    @property
    def all(self) -> list[ServedModel]:
        return list(self._served.values())

    @property
    def ready(self) -> bool:
        return bool(self._served) and all(model.state == "ready" for model in self._served.values())

    def find(self, task: str, name: str | None = None) -> ServedModel:
        """The model called `name`. A name nobody has is as good as none where only one model does the task: clients
        of other servers send theirs."""
        able = [model for model in self._served.values() if task in model.runners]
        named = self._served.get(name or "")
        if named is not None:
            if task not in named.runners and named.state == "ready":
                can = ", ".join(named.runners)
                raise Refusal(422, "Validation", f"Model {named.name} does not {task}; it does: {can}.")
            return named
        if not able:
            loading = [model for model in self._served.values() if model.state != "ready"]
            if loading:
                raise unhealthy(f"Model {loading[0].name} is {loading[0].state}; try again.")
            raise Refusal(422, "Validation", f"No model here does {task}; load one that does.")
        if name is None or len(able) == 1:
            return able[0]
        names = ", ".join(model.name for model in able)
        raise Refusal(404, "NotFound", f"There is no model {name[:80]!r}. For {task} there are: {names}.")

    def knows(self, name: str) -> bool:
        return name in self._served

    def get(self, name: str) -> ServedModel:
        if name not in self._served:
            raise Refusal(404, "NotFound", f"There is no model {name[:80]!r}.")
        return self._served[name]

    async def load(self, choice: ModelChoice) -> ServedModel:
        """Load and warm up; the model is there, as `loading`, from the start."""
        if choice.name in self._served:
            raise Refusal(409, "Validation", f"There is a model {choice.name!r} already; unload it first.")
        model = self._served[choice.name] = ServedModel(choice)
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._loader, self._load, model, loop)
        except BaseException as error:
            model.state, model.reason = "failed", str(error)
            raise
        finally:
            self.on_change()
        return model

    async def unload(self, name: str) -> None:
        model = self.get(name)
        del self._served[name]
        model.state = "unloaded"
        engines, model.engine, model.explorer = model.engines, None, None
        model.empty()
        self.on_change()
        loop = asyncio.get_running_loop()
        for engine in engines:
            await loop.run_in_executor(None, engine.close)
        await loop.run_in_executor(None, forget_loaded)

    def forget_failed(self, name: str) -> None:
        if name in self._served and self._served[name].state == "failed":
            del self._served[name]
            self.on_change()

    def stop(self) -> None:
        """Nothing more is computed; who still waits is told so."""
        for model in self._served.values():
            for engine in model.engines:
                engine.stop(wait=0.0)

    def close(self) -> None:
        self._closed.set()
        self._loader.shutdown(wait=False, cancel_futures=True)
        self.stop()
        for model in self._served.values():
            for engine in model.engines:
                engine.stop()

    # -- in the loader's thread -----------------------------------------------------------------------------------

    def _load(self, model: ServedModel, loop: asyncio.AbstractEventLoop) -> None:
        begin = time.perf_counter()
        self._set_threads()
        settings, choice = self.settings, model.choice
        model.architecture, tasks = chosen_tasks(self._tasks, choice)
        runners = open_runners(tasks, choice.source, Place(settings.device, settings.dtype))
        if not choice.tasks:
            fitting = [task for task in tasks if task.late or task.fits(runners[task.name].loaded)]
            runners = {task.name: runners[task.name] for task in fitting}
        for task in tasks:
            for other in task.also(runners[task.name]) if task.name in runners else ():
                runners.setdefault(other, runners[task.name])
        for task in tasks:
            if not task.late and task.name in runners:
                warm_up(runners[task.name])
        if all(task.late for task in tasks):
            runners[tasks[0].name].warm_up()
        loaded = next(iter(runners.values())).loaded
        model.device, model.dtype = str(loaded.model.device), loaded.dtype
        on_cpu = loaded.model.device.type == "cpu"
        budget = settings.batch_tokens or (min(loaded.budget, _CPU_BUDGET) if on_cpu else loaded.budget)
        if model.state == "unloaded":  # meanwhile
            return
        model.engine = self._make_engine(
            model,
            loop,
            budget,
            device=_devices.setdefault(model.device, Device(side_by_side=on_cpu)),
            on_crash=lambda error: self._crashed(model, loop, error),
            launching=None if on_cpu else self.launching,
            at_once=not on_cpu,
        )
        if any(task.late for task in tasks):
            if model.explorer is not None:  # of the engine that broke down
                model.explorer.stop(wait=0.0)
            model.explorer = self._make_explorer(model, loop, budget)
        model.runners, model.opened = runners, loaded
        model.state, model.reason = "ready", ""
        seconds = round(time.perf_counter() - begin, 2)
        logger.info("model ready", extra={"model": model.name, "seconds": seconds, "tasks": sorted(runners)})

    def _make_engine(
        self, model: ServedModel, loop: asyncio.AbstractEventLoop, budget: int, *, device: Device,
        on_crash: Callable[[BaseException], None], launching: AbstractContextManager[object] | None = None,
        at_once: bool = False,
    ) -> Engine:  # fmt: skip
        limits = self.settings.limits
        return Engine(
            model.name,
            budget=budget,
            queue_tokens=limits.queue_tokens or 16 * budget,
            queue_requests=limits.queue_requests,
            loop=loop,
            device=device,
            on_crash=on_crash,
            on_batch=partial(self._count_batch, model.name),
            start=self._set_threads,
            launching=launching,
            deliver=self.deliver,
            at_once=at_once,
        )

    def _make_explorer(self, model: ServedModel, loop: asyncio.AbstractEventLoop, budget: int) -> Engine:
        """A queue before nothing but itself: whatever its questions wait for, no other request does."""

        def crashed(error: BaseException) -> None:
            if _lost(error, model.device):
                self._crashed(model, loop, error)
            elif model.explorer is not None:  # the model has not been unloaded meanwhile
                model.explorer = self._make_explorer(model, loop, budget)

        return self._make_engine(model, loop, budget, device=Device(), on_crash=crashed)

    def _count_batch(self, model: str, lane: str, rows: int, tokens: int, seconds: float) -> None:
        metrics = self._metrics
        metrics.batch_seconds(model, lane).observe(seconds)
        metrics.batch_tokens(model, lane).observe(tokens)
        metrics.tokens(model).inc(tokens)
        metrics.texts(model).inc(rows)

    def _crashed(self, model: ServedModel, loop: asyncio.AbstractEventLoop, error: BaseException) -> None:
        model.state, model.reason = "broken", f"{type(error).__name__}: {error}"[:200]
        model.restarts += 1
        self.on_change()
        if _lost(error, model.device):
            self.on_lost()
            return
        self._metrics.restarts.inc()
        if not self._closed.is_set():
            self._loader.submit(self._reload, model, loop)

    def _reload(self, model: ServedModel, loop: asyncio.AbstractEventLoop) -> None:
        pause = 0.0
        while not self._closed.wait(min(pause, _LONGEST_PAUSE)) and model.state == "broken":
            pause = pause * 2 + 0.5
            model.empty()
            forget_loaded()
            try:
                self._load(model, loop)
                self.on_change()
            except Exception:
                logger.exception("the model could not be loaded again", extra={"model": model.name})

    def _set_threads(self) -> None:
        # The setting belongs to the thread that makes it.
        if self.settings.threads:
            torch.set_num_threads(self.settings.threads)


def forget_loaded() -> None:
    """Unload models that are only kept in case they are needed again: the next one is read from its files."""
    forget_models()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def chosen_tasks(tasks: Mapping[str, ServedTask], choice: ModelChoice) -> tuple[str, list[ServedTask]]:
    """(the checkpoint's class, those of the tasks that are to be served)."""
    unknown = [task for task in choice.tasks if task not in tasks]
    if unknown:
        raise InputError(f"There is no task {unknown[0]!r} to serve.", f"Use one of {', '.join(tasks)}.")
    found = kind_of(model_class(open_checkpoint(choice.source))).__name__
    chosen = choice.tasks or tuple(name for name, task in tasks.items() if found in task.classes)
    if not chosen:
        raise InputError(f"{choice.source} is a {found}, which no route serves.", "Name a task with --task.")
    late = [] if choice.tasks else [name for name, task in tasks.items() if task.late]
    return found, [tasks[name] for name in dict.fromkeys((*chosen, *late))]


def open_runners(tasks: Sequence[ServedTask], source: str, place: Place) -> dict[str, Runner]:
    """What runs some tasks of one checkpoint; those that use the same head share one copy of the weights."""
    opened: dict[str, Runner] = {}
    by_head: dict[str, OpenModel] = {}
    for task in tasks:
        head = task.head or task.name
        shared = by_head.get(head)
        opened[task.name] = task.open(source, place) if shared is None else task.open(shared, Place())
        if not task.late:
            by_head.setdefault(head, opened[task.name].loaded)
    return opened


def warm_up(runner: Runner) -> None:
    """A few batches of several lengths, so that the first client does not wait for what the first batches cost."""
    loaded = runner.loaded
    cls, sep = loaded.tokenizer.cls_token_id or 0, loaded.tokenizer.sep_token_id or 0
    for length in _WARM_LENGTHS:
        row = Row([cls, *[sep] * max(0, min(length, loaded.max_length) - 2), sep][: loaded.max_length])
        loaded.run([row])
        loaded.run([row] * 4)
    runner.warm_up()


def _lost(error: BaseException, device: str) -> bool:
    """After an error of the GPU itself, nothing in this process can use it any more."""
    return device.startswith("cuda") and device_failed(error)
