"""Vectors: OpenAI's /v1/embeddings and /v1/models, text-embeddings-inference's /embed, /embed_all, /embed_sparse and
/similarity, and our /v1/similarity."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from bertie.running.batching import Row
from bertie.running.rows import truncated_rows
from bertie.serve import schemas as wire
from bertie.serve.abilities import Embedding, Sparse, TextOrIds, too_long
from bertie.serve.bodies import NUMBER_BYTES, encode, encode_parts, encode_rows
from bertie.serve.failures import empty, invalid
from bertie.serve.models import ServedModel
from bertie.serve.routes.route import Route
from bertie.serve.service import Call, Service
from bertie.serve.settings import Truncation
from bertie.tasks.classify import label_names
from bertie.tasks.similarity import score_matrix, unit

Floats = NDArray[np.float32]

_SPARSE_AT_ONCE = 32
_SPARSE_BYTES = 48  # of a word and its weight: {"index":30521,"value":1.2345678901234567}


async def text_vectors(
    service: Service,
    call: Call,
    model: ServedModel,
    texts: Sequence[TextOrIds],
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
    ability: Embedding = model.ability("embed", call.who, call.characters)
    for name, size in (("dimensions", dimensions), ("truncate_dim", truncate_dim)):
        if size is not None and size > ability.dimension:
            raise invalid(f"{name} is {size}; this model's vectors have {ability.dimension} numbers.")
    raw = normalize is False
    items, lengths = await service.prepare(
        call, texts, ability.items, texts, prompt_name=prompt_name, truncation=truncation, long=long, raw=raw,
        cuts=call.cuts,
    )  # fmt: skip
    answers = await service.compute(call, model, ability.vectors, items, lengths)

    def finished() -> Floats:
        vectors = ability.join(items, answers)[:, :truncate_dim][:, :dimensions]
        cut = dimensions is not None and ability.normalizes and not raw
        return unit(vectors) if normalize or cut else vectors

    return await service.prepare(call, texts, finished)


# -- OpenAI ---------------------------------------------------------------------------------------------------------


async def embeddings(service: Service, call: Call, body: wire.EmbeddingsRequest) -> bytes:
    texts = as_inputs(body.input, "input")
    service.check_texts(call, texts, what="input")
    model = service.models.find("embed", body.model)
    _reserve_vectors(service, call, model, len(texts), body.dimensions or body.truncate_dim)
    vectors = await text_vectors(
        service,
        call,
        model,
        texts,
        truncation=service.truncation(asked=None),
        normalize=body.normalize,
        dimensions=body.dimensions,
        truncate_dim=body.truncate_dim,
        prompt_name=body.prompt_name,
    )

    def shown(first: int, some: Sequence[Floats]) -> list[msgspec.Raw]:
        found = []
        for index, vector in enumerate(some, first):
            embedding: Any = vector.tolist()
            if body.encoding_format == "base64":
                embedding = base64.b64encode(np.ascontiguousarray(vector, dtype="<f4").tobytes()).decode()
            found.append(msgspec.Raw(encode({"object": "embedding", "embedding": embedding, "index": index})))
        return found

    data = await service.each(call, list(vectors), shown, sizes=[vectors.shape[1]] * len(vectors))
    return encode({"object": "list", "data": data, "model": model.name, "usage": usage_of(call)})


def _reserve_vectors(service: Service, call: Call, model: ServedModel, count: int, dimensions: int | None) -> None:
    """The answer's bytes, where it has a vector for every text."""
    model.running()
    embedding: Embedding | None = model.abilities.get("embed")
    if embedding is not None:
        service.reserve(call, count * (min(dimensions or embedding.dimension, embedding.dimension) * NUMBER_BYTES + 64))


async def list_models(service: Service, call: Call, body: None) -> wire.ModelList:
    return wire.ModelList("list", [model_card(model) for model in service.models.all])


async def one_model(service: Service, call: Call, body: None) -> wire.ModelCard:
    return model_card(service.models.get(call.path.removeprefix("/v1/models/")))


def model_card(model: ServedModel) -> wire.ModelCard:
    """What a model is and can do. Ranking and comparing need no more than embeddings."""
    tasks = set(model.abilities) | ({"similarity", "rerank"} if "embed" in model.abilities else set())
    card = wire.ModelCard(model.name, "model", model.since, "bertie", sorted(tasks), model.state)
    if model.state != "ready":
        return card
    loaded, embedding = model.loaded, model.abilities.get("embed")
    card.max_input_length = loaded.max_length if embedding is None else embedding.max_length
    card.dimensions = None if embedding is None else embedding.dimension
    card.mask_token = loaded.tokenizer.mask_token if "fill" in tasks else None
    card.labels = label_names(loaded.model.config) if tasks & {"classify", "tag"} else None
    return card


# -- text-embeddings-inference --------------------------------------------------------------------------------------


async def embed(service: Service, call: Call, body: wire.EmbedRequest) -> bytes:
    texts = as_inputs(body.inputs, "inputs")
    service.check_texts(call, texts)
    model = service.models.find("embed", body.model)
    _reserve_vectors(service, call, model, len(texts), body.dimensions)
    vectors = await text_vectors(
        service,
        call,
        model,
        texts,
        truncation=service.truncation(asked=body.truncate, direction=body.truncation_direction, default=False),
        normalize=body.normalize,
        dimensions=body.dimensions,
        prompt_name=body.prompt_name,
    )
    return await service.prepare(call, texts, encode_rows, vectors)


async def embed_all(service: Service, call: Call, body: wire.EmbedAllRequest) -> bytes:
    texts = as_list(body.inputs)
    service.check_texts(call, texts)
    model = service.models.find("embed", body.model)
    ability: Embedding = model.ability("embed", call.who, call.characters)
    truncation = service.truncation(asked=body.truncate, direction=body.truncation_direction, default=False)
    items, lengths = await service.prepare(
        call, texts, ability.items, texts, prompt_name=body.prompt_name, truncation=truncation, cuts=call.cuts
    )
    service.reserve(call, sum(lengths) * ability.loaded.model.config.hidden_size * NUMBER_BYTES)
    answers = await service.compute(call, model, ability.tokens, items, lengths)

    def shown(_: int, some: Sequence[Floats]) -> list[bytes]:
        return [encode_rows(one) for one in some]

    return encode_parts(await service.each(call, answers, shown, sizes=[answer.size for answer in answers]))


async def embed_sparse(service: Service, call: Call, body: wire.EmbedSparseRequest) -> bytes:
    texts = as_list(body.inputs)
    service.check_texts(call, texts)
    model = service.models.find("embed_sparse", body.model)
    ability: Sparse = model.ability("embed_sparse", call.who, call.characters)
    limit = ability.loaded.max_length
    cuts = service.truncation(asked=body.truncate, direction=body.truncation_direction, default=False) != "error"

    def rows_of(first: int, some: Sequence[str]) -> list[Row]:
        rows = truncated_rows(ability.loaded.tokenizer, some, max_length=limit if cuts else 1 << 30)
        for number, row in enumerate(rows, first):
            if len(row) > limit:
                raise too_long(number, len(row), limit)
        call.cuts.count(sum(row.is_cut for row in rows), len(rows))
        return rows

    def shown(_: int, some: Sequence[tuple[Any, Any]]) -> list[bytes]:
        return [
            encode([wire.SparseValue(*pair) for pair in zip(indices.tolist(), values.tolist(), strict=True)])
            for indices, values in some
        ]

    rows = await service.each(call, texts, rows_of)
    work, parts = sum(map(len, rows)), []
    # Nobody knows how many words a text will have, so texts are done some at a time: the answer is refused, and the
    # work ends, as soon as it is too large.
    for start in range(0, len(rows), _SPARSE_AT_ONCE):
        some = rows[start : start + _SPARSE_AT_ONCE]
        answers = await service.compute(call, model, ability.lane, some, [len(row) for row in some], work=work)
        sizes = [len(indices) * _SPARSE_BYTES for indices, _ in answers]
        service.reserve(call, sum(sizes))
        parts += await service.each(call, answers, shown, sizes=sizes)
    return encode_parts(parts)


async def tei_similarity(service: Service, call: Call, body: wire.TeiSimilarityRequest) -> list[float]:
    given, options = body.inputs, body.parameters or wire.SimilarityParameters()
    if not given.sentences:
        raise empty("inputs.sentences")
    texts = [given.source_sentence, *given.sentences]
    service.check_texts(call, texts)
    vectors = await text_vectors(
        service,
        call,
        service.models.find("embed", body.model),
        texts,
        truncation=service.truncation(asked=options.truncate, direction=options.truncation_direction, default=False),
        normalize=True,
        prompt_name=options.prompt_name,
    )
    service.reserve(call, len(texts) * NUMBER_BYTES)
    scores: list[float] = (vectors[1:] @ vectors[0]).tolist()
    return scores


# -- ours -----------------------------------------------------------------------------------------------------------


async def similarity(service: Service, call: Call, body: wire.SimilarityRequest) -> wire.SimilarityAnswer:
    first, second = as_list(body.a), [] if body.b is None else as_list(body.b)
    if not first or (body.b is not None and not second):
        raise empty("b" if first else "a")
    service.check_texts(call, [*first, *second], what="a")
    service.reserve(call, len(first) * (len(second) or len(first)) * NUMBER_BYTES)
    model = service.models.find("embed", body.model)
    function = body.function or model.ability("embed").embedder.similarity_fn_name
    vectors = await text_vectors(service, call, model, [*first, *second], truncation=service.truncation(asked=None))
    a, b = vectors[: len(first)], vectors[len(first) :] if second else vectors

    def scored() -> msgspec.Raw:
        return msgspec.Raw(encode_rows(score_matrix(a, b, function)))

    scores: Any = await service.prepare(call, [*first, *second], scored)
    return wire.SimilarityAnswer(model.name, scores, usage_of(call))


def usage_of(call: Call) -> wire.Usage:
    return wire.Usage(call.tokens, call.tokens, call.cuts.cut or msgspec.UNSET)


def as_list(given: str | list[str]) -> list[str]:
    return [given] if isinstance(given, str) else given


def as_inputs(given: Any, what: str) -> list[TextOrIds]:
    """One text, several, one list of ids or several: always as a list. A mixture is refused."""
    if isinstance(given, str):
        return [given]
    kinds = set(map(type, given))
    if len(kinds) > 1:
        raise invalid(f"`{what}` mixes texts and token ids.")
    return [given] if kinds == {int} else given


_TEXTS = {"one": {"inputs": "What is Deep Learning?"}, "several": {"inputs": ["A text.", "Another."], "truncate": True}}
ROUTES = [
    Route("/v1/embeddings", embeddings, "Vectors of texts (OpenAI).", "OpenAI", wire.EmbeddingsRequest,
          wire.EmbeddingsAnswer, examples={
              "one": {"input": "A man plays the guitar.", "model": "all-MiniLM-L6-v2"},
              "several, base64": {"input": ["A text.", "Another."], "encoding_format": "base64", "dimensions": 32},
              "token ids": {"input": [[101, 7592, 102]]}}, timed=True),
    Route("/v1/models", list_models, "The models of this server (OpenAI).", "OpenAI", None, wire.ModelList,
          method="GET", errors=()),
    Route("/v1/models/{name}", one_model, "One of them (OpenAI).", "OpenAI", None, wire.ModelCard, method="GET",
          errors=(404,), parameters=("name",)),
    Route("/embed", embed, "Vectors of texts.", "text-embeddings-inference", wire.EmbedRequest, list[list[float]],
          examples=_TEXTS, timed=True),
    Route("/embed_all", embed_all, "A vector for every token.", "text-embeddings-inference", wire.EmbedAllRequest,
          list[list[list[float]]], examples=_TEXTS, timed=True),
    Route("/embed_sparse", embed_sparse, "Sparse vectors over the vocabulary (SPLADE).", "text-embeddings-inference",
          wire.EmbedSparseRequest, list[list[wire.SparseValue]], examples=_TEXTS, timed=True),
    Route("/similarity", tei_similarity, "How alike one sentence is to others.", "text-embeddings-inference",
          wire.TeiSimilarityRequest, list[float], examples={
              "three": {"inputs": {"source_sentence": "A cat.", "sentences": ["A kitten.", "A car."]}}}, timed=True),
    Route("/v1/similarity", similarity, "Scores of texts with each other.", "Bertie", wire.SimilarityRequest,
          wire.SimilarityAnswer, examples={"two": {"a": "A man plays guitar.", "b": ["Someone makes music.", "Rain."]}},
          timed=True),
]  # fmt: skip
