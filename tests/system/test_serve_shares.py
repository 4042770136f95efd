"""What one client can cost another: work is cut into batches that others take turns with, nothing that grows with a
request runs on the event loop, answers are bounded, and what was refused is not kept."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server needs the extra: serve")

import httpx
from serving import client, folders, settings

import bertie
from bertie.running.open import OpenModel
from bertie.serve import bodies, scheduler, service
from bertie.serve.routes import embed as routes_embed
from bertie.serve.run import Running
from bertie.serve.settings import Limits
from bertie.text import BertTokenizer

TEXT = "the dog and the fox"
MASKS = ["the [MASK] of the [MASK]", "a [MASK] and the dog"] * 12


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return folders(tmp_path_factory.mktemp("models"))


# -- work -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/fill", {"inputs": MASKS, "top_k": 3}),
        ("/v1/fill", {"inputs": MASKS, "targets": ["dog", "frogs"], "top_k": 2}),
        ("/v1/classify", {"inputs": [TEXT] * 8, "labels": ["dogs", "foxes", "cats"], "model": "nli"}),
        ("/v1/tag", {"inputs": [TEXT] * 24}),
        ("/embed", {"inputs": [TEXT] * 24, "model": "embed"}),
    ],
    ids=["fill", "targets", "zero-shot", "tag", "embed"],
)
def test_no_request_runs_in_more_than_a_batch_at_a_time(
    models: dict[str, str], monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    batches: list[int] = []

    def recorded(run: Callable[..., Any]) -> Callable[..., Any]:
        def inside(self: OpenModel, ids: Any, lengths: Any, *rest: Any) -> Any:
            batches.append(int(lengths.sum()))
            return run(self, ids, lengths, *rest)

        return inside

    vectors = OpenModel.pooled

    def pooled(self: OpenModel, pieces: Any, modes: Any) -> Any:
        batches.append(int(pieces.lengths.sum()))
        return vectors(self, pieces, modes)

    with Running(settings(models, batch_tokens=64)) as server, client(server) as http:
        monkeypatch.setattr(OpenModel, "_run", recorded(OpenModel._run))
        monkeypatch.setattr(OpenModel, "pooled", pooled)
        assert http.post(path, json=body).status_code == 200
    assert len(batches) > 2
    assert max(batches) <= 64


def test_masks_are_filled_as_they_are_without_a_server(models: dict[str, str]) -> None:
    texts = [*MASKS, "[MASK] " * 9, "the dog [MASK] " * 30]
    with Running(settings({"m": models["fill"]}, batch_tokens=64)) as server, client(server) as http:
        for options in ({"joint": False, "top_k": 4}, {"top_k": 3}, {"targets": ["dog", "frogs", "fox"], "top_k": 2}):
            given = texts if "joint" in options else texts[:4]
            found = http.post("/v1/fill", json={"inputs": given, **options}).json()["results"]
            expected = bertie.fill(given, model=models["fill"], progress=False, **options)
            for one, wanted in zip(found, expected, strict=True):
                assert one["text"] == wanted.text
                assert [[c["text"] for c in mask] for mask in one["masks"]] == [
                    [c.text for c in mask] for mask in wanted.masks
                ]
                assert [f["tokens"] for f in one["fillings"]] == [list(f.tokens) for f in wanted.fillings]
                scores = [c["score"] for mask in one["masks"] for c in mask]
                assert scores == pytest.approx([c.score for mask in wanted.masks for c in mask], rel=1e-4)


def test_twenty_thousand_masks_are_refused_before_any_is_filled(
    models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Running(settings({"m": models["fill"]})) as server, client(server) as http:
        monkeypatch.setattr(OpenModel, "run", None)  # nothing may be run
        found = http.post("/v1/fill", json={"inputs": "[MASK] " * 20_000, "joint": False})
        assert found.status_code == 413
        assert "fewer masks" in found.json()["error"]["remedy"]


def test_a_large_batch_neither_starves_others_nor_is_starved(
    models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small requests of the same address are all answered meanwhile, and the batch is, though it takes longer than a
    request may wait."""
    vectors = OpenModel.pooled

    def slow(self: OpenModel, pieces: Any, modes: Any) -> Any:
        time.sleep(0.03)
        return vectors(self, pieces, modes)

    limits = Limits(queue_tokens=512, request_seconds=1)
    with Running(settings({"m": models["embed"]}, limits=limits, batch_tokens=64)) as server, client(server) as http:
        monkeypatch.setattr(OpenModel, "pooled", slow)
        with ThreadPoolExecutor(1) as pool:
            began = time.monotonic()
            large = pool.submit(http.post, "/embed", json={"inputs": [TEXT * 2] * 400})
            engine = server.service.models.get("m").engine
            assert engine is not None
            while not engine.waiting[0]:
                time.sleep(0.01)
            small = [http.post("/embed", json={"inputs": "a"}).status_code for _ in range(20)]
            assert small == [200] * 20
            assert not large.done()
            assert large.result(60).status_code == 200
            assert time.monotonic() - began > 1


# -- the event loop ---------------------------------------------------------------------------------------------------


def test_what_grows_with_a_request_does_not_run_on_the_event_loop(
    models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_loop: list[str] = []

    def watched(holder: Any, name: str) -> None:
        work = getattr(holder, name)

        def inside(*given: Any, **options: Any) -> Any:
            found = work(*given, **options)
            if name != "encode" or len(found) > bodies.INLINE_BYTES:
                try:
                    asyncio.get_running_loop()
                    on_loop.append(name)
                except RuntimeError:
                    pass
            return found

        monkeypatch.setattr(holder, name, inside)

    long = [TEXT * 20] * 200
    ids = [[5] * 200] * 200
    with Running(settings(models)) as server, client(server) as http:
        watched(BertTokenizer, "decode")
        watched(BertTokenizer, "__call__")
        watched(BertTokenizer, "encode_flat")
        watched(service, "encode")
        watched(routes_embed, "encode_rows")
        watched(bodies, "shape")
        requests: list[tuple[str, dict[str, Any]]] = [
            ("/decode", {"ids": ids}),
            ("/tokenize", {"inputs": long}),
            ("/embed", {"inputs": long, "truncate": True, "model": "embed"}),
            ("/embed", {"inputs": ids, "truncate": True, "model": "embed"}),
            ("/embed_all", {"inputs": long[:100], "truncate": True, "model": "embed"}),
            ("/rerank", {"query": TEXT, "texts": long, "truncate": True, "model": "rank"}),
            ("/v1/similarity", {"a": long, "model": "embed"}),
            ("/v1/tag", {"inputs": long}),
            ("/v1/fill", {"inputs": ["a [MASK] " * 20] * 100, "joint": False, "top_k": 20}),
            ("/v1/features", {"inputs": long[:100], "model": "embed", "layers": [-1]}),
        ]
        for path, body in requests:
            on_loop.clear()
            found = http.post(path, json=body)
            assert found.status_code == 200, found.text[:300]
            assert not on_loop, f"{path} ran {on_loop} on the event loop"


def test_the_vocabulary_is_not_counted_again_for_each_row(
    models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rust copies a vocabulary that it counts, and no other thread of Python runs meanwhile."""
    counted: list[None] = []
    size = BertTokenizer.__len__

    def count(self: BertTokenizer) -> int:
        counted.append(None)
        return size(self)

    with Running(settings(models)) as server, client(server) as http:
        monkeypatch.setattr(BertTokenizer, "__len__", count)
        assert http.post("/decode", json={"ids": [[5] * 20] * 200}).status_code == 200
        assert len(counted) <= 1


# -- answers ----------------------------------------------------------------------------------------------------------

LARGE: dict[str, tuple[str, dict[str, Any]]] = {
    "embed": ("/embed", {"inputs": [TEXT] * 100, "model": "embed"}),
    "embeddings": ("/v1/embeddings", {"input": [TEXT] * 100, "model": "embed"}),
    "embed_all": ("/embed_all", {"inputs": [TEXT] * 40, "model": "embed"}),
    "embed_sparse": ("/embed_sparse", {"inputs": [TEXT] * 200, "model": "fill"}),
    "similarity": ("/v1/similarity", {"a": [TEXT] * 60, "model": "embed"}),
    "rerank": ("/rerank", {"query": "a", "texts": [TEXT * 3] * 200, "return_text": True, "model": "rank"}),
    "predict": ("/predict", {"inputs": [[TEXT]] * 500, "model": "classify"}),
    "classify": ("/v1/classify", {"inputs": [TEXT] * 500, "top_k": 3, "model": "classify"}),
    "zero-shot": ("/v1/classify", {"inputs": [TEXT] * 100, "labels": [f"x{n}" for n in range(20)], "model": "nli"}),
    "next": ("/v1/next", {"inputs": [[TEXT, TEXT]] * 900}),
    "tag": ("/v1/tag", {"inputs": [TEXT * 2] * 100, "aggregation": "none", "ignore_labels": []}),
    "answer": ("/v1/answer", {"inputs": [{"question": "a", "context": TEXT}] * 60, "n_best": 50}),
    "fill": ("/v1/fill", {"inputs": ["[MASK] " * 8] * 20, "top_k": 10, "joint": False}),
    "features": ("/v1/features", {"inputs": [TEXT] * 20, "model": "embed"}),
    "tokenize": ("/tokenize", {"inputs": [TEXT] * 200}),
    "decode": ("/decode", {"ids": [[30] * 100] * 600}),
}


@pytest.fixture(scope="module")
def bounded(models: dict[str, str]) -> Iterator[httpx.Client]:
    with Running(settings(models, limits=Limits(answer_bytes=50_000))) as server, client(server) as http:
        yield http


@pytest.mark.parametrize("name", LARGE)
def test_every_route_has_a_bound_on_its_answer(bounded: httpx.Client, name: str) -> None:
    path, body = LARGE[name]
    found = bounded.post(path, json=body)
    assert found.status_code == 413, (found.status_code, len(found.content))
    said = found.json()
    said = said["error"] if path.startswith("/v1/") else said
    assert "50000 bytes" in (said["message"] if path.startswith("/v1/") else said["error"])
    assert said["remedy"]


@pytest.mark.parametrize("inputs", ["a dog", []], ids=["answered", "refused"])
def test_a_request_leaves_nothing_to_the_collector(models: dict[str, str], inputs: object) -> None:
    """What refers to itself is found by Python's collector only, after thousands of requests."""
    with Running(settings({"m": models["embed"]})) as server, client(server) as http:
        statuses = {http.post("/embed", json={"inputs": inputs}).status_code for _ in range(10)}
        gc.collect()
        gc.disable()
        try:
            for _ in range(100):
                server_only(server, inputs)
            left = gc.collect()
        finally:
            gc.enable()
    assert statuses == {400 if inputs == [] else 200}
    assert left < 100  # less than an object for each


def server_only(server: Running, inputs: object) -> None:
    """A request by a client that is in no cycle itself."""
    place = httpx.URL(server.url)
    connection = HTTPConnection(place.host, place.port)
    connection.request("POST", "/embed", json.dumps({"inputs": inputs}), {"content-type": "application/json"})
    connection.getresponse().read()
    connection.close()


def test_a_short_text_with_a_large_answer_is_no_small_request(
    models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small requests would wait for it, one after the other."""
    chosen: list[bool] = []
    choose = scheduler.Engine._queue

    def recorded(self: scheduler.Engine, work: int) -> Any:
        chosen.append(work <= self.short_tokens)
        return choose(self, work)

    monkeypatch.setattr(scheduler.Engine, "_queue", recorded)
    with Running(settings(models)) as server, client(server) as http:
        chosen.clear()
        body = {"inputs": "the [MASK] " * 12, "joint": False, "top_k": 2, "model": "fill"}
        assert http.post("/v1/fill", json=body).status_code == 200
        assert all(chosen)
        monkeypatch.setattr(service, "_BYTES_A_TOKEN", 1)
        chosen.clear()
        assert http.post("/v1/fill", json=body).status_code == 200
        assert not chosen[-1]


def test_large_answers_are_not_all_made_at_once(models: dict[str, str]) -> None:
    limits = Limits(made_bytes=100_000)
    with Running(settings(models, limits=limits)) as server, client(server) as http:
        answers = server.service.answers
        other = service.Call(server.service, "1", "POST", "/embed", 0.0, client="127.0.0.1", answer_bytes=90_000)
        answers.hold(other)
        assert http.post("/tokenize", json={"inputs": [TEXT] * 200}).status_code == 429
        assert http.post("/tokenize", json={"inputs": TEXT}).status_code == 200  # a small one
        answers.forget(other)
        assert http.post("/tokenize", json={"inputs": [TEXT] * 200}).status_code == 200
        for count in (25, 50, 100, 200):  # also one that is reckoned to be large, and is small when it is made
            assert http.post("/embed", json={"inputs": ["a text"] * count}).status_code == 200
        assert not answers._held


# Of the others all characters are reckoned at six bytes, and labels are short.
@pytest.mark.parametrize("name", [name for name in LARGE if name not in ("classify", "predict", "next", "rerank")])
def test_the_bound_is_not_far_above_the_answer(models: dict[str, str], name: str) -> None:
    """What is reckoned before the work is done would not refuse an answer a tenth of the limit."""
    path, body = LARGE[name]
    reserved: list[int] = []
    write = service.Call.write

    async def recorded(self: Any, found: Any) -> bytes:
        reserved.append(self.answer_bytes)
        return await write(self, found)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service.Call, "write", recorded)
        with Running(settings(models)) as server, client(server) as http:
            found = http.post(path, json=body)
    assert found.status_code == 200
    assert len(found.content) <= reserved[-1] * 1.1 + 200
    assert reserved[-1] <= 10 * len(found.content)


# -- memory -----------------------------------------------------------------------------------------------------------


def test_nothing_of_a_request_is_kept(models: dict[str, str]) -> None:
    """Labels and targets that no other request will send: answered or refused, they are let go."""

    def send(http: httpx.Client, number: int) -> None:
        words = [f"{number} {place} " + "x" * 4000 for place in range(100)]
        found = [
            http.post("/v1/classify", json={"inputs": TEXT, "labels": words, "model": "nli"}),
            http.post("/v1/fill", json={"inputs": "a [MASK]", "targets": words}),
            http.post("/v1/tag", json={"inputs": TEXT, "ignore_labels": words}),
        ]
        assert {one.status_code for one in found} <= {200, 413, 422}

    with Running(settings(models)) as server, client(server) as http:
        for number in range(3):
            send(http, number)
        gc.collect()
        tracemalloc.start()
        try:
            for number in range(3, 15):
                send(http, number)
            gc.collect()
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert kept < 2 << 20  # a single request has 1.2 MB of them
    assert threading.active_count() < 50
