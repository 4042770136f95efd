"""Counters for Prometheus. They reconcile: every request that came is answered, refused, failed or vanished.

    bertie_requests_total = Σ bertie_outcomes_total + bertie_requests_in_flight

With several workers (`PROMETHEUS_MULTIPROC_DIR` is set for them) the figures are those of all of them together.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"
_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_TOKENS = (16, 64, 256, 1024, 2048, 4096, 8192, 16384, 32768)


class Metrics:
    def __init__(self) -> None:
        self._shared = MULTIPROCESS in os.environ
        self._children: dict[Any, Any] = {}
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("bertie_requests", "Requests that came.", ["route"], registry=registry)
        self.outcomes = Counter(
            "bertie_outcomes",
            "Requests that ended: answered, refused (the client's fault, or too many), failed (ours), vanished.",
            ["route", "outcome", "status"],
            registry=registry,
        )
        self.in_flight = Gauge(
            "bertie_requests_in_flight", "Requests under way.", registry=registry, multiprocess_mode="livesum"
        )
        self.duration = Histogram(
            "bertie_request_seconds",
            "From the first byte to the answer.",
            ["route"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.waiting = Histogram(
            "bertie_queue_seconds", "Time in the queue.", ["model"], buckets=_SECONDS, registry=registry
        )
        self.batch_seconds = Histogram(
            "bertie_batch_seconds",
            "One batch through the model.",
            ["model", "lane"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.batch_tokens = Histogram(
            "bertie_batch_tokens", "Tokens of a batch.", ["model", "lane"], buckets=_TOKENS, registry=registry
        )
        self.tokens = Counter("bertie_tokens", "Tokens that went through a model.", ["model"], registry=registry)
        self.texts = Counter("bertie_texts", "Rows that went through a model.", ["model"], registry=registry)
        self.queue_tokens = Gauge(
            "bertie_queue_tokens", "Tokens waiting.", ["model"], registry=registry, multiprocess_mode="livesum"
        )
        self.queue_jobs = Gauge(
            "bertie_queue_requests", "Requests waiting.", ["model"], registry=registry, multiprocess_mode="livesum"
        )
        self.skipped = Gauge(
            "bertie_skipped_requests", "Queued work dropped because its client had left.", ["model"],
            registry=registry, multiprocess_mode="sum",
        )  # fmt: skip
        self.restarts = Counter(
            "bertie_engine_restarts", "Engines that broke down and were loaded again.", registry=registry
        )
        self.connections_refused = Counter(
            "bertie_connections_refused", "Connections ended before they were a request.", ["reason"], registry=registry
        )

    def began(self, route: str) -> None:
        self.in_flight.inc()
        self._child(self.requests, route).inc()

    def ended(self, route: str, outcome: str, status: int, seconds: float) -> None:
        self.in_flight.dec()
        self._child(self.outcomes, route, outcome, str(status)).inc()
        self._child(self.duration, route).observe(seconds)

    def _child(self, metric: Any, *labels: str) -> Any:
        """A metric for its labels, looked up once: finding it takes longer than counting."""
        found = self._children.get((metric, *labels))
        if found is None:
            found = self._children[metric, *labels] = metric.labels(*labels)
        return found

    def batch(self, model: str, lane: str, rows: int, tokens: int, seconds: float) -> None:
        """Called by the engines, in their threads."""
        self._child(self.batch_seconds, model, lane).observe(seconds)
        self._child(self.batch_tokens, model, lane).observe(tokens)
        self._child(self.tokens, model).inc(tokens)
        self._child(self.texts, model).inc(rows)

    def waited(self, model: str, seconds: float) -> None:
        self._child(self.waiting, model).observe(seconds)

    def text(self, update: Callable[[], None]) -> bytes:
        """The page a scraper reads; `update` sets the gauges that are only looked up when asked."""
        update()
        if not self._shared:
            return generate_latest(self.registry)
        together = CollectorRegistry()
        MultiProcessCollector(together)  # type: ignore[no-untyped-call]
        return generate_latest(together)
