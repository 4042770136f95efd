"""Every task over HTTP gives what it gives offline, whoever else is served at the same time."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from serving import client, folders, settings

import bertie
from bertie.errors import InputError
from bertie.serve.run import Running
from sentence_models import tiny_sentence_model
from tiny_models import SENTENCES, TEXTS

CLOSE = {"rtol": 0, "atol": 1e-5}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return folders(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def http(models: dict[str, str]) -> Iterator[httpx.Client]:
    with Running(settings(models)) as server, client(server) as one:
        yield one


def ask(http: httpx.Client, path: str, **body: Any) -> Any:
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_embeddings_equal_the_offline_ones(http: httpx.Client, models: dict[str, str]) -> None:
    offline = bertie.embed(TEXTS, model=models["embed"])
    found = ask(http, "/v1/embeddings", input=TEXTS, model="embed")
    assert [one["index"] for one in found["data"]] == list(range(len(TEXTS)))
    np.testing.assert_allclose([one["embedding"] for one in found["data"]], offline, **CLOSE)
    assert found["usage"]["prompt_tokens"] == found["usage"]["total_tokens"] > len(TEXTS)
    coded = ask(http, "/v1/embeddings", input=TEXTS, model="embed", encoding_format="base64")
    vectors = [np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in coded["data"]]
    np.testing.assert_allclose(np.stack(vectors), offline, **CLOSE)


def test_embeddings_of_token_ids_equal_those_of_the_text(http: httpx.Client, models: dict[str, str]) -> None:
    tokenizer = bertie.BertTokenizer.from_pretrained(models["embed"])
    offline = bertie.embed(SENTENCES[:2], model=models["embed"])
    for special in (True, False):
        ids = [tokenizer.encode(text, add_special_tokens=special) for text in SENTENCES[:2]]
        found = ask(http, "/v1/embeddings", input=ids, model="embed")
        np.testing.assert_allclose([one["embedding"] for one in found["data"]], offline, **CLOSE)
        one = ask(http, "/v1/embeddings", input=ids[0], model="embed")
        np.testing.assert_allclose(one["data"][0]["embedding"], offline[0], **CLOSE)


def test_embed_normalises_and_cuts_as_asked(http: httpx.Client, models: dict[str, str]) -> None:
    plain = bertie.embed(SENTENCES, model=models["embed"])
    unit = plain / np.linalg.norm(plain, axis=1, keepdims=True)
    np.testing.assert_allclose(ask(http, "/embed", inputs=SENTENCES, model="embed"), unit, **CLOSE)
    raw = ask(http, "/embed", inputs=SENTENCES, model="embed", normalize=False)
    np.testing.assert_allclose(raw, plain, **CLOSE)
    short = ask(http, "/embed", inputs=SENTENCES[0], model="embed", dimensions=8)
    np.testing.assert_allclose(short[0], plain[0, :8] / np.linalg.norm(plain[0, :8]), **CLOSE)


def test_truncate_dim_only_cuts_as_it_does_offline(tmp_path: Path) -> None:
    folder = tiny_sentence_model(tmp_path / "unit", normalize=True)
    cut = bertie.embed(SENTENCES, model=folder, truncate_dim=3)
    with Running(settings({"unit": folder})) as server, bertie.Client(server.url) as asked:
        np.testing.assert_allclose(asked.embed(SENTENCES, truncate_dim=3), cut, **CLOSE)
        unit = cut / np.linalg.norm(cut, axis=1, keepdims=True)
        np.testing.assert_allclose(asked.embed(SENTENCES, dimensions=3), unit, **CLOSE)
        np.testing.assert_allclose(asked.embed(SENTENCES, truncate_dim=3, normalize=True), unit, **CLOSE)
        with pytest.raises(InputError, match="truncate_dim is 100; this model's vectors have 32 numbers"):
            asked.embed("a", truncate_dim=100)


def test_embed_all_gives_every_token(http: httpx.Client, models: dict[str, str]) -> None:
    found = ask(http, "/embed_all", inputs=SENTENCES[:2], model="embed")
    offline = bertie.Embedder(models["embed"]).encode(SENTENCES[:2], output_value="token_embeddings")
    for one, other in zip(found, offline, strict=True):
        np.testing.assert_allclose(one, other.numpy(), **CLOSE)


def test_left_truncation_keeps_the_end(http: httpx.Client) -> None:
    text = "the dog and the fox " * 30 + SENTENCES[1]
    left = ask(http, "/embed", inputs=text, truncate=True, truncation_direction="Left", model="embed")
    right = ask(http, "/embed", inputs=text, truncate=True, model="embed")
    assert not np.allclose(left, right, atol=1e-3)
    again = ask(http, "/embed", inputs="fox " * 5 + text, truncate=True, truncation_direction="Left", model="embed")
    np.testing.assert_allclose(left, again, **CLOSE)


def test_sparse_vectors_are_splade_s(http: httpx.Client, models: dict[str, str]) -> None:
    model = bertie.BertForMaskedLM.from_pretrained(models["fill"]).eval()
    tokenizer = bertie.BertTokenizer.from_pretrained(models["fill"])
    logits = model(**tokenizer(SENTENCES[0], return_tensors="pt")).logits[0].detach()
    expected = logits.relu().log1p().amax(0)
    (found,) = ask(http, "/embed_sparse", inputs=SENTENCES[0])
    assert {one["index"] for one in found} == set(expected.nonzero()[:, 0].tolist())
    for one in found:
        assert one["value"] == pytest.approx(float(expected[one["index"]]), abs=1e-5)


def test_similarity_equals_offline(http: httpx.Client, models: dict[str, str]) -> None:
    offline = bertie.similarity(SENTENCES[:2], SENTENCES[2:], model=models["embed"])
    found = ask(http, "/v1/similarity", a=SENTENCES[:2], b=SENTENCES[2:], model="embed")
    np.testing.assert_allclose(found["scores"], offline, **CLOSE)
    tei = ask(http, "/similarity", inputs={"source_sentence": SENTENCES[0], "sentences": SENTENCES[2:]}, model="embed")
    np.testing.assert_allclose(tei, offline[0], **CLOSE)


def test_classify_equals_offline(http: httpx.Client, models: dict[str, str]) -> None:
    for long in ("truncate", "windows"):
        offline = bertie.classify(TEXTS, model=models["classify"], top_k=3, long=long)
        found = ask(http, "/v1/classify", inputs=TEXTS, model="classify", top_k=3, long=long)
        for mine, theirs in zip(found["results"], offline, strict=True):
            assert [one["label"] for one in mine] == [label for label, _ in theirs.labels]
            np.testing.assert_allclose([one["score"] for one in mine], [score for _, score in theirs.labels], **CLOSE)


def test_predict_has_the_shapes_of_text_embeddings_inference(http: httpx.Client, models: dict[str, str]) -> None:
    pair = (SENTENCES[0], SENTENCES[1])
    offline = bertie.classify([SENTENCES[0], pair], model=models["classify"], top_k=None)
    single = ask(http, "/predict", inputs=SENTENCES[0], model="classify")
    assert [one["label"] for one in single] == [label for label, _ in offline[0].labels]
    assert ask(http, "/predict", inputs=list(pair), model="classify")[0]["score"] == pytest.approx(
        offline[1].score, abs=1e-5
    )
    batch = ask(http, "/predict", inputs=[[SENTENCES[0]], list(pair)], model="classify")
    assert [[one["label"] for one in row] for row in batch] == [[name for name, _ in one.labels] for one in offline]


def test_zero_shot_equals_offline(http: httpx.Client, models: dict[str, str]) -> None:
    labels = ["sports", "money", "the dog"]
    offline = bertie.zero_shot(SENTENCES, labels, model=models["nli"])
    found = ask(http, "/v1/classify", inputs=SENTENCES, labels=labels, model="nli")
    for mine, theirs in zip(found["results"], offline, strict=True):
        assert [one["label"] for one in mine] == [label for label, _ in theirs.labels]
        np.testing.assert_allclose([one["score"] for one in mine], [score for _, score in theirs.labels], **CLOSE)


@pytest.mark.parametrize("model", ["rank", "embed"])
def test_rerank_equals_offline(http: httpx.Client, models: dict[str, str], model: str) -> None:
    query, documents = SENTENCES[0], [*SENTENCES[1:], TEXTS[-1]]
    offline = bertie.rerank(query, documents, model=models[model])
    found = ask(http, "/v1/rerank", query=query, documents=documents, model=model, return_documents=True, top_n=3)
    assert [one["index"] for one in found["results"]] == [one.index for one in offline[:3]]
    assert [one["document"]["text"] for one in found["results"]] == [one.text for one in offline[:3]]
    np.testing.assert_allclose(
        [o["relevance_score"] for o in found["results"]], [o.score for o in offline[:3]], **CLOSE
    )
    short = bertie.rerank(query, documents[:3], model=models[model], long="truncate")
    tei = ask(http, "/rerank", query=query, texts=documents[:3], model=model, truncate=True, return_text=True)
    assert [(one["index"], one["text"]) for one in tei] == [(one.index, one.text) for one in short]


def test_tag_equals_offline(http: httpx.Client, models: dict[str, str]) -> None:
    for aggregation in ("simple", "first", "none"):
        offline = bertie.tag(TEXTS, model=models["tag"], aggregation=aggregation)
        found = ask(http, "/v1/tag", inputs=TEXTS, aggregation=aggregation)
        for mine, theirs in zip(found["results"], offline, strict=True):
            assert [(e["label"], e["text"], e["start"], e["end"], e["index"]) for e in mine] == [
                (e.label, e.text, e.start, e.end, e.index) for e in theirs
            ]
            np.testing.assert_allclose([e["score"] for e in mine], [e.score for e in theirs], **CLOSE)


def test_answer_equals_offline(http: httpx.Client, models: dict[str, str]) -> None:
    pairs = [("What is it?", context) for context in TEXTS]
    offline = bertie.answer(pairs, model=models["answer"], n_best=3)
    inputs = [{"question": question, "context": context} for question, context in pairs]
    found = ask(http, "/v1/answer", inputs=inputs, n_best=3)
    for mine, theirs in zip(found["results"], offline, strict=True):
        assert (mine["best"] or {}).get("text") == (theirs.best.text if theirs.best else None)
        assert [c["text"] for c in mine["candidates"]] == [c.text for c in theirs.candidates]
        np.testing.assert_allclose(
            [c["score"] for c in mine["candidates"]], [c.score for c in theirs.candidates], **CLOSE
        )
        assert mine["no_answer_score"] == pytest.approx(theirs.no_answer_score, abs=1e-5)
    one = ask(http, "/v1/answer", question=pairs[0][0], context=pairs[0][1])
    assert len(one["results"]) == 1


def test_fill_equals_offline(http: httpx.Client, models: dict[str, str]) -> None:
    texts = ["The [MASK] jumps over the dog.", "Paris is the [MASK] of [MASK]."]
    for options in ({"top_k": 3}, {"targets": ["dog", "capital", "unbelievably"]}):
        offline = bertie.fill(texts, model=models["fill"], **options)
        found = ask(http, "/v1/fill", inputs=texts, **options)
        for mine, theirs in zip(found["results"], offline, strict=True):
            assert mine["text"] == theirs.text
            assert [[c["token"] for c in mask] for mask in mine["masks"]] == [
                [c.token for c in mask] for mask in theirs.masks
            ]
            assert [f["tokens"] for f in mine["fillings"]] == [list(f.tokens) for f in theirs.fillings]
            np.testing.assert_allclose(
                [f["score"] for f in mine["fillings"]], [f.score for f in theirs.fillings], **CLOSE
            )


def test_next_equals_offline(http: httpx.Client, models: dict[str, str]) -> None:
    pairs = list(zip(SENTENCES, TEXTS[6:], strict=True))
    offline = bertie.next_sentence(pairs, model=models["next"])
    found = ask(http, "/v1/next", inputs=pairs)
    np.testing.assert_allclose([one["probability"] for one in found["results"]], list(map(float, offline)), **CLOSE)


def test_features_equal_offline(http: httpx.Client, models: dict[str, str]) -> None:
    offline = bertie.features(TEXTS[:8], model=models["embed"], layers=[-1, 0])
    found = ask(http, "/v1/features", inputs=TEXTS[:8], layers=[-1, 0], model="embed")
    for mine, theirs in zip(found["results"], offline, strict=True):
        assert [token["token"] for token in mine["tokens"]] == [token.token for token in theirs.tokens]
        for token, other in zip(mine["tokens"], theirs.tokens, strict=True):
            assert [layer["index"] for layer in token["layers"]] == [-1, 0]
            np.testing.assert_allclose(token["layers"][0]["values"], other.vector(-1), **CLOSE)


def test_tokenize_and_decode_go_there_and_back(http: httpx.Client) -> None:
    (tokens,) = ask(http, "/tokenize", inputs=SENTENCES[1], model="embed")
    assert tokens[0]["special"]
    assert tokens[0]["start"] is None
    for token in tokens[1:-1]:
        assert SENTENCES[1][token["start"] : token["stop"]] == token["text"]
    (text,) = ask(http, "/decode", ids=[token["id"] for token in tokens], model="embed")
    assert text.replace(" ", "") == SENTENCES[1].lower().replace(" ", "")


def test_many_clients_of_every_task_get_their_own_answers(http: httpx.Client, models: dict[str, str]) -> None:
    texts = [f"{SENTENCES[number % 7]} {number}" for number in range(60)]
    vectors = bertie.embed(texts, model=models["embed"])
    labels = bertie.classify(texts, model=models["classify"])
    entities = bertie.tag(texts, model=models["tag"])

    def check(number: int) -> None:
        text = texts[number]
        if number % 3 == 0:
            found = ask(http, "/v1/embeddings", input=text, model="embed")["data"][0]["embedding"]
            np.testing.assert_allclose(found, vectors[number], **CLOSE)
        elif number % 3 == 1:
            (found,) = ask(http, "/v1/classify", inputs=text, model="classify")["results"]
            assert found[0]["label"] == labels[number].label
            assert found[0]["score"] == pytest.approx(labels[number].score, abs=1e-5)
        else:
            (found,) = ask(http, "/v1/tag", inputs=text)["results"]
            assert [(e["start"], e["end"]) for e in found] == [(e.start, e.end) for e in entities[number]]

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(check, range(len(texts))))
