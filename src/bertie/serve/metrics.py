"""Counters for Prometheus. They reconcile: every request that came is answered, refused, failed or vanished.

    bertie_requests_total = Σ bertie_outcomes_total + bertie_requests_in_flight

With several processes (`PROMETHEUS_MULTIPROC_DIR` is set for them) the figures are those of all of them together. A
process has a name, and one that is started again under the same name counts on; what its forerunner had in hand when it
was killed is counted as `lost`.
"""

from __future__ import annotations

import os
from collections import Counter as Counts
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, values
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"
M = TypeVar("M", Counter, Histogram)
_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_TOKENS = (16, 64, 256, 1024, 2048, 4096, 8192, 16384, 32768)


def name_process(name: str) -> None:
    """Count under this name, before there are any `Metrics`; without underscores."""
    values.ValueClass = values.MultiProcessValue(lambda: name)


def forget_process(name: str, folder: Path) -> None:
    """A process has ended: what it had in hand is no more."""
    mark_process_dead(name, path=str(folder))


def by_labels(metric: M) -> Callable[..., M]:
    """A metric for its labels, looked up once: finding it takes longer than counting."""
    return cache(metric.labels)


class Metrics:
    """Those that are counted all the time are functions of their labels."""

    def __init__(self) -> None:
        self._shared = MULTIPROCESS in os.environ
        self.registry = CollectorRegistry()
        counter, histogram = partial(Counter, registry=self.registry), partial(Histogram, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry, multiprocess_mode="livesum")
        self.requests = by_labels(counter("bertie_requests", "Requests that came.", ["route"]))
        ended = "Requests that ended: answered, refused (the client's fault, or too many), failed (ours), vanished."
        self.outcomes = by_labels(counter("bertie_outcomes", ended, ["route", "outcome", "status"]))
        self.in_flight = gauge("bertie_requests_in_flight", "Requests under way.")
        self.duration = by_labels(
            histogram("bertie_request_seconds", "From the first byte to the answer.", ["route"], buckets=_SECONDS)
        )
        self.waiting = by_labels(histogram("bertie_queue_seconds", "Time in the queue.", ["model"], buckets=_SECONDS))
        self.batch_seconds = by_labels(
            histogram("bertie_batch_seconds", "One batch through the model.", ["model", "lane"], buckets=_SECONDS)
        )
        self.batch_tokens = by_labels(
            histogram("bertie_batch_tokens", "Tokens of a batch.", ["model", "lane"], buckets=_TOKENS)
        )
        self.tokens = by_labels(counter("bertie_tokens", "Tokens that went through a model.", ["model"]))
        self.texts = by_labels(counter("bertie_texts", "Rows that went through a model.", ["model"]))
        self.queue_tokens = gauge("bertie_queue_tokens", "Tokens waiting.", ["model"])
        self.queue_jobs = gauge("bertie_queue_requests", "Requests waiting.", ["model"])
        self.skipped = gauge(
            "bertie_skipped_requests", "Queued work dropped because its client had left.", ["model"],
            multiprocess_mode="sum",
        )  # fmt: skip
        self.restarts = counter("bertie_engine_restarts", "Engines that broke down and were loaded again.")
        refused = "Connections ended before they were a request."
        self.connections_refused = counter("bertie_connections_refused", refused, ["reason"])

    def settle(self, name: str) -> None:
        """Count as lost what the process of this name had begun and not ended when it was killed."""
        file = Path(os.environ[MULTIPROCESS]) / f"counter_{name}.db"
        if not file.exists():
            return
        begun = Counts[str]()
        for metric in MultiProcessCollector.merge([str(file)], accumulate=False):
            sign = {"bertie_requests": 1, "bertie_outcomes": -1}.get(metric.name, 0)
            for sample in metric.samples if sign else ():
                begun[sample.labels["route"]] += sign * int(sample.value)
        for route, lost in begun.items():
            if lost > 0:
                self.outcomes(route, "lost", "499").inc(lost)

    def text(self, update: Callable[[], None]) -> bytes:
        """The page a scraper reads; `update` sets the gauges that are only looked up when asked."""
        update()
        if not self._shared:
            return generate_latest(self.registry)
        together = CollectorRegistry()
        MultiProcessCollector(together)
        return generate_latest(together)
