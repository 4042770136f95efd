"""Vectors: OpenAI's /v1/embeddings, text-embeddings-inference's /embed, /embed_all, /embed_sparse and /similarity, and
our /v1/similarity. What runs them computes with the offline task's own code, so the answers are the offline task's."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from bertie.model import BertForMaskedLM
from bertie.running.open import OpenModel, open_model
from bertie.running.pooling import Pieces
from bertie.running.rows import Cuts, Cutting, Row, TextOrPair, truncated_rows
from bertie.running.sentence_folder import Normalize
from bertie.serve import schemas
from bertie.serve.bodies import NUMBER_BYTES, encode, encode_parts, encode_rows
from bertie.serve.failures import Refusal, empty, invalid, too_large
from bertie.serve.models import Place, ServedModel, Source
from bertie.serve.scheduler import Lane
from bertie.serve.schemas import as_list
from bertie.serve.service import AnyRoute, Call, Route
from bertie.serve.settings import Truncation
from bertie.tasks.embed import Embedder
from bertie.tasks.similarity import score_matrix, unit

Floats = NDArray[np.float32]

_WITHOUT_LIMIT = 1 << 30
_SPARSE_AT_ONCE = 32
_SPARSE_BYTES = 48  # of a word and its weight: {"index":30521,"value":1.2345678901234567}


# -- what runs them -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class EmbedItem:
    """Row `row` of `pieces`. `raw`: without the checkpoint's own normalising."""

    pieces: Pieces
    row: int
    raw: bool

    @property
    def is_whole(self) -> bool:
        return bool(self.pieces.firsts[self.row] and self.pieces.lasts[self.row])


class EmbedRunner:
    """Vectors: of texts (lane `vectors`), and of every token (lane `tokens`)."""

    def __init__(self, source: Source, place: Place) -> None:
        self.embedder = Embedder(source, device=place.device, dtype=place.dtype)
        self.loaded = self.embedder.loaded
        self.dimension, self.max_length = self.embedder.dimension, self.embedder.max_length
        self.normalizes = any(isinstance(stage, Normalize) for stage in self.embedder.settings.stages)
        self._cuttings: dict[tuple[str | None, bool, str], Cutting] = {}  # as many as there are prompts, times four
        self.vectors = Lane("embed", self._run_vectors)
        self.tokens = Lane("embed_all", self._run_tokens)

    def warm_up(self) -> None:
        self.vectors.run(self.items(["warm up"])[0])

    def items(
        self,
        texts: Sequence[str] | Sequence[list[int]],
        *,
        prompt_name: str | None = None,
        truncation: Truncation = "right",
        long: str = "truncate",
        raw: bool = False,
        cuts: Cuts | None = None,
    ) -> tuple[list[EmbedItem], list[int]]:
        """The rows of all texts (or ids), in order, and each row's tokens. Texts that are cut are counted in `cuts`."""
        cuts = cuts or Cuts("truncate", 0)
        if isinstance(texts[0], str):
            pieces = self._of_texts(cast(Sequence[str], texts), prompt_name, truncation, long, cuts)
        else:
            pieces = self._of_ids(cast(Sequence[list[int]], texts), truncation, cuts)
        return [EmbedItem(pieces, row, raw) for row in range(len(pieces))], pieces.lengths.tolist()

    def _of_texts(
        self, texts: Sequence[str], prompt_name: str | None, truncation: Truncation, long: str, cuts: Cuts
    ) -> Pieces:
        prompts = self.embedder.prompts
        if prompt_name is not None and prompt_name not in prompts:
            raise invalid(f"There is no prompt called {prompt_name[:80]!r}. The model has: {', '.join(prompts)}.")
        whole = long == "truncate" and truncation != "right"
        cutting = self._cuttings.get((prompt_name, whole, long))
        if cutting is None:
            limit = _WITHOUT_LIMIT if whole else None
            cutting = self.embedder.cutting(prompt_name=prompt_name, long=long, max_length=limit)
            self._cuttings[prompt_name, whole, long] = cutting
        pieces = cutting.pieces(texts, cuts)
        return self._cut(pieces, truncation, cuts) if whole else pieces

    def _of_ids(self, texts: Sequence[list[int]], truncation: Truncation, cuts: Cuts) -> Pieces:
        tokenizer = self.loaded.tokenizer
        rows = []
        for number, given in enumerate(texts):
            ids = checked_ids(given, self.loaded.model.config.vocab_size, number)
            # Ids with their special tokens are taken as they are; ids of a text alone get them.
            if not (len(ids) >= 2 and ids[0] == tokenizer.cls_token_id and ids[-1] == tokenizer.sep_token_id):
                ids = tokenizer.build_inputs_with_special_tokens(ids)
            rows.append(np.array(ids, dtype=np.int64))
        return self._cut(Pieces.of_texts(np.concatenate(rows), np.array([len(row) for row in rows])), truncation, cuts)

    def _cut(self, pieces: Pieces, truncation: Truncation, cuts: Cuts) -> Pieces:
        """Rows that are too long, refused or cut at their beginning or end, special tokens kept."""
        limit = self.max_length
        if int(pieces.lengths.max(initial=0)) <= limit:
            return pieces
        rows, skipped = np.split(pieces.ids, pieces.begins[1:]), int(pieces.starts.max())
        for number, row in enumerate(rows):
            if len(row) > limit:
                if truncation == "error":
                    raise too_long(number, len(row), limit)
                kept = (row[:1], row[len(row) - limit + 1 :]) if truncation == "left" else (row[: limit - 1], row[-1:])
                rows[number] = np.concatenate(kept)
                cuts.count(1, 0)
        return Pieces.of_texts(np.concatenate(rows), np.array([len(row) for row in rows]), skipped=skipped)

    def join(self, items: Sequence[EmbedItem], answers: Sequence[Floats]) -> Floats:
        """`[texts, d]` out of the lane's answers."""
        pieces = items[0].pieces
        if pieces.whole:
            return np.stack(answers)
        heads = np.flatnonzero(pieces.firsts).tolist()
        vectors: list[Floats] = []
        for start, stop in zip(heads, [*heads[1:], len(pieces)], strict=True):
            if stop - start == 1:
                vectors.append(answers[start])
                continue
            sums = torch.from_numpy(np.stack(answers[start:stop]))
            own = pieces.take(np.arange(start, stop))
            vectors.append(self.embedder.finished(sums, own, raw=items[0].raw).numpy()[0])
        return np.stack(vectors)

    @torch.inference_mode()
    def _run_vectors(self, items: list[EmbedItem]) -> list[Floats]:
        """For a text of one row its vector; for a row of a longer text its sums, `[modes, hidden]`."""
        batch = _gathered(items)
        sums = self.embedder.pooled(batch)
        answers: dict[int, Floats] = {}
        for raw in (False, True):
            whole = [n for n, item in enumerate(items) if item.raw is raw and item.is_whole]
            if not whole:
                continue
            chosen, own = (sums, batch) if len(whole) == len(items) else (sums[whole], batch.take(np.array(whole)))
            vectors = self.embedder.finished(chosen, own, raw=raw).cpu().numpy()
            answers.update(zip(whole, vectors, strict=True))
        if len(answers) < len(items):
            on_cpu = sums.cpu().numpy()
            return [answers[n] if n in answers else on_cpu[n] for n in range(len(items))]
        return [answers[n] for n in range(len(items))]

    @torch.inference_mode()
    def _run_tokens(self, items: list[EmbedItem]) -> list[Floats]:
        batch = _gathered(items)
        hidden = self.loaded.last_states(batch.ids, batch.lengths).float().cpu()
        return [part.numpy() for part in torch.split(hidden, batch.lengths.tolist())]


def _gathered(items: Sequence[EmbedItem]) -> Pieces:
    """The rows of several requests as one batch."""
    parts: list[Pieces] = []
    start = 0
    for stop in range(1, len(items) + 1):
        if stop == len(items) or items[stop].pieces is not items[start].pieces:
            own = items[start].pieces
            rows = [item.row for item in items[start:stop]]
            parts.append(own if len(rows) == len(own) else own.take(np.array(rows)))
            start = stop
    return Pieces.joined(parts)


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


def checked_ids(given: Sequence[int], vocabulary: int, number: int) -> list[int]:
    ids = list(given)
    for one in (min(ids, default=0), max(ids, default=0)):
        if not 0 <= one < vocabulary:
            raise invalid(f"Input {number} holds the token id {one}; this model's go from 0 to {vocabulary - 1}.")
    return ids


def too_long(number: int, found: int, limit: int) -> Refusal:
    return too_large(
        f"`inputs` must have at most {limit} tokens. Given: {found} (input {number}). Set truncate, or send less."
    )


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
    if (embeds := model.get("embed", EmbedRunner)) is not None:
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

    scores = cast(list[list[float]], await call.prepare([*first, *second], scored))  # their JSON
    return schemas.SimilarityAnswer(model.name, scores, call.usage())


def as_inputs(given: str | list[str | int | list[int]], what: str) -> list[str] | list[list[int]]:
    """One text, several, one list of ids or several: always as a list. A mixture is refused."""
    found = as_list(given)
    kinds = set(map(type, found))
    if len(kinds) > 1:
        raise invalid(f"`{what}` mixes texts and token ids.")
    return [cast(list[int], found)] if kinds == {int} else cast(list[str], found)


_TEXTS = {"one": {"inputs": "What is Deep Learning?"}, "several": {"inputs": ["A text.", "Another."], "truncate": True}}
ROUTES: list[AnyRoute] = [
    Route("/v1/embeddings", embeddings, "Vectors of texts (OpenAI).", "OpenAI", schemas.EmbeddingsRequest,
          schemas.EmbeddingsAnswer, examples={
              "one": {"input": "A man plays the guitar.", "model": "all-MiniLM-L6-v2"},
              "several, base64": {"input": ["A text.", "Another."], "encoding_format": "base64", "dimensions": 32},
              "token ids": {"input": [[101, 7592, 102]]}}, timed=True),
    Route("/embed", embed, "Vectors of texts.", "text-embeddings-inference", schemas.EmbedRequest, list[list[float]],
          examples=_TEXTS, timed=True),
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
