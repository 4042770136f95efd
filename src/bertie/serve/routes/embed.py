"""Vectors: OpenAI's /v1/embeddings and /v1/models, text-embeddings-inference's /embed, /embed_all, /embed_sparse and
/similarity, and our /v1/similarity."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from bertie.running.rows import Row
from bertie.serve import schemas
from bertie.serve.bodies import encode, encode_parts, encode_rows
from bertie.serve.failures import empty, invalid
from bertie.serve.models import ServedModel
from bertie.serve.routes import Route
from bertie.serve.runners import EmbedRunner, Floats, SparseRunner, cut_rows
from bertie.serve.schemas import as_list
from bertie.serve.service import Call
from bertie.serve.settings import Truncation
from bertie.serve.tasks import NUMBER_BYTES
from bertie.tasks.classify import label_names
from bertie.tasks.similarity import score_matrix, unit

_SPARSE_AT_ONCE = 32
_SPARSE_BYTES = 48  # of a word and its weight: {"index":30521,"value":1.2345678901234567}


async def text_vectors(
    call: Call,
    model: ServedModel,
    texts: Sequence[str] | Sequence[list[int]],
    *,
    truncation: Truncation,
    normalize: bool | None = None,
    dimensions: int | None = None,
    truncate_dim: int | None = None,
    prompt_name: str | None = None,
    long: str = "truncate",
) -> Floats:
    """`[texts, d]`. `normalize=None` is the checkpoint's own way; vectors of unit length stay so when `dimensions` cuts
    them, as OpenAI's do. `truncate_dim` only cuts, as that of `Embedder` does."""
    runner = call.runner(model, "embed", EmbedRunner)
    for name, size in (("dimensions", dimensions), ("truncate_dim", truncate_dim)):
        if size is not None and size > runner.dimension:
            raise invalid(f"{name} is {size}; this model's vectors have {runner.dimension} numbers.")
    raw = normalize is False
    items, lengths = await call.prepare(
        texts, runner.items, texts, prompt_name=prompt_name, truncation=truncation, long=long, raw=raw,
        cuts=call.cuts,
    )  # fmt: skip
    answers = await call.compute(model, runner.vectors, items, lengths)

    def finished() -> Floats:
        vectors = runner.join(items, answers)[:, :truncate_dim][:, :dimensions]
        cut = dimensions is not None and runner.normalizes and not raw
        return unit(vectors) if normalize or cut else vectors

    return await call.prepare(texts, finished)


# -- OpenAI ---------------------------------------------------------------------------------------------------------


async def embeddings(call: Call, body: schemas.EmbeddingsRequest) -> bytes:
    texts = as_inputs(body.input, "input")
    call.check_texts(texts, what="input")
    model = call.service.models.find("embed", body.model)
    _reserve_vectors(call, model, len(texts), body.dimensions or body.truncate_dim)
    vectors = await text_vectors(
        call,
        model,
        texts,
        truncation=call.truncation(asked=None),
        normalize=body.normalize,
        dimensions=body.dimensions,
        truncate_dim=body.truncate_dim,
        prompt_name=body.prompt_name,
    )

    def shown(first: int, some: Sequence[Floats]) -> list[msgspec.Raw]:
        found = []
        for index, vector in enumerate(some, first):
            if body.encoding_format == "base64":
                embedding = base64.b64encode(np.ascontiguousarray(vector, dtype="<f4").tobytes()).decode()
            else:
                embedding = vector.tolist()
            found.append(msgspec.Raw(encode(schemas.EmbeddingOut("embedding", embedding, index))))
        return found

    data = await call.each(list(vectors), shown, sizes=[vectors.shape[1]] * len(vectors))
    return encode({"object": "list", "data": data, "model": model.name, "usage": call.usage()})


def _reserve_vectors(call: Call, model: ServedModel, count: int, dimensions: int | None) -> None:
    """The answer's bytes, where it has a vector for every text."""
    model.running()
    if (embeds := model.embeds) is not None:
        call.reserve(count * (min(dimensions or embeds.dimension, embeds.dimension) * NUMBER_BYTES + 64))


async def list_models(call: Call, body: None) -> schemas.ModelList:
    return schemas.ModelList("list", [model_card(model) for model in call.service.models.all])


async def one_model(call: Call, body: None) -> schemas.ModelCard:
    return model_card(call.service.models.get(call.path.removeprefix("/v1/models/")))


def model_card(model: ServedModel) -> schemas.ModelCard:
    """What a model is and can do. Ranking and comparing need no more than embeddings."""
    tasks = set(model.runners) | ({"similarity", "rerank"} if "embed" in model.runners else set())
    card = schemas.ModelCard(model.name, "model", model.since, "bertie", sorted(tasks), model.state)
    if model.state != "ready":
        return card
    loaded, embeds = model.loaded, model.embeds
    card.max_input_length = loaded.max_length if embeds is None else embeds.max_length
    card.dimensions = None if embeds is None else embeds.dimension
    card.mask_token = loaded.tokenizer.mask_token if "fill" in tasks else None
    card.labels = label_names(loaded.model.config) if tasks & {"classify", "tag"} else None
    return card


# -- text-embeddings-inference --------------------------------------------------------------------------------------


async def embed(call: Call, body: schemas.EmbedRequest) -> bytes:
    texts = as_inputs(body.inputs, "inputs")
    call.check_texts(texts)
    model = call.service.models.find("embed", body.model)
    _reserve_vectors(call, model, len(texts), body.dimensions)
    vectors = await text_vectors(
        call,
        model,
        texts,
        truncation=call.tei_truncation(body),
        normalize=body.normalize,
        dimensions=body.dimensions,
        prompt_name=body.prompt_name,
    )
    return await call.prepare(texts, encode_rows, vectors)


async def embed_all(call: Call, body: schemas.EmbedAllRequest) -> bytes:
    texts = as_list(body.inputs)
    call.check_texts(texts)
    model = call.service.models.find("embed", body.model)
    runner = call.runner(model, "embed", EmbedRunner)
    truncation = call.tei_truncation(body)
    items, lengths = await call.prepare(
        texts, runner.items, texts, prompt_name=body.prompt_name, truncation=truncation, cuts=call.cuts
    )
    call.reserve(sum(lengths) * runner.loaded.model.config.hidden_size * NUMBER_BYTES)
    answers = await call.compute(model, runner.tokens, items, lengths)

    def shown(_: int, some: Sequence[Floats]) -> list[bytes]:
        return [encode_rows(one) for one in some]

    return encode_parts(await call.each(answers, shown, sizes=[answer.size for answer in answers]))


async def embed_sparse(call: Call, body: schemas.EmbedSparseRequest) -> bytes:
    texts = as_list(body.inputs)
    call.check_texts(texts)
    model, runner = call.find("embed_sparse", body.model, SparseRunner)
    refuse = call.tei_truncation(body) == "error"

    def rows_of(first: int, some: Sequence[str]) -> list[Row]:
        return cut_rows(runner.loaded, first, some, call.cuts, refuse=refuse)

    def shown(_: int, some: Sequence[tuple[NDArray[np.int64], Floats]]) -> list[bytes]:
        return [
            encode([schemas.SparseValue(*pair) for pair in zip(indices.tolist(), values.tolist(), strict=True)])
            for indices, values in some
        ]

    rows = await call.each(texts, rows_of, sizes=list(map(len, texts)))
    work, parts = sum(map(len, rows)), []
    # Nobody knows how many words a text will have, so texts are done some at a time: the answer is refused, and the
    # work ends, as soon as it is too large.
    for start in range(0, len(rows), _SPARSE_AT_ONCE):
        some = rows[start : start + _SPARSE_AT_ONCE]
        answers = await call.compute(model, runner.lane, some, [len(row) for row in some], work=work)
        sizes = [len(indices) * _SPARSE_BYTES for indices, _ in answers]
        call.reserve(sum(sizes))
        parts += await call.each(answers, shown, sizes=sizes)
    return encode_parts(parts)


async def tei_similarity(call: Call, body: schemas.TeiSimilarityRequest) -> list[float]:
    given, options = body.inputs, body.parameters or schemas.SimilarityParameters()
    if not given.sentences:
        raise empty("inputs.sentences")
    texts = [given.source_sentence, *given.sentences]
    call.check_texts(texts)
    vectors = await text_vectors(
        call,
        call.service.models.find("embed", body.model),
        texts,
        truncation=call.tei_truncation(options),
        normalize=True,
        prompt_name=options.prompt_name,
    )
    call.reserve(len(texts) * NUMBER_BYTES)
    scores: list[float] = (vectors[1:] @ vectors[0]).tolist()
    return scores


# -- ours -----------------------------------------------------------------------------------------------------------


async def similarity(call: Call, body: schemas.SimilarityRequest) -> schemas.SimilarityAnswer:
    first, second = as_list(body.a), [] if body.b is None else as_list(body.b)
    if not first or (body.b is not None and not second):
        raise empty("b" if first else "a")
    call.check_texts([*first, *second], what="a")
    call.reserve(len(first) * (len(second) or len(first)) * NUMBER_BYTES)
    model = call.service.models.find("embed", body.model)
    function = body.function or model.runner("embed", EmbedRunner).embedder.similarity_fn_name
    vectors = await text_vectors(call, model, [*first, *second], truncation=call.truncation(asked=None))
    a, b = vectors[: len(first)], vectors[len(first) :] if second else vectors

    def scored() -> msgspec.Raw:
        return msgspec.Raw(encode_rows(score_matrix(a, b, function)))

    scores: Any = await call.prepare([*first, *second], scored)
    return schemas.SimilarityAnswer(model.name, scores, call.usage())


def as_inputs(given: str | list[str | int | list[int]], what: str) -> list[str] | list[list[int]]:
    """One text, several, one list of ids or several: always as a list. A mixture is refused."""
    if isinstance(given, str):
        return [given]
    kinds = set(map(type, given))
    if len(kinds) > 1:
        raise invalid(f"`{what}` mixes texts and token ids.")
    return [cast(list[int], given)] if kinds == {int} else cast(list[str], given)


_TEXTS = {"one": {"inputs": "What is Deep Learning?"}, "several": {"inputs": ["A text.", "Another."], "truncate": True}}
ROUTES: list[Route[Any]] = [
    Route("/v1/embeddings", embeddings, "Vectors of texts (OpenAI).", "OpenAI", schemas.EmbeddingsRequest,
          schemas.EmbeddingsAnswer, examples={
              "one": {"input": "A man plays the guitar.", "model": "all-MiniLM-L6-v2"},
              "several, base64": {"input": ["A text.", "Another."], "encoding_format": "base64", "dimensions": 32},
              "token ids": {"input": [[101, 7592, 102]]}}, timed=True),
    Route("/v1/models", list_models, "The models of this server (OpenAI).", "OpenAI", None, schemas.ModelList,
          method="GET", errors=()),
    Route("/v1/models/{name}", one_model, "One of them (OpenAI).", "OpenAI", None, schemas.ModelCard, method="GET",
          errors=(404,), parameters=("name",)),
    Route("/embed", embed, "Vectors of texts.", "text-embeddings-inference", schemas.EmbedRequest, list[list[float]],
          examples=_TEXTS, timed=True),
    Route("/embed_all", embed_all, "A vector for every token.", "text-embeddings-inference", schemas.EmbedAllRequest,
          list[list[list[float]]], examples=_TEXTS, timed=True),
    Route("/embed_sparse", embed_sparse, "Sparse vectors over the vocabulary (SPLADE).", "text-embeddings-inference",
          schemas.EmbedSparseRequest, list[list[schemas.SparseValue]], examples=_TEXTS, timed=True),
    Route("/similarity", tei_similarity, "How alike one sentence is to others.", "text-embeddings-inference",
          schemas.TeiSimilarityRequest, list[float], examples={
              "three": {"inputs": {"source_sentence": "A cat.", "sentences": ["A kitten.", "A car."]}}}, timed=True),
    Route("/v1/similarity", similarity, "Scores of texts with each other.", "Bertie", schemas.SimilarityRequest,
          schemas.SimilarityAnswer, timed=True,
          examples={"two": {"a": "A man plays guitar.", "b": ["Someone makes music.", "Rain."]}}),
]  # fmt: skip
