"""The server as other people's clients meet it: the openai package, text-embeddings-inference's requests, OpenAPI.

QUALITY 16: at least 5,000 generated cases without a 5xx (a few hundred in the default run).
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertie
from system.serve_process import FORM_NAMES, FORMS, Server, serving
from tiny_models import SENTENCES, saved

INFERENCE = {0: "contradiction", 1: "neutral", 2: "entailment"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("contract")
    saved(folder / "bert", "BertForPreTraining")
    saved(folder / "nli", "BertForSequenceClassification", id2label=INFERENCE)
    return folder


@pytest.fixture(scope="module", params=FORMS, ids=FORM_NAMES)
def server(request: pytest.FixtureRequest, folder: Path) -> Iterator[Server]:
    models = ("--model", str(folder / "bert"), "--model", str(folder / "nli"))
    with serving(folder, *models, *request.param) as started:
        yield started


# -- the openai package -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def openai_client(server: Server) -> Iterator[Any]:
    openai = pytest.importorskip("openai", reason="the openai package is not installed")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def test_openai_embeddings_equal_ours_offline(openai_client: Any, folder: Path) -> None:
    found = openai_client.embeddings.create(model="bert", input=SENTENCES)  # asks for base64, and decodes it
    offline = bertie.embed(SENTENCES, model=str(folder / "bert"), progress=False)
    assert [row.index for row in found.data] == list(range(len(SENTENCES)))
    assert np.allclose([row.embedding for row in found.data], offline, atol=1e-5)
    assert found.usage.total_tokens == found.usage.prompt_tokens > len(SENTENCES)
    assert found.model == "bert"


def test_openai_takes_token_ids_floats_and_dimensions(openai_client: Any, folder: Path) -> None:
    tokenizer = bertie.BertTokenizer.from_pretrained(str(folder / "bert"))
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in SENTENCES[:3]]
    by_text = openai_client.embeddings.create(model="bert", input=SENTENCES[:3], encoding_format="float")
    by_ids = openai_client.embeddings.create(model="bert", input=ids, encoding_format="float")
    one = openai_client.embeddings.create(model="bert", input=ids[0])
    short = openai_client.embeddings.create(model="bert", input=SENTENCES[0], dimensions=8)
    wanted = np.array([row.embedding for row in by_text.data])
    assert np.allclose([row.embedding for row in by_ids.data], wanted, atol=1e-5)
    assert np.allclose(one.data[0].embedding, wanted[0], atol=1e-5)
    assert len(short.data[0].embedding) == 8


def test_openai_lists_models(openai_client: Any) -> None:
    assert {model.id for model in openai_client.models.list()} == {"bert", "nli"}
    assert openai_client.models.retrieve("bert").id == "bert"


def test_openai_raises_its_own_errors(openai_client: Any) -> None:
    import openai

    with pytest.raises(openai.BadRequestError):
        openai_client.embeddings.create(model="bert", input=[])
    with pytest.raises((openai.UnprocessableEntityError, openai.BadRequestError)) as caught:
        openai_client.embeddings.create(model="bert", input=[[10**9]])
    assert "1000000000" in str(caught.value)
    with pytest.raises((openai.UnprocessableEntityError, openai.BadRequestError, openai.APIStatusError)):
        openai_client.embeddings.create(model="bert", input="a", dimensions=10**6)


def test_the_async_openai_client_works(server: Server) -> None:
    openai = pytest.importorskip("openai", reason="the openai package is not installed")

    async def ask() -> Any:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused") as client:
            asked = (client.embeddings.create(model="bert", input=text) for text in SENTENCES)
            return await asyncio.gather(*asked)

    assert [len(found.data) for found in asyncio.run(ask())] == [1] * len(SENTENCES)


# -- text-embeddings-inference ----------------------------------------------------------------------------------------

LONG = "the dog and the fox " * 40  # more than the model's 48 tokens
# (path, body, status, shape). A shape is a type, {keys}, or [shape, …] whose last one is repeated.
TEI: list[tuple[str, Any, int, Any]] = [
    ("/embed", {"inputs": "What is Deep Learning?"}, 200, [[float]]),
    ("/embed", {"inputs": ["a", "b"]}, 200, [[float], [float]]),
    ("/embed", {"inputs": "a", "normalize": False}, 200, [[float]]),
    ("/embed", {"inputs": "a", "normalize": True, "truncate": True}, 200, [[float]]),
    ("/embed", {"inputs": LONG, "truncate": True}, 200, [[float]]),
    ("/embed", {"inputs": LONG, "truncate": True, "truncation_direction": "Left"}, 200, [[float]]),
    ("/embed", {"inputs": LONG, "truncate": False}, 413, {"error": str, "error_type": str}),
    ("/embed", {"inputs": [[5, 6, 7], [8, 9]]}, 200, [[float], [float]]),
    ("/embed", {"inputs": "a", "dimensions": 4}, 200, [[float]]),
    ("/embed", {"inputs": []}, 400, {"error": str, "error_type": str}),
    ("/embed", {"inputs": ["a"] * 5000}, 413, {"error": str, "error_type": str}),
    ("/embed", {"inputs": 5}, 422, {"error": str, "error_type": str}),
    ("/embed", {"input": "a"}, 422, {"error": str, "error_type": str}),
    ("/embed", {"inputs": "a", "prompt_name": "nobody"}, 422, {"error": str, "error_type": str}),
    ("/embed_all", {"inputs": "a b"}, 200, [[[float]]]),
    ("/embed_all", {"inputs": ["a b", "c"]}, 200, [[[float]], [[float]]]),
    ("/rerank", {"query": "a", "texts": ["b", "c"]}, 200, [{"index": int, "score": float}]),
    ("/rerank", {"query": "a", "texts": ["b"], "raw_scores": True}, 200, [{"index": int, "score": float}]),
    (
        "/rerank",
        {"query": "a", "texts": ["b"], "return_text": True},
        200,
        [{"index": int, "score": float, "text": str}],
    ),
    ("/rerank", {"query": "a", "texts": []}, 400, {"error": str, "error_type": str}),
    ("/rerank", {"query": "a"}, 422, {"error": str, "error_type": str}),
    ("/predict", {"inputs": "I like you."}, 200, [{"label": str, "score": float}]),
    ("/predict", {"inputs": "I like you.", "raw_scores": True}, 200, [{"label": str, "score": float}]),
    ("/predict", {"inputs": [["I like you."], ["I hate you."]]}, 200, [[{"label": str, "score": float}]]),
    ("/predict", {"inputs": [["I like you.", "I hate you."]]}, 200, [[{"label": str, "score": float}]]),
    ("/predict", {"inputs": ["I like you.", "I hate you."]}, 200, None),
    ("/predict", {"inputs": []}, 400, {"error": str, "error_type": str}),
    ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b", "c"]}}, 200, [float, float]),
    (
        "/similarity",
        {"inputs": {"source_sentence": "a", "sentences": ["b"]}, "parameters": {"truncate": True}},
        200,
        [float],
    ),
    ("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}, 400, {"error": str, "error_type": str}),
    ("/tokenize", {"inputs": "the dog"}, 200, [[{"id": int, "text": str, "special": bool}]]),
    ("/tokenize", {"inputs": ["the", "dog"], "add_special_tokens": False}, 200, [[{"id": int, "start": int}]]),
    ("/decode", {"ids": [5, 6, 7]}, 200, [str]),
    ("/decode", {"ids": [[5, 6], [7]], "skip_special_tokens": True}, 200, [str, str]),
    ("/v1/embeddings", {"input": "a", "model": "anything"}, 200, {"object": str, "data": list, "usage": dict}),
    ("/v1/embeddings", {"input": []}, 400, {"error": dict}),
]


def shaped(found: Any, shape: Any) -> bool:
    """Does an answer have this shape?"""
    if shape is None:
        return True
    if isinstance(shape, list):
        wanted = shape + [shape[-1]] * (len(found) - len(shape)) if isinstance(found, list) else []
        return isinstance(found, list) and len(found) > 0 and all(map(shaped, found, wanted))
    if isinstance(shape, dict):
        return isinstance(found, dict) and all(name in found and shaped(found[name], shape[name]) for name in shape)
    if shape is float:
        return isinstance(found, (int, float)) and not isinstance(found, bool)
    return isinstance(found, shape)


@pytest.mark.parametrize("case", range(len(TEI)), ids=lambda case: f"{case}-{TEI[case][0].strip('/')}-{TEI[case][2]}")
def test_requests_for_text_embeddings_inference_get_its_answers(server: Server, case: int) -> None:
    path, body, status, shape = TEI[case]
    response = server.post(path, body)
    assert response.status_code == status, response.text[:300]
    assert shaped(response.json(), shape), response.text[:300]
    if status == 200 and path in ("/embed", "/rerank", "/predict"):
        for name in ("x-compute-type", "x-compute-characters", "x-compute-tokens", "x-total-time", "x-inference-time"):
            assert name in response.headers


def test_info_health_and_metrics_are_where_they_are_looked_for(server: Server) -> None:
    info = server.get("/info").json()
    for name in ("model_id", "model_dtype", "model_type", "max_input_length", "max_client_batch_size", "version"):
        assert name in info
    assert server.get("/health").status_code == 200
    metrics = server.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    assert "# TYPE" in metrics.text


def test_a_classifier_ranks_only_by_a_label_that_is_named(server: Server) -> None:
    asked = {"query": "dog", "texts": ["a dog", "a cat"], "model": "nli"}
    refused = server.post("/rerank", asked)
    assert refused.status_code == 422
    assert "none of which means that a document is relevant" in refused.text
    assert server.post("/rerank", {**asked, "relevant": "no such label"}).status_code == 422
    info = server.get("/v1/models").json()
    assert "rerank" not in str([model for model in info["data"] if model["id"] == "nli"])


def test_texts_that_are_cut_are_counted_in_a_header_and_in_the_usage(server: Server) -> None:
    long, short = "the dog sleeps " * 60, "a dog"
    found = server.post("/v1/embeddings", {"input": [long, short, long], "model": "bert"})
    assert found.headers["x-truncated-texts"] == "2"
    assert found.json()["usage"]["truncated_texts"] == 2
    found = server.post("/v1/classify", {"inputs": [long, short], "model": "nli"})
    assert found.headers["x-truncated-texts"] == "1"
    assert found.json()["usage"]["truncated_texts"] == 1
    for path, body in (
        ("/v1/embeddings", {"input": short, "model": "bert"}),
        ("/v1/classify", {"inputs": [long], "model": "nli", "long": "windows"}),
    ):
        found = server.post(path, body)
        assert "x-truncated-texts" not in found.headers
        assert "truncated_texts" not in found.json()["usage"]
    found = server.post("/embed", {"inputs": [long, short], "model": "bert", "truncate": True})
    assert found.headers["x-truncated-texts"] == "1"


def test_rerank_is_sorted_and_cohere_has_the_same_scores(server: Server) -> None:
    texts = SENTENCES[:5]
    by = {"query": "dog", "model": "nli", "relevant": "entailment"}
    tei = server.post("/rerank", {**by, "texts": texts}).json()
    cohere = server.post("/v1/rerank", {**by, "documents": texts, "top_n": 3}).json()
    assert [row["score"] for row in tei] == sorted((row["score"] for row in tei), reverse=True)
    assert sorted(row["index"] for row in tei) == list(range(5))
    assert [row["index"] for row in cohere["results"]] == [row["index"] for row in tei[:3]]
    assert np.allclose([row["relevance_score"] for row in cohere["results"]], [row["score"] for row in tei[:3]])


def test_tokenize_and_decode_are_inverse(server: Server) -> None:
    tokens = server.post("/tokenize", {"inputs": "the quick brown fox"}).json()[0]
    text = "the quick brown fox"
    spans = [text[one["start"] : one["stop"]] for one in tokens if not one["special"]]
    assert "".join(spans) == text.replace(" ", "")
    assert server.post("/decode", {"ids": [one["id"] for one in tokens]}).json() == [text]


def test_openai_floats_and_base64_are_the_same_numbers(server: Server) -> None:
    plain = server.post("/v1/embeddings", {"input": "a dog"}).json()["data"][0]["embedding"]
    packed = server.post("/v1/embeddings", {"input": "a dog", "encoding_format": "base64"}).json()["data"][0][
        "embedding"
    ]
    assert np.allclose(np.frombuffer(base64.b64decode(packed), "<f4"), plain, atol=1e-7)


BAD_BODIES = [
    b"",
    b"{",
    b"[]",
    b"null",
    b'"a"',
    b'{"inputs": "\xff"}',
    b'{"inputs": NaN}',
    b"[" * 100_000,
    b'{"a":' * 5000,
]


@pytest.mark.parametrize("body", BAD_BODIES, ids=range(len(BAD_BODIES)))
@pytest.mark.parametrize("path", ["/embed", "/v1/embeddings", "/v1/fill"])
def test_a_body_that_is_no_request_is_refused(server: Server, path: str, body: bytes) -> None:
    response = server.request("POST", path, content=body, headers={"content-type": "application/json"})
    assert response.status_code in (400, 422), response.text[:300]
    assert "error" in response.json()


# -- our own OpenAPI document -----------------------------------------------------------------------------------------


def test_the_document_names_every_route_with_an_example(server: Server) -> None:
    document = server.get("/openapi.json").json()
    tasks = {
        f"/v1/{name}" for name in ("embeddings", "rerank", "fill", "tag", "answer", "next", "classify", "features")
    }
    tei = {
        f"/{name}" for name in ("embed", "embed_all", "rerank", "predict", "similarity", "tokenize", "decode", "info")
    }
    assert tasks | tei | {"/health", "/ready", "/live", "/metrics"} <= set(document["paths"])
    for path in tasks:
        assert "example" in json.dumps(document["paths"][path]["post"]), path


def fuzz(server: Server, *, cases: int, seed: int) -> dict[str, int]:
    """Generated requests to every POST route; how many there were, and how many got a 5xx."""
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as seeded

    schema = schemathesis.openapi.from_dict(server.get("/openapi.json").json())
    operations = [found.ok() for found in schema.get_all_operations()]
    operations = [one for one in operations if one.method.upper() in ("GET", "POST") and "/admin" not in one.path]
    each = -(-cases // sum(one.method.upper() == "POST" for one in operations))  # there is only one way to GET a path
    seen = {"cases": 0, "failed": 0}
    failures: list[str] = []
    import httpx

    with httpx.Client(base_url=server.url, timeout=60) as client:
        for operation in operations:

            @seeded(seed)
            @settings(
                max_examples=each, deadline=None, phases=[Phase.generate], database=None,
                suppress_health_check=list(HealthCheck), derandomize=False,
            )  # fmt: skip
            @given(case=operation.as_strategy())
            def one(case: Any) -> None:
                arguments = case.as_transport_kwargs(base_url=server.url)
                arguments.pop("cookies", None)
                response = client.request(**{name: value for name, value in arguments.items() if value is not None})
                seen["cases"] += 1
                if response.status_code >= 500:
                    seen["failed"] += 1
                    failures.append(f"{case.method} {case.path} {response.status_code} {str(case.body)[:300]}")

            one()
    assert not failures, "\n".join(failures[:10])
    return seen


def test_generated_requests_never_break_the_server(server: Server) -> None:
    seen = fuzz(server, cases=220, seed=7)
    assert seen["cases"] >= 200
    assert server.get("/ready").status_code == 200


@pytest.mark.slow
def test_five_thousand_generated_requests_never_break_the_server(server: Server) -> None:
    seed = 20260
    seen = fuzz(server, cases=5200, seed=seed)
    assert seen["cases"] >= 5000
    assert server.get("/ready").status_code == 200
    print(f"schemathesis, seed {seed}: {seen['cases']} cases, {seen['failed']} answered with 5xx")
