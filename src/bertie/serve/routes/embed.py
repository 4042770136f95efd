"""Vectors: OpenAI's /v1/embeddings, text-embeddings-inference's /embed, /embed_all, /embed_sparse and /similarity, and
our /v1/similarity. What runs them computes with the offline task's own code, so the answers are the offline task's."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import cast

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from bertie.model import BertForMaskedLM
from bertie.running.open import OpenModel, open_model
from bertie.running.rows import Cuts, Row, TextOrPair, truncated_rows
from bertie.serve import schemas
from bertie.serve.bodies import NUMBER_BYTES, encode, encode_parts, encode_rows
from bertie.serve.embedding import EmbedRunner, EmbedTexts, Floats, too_long
from bertie.serve.failures import empty, invalid
from bertie.serve.models import Place, ServedModel, Source
from bertie.serve.queues import Lane
from bertie.serve.schemas import as_list
from bertie.serve.service import AnyRoute, Call, Route
from bertie.serve.settings import Truncation
from bertie.tasks.similarity import score_matrix, unit

_WITHOUT_LIMIT = 1 << 30
_SPARSE_AT_ONCE = 32
_SPARSE_BYTES = 48  # of a word and its weight: {"index":30521,"value":1.2345678901234567}


class SparseRunner:
    """SPLADE's vectors from a masked-word head: for every word of the vocabulary the max of log(1 + relu(x))."""

    def __init__(self, source: Source, place: Place) -> None:
        self.loaded = open_model(source, BertForMaskedLM, task="embed_sparse", device=place.device, dtype=place.dtype)
        # [tokens, vocabulary] is large: few tokens at once.
        self.lane = Lane("embed_sparse", self._run, budget=max(512, self.loaded.budget // 8))

    def warm_up(self) -> None:
        pass

    @torch.inference_mode()
    def _run(self, rows: list[Row]) -> list[tuple[NDArray[np.int64], Floats]]:
        """For every row the words that have a weight, and the weights."""
        answers = []
        for part in OpenModel.split(self.loaded.run(rows).logits, rows):
            weights = part.float().amax(dim=0).relu().log1p()  # both grow with x, so max may come first
            found = weights.nonzero()[:, 0]
            answers.append((found.cpu().numpy(), weights[found].cpu().numpy()))
        return answers


def cut_rows(loaded: OpenModel, first: int, texts: Sequence[TextOrPair], cuts: Cuts, *, refuse: bool) -> list[Row]:
    """A row for each text, cut to the model's length and counted; or refused where it is longer."""
    limit = loaded.max_length
    rows = truncated_rows(loaded.tokenizer, texts, max_length=_WITHOUT_LIMIT if refuse else limit)
    for number, row in enumerate(rows, first):
        if len(row) > limit:
            raise too_long(number, len(row), limit)
    cuts.count(sum(row.is_cut for row in rows), len(rows))
    return rows


# -- vectors of texts -----------------------------------------------------------------------------------------------


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
) -> Floats:
    """`[texts, d]`. `normalize=None` is the checkpoint's own way; vectors of unit length stay so when `dimensions` cuts
    them, as OpenAI's do. `truncate_dim` only cuts, as that of `Embedder` does."""
    texts_of = call.runner(model, "embed", EmbedTexts)
    for name, size in (("dimensions", dimensions), ("truncate_dim", truncate_dim)):
        if size is not None and size > texts_of.dimension:
            raise invalid(f"{name} is {size}; this model's vectors have {texts_of.dimension} numbers.")
    raw = normalize is False
    rows = await call.prepare(
        texts, texts_of.rows, texts, prompt_name=prompt_name, truncation=truncation, raw=raw, cuts=call.cuts
    )
    answers = await call.compute(model, texts_of.vectors, rows, rows.lengths.tolist())

    def finished() -> Floats:
        vectors = np.asarray(answers)[:, :truncate_dim][:, :dimensions]
        own = texts_of.settings.normalizes and not raw
        is_unit = own and dimensions is None and truncate_dim is None
        return unit(vectors) if not is_unit and (normalize or (own and dimensions)) else vectors

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
                embedding = b'"%b"' % base64.b64encode(np.ascontiguousarray(vector, dtype="<f4").tobytes())
            else:
                embedding = encode_rows(vector)
            found.append(msgspec.Raw(b'{"object":"embedding","embedding":%b,"index":%d}' % (embedding, index)))
        return found

    if call.as_bytes:
        return as_bytes(call, vectors)
    data = await call.each(list(vectors), shown, sizes=[vectors.shape[1]] * len(vectors))
    return encode({"object": "list", "data": data, "model": model.name, "usage": call.usage()})


def _reserve_vectors(call: Call, model: ServedModel, count: int, dimensions: int | None) -> None:
    """The answer's bytes, where it has a vector for every text."""
    model.running()
    if (embeds := model.get("embed", EmbedTexts)) is not None:
        call.reserve(count * (min(dimensions or embeds.dimension, embeds.dimension) * NUMBER_BYTES + 64))


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
    if call.as_bytes:
        return as_bytes(call, vectors)
    return await call.prepare(texts, encode_rows, vectors)


def as_bytes(call: Call, vectors: Floats) -> bytes:
    """Vectors as they lie in memory: float32, the lowest byte first, one vector after the other."""
    shape = b"%d,%d" % vectors.shape
    call.binary = (b"content-type", b"application/octet-stream"), (b"x-embedding-shape", shape)
    return np.ascontiguousarray(vectors, dtype="<f4").tobytes()


async def embed_all(call: Call, body: schemas.EmbedAllRequest) -> bytes:
    texts = as_list(body.inputs)
    call.check_texts(texts)
    model = call.service.models.find("embed", body.model)
    runner = call.runner(model, "embed", EmbedRunner)
    truncation = call.tei_truncation(body)
    rows = await call.prepare(
        texts, runner.rows, texts, prompt_name=body.prompt_name, truncation=truncation, cuts=call.cuts
    )
    lengths = rows.lengths.tolist()
    call.reserve(sum(lengths) * runner.loaded.model.config.hidden_size * NUMBER_BYTES)
    answers = await call.compute(model, runner.tokens, rows, lengths)

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

    scores = cast(list[list[float]], await call.prepare([*first, *second], scored))  # their JSON
    return schemas.SimilarityAnswer(model.name, scores, call.usage())


def as_inputs(given: str | list[str | int | list[int]], what: str) -> list[str] | list[list[int]]:
    """One text, several, one list of ids or several: always as a list. A mixture is refused."""
    match given:
        case str():
            return [given]
    kinds = set(map(type, given))
    if len(kinds) > 1:
        raise invalid(f"`{what}` mixes texts and token ids.")
    return [cast(list[int], given)] if kinds == {int} else cast(list[str], given)


_TEXTS = {"one": {"inputs": "What is Deep Learning?"}, "several": {"inputs": ["A text.", "Another."], "truncate": True}}
ROUTES: list[AnyRoute] = [
    Route("/v1/embeddings", embeddings, "Vectors of texts (OpenAI).", "OpenAI", schemas.EmbeddingsRequest,
          schemas.EmbeddingsAnswer, examples={
              "one": {"input": "A man plays the guitar.", "model": "all-MiniLM-L6-v2"},
              "several, base64": {"input": ["A text.", "Another."], "encoding_format": "base64", "dimensions": 32},
              "token ids": {"input": [[101, 7592, 102]]}}, timed=True, at_front=True),
    Route("/embed", embed, "Vectors of texts.", "text-embeddings-inference", schemas.EmbedRequest, list[list[float]],
          examples=_TEXTS, timed=True, at_front=True),
    Route("/embed_all", embed_all, "A vector for every token.", "text-embeddings-inference", schemas.EmbedAllRequest,
          list[list[list[float]]], examples=_TEXTS, timed=True),
    Route("/embed_sparse", embed_sparse, "Sparse vectors over the vocabulary (SPLADE).", "text-embeddings-inference",
          schemas.EmbedSparseRequest, list[list[schemas.SparseValue]], examples=_TEXTS, timed=True),
    Route("/similarity", tei_similarity, "How similar one sentence is to others.", "text-embeddings-inference",
          schemas.TeiSimilarityRequest, list[float], examples={
              "three": {"inputs": {"source_sentence": "A cat.", "sentences": ["A kitten.", "A car."]}}}, timed=True),
    Route("/v1/similarity", similarity, "Scores of texts with each other.", "Bertie", schemas.SimilarityRequest,
          schemas.SimilarityAnswer, timed=True,
          examples={"two": {"a": "A man plays guitar.", "b": ["Someone makes music.", "Rain."]}}),
]  # fmt: skip
