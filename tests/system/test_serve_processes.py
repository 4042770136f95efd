"""`bertie serve` of several processes: fronts and engines answer as one server, and bear that any of them is killed.

The long form is a script: tests/scripts/serve_kills.py.
"""

from __future__ import annotations

import base64
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from serving import folders

import bertie
from scripts.serve_drain import run as run_drains
from scripts.serve_kills import run as run_kills
from system.serve_process import Server, serving
from system.test_serve_limits import until

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux's /proc")

TEXTS = ["a dog sleeps", "the quick brown fox", "a cat and a dog and a fox"]
BUSY_SECONDS = 60.0  # a recovery takes 1 s, on a machine that is not busy with other tests
ADMIN = {"authorization": "Bearer an-admin-key"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return folders(tmp_path_factory.mktemp("models"), "embed", "classify")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, models: dict[str, str]) -> Iterator[Server]:
    """Two fronts and two engines."""
    choices = [part for name, path in models.items() for part in ("-m", f"{name}={path}")]
    options = ("--workers", "2", "--device", "cpu,cpu", "--threads", "1", "--log-level", "warning")
    environment = {"BERTIE_ADMIN_KEYS": "an-admin-key"}
    with serving(tmp_path_factory.mktemp("serve"), *choices, *options, environment=environment) as started:
        yield started


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def on_every_front(server: Server, count: int = 12) -> Iterator[httpx.Client]:
    """A connection each, which the kernel deals out among the fronts."""
    for _ in range(count):
        with httpx.Client(base_url=server.url, timeout=30, verify=False, headers=ADMIN) as client:
            yield client


def test_vectors_are_those_of_the_task_in_every_form(server: Server, models: dict[str, str]) -> None:
    offline = bertie.embed(TEXTS, model=models["embed"], device="cpu", progress=False)
    raw = {"inputs": TEXTS, "normalize": False}
    for client in on_every_front(server, 4):
        found = np.array(client.post("/embed", json=raw).json(), np.float32)
        np.testing.assert_allclose(found, offline, atol=1e-6)
        unit = np.array(client.post("/embed", json={"inputs": TEXTS}).json(), np.float32)
        np.testing.assert_allclose(unit, offline / np.linalg.norm(offline, axis=1, keepdims=True), atol=1e-6)
        body = {"input": TEXTS, "encoding_format": "base64"}
        data = client.post("/v1/embeddings", json=body).json()["data"]
        np.testing.assert_allclose(
            [np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in data], offline, atol=1e-6
        )
        answer = client.post("/embed", json=raw, headers={"accept": "application/octet-stream"})
        assert answer.headers["content-type"] == "application/octet-stream"
        shape = [int(size) for size in answer.headers["x-embedding-shape"].split(",")]
        np.testing.assert_array_equal(np.frombuffer(answer.content, "<f4").reshape(shape), found)


def test_what_fronts_cannot_answer_an_engine_does(server: Server) -> None:
    labels = server.post("/v1/classify", {"inputs": TEXTS, "top_k": 3, "model": "classify"}).json()
    assert [len(one) for one in labels["results"]] == [3, 3, 3]
    assert server.post("/similarity", {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS}}).json()[0] > 0.999
    assert server.post("/tokenize", {"inputs": "a dog"}).status_code == 200
    assert server.get("/info").json()["max_batch_tokens"] > 0
    assert {one["id"] for one in server.get("/v1/models").json()["data"]} == {"embed", "classify"}
    assert server.get("/ready").json()["engines"] == {"0": "ready", "1": "ready"}
    assert server.get("/v1/models/embed").json()["state"] == "ready"
    assert server.get("/v1/models/none").status_code == 404
    refused = server.post("/embed", {"inputs": ["x"] * 2000})
    assert refused.status_code == 413
    long = server.post("/embed", {"inputs": "dog " * 3000})
    assert (long.status_code, long.json()["error_type"]) == (413, "Validation")


def ready_models(client: httpx.Client) -> list[str]:
    """Of a front; none while it opens the tokenizer of a new model: it is not ready for a moment."""
    found: list[str] = client.get("/ready").json().get("models", [])
    return found


def test_models_are_loaded_and_unloaded_in_every_process(server: Server, models: dict[str, str]) -> None:
    added = {"name": "added", "source": models["embed"], "tasks": ["embed"]}
    assert server.request("POST", "/admin/models", json=added, headers=ADMIN).status_code == 200
    until(lambda: all("added" in ready_models(client) for client in on_every_front(server)))
    for client in on_every_front(server):
        assert client.post("/embed", json={"inputs": TEXTS, "model": "added"}).status_code == 200
    assert server.request("POST", "/admin/models", json=added, headers=ADMIN).status_code == 409
    # Engines that are started again load it, too.
    for engine in children(server.process.pid)[:2]:
        os.kill(engine, signal.SIGKILL)
    until(lambda: server.get("/ready").status_code != 200, seconds=10)
    until(lambda: server.get("/ready").status_code == 200)
    assert server.post("/embed", {"inputs": TEXTS, "model": "added"}).status_code == 200
    # While an engine is being started, models are not changed.
    until(lambda: server.request("DELETE", "/admin/models/added", headers=ADMIN).status_code == 200)
    until(lambda: all({"added"}.isdisjoint(ready_models(client) or {"added"}) for client in on_every_front(server)))


def test_metrics_of_all_processes_reconcile(server: Server) -> None:
    before = server.metric(r'bertie_outcomes_total{outcome="answered",route="/embed"')
    for client in on_every_front(server, 6):
        assert client.post("/embed", json={"inputs": TEXTS}).status_code == 200
    assert server.metric(r'bertie_outcomes_total{outcome="answered",route="/embed"') - before == 6
    lines = server.get("/metrics").text.splitlines()

    def total(name: str) -> float:
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if re.match(name, line))

    assert total("bertie_requests_total") == total("bertie_outcomes_total") + total("bertie_requests_in_flight")
    assert total("bertie_texts_total") > 0


def test_a_small_request_does_not_wait_for_a_client_that_posts_batches(server: Server) -> None:
    stop, batches = threading.Event(), list[float]()

    def post_batches() -> None:
        with httpx.Client(base_url=server.url, timeout=60, verify=False) as client:
            while not stop.is_set():
                began = time.monotonic()
                assert client.post("/embed", json={"inputs": ["a dog and a fox " * 8] * 1024}).status_code == 200
                batches.append(time.monotonic() - began)

    thread = threading.Thread(target=post_batches)
    thread.start()
    times = []
    with httpx.Client(base_url=server.url, timeout=60, verify=False) as client:
        while len(batches) < 2 and thread.is_alive():
            began = time.monotonic()
            assert client.post("/embed", json={"inputs": "a dog"}).status_code == 200
            times.append(time.monotonic() - began)
    stop.set()
    thread.join()
    assert len(batches) >= 2
    assert sorted(times)[int(0.99 * len(times))] <= 3 * max(batches)


def test_what_a_killed_process_held_is_told_and_nothing_else_is_lost(models: dict[str, str]) -> None:
    found = run_kills(models["embed"], device="cpu,cpu", fronts=2, kills=3, clients=4, seed=5, longest=BUSY_SECONDS)
    assert found.good, found
    assert found.kills.total() == 3


@pytest.mark.slow
def test_a_hundred_kills_leave_nothing_behind(models: dict[str, str]) -> None:
    found = run_kills(models["embed"], device="cpu,cpu", fronts=4, kills=100, seed=6, longest=BUSY_SECONDS)
    assert found.good, found
    print(
        f"100 kills (seed 6, {dict(found.kills)}): back after {max(found.recoveries):.2f} s at most, {found.most_lost} "
        f"of {found.clients} clients' requests lost at most, none stray; before and after: {found.left}"
    )


def test_the_only_engine_comes_back_and_requests_wait_for_it(models: dict[str, str]) -> None:
    found = run_kills(models["embed"], device="cpu", fronts=2, kills=2, clients=4, seed=1, longest=BUSY_SECONDS)
    assert found.good, found
    assert found.kills["engine"] >= 1


def test_sigterm_under_load_loses_nothing_with_several_processes() -> None:
    (found,) = run_drains(1, seed=2, options=("--workers", "2"))
    assert found.good, found


@pytest.mark.slow
def test_sigterm_under_load_loses_nothing_twenty_times_with_several_processes() -> None:
    for one in run_drains(20, seed=3, options=("--workers", "4", "--device", "cpu,cpu")):
        assert one.good, one


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_model_that_cannot_be_loaded_is_explained(tmp_path: Path, workers: str) -> None:
    options = ("--host", "127.0.0.2", "--port", "0", "--workers", workers, "-m", str(tmp_path / "none"))
    ended = subprocess.run(
        [sys.executable, "-m", "bertie", "serve", *options], capture_output=True, text=True, timeout=180
    )
    assert ended.returncode == 2
    assert "error:" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "open to the network without API keys" in ended.stderr  # another address than the one of the default
