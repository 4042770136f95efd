"""No small request causes large work: what would is refused before it is begun. And what happens to texts too long."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from serving import client, folders, settings

import bertie
from bertie.serve.run import Running
from bertie.serve.settings import Limits
from tiny_models import MAX_LENGTH

LONG = "the dog and the fox " * 30
LIMITS = Limits(text_tokens=2000, answer_bytes=1_000_000, request_characters=200_000)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return folders(tmp_path_factory.mktemp("models"), "embed", "fill", "nli", "rank", "tag", "answer")


@pytest.fixture(scope="module")
def http(models: dict[str, str]) -> Iterator[httpx.Client]:
    with Running(settings(models, limits=LIMITS)) as server, client(server) as one:
        yield one


BOMBS: dict[str, tuple[str, dict[str, Any], int]] = {
    "many masks and beams": ("/v1/fill", {"inputs": "[MASK] " * 40, "top_k": 100}, 413),
    "long targets": ("/v1/fill", {"inputs": "a [MASK].", "targets": ["dog " * 500] * 20}, 413),
    "labels by length": (
        "/v1/classify",
        {"inputs": LONG, "labels": [f"x{n}" for n in range(100)], "model": "nli"},
        413,
    ),
    "a vector to every token": ("/v1/features", {"inputs": [LONG] * 30, "model": "embed"}, 413),
    "every token of many texts": ("/embed_all", {"inputs": [LONG] * 40, "truncate": True, "model": "embed"}, 413),
    "a long query with many texts": ("/rerank", {"query": LONG * 20, "texts": ["a"] * 50, "model": "rank"}, 413),
    "a very long text in windows": ("/v1/tag", {"inputs": LONG * 40}, 413),
    "a very long context": ("/v1/answer", {"question": "what", "context": LONG * 40}, 413),
    "too many texts": ("/embed", {"inputs": ["a"] * 1025, "model": "embed"}, 413),
    "many token ids": ("/v1/embeddings", {"input": [5] * 3000, "model": "embed"}, 413),
    "ids that do not exist": ("/v1/embeddings", {"input": [[10**6]], "model": "embed"}, 422),
    "texts and ids": ("/v1/embeddings", {"input": ["a", [5]], "model": "embed"}, 422),
    "ids to decode that do not exist": ("/decode", {"ids": [10**6]}, 422),
    "no text": ("/v1/fill", {"inputs": []}, 400),
    "a text without a mask": ("/v1/fill", {"inputs": "a dog"}, 422),
    "labels that are not there": ("/v1/tag", {"inputs": "a", "ignore_labels": ["PLANET"]}, 422),
    "layers that are not there": ("/v1/features", {"inputs": "a", "layers": [99], "model": "embed"}, 422),
    "a prompt that is not there": ("/embed", {"inputs": "a", "prompt_name": "poem", "model": "embed"}, 422),
    "more numbers than a vector has": ("/embed", {"inputs": "a", "dimensions": 1000, "model": "embed"}, 422),
    "a choice that is none, and long": ("/embed", {"inputs": "a", "truncation_direction": "x" * 500_000}, 422),
    "a question that fills the model": ("/v1/answer", {"question": LONG, "context": "a"}, 422),
}


@pytest.mark.parametrize("name", BOMBS)
def test_what_is_too_much_is_refused_at_once(http: httpx.Client, name: str) -> None:
    path, body, status = BOMBS[name]
    began = time.monotonic()
    answer = http.post(path, json=body)
    assert answer.status_code == status, answer.text
    assert time.monotonic() - began < 5
    assert len(answer.content) < 10_000  # it does not quote all that was sent
    assert http.get("/ready").status_code == 200


BODIES = {
    "deep list": b"[" * 100_000,
    "deep object": b'{"inputs":' * 5000,
    "not utf-8": b"\xff\xfe",
    "half a character": b'{"inputs": "\\ud800"}',
    "nothing in it": b"{}",
    "null": b"null",
    "a number": b'{"inputs": 1e999}',
}


@pytest.mark.parametrize("name", BODIES)
def test_bodies_that_are_not_what_they_should_be_are_4xx(http: httpx.Client, name: str) -> None:
    answer = http.post("/embed", content=BODIES[name], headers={"content-type": "application/json"})
    assert answer.status_code in (400, 422)
    assert set(answer.json()) == {"error", "error_type"}


def test_other_servers_shapes_of_errors(http: httpx.Client) -> None:
    tei = http.post("/embed", json={"inputs": LONG, "model": "embed"})
    assert (tei.status_code, tei.json()["error_type"]) == (413, "Validation")
    assert (http.post("/embed", json={"inputs": []}).json()["error_type"]) == "Empty"
    openai = http.post("/v1/embeddings", json={"input": []}).json()["error"]
    assert {"message", "type", "param", "code"} <= set(openai)
    mistake = http.post("/v1/fill", json={"inputs": "a dog"}).json()["error"]
    assert "[MASK]" in mistake["remedy"]


@pytest.mark.parametrize("policy", ["request", "error", "right", "left"])
def test_the_server_s_policy_for_texts_that_are_too_long(models: dict[str, str], policy: Any) -> None:
    tokenizer = bertie.BertTokenizer.from_pretrained(models["embed"])
    ids = tokenizer.encode(LONG + "capital", add_special_tokens=False)
    beginning, end = ids[: MAX_LENGTH - 2], ids[2 - MAX_LENGTH :]
    expected = {"right": beginning, "left": end, "request": beginning}
    with Running(settings({"m": models["embed"]}, truncation=policy)) as server, client(server) as http:
        long = http.post("/v1/embeddings", json={"input": LONG + "capital"})
        asked = http.post("/embed", json={"inputs": LONG + "capital", "truncate": False})
        assert asked.status_code == 413
        if policy == "error":
            assert long.status_code == 413
            return
        cut = http.post("/v1/embeddings", json={"input": expected[policy]}).json()["data"][0]["embedding"]
        np.testing.assert_allclose(long.json()["data"][0]["embedding"], cut, rtol=0, atol=1e-5)
        assert http.post("/embed", json={"inputs": LONG}).status_code == (413 if policy == "request" else 200)
