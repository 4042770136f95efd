"""What operators have: the API in a browser, traces, sampled logs, and files to deploy with."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from serving import client, folders, settings

from bertie.serve.metrics import Metrics
from bertie.serve.run import Running
from bertie.serve.traces import ENDPOINT, Traces

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    models = folders(tmp_path_factory.mktemp("models"), "embed")
    with Running(settings(models, log_sample=0.0)) as started:
        yield started


@pytest.fixture
def http(server: Running) -> Iterator[httpx.Client]:
    with client(server) as made:
        yield made


def test_the_api_can_be_read_and_tried_in_a_browser(http: httpx.Client) -> None:
    pytest.importorskip("fastapi_offline", reason="it carries Swagger UI's files")
    page = http.get("/docs")
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert loaded
    for name in loaded:
        assert not re.match(r"[a-z]+:|//", name), "from elsewhere"
        assert http.get(f"/{name}").status_code == 200, name
    assert http.get("/docs/other.js").status_code == 404
    assert http.get("/openapi.json").json()["openapi"].startswith("3.1")


def test_answered_requests_are_sampled_and_others_logged(
    http: httpx.Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("bertie"), "propagate", True)
    with caplog.at_level("INFO", logger="bertie.serve"):
        for _ in range(5):
            assert http.post("/embed", json={"inputs": "a dog"}).status_code == 200
        assert http.post("/embed", json={"inputs": []}).status_code == 400
    statuses = [getattr(one, "status", None) for one in caplog.records if one.getMessage() == "request"]
    assert set(statuses) == {400}  # none of those that were answered


def test_a_request_is_a_span_of_its_callers_trace(server: Running, http: httpx.Client) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="traces need the extra: otel")
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    server.service.traces = Traces(exporter)
    try:
        caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        assert http.post("/embed", json={"inputs": "a dog"}, headers={"traceparent": caller}).status_code == 200
    finally:
        server.service.traces.close()
        server.service.traces = None
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert {"POST /embed", "tokenize", "queue", "model"} <= set(spans)
    whole = spans["POST /embed"]
    assert format(whole.context.trace_id, "032x") == "0af7651916cd43dd8448eb211c80319c"
    assert whole.attributes["http.response.status_code"] == 200
    assert spans["model"].parent.span_id == whole.context.span_id
    assert whole.start_time <= spans["model"].start_time <= spans["model"].end_time


def test_traces_are_off_unless_a_collector_is_named(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENDPOINT, raising=False)
    assert server.service.traces is None


def test_the_dashboard_shows_metrics_that_there_are() -> None:
    known = {metric.name for metric in Metrics().registry.collect()}
    panels = json.loads((DEPLOY / "grafana.json").read_text())["panels"]
    named = {
        name for panel in panels for target in panel["targets"] for name in re.findall(r"bertie_\w+", target["expr"])
    }
    assert named
    for name in named:
        assert re.sub(r"_(total|bucket|sum|count)$", "", name) in known, name


def test_manifests_probe_what_the_server_answers(http: httpx.Client) -> None:
    yaml = pytest.importorskip("yaml")
    parts = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    assert {part["kind"] for part in parts} >= {"Deployment", "Service", "HorizontalPodAutoscaler"}
    (container,) = parts[0]["spec"]["template"]["spec"]["containers"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert http.get(container[probe]["httpGet"]["path"]).status_code == 200
    (scaled,) = next(part for part in parts if part["kind"] == "HorizontalPodAutoscaler")["spec"]["metrics"]
    assert scaled["pods"]["metric"]["name"] in http.get("/metrics").text
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    targets = re.findall(r"^FROM \S+ AS (\w+)", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert {one["build"]["target"] for one in services.values()} <= set(targets)
