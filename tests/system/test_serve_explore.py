"""Looking into a model costs nobody else: other requests neither wait for it nor for its answers to be written."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from serving import client, folders, settings

from bertie.explore.switches import held
from bertie.serve.explore import ExploreRunner
from bertie.serve.routes import explore
from bertie.serve.run import Running
from system.raw_http import until

TEXT = "the quick [MASK] jumps"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with Running(settings(folders(tmp_path_factory.mktemp("models"), "embed", "fill"))) as running:
        yield running


@pytest.fixture(scope="module")
def http(server: Running) -> Iterator[httpx.Client]:
    with client(server) as one:
        yield one


def test_nobody_waits_for_a_question_that_waits_for_a_long_computation(server: Running, http: httpx.Client) -> None:
    """A computation has the model, a question waits for it, and both queues of every model go on."""
    runner = server.service.models.get("fill").runner("explore", ExploreRunner)
    model = runner.session(TEXT, None, None).model
    small = {"embed": ("/embed", {"inputs": "a dog", "model": "embed"}), "fill": ("/v1/fill", {"inputs": TEXT})}
    large = {"inputs": ["the dog and the fox"] * 200, "model": "embed"}
    with ThreadPoolExecutor(2) as pool:
        with held(model):
            asked = [
                pool.submit(http.post, "/explore/answer", json={"text": text, "model": "fill"})
                for text in (TEXT, "a [MASK] " * 200)
            ]
            assert until(lambda: runner._thread._work_queue.qsize() > 0 or runner._thread._idle_semaphore._value == 0)
            for _ in range(3):
                for path, body in small.values():
                    assert http.post(path, json=body, timeout=10).status_code == 200
            assert http.post("/embed", json=large, timeout=10).status_code == 200
            assert not any(one.done() for one in asked)
        assert {one.result(20).status_code for one in asked} == {200}


def test_answers_are_written_beside_the_event_loop(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    write = explore.encode_answer

    def written(found: object) -> bytes:
        threads.append(threading.current_thread().name)
        return write(found)

    monkeypatch.setattr(explore, "encode_answer", written)
    questions: dict[str, dict[str, Any]] = {
        "open": {"model": "fill"}, "walk": {"model": "fill", "place": 1}, "drift": {"model": "fill"},
        "match": {"model": "embed", "second": "a dog"},
    }  # fmt: skip
    for name, body in questions.items():
        found = http.post(f"/explore/{name}", json={"text": TEXT, **body})
        assert found.status_code == 200, found.text
        assert found.json()
    assert len(threads) == len(questions)
    assert all(name.startswith("explore") for name in threads)
