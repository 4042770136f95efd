"""Counters for Prometheus. They reconcile: every request that came is answered, refused, failed or vanished.

    bertie_requests_total = Σ bertie_outcomes_total + bertie_requests_in_flight

With several workers (`PROMETHEUS_MULTIPROC_DIR` is set for them) the figures are those of all of them together.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"
M = TypeVar("M", Counter, Histogram)
_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_TOKENS = (16, 64, 256, 1024, 2048, 4096, 8192, 16384, 32768)


def by_labels(metric: M) -> Callable[..., M]:
    """A metric for its labels, looked up once: finding it takes longer than counting."""
    return cache(metric.labels)


class Metrics:
    def __init__(self) -> None:
        self._shared = MULTIPROCESS in os.environ
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
        # Those that are counted all the time.
        self._requests, self._outcomes = by_labels(self.requests), by_labels(self.outcomes)
        self._duration, self._waiting = by_labels(self.duration), by_labels(self.waiting)
        self._batch_seconds, self._batch_tokens = by_labels(self.batch_seconds), by_labels(self.batch_tokens)
        self._tokens, self._texts = by_labels(self.tokens), by_labels(self.texts)

    def began(self, route: str) -> None:
        self.in_flight.inc()
        self._requests(route).inc()

    def ended(self, route: str, outcome: str, status: int, seconds: float) -> None:
        self.in_flight.dec()
        self._outcomes(route, outcome, str(status)).inc()
        self._duration(route).observe(seconds)

    def batch(self, model: str, lane: str, rows: int, tokens: int, seconds: float) -> None:
        """Called by the engines, in their threads."""
        self._batch_seconds(model, lane).observe(seconds)
        self._batch_tokens(model, lane).observe(tokens)
        self._tokens(model).inc(tokens)
        self._texts(model).inc(rows)

    def waited(self, model: str, seconds: float) -> None:
        self._waiting(model).observe(seconds)

    def text(self, update: Callable[[], None]) -> bytes:
        """The page a scraper reads; `update` sets the gauges that are only looked up when asked."""
        update()
        if not self._shared:
            return generate_latest(self.registry)
        together = CollectorRegistry()
        MultiProcessCollector(together)
        return generate_latest(together)
