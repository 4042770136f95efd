"""What operators have: the API in a browser, traces, sampled logs, and files to deploy with."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from serving import client, folders, settings

from bertie.cli.commands.serving.serve import command
from bertie.serve.metrics import Metrics
from bertie.serve.processes.supervisor import _SPARE_SECONDS
from bertie.serve.run import Running
from bertie.serve.settings import ADMIN_VARIABLE, KEYS_VARIABLE
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

        def statuses() -> set[object]:
            return {getattr(one, "status", None) for one in caplog.records if one.getMessage() == "request"}

        until = time.monotonic() + 10
        while not statuses() and time.monotonic() < until:  # a request is logged after its answer
            time.sleep(0.01)
    assert statuses() == {400}  # none of those that were answered


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


def test_the_dashboard_shows_metrics_that_there_are_by_their_labels() -> None:
    collectors = Metrics().registry._collector_to_names
    known = {one._name: one._labelnames for one in collectors}
    panels = json.loads((DEPLOY / "grafana.json").read_text())["panels"]
    shown = [target["expr"] for panel in panels for target in panel["targets"]]
    assert shown
    for expression in shown:
        names = [re.sub(r"_(total|bucket|sum|count)$", "", one) for one in re.findall(r"bertie_\w+", expression)]
        assert names
        labels = {label.strip() for one in re.findall(r"by \(([^)]*)\)", expression) for label in one.split(",")}
        labels |= set(re.findall(r"[{,](\w+)=", expression))
        for name in names:
            assert name in known, name
            assert labels <= {*known[name], "le"}, expression


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
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    targets = re.findall(r"^FROM \S+ AS (\w+)", dockerfile, re.MULTILINE)
    assert {one["build"]["target"] for one in services.values()} <= set(targets)
    assert http.get(re.findall(r"http://127\.0\.0\.1:\d+(/\w+)", dockerfile)[0]).status_code == 200
    if container["securityContext"]["runAsNonRoot"]:
        assert set(re.findall(r"^USER (\S+)$", dockerfile, re.MULTILINE)) == {"10001"}  # not a name


def test_manifests_start_the_server_with_options_that_there_are() -> None:
    yaml = pytest.importorskip("yaml")
    dockerfile, unit = (DEPLOY / "Dockerfile").read_text(), (DEPLOY / "bertie.service").read_text()
    entry = json.loads(re.findall(r"^ENTRYPOINT (.*)$", dockerfile, re.MULTILINE)[0])
    assert entry[:2] == ["bertie", "serve"]
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    deployment = next(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    starts = [[*entry[2:], *container["args"]]]
    for one in services.values():
        assert set(one["environment"]) == {KEYS_VARIABLE, ADMIN_VARIABLE}
        starts.append([*entry[2:], *(re.sub(r"\$\{\w+:-(.*)\}", r"\1", word) for word in one["command"])])
    starts.append(re.findall(r"^ExecStart=\S+ serve (.*)$", unit, re.MULTILINE)[0].split())
    for words in starts:
        chosen = command.make_context("serve", list(words)).params
        assert chosen["models"]
        # It listens on the port that probes, mappings and services lead to.
        assert chosen["port"] == container["ports"][0]["containerPort"] == 8000
    assert "EXPOSE 8000" in dockerfile
    assert {one["ports"][0].rpartition(":")[2] for one in services.values()} == {"8000"}
    assert {KEYS_VARIABLE, "bertie-keys"} <= set(re.findall(r"[\w-]+", (DEPLOY / "kubernetes.yaml").read_text()))


def test_whoever_stops_the_server_waits_until_it_has_drained() -> None:
    yaml = pytest.importorskip("yaml")
    drains = command.make_context("serve", []).params["drain_seconds"] + _SPARE_SECONDS
    deployment = next(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    pod = deployment["spec"]["template"]["spec"]
    before = int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] - before > drains
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert all(int(one["stop_grace_period"].removesuffix("s")) > drains for one in services.values())
    unit = (DEPLOY / "bertie.service").read_text()
    assert int(re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)[0]) > drains
    assert "KillMode=mixed" in unit  # SIGTERM is for the first process alone
