"""Several models, loading and unloading, an engine that breaks down, and counters that add up."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from serving import client, folders, settings

import bertie
from bertie.errors import BertieError
from bertie.running.open import OpenModel
from bertie.serve.run import Running
from bertie.serve.settings import ModelChoice

ADMIN = "admin-key-9876543210"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return folders(tmp_path_factory.mktemp("models"), "embed", "classify", "tag")


def until(condition: Callable[[], bool], seconds: float = 15) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.02)


def counters(http: httpx.Client) -> tuple[float, dict[str, float], float]:
    """(requests, outcomes, under way)."""
    text = http.get("/metrics").text

    def total(name: str, label: str = "") -> float:
        found = re.findall(rf"^{name}(?:\{{([^}}]*)\}})? (\S+)$", text, re.MULTILINE)
        return sum(float(value) for labels, value in found if label in labels)

    outcomes = {
        one: total("bertie_outcomes_total", f'outcome="{one}"') for one in ("answered", "refused", "failed", "vanished")
    }
    return total("bertie_requests_total"), outcomes, total("bertie_requests_in_flight")


def test_models_are_loaded_and_unloaded_with_an_admin_key(models: dict[str, str], tmp_path: Path) -> None:
    headers = {"authorization": f"Bearer {ADMIN}"}
    with (
        Running(settings({"one": models["embed"]}, admin_keys=[ADMIN])) as server,
        client(server, headers=headers) as http,
    ):
        assert http.post("/v1/tag", json={"inputs": "a"}).status_code == 422
        loaded = http.post("/admin/models", json={"name": "ner", "source": models["tag"]})
        assert loaded.status_code == 200, loaded.text
        assert loaded.json()["tasks"] == ["explore", "tag"]
        assert http.post("/v1/tag", json={"inputs": "a dog"}).status_code == 200
        assert {one["id"] for one in http.get("/v1/models").json()["data"]} == {"one", "ner"}
        assert http.get("/v1/models/ner").json()["id"] == "ner"
        assert http.get("/v1/models/none").status_code == 404
        again = http.post("/admin/models", json={"name": "ner", "source": models["tag"]})
        assert again.status_code == 409
        missing = http.post("/admin/models", json={"name": "x", "source": str(tmp_path / "none")})
        assert missing.status_code == 422
        assert missing.json()["remedy"]
        assert http.get("/ready").status_code == 200
        assert http.delete("/admin/models/ner").status_code == 200
        assert http.delete("/admin/models/ner").status_code == 404
        assert http.post("/v1/tag", json={"inputs": "a"}).status_code == 422


def test_a_model_is_chosen_by_name_where_there_are_several(models: dict[str, str]) -> None:
    both = {"first": models["embed"], "second": models["embed"], "labels": models["classify"]}
    with Running(settings(both)) as server, client(server) as http:
        for name, answered in ((None, "first"), ("second", "second")):
            found = http.post("/v1/embeddings", json={"input": "a", "model": name}).json()
            assert found["model"] == answered
        unknown = http.post("/v1/embeddings", json={"input": "a", "model": "third"})
        assert unknown.status_code == 404
        assert "first, second" in unknown.json()["error"]["message"]
        assert http.post("/v1/classify", json={"inputs": "a", "model": "whatever"}).json()["model"] == "labels"
        assert http.post("/v1/classify", json={"inputs": "a", "model": "first"}).status_code == 422


def test_a_server_whose_model_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    with pytest.raises(BertieError, match="none"), Running(settings({"m": str(tmp_path / "none")})):
        pass
    texts = folders(tmp_path, "classify")["classify"]
    choices = (ModelChoice("m", texts, ("tag",)),)
    wrong = pytest.raises(BertieError, match=r"tag needs a token classifier .* is a BertForSequenceClassification")
    with wrong, Running(replace(settings({}), models=choices)):
        pass


def test_ready_only_after_warm_up(models: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    from bertie.serve import models as module

    go, waiting = threading.Event(), threading.Event()
    warm_up = module.warm_up

    def slow(ability: Any) -> None:
        waiting.set()
        assert go.wait(10)
        warm_up(ability)

    monkeypatch.setattr(module, "warm_up", slow)
    server = Running(settings({"m": models["embed"]}))
    starter = threading.Thread(target=server.__enter__)
    starter.start()
    try:
        assert waiting.wait(10)
        with client(server) as http:

            def is_live() -> bool:
                try:
                    return http.get("/live").status_code == 200
                except httpx.ConnectError:  # models are loaded beside: the warm-up may come before the socket listens
                    return False

            until(is_live)
            assert http.get("/ready").status_code == 503
            refused = http.post("/embed", json={"inputs": "a"})
            assert refused.status_code == 503
            assert refused.headers["retry-after"]
            go.set()
            until(lambda: http.get("/ready").status_code == 200)
            assert http.post("/embed", json={"inputs": "a"}).status_code == 200
    finally:
        go.set()
        starter.join()
        server.__exit__()


def test_an_engine_that_breaks_down_answers_503_and_comes_back(
    models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a device error: everyone waiting hears 503 at once, and the model is loaded again."""
    broken = threading.Event()
    states = OpenModel.pooled

    def failing(self: OpenModel, *given: Any) -> Any:
        if broken.is_set():
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return states(self, *given)

    monkeypatch.setattr(OpenModel, "pooled", failing)
    expected = bertie.embed("a dog", model=models["embed"])
    with Running(settings({"m": models["embed"]})) as server, client(server) as http:
        assert http.post("/embed", json={"inputs": "a dog"}).status_code == 200
        broken.set()
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: http.post("/embed", json={"inputs": "a dog"}), range(8)))
        assert {answer.status_code for answer in answers} == {503}
        assert all(answer.headers["retry-after"] for answer in answers)
        assert http.get("/ready").status_code == 503
        broken.clear()
        until(lambda: http.get("/ready").status_code == 200)
        found = http.post("/v1/embeddings", json={"input": "a dog"}).json()["data"][0]["embedding"]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
        assert "bertie_engine_restarts_total" in http.get("/metrics").text
        assert server.service.models.get("m").restarts >= 1


def test_an_input_that_breaks_the_model_is_424_and_hurts_nobody_else(
    models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    states = OpenModel.pooled

    def failing(self: OpenModel, pieces: Any, modes: Any) -> Any:
        if max(pieces.lengths) > 20:
            raise ValueError("too long for me")
        return states(self, pieces, modes)

    monkeypatch.setattr(OpenModel, "pooled", failing)
    with Running(settings({"m": models["embed"]})) as server, client(server) as http:
        texts = ["the dog " * 12 if number % 8 == 0 else f"dog {number}" for number in range(24)]
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda text: http.post("/embed", json={"inputs": text}), texts))
        for text, answer in zip(texts, answers, strict=True):
            assert answer.status_code == (424 if len(text) > 50 else 200)


def test_counters_add_up(models: dict[str, str]) -> None:
    with Running(settings({"m": models["embed"]})) as server, client(server) as http:
        for body in ({"inputs": "a"}, {"inputs": []}, {"inputs": 1}, {"inputs": ["a"] * 2000}):
            http.post("/embed", json=body)
        http.get("/made/up/path")
        http.get("/made/up/path2")
        with pytest.raises(httpx.TimeoutException):
            _leave_early(server, http)
        until(lambda: counters(http)[1]["vanished"] == 1)
        requests, outcomes, under_way = counters(http)
        assert requests == sum(outcomes.values()) + under_way
        assert under_way == 1  # the one that asks
        assert outcomes["refused"] == 5
        text = http.get("/metrics").text
        assert "made" not in text
        assert 'bertie_skipped_requests{model="m"} 1.0' in text


@contextmanager
def closing_thread(thread: threading.Thread) -> Iterator[None]:
    try:
        yield
    finally:
        thread.join()


def _leave_early(server: Running, http: httpx.Client) -> None:
    """A client that gives up while its work is queued behind work that takes long."""
    engine = server.service.models.get("m").engine
    assert engine is not None
    first = threading.Thread(target=http.post, args=("/embed",), kwargs={"json": {"inputs": "first"}})
    with closing_thread(first), engine.device.short:
        first.start()
        until(lambda: engine.waiting[0] == 1)
        try:
            httpx.post(server.url + "/embed", json={"inputs": "gone"}, timeout=0.3)
        finally:
            until(lambda: any(job.gone for jobs in engine._short._clients.values() for job in jobs))


def test_choices_of_tasks_are_kept(models: dict[str, str]) -> None:
    chosen = settings({})
    chosen = type(chosen)((ModelChoice("m", models["classify"], ("embed",)),), port=0, threads=1)
    with Running(chosen) as server, client(server) as http:
        assert http.post("/embed", json={"inputs": "a"}).status_code == 200
        assert http.post("/v1/classify", json={"inputs": "a"}).status_code == 422


def test_a_device_that_is_lost_has_the_process_replaced(
    models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an error of the GPU itself no model in the process can be used again: it drains and begins anew."""
    from bertie.serve import models as module
    from bertie.serve import run

    def failing(self: OpenModel, *given: Any) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(module, "_lost", lambda error, device: True)
    with Running(settings({"m": models["embed"]})) as server, client(server) as http:
        monkeypatch.setattr(OpenModel, "pooled", failing)
        assert http.post("/embed", json={"inputs": "a dog"}).status_code == 503
        until(lambda: server.service.draining)
        assert server.service.lost_device
        until(lambda: server.server.should_exit)
    commands: list[list[str]] = []
    monkeypatch.setattr(run.os, "execv", lambda program, command: commands.append(command))
    monkeypatch.setattr(run.os, "set_inheritable", lambda fd, yes: None)
    monkeypatch.setattr(run.sys, "argv", ["bertie", "serve", "-m", "x", "--fd", "3"])
    run.replace_process(9)
    assert commands[0][1:] == ["-m", "bertie", "serve", "-m", "x", "--fd", "9"]
