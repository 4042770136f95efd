"""OpenTelemetry: a span for every request, with its time in the tokenizer, the queue and the model inside.

It is on where the environment names a collector (OTEL_EXPORTER_OTLP_ENDPOINT) and the packages are there (the extra
`otel`). Spans are written down when a request has ended, so a server without traces pays nothing for them. A request
that carries `traceparent` (W3C Trace Context) belongs to that trace.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from bertie.errors import MissingExtra

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

    from bertie.serve.service import Call

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


class Traces:
    """Spans for requests. Without an exporter they go to the collector that the environment names."""

    def __init__(self, exporter: SpanExporter | None = None) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

            if exporter is None:
                from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

                exporter = OTLPSpanExporter()
        except ImportError as error:
            raise MissingExtra(error.name or "opentelemetry", "otel", "tracing") from None
        self._provider = TracerProvider(resource=Resource.create({"service.name": "bertie"}))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("bertie.serve")
        self._extract = TraceContextTextMapPropagator().extract
        self._kind = trace.SpanKind.SERVER
        self._within = trace.set_span_in_context

    def record(self, call: Call, headers: Mapping[bytes, bytes], seconds: float) -> None:
        """A request that has just ended after so many seconds."""
        carrier = {name: headers[name.encode()].decode("latin-1") for name in _CONTEXT if name.encode() in headers}
        end = time.time_ns()
        begin = end - round(seconds * 1e9)
        attributes: dict[str, str | int] = {
            "http.request.method": call.method, "http.route": call.route,
            "http.response.status_code": call.status or 499,
            "bertie.request_id": call.id, "bertie.outcome": call.outcome, "bertie.tokens": call.tokens,
        }  # fmt: skip
        span = self._tracer.start_span(
            f"{call.method} {call.route}", self._extract(carrier), self._kind, attributes, start_time=begin
        )
        inside = self._within(span)
        for name, took in (("tokenize", call.tokenization), ("queue", call.queue), ("model", call.inference)):
            if took:  # one after the other, as they mostly are
                part = self._tracer.start_span(name, inside, start_time=begin)
                begin += round(took * 1e9)
                part.end(begin)
        span.end(end)

    def close(self) -> None:
        self._provider.shutdown()


_CONTEXT = ("traceparent", "tracestate")


def traces_wanted() -> Traces | None:
    """What the environment asks for."""
    return Traces() if os.environ.get(ENDPOINT) else None
