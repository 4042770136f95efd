"""A job on a Ray cluster (extra `ray`). Ray Data distributes: it places and scales the workers, queues and tries again.

What goes through Ray are the numbers of pieces and reports about them: a worker reads its rows and writes its file by
itself, so nothing is copied through Ray's object store, and what counts is on the disk before Ray knows of it. A worker
is an actor of Ray Data's pool, which holds a model. Ray starts a piece again whose worker died, without end; so every
start is counted (`_counter`), and a piece that three workers died over is set aside.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from types import ModuleType
from typing import Any

from bertie.bulk.manifest import Done
from bertie.bulk.progress import Progress
from bertie.bulk.work import TRIES, JobStopped, Report, Worker
from bertie.errors import BertieError, DataError, MissingExtra

logger = logging.getLogger("bertie.bulk")


def run_on_ray(
    output: str,
    pieces: Sequence[int],
    *,
    address: str,
    gpus: float | None,
    cpus: float | None,
    workers: int | None,
    strict: bool,
    meter: Progress,
) -> Iterator[Report]:
    """Reports of pieces as they are done, in any order. A connection that was made for the job ends with it."""
    ray, ours = _connected(address)
    try:
        yield from _reports(ray, output, pieces, gpus, cpus, workers, strict, meter)
    finally:
        if ours:
            ray.shutdown()


def _reports(
    ray: ModuleType,
    output: str,
    pieces: Sequence[int],
    gpus: float | None,
    cpus: float | None,
    workers: int | None,
    strict: bool,
    meter: Progress,
) -> Iterator[Report]:
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False  # ours says more
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    needs = {"num_gpus": gpus, "num_cpus": cpus or 0} if gpus else {"num_cpus": cpus or 1}
    fit = max(1, min(len(pieces), workers or len(pieces), _room(ray, needs)))
    most = max(fit, min(len(pieces), workers or len(pieces)))
    if meter.price is not None:
        meter.price *= fit
    starts = _counter(ray)
    asked = ray.data.from_items([{"piece": number} for number in pieces], override_num_blocks=len(pieces))
    done = asked.map_batches(
        _RayWorker,
        fn_constructor_args=(output, strict, bool(gpus), int(cpus or 1), starts),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=most, initial_size=fit),
        **needs,
    )
    try:
        for batch in done.iter_batches(batch_size=None, prefetch_batches=0):
            for text in batch["report"]:
                yield _report(json.loads(str(text)), meter)
    except ray.exceptions.RayError as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise JobStopped(
            DataError(
                f"Ray ended the job: {reason}", "See Ray's dashboard or logs; run the same job again: it continues."
            )
        ) from error


def _report(said: dict[str, Any], meter: Progress) -> Report:
    if "stopped" in said:
        settings = {name: ... if value is None else value for name, value in said["settings"].items()}
        raise JobStopped(DataError(*said["stopped"], **settings))
    done = None if said["done"] is None else Done(**said["done"])
    if done is not None:
        meter.tick(done.rows, done.tokens)
    return Report(said["piece"], done, said["reason"])


def _said(error: BertieError) -> str:
    """The error as JSON, with places for its settings: the command line spells them in its own way."""
    settings = {name: None if value is ... else value for name, value in error.settings.items()}
    return json.dumps({"stopped": error.sentences, "settings": settings}, default=str)


def _counter(ray: ModuleType) -> Any:
    """An actor that counts how often each piece was started, in this run."""

    class Starts:  # inside a function it travels by value: its process imports neither Bertie nor PyTorch
        def __init__(self) -> None:
            self.counts: dict[int, int] = {}

        def begin(self, piece: int) -> int:
            self.counts[piece] = self.counts.get(piece, 0) + 1
            return self.counts[piece]

    return ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Starts).remote()


class _RayWorker:
    """An actor: a `Worker` that Ray Data calls, one piece at a time. Errors are answers: Ray's would be longer."""

    def __init__(self, output: str, strict: bool, on_gpu: bool, threads: int, starts: Any) -> None:
        import torch

        logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")  # into Ray's log of this worker
        self.starts = starts
        self.stopped: BertieError | None = None
        if not on_gpu:
            torch.set_num_threads(threads)
        try:
            self.worker = Worker(output, device="cuda" if on_gpu else "cpu", strict=strict)
        except BertieError as error:
            self.stopped = error

    def __call__(self, batch: Mapping[str, Iterable[int]]) -> dict[str, list[str]]:
        import ray

        (piece,) = (int(number) for number in batch["piece"])
        if self.stopped is not None:
            return {"report": [_said(self.stopped)]}
        if ray.get(self.starts.begin.remote(piece)) > TRIES:
            report = Report(piece, None, f"it ended its worker {TRIES} times")
        else:
            try:
                report = self.worker.run(piece)
            except JobStopped as stopped:
                return {"report": [_said(stopped.error)]}
        return {"report": [json.dumps(asdict(report))]}


def _connected(address: str) -> tuple[ModuleType, bool]:
    """Ray, connected to a cluster, and whether that was done here."""
    try:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # of this process, on the terminal; Ray's own logs stay
        import ray
        import ray.data
    except ImportError:
        raise MissingExtra("ray", "ray", "A job on a cluster") from None
    if ray.is_initialized():
        return ray, False
    try:
        _check_open(address)
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError) as error:
        # Ray's second sentence is about options of its own command.
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].partition(". ")[0].rstrip(".")
        raise DataError(
            f"{socket.gethostname()} finds no Ray cluster at {address!r}: {reason}.",
            "Start one (ray start --head), run this on one of its machines with {ray=auto}, or name its address.",
        ) from error
    return ray, True


def _check_open(address: str) -> None:
    """Raise where nobody listens: Ray itself would try for a minute and a half."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()


def _room(ray: ModuleType, needs: Mapping[str, float]) -> int:
    """How many workers the cluster has room for now; it may grow."""
    room = 0
    for node in ray.nodes():
        if node["Alive"]:
            has = node["Resources"]
            wanted = [(has.get(name, 0), needs.get(f"num_{name.lower()}s", 0)) for name in ("CPU", "GPU")]
            room += int(min(amount // need for amount, need in wanted if need))
    if not room:
        logger.warning("no machine of the cluster has room for a worker (%s); waiting for one that has", needs)
    return room
