"""What a served model can do: texts to items for a lane, and the lane's answers to answers of the task.

An ability belongs to one task and one loaded model. What makes items (`items`, `prepared`) tokenizes, on the event loop
or in a helper thread where there is much to do; its lanes run in the engine's thread, and what they compute with is the
offline task's own code, so that the answers are the offline task's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertie.errors import InputError
from bertie.model import BertForMaskedLM, BertForNextSentencePrediction, BertForSequenceClassification
from bertie.running.batching import Row
from bertie.running.open import OpenModel, open_model
from bertie.running.pooling import Pieces, divide, join, pool
from bertie.running.rows import Cuts, Cutting, TextOrPair, split_text_or_pair, truncated_rows
from bertie.running.scoring import row_logits
from bertie.running.sentence_folder import Normalize
from bertie.serve.failures import invalid, too_large
from bertie.serve.queues import Lane
from bertie.serve.settings import Truncation
from bertie.tasks.answer import Answerer
from bertie.tasks.classify import Function, label_names, score_function
from bertie.tasks.embed import Embedder
from bertie.tasks.features import FeatureExtractor
from bertie.tasks.fill import MaskFiller
from bertie.tasks.rerank import Reranker
from bertie.tasks.tag import Tagger
from bertie.tasks.zero_shot import ZeroShotClassifier

Floats = NDArray[np.float32]
TextOrIds = str | list[int]

# Lanes that are kept, for a task whose options are part of its lane.
_MOST_LANES = 64


@dataclass(frozen=True, slots=True, eq=False)
class EmbedItem:
    """Row `row` of `pieces`. `raw`: without the checkpoint's own normalising."""

    pieces: Pieces
    row: int
    raw: bool

    @property
    def is_whole(self) -> bool:
        return bool(self.pieces.firsts[self.row] and self.pieces.lasts[self.row])


@dataclass(frozen=True)
class Place:
    """Where a model runs."""

    device: str | None
    dtype: str | None


class Embedding:
    """Vectors: of texts (lane `vectors`), and of every token (lane `tokens`)."""

    def __init__(self, source: str | OpenModel, place: Place) -> None:
        self.embedder = Embedder(source, device=place.device, dtype=place.dtype)
        self.loaded = self.embedder.loaded
        self.normalizes = any(isinstance(stage, Normalize) for stage in self.embedder.settings.stages)
        self._cuttings: dict[tuple[str | None, bool, str], Cutting] = {}  # as many as there are prompts, times four
        self.vectors = Lane("embed", self._run_vectors)
        self.tokens = Lane("embed_all", self._run_tokens)

    @property
    def dimension(self) -> int:
        return self.embedder.dimension

    @property
    def max_length(self) -> int:
        return self.embedder.max_length

    def items(
        self,
        texts: Sequence[TextOrIds],
        *,
        prompt_name: str | None = None,
        truncation: Truncation = "right",
        long: str = "truncate",
        raw: bool = False,
        cuts: Cuts | None = None,
    ) -> tuple[list[EmbedItem], list[int]]:
        """The rows of all texts, in order, and each row's tokens. Texts that are cut are counted in `cuts`."""
        cuts = cuts or Cuts("truncate", 0)
        ids = sum(not isinstance(text, str) for text in texts)
        if 0 < ids < len(texts):
            raise invalid("Texts and token ids cannot be mixed in one request.")
        given: Any = texts
        if ids:
            pieces = self._of_ids(given, truncation, cuts)
        else:
            pieces = self._of_texts(given, prompt_name, truncation, long, cuts)
        return [EmbedItem(pieces, row, raw) for row in range(len(pieces))], pieces.lengths.tolist()

    def _of_texts(
        self, texts: Sequence[str], prompt_name: str | None, truncation: Truncation, long: str, cuts: Cuts
    ) -> Pieces:
        embedder = self.embedder
        name = embedder.settings.default_prompt_name if prompt_name is None else prompt_name
        if name is not None and name not in embedder.prompts:
            raise invalid(f"There is no prompt called {name[:80]!r}. The model has: {', '.join(embedder.prompts)}.")
        whole = long == "truncate" and truncation != "right"
        cutting = self._cuttings.get((name, whole, long))
        if cutting is None:
            cutting = self._cuttings[name, whole, long] = Cutting(
                self.loaded.tokenizer,
                max_length=1 << 30 if whole else self.max_length,
                prompt="" if name is None else embedder.prompts[name],
                count_prompt=embedder.pooling.include_prompt,
                lower=embedder.settings.do_lower_case,
                long=long,
            )
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

    def join(self, items: Sequence[EmbedItem], answers: Sequence[Any]) -> Floats:
        """`[texts, d]` out of the lane's answers."""
        pieces = items[0].pieces
        if pieces.whole:
            return np.stack(answers)
        heads = np.flatnonzero(pieces.firsts).tolist()
        vectors = []
        for start, stop in zip(heads, [*heads[1:], len(pieces)], strict=True):
            if stop - start == 1:
                vectors.append(answers[start])
                continue
            own = pieces.take(np.arange(start, stop))
            modes = self.embedder.pooling.modes
            pooled = divide(join(torch.stack(list(answers[start:stop])), own, modes), own, modes)
            vectors.append(self._finished(pooled, items[0].raw).numpy()[0])
        return np.stack(vectors)

    @torch.inference_mode()
    def _run_vectors(self, items: list[EmbedItem]) -> list[Any]:
        """For a text of one row its vector; for a row of a longer text its sums, `[modes, hidden]`."""
        batch, modes = _gathered(items), self.embedder.pooling.modes
        pooled = pool(self.loaded.last_states(batch.ids, batch.lengths), batch, modes)
        answers: list[Any] = [None] * len(items)
        for raw in (False, True):
            whole = [n for n, item in enumerate(items) if item.raw is raw and item.is_whole]
            if not whole:
                continue
            some = len(whole) < len(items)
            chosen, own = (pooled[whole], batch.take(np.array(whole))) if some else (pooled, batch)
            vectors = self._finished(divide(chosen, own, modes), raw).cpu().numpy()
            for number, vector in zip(whole, vectors, strict=True):
                answers[number] = vector
        if any(answer is None for answer in answers):
            on_cpu = pooled.cpu()
            answers = [on_cpu[n] if answer is None else answer for n, answer in enumerate(answers)]
        return answers

    def _finished(self, vectors: Tensor, raw: bool) -> Tensor:
        for stage in self.embedder.settings.stages:
            if not (raw and isinstance(stage, Normalize)):
                vectors = stage(vectors)
        return vectors[:, : self.embedder.truncate_dim]

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


class Sparse:
    """SPLADE's vectors from a masked-word head: for every word of the vocabulary the max of log(1 + relu(x))."""

    def __init__(self, source: str | OpenModel, place: Place) -> None:
        self.loaded = open_model(source, BertForMaskedLM, task="embed_sparse", device=place.device, dtype=place.dtype)
        # [tokens, vocabulary] is large: few tokens at once.
        self.lane = Lane("embed_sparse", self._run, budget=max(512, self.loaded.budget // 8))

    @torch.inference_mode()
    def _run(self, rows: list[Row]) -> list[tuple[NDArray[np.int64], Floats]]:
        """For every row the words that have a weight, and the weights."""
        logits = self.loaded.run(rows).logits
        answers = []
        for part in OpenModel.split(logits, rows):
            weights = part.float().amax(dim=0).relu().log1p()  # both grow with x, so max may come first
            found = weights.nonzero()[:, 0]
            answers.append((found.cpu().numpy(), weights[found].cpu().numpy()))
        return answers


class Logits:
    """A head that judges whole rows: a classifier, a cross-encoder, next sentence. Answers are rows of logits."""

    def __init__(self, task: str, source: str | OpenModel, place: Place) -> None:
        kind = BertForNextSentencePrediction if task == "next" else BertForSequenceClassification
        self.loaded = open_model(source, kind, task=task, device=place.device, dtype=place.dtype)
        self.lane = Lane(task, self._run)
        self.config = self.loaded.model.config
        self.names = label_names(self.config)

    def items(
        self,
        first: int,
        texts: Sequence[TextOrPair],
        *,
        truncation: Truncation,
        cuts: Cuts,
        long: str = "truncate",
        sliding: Any = "longer",
    ) -> list[tuple[list[Row], list[int]]]:
        """For each text its rows and their weights. `first` is the number of the first text in its request."""
        tokenizer, limit = self.loaded.tokenizer, self.loaded.max_length
        if long == "windows":
            found = [split_text_or_pair(tokenizer, text, max_length=limit, sliding=sliding) for text in texts]
            cuts.count(sum(one.is_cut for one in found), len(found))
            return [(one.rows, one.weights) for one in found]
        rows = truncated_rows(tokenizer, texts, max_length=1 << 30 if truncation == "error" else limit)
        for number, row in enumerate(rows, first):
            if len(row) > limit:
                raise too_long(number, len(row), limit)
        cuts.count(sum(row.is_cut for row in rows), len(rows))
        return [([row], [1]) for row in rows]

    @torch.inference_mode()
    def _run(self, rows: list[Row]) -> list[Floats]:
        logits: Floats = self.loaded.run(rows).logits.float().cpu().numpy()
        return list(logits)

    @cached_property
    def rank_rule(self) -> tuple[int, Function]:
        """The label that means relevance, and how its logit becomes a score."""
        ranker = Reranker(self.loaded)
        return ranker.label, ranker.function

    def rank_by(self, label: str) -> tuple[int, Function]:
        """The same by the name of a label."""
        ranker = Reranker(self.loaded, relevant=label)
        return ranker.label, ranker.function

    def function(self, multi_label: bool | None) -> Function:
        return score_function(self.config, multi_label)


class Rowed:
    """A task that says itself how items become rows (`rows`), what the model gives for them (`run`), and what that
    means (`decode`). `shared` is its `run` where rows of different options may share a batch.

    A task is made for every request and not kept: what a client sends as its labels must not stay here.
    """

    def __init__(
        self, name: str, make: Callable[..., Any], loaded: OpenModel, *, shared: Callable[[list[Any]], Any] | None
    ) -> None:
        self.name, self.loaded = name, loaded
        self._make = make
        self._shared = None if shared is None else Lane(name, shared)
        self._lanes: OrderedDict[Any, Lane] = OrderedDict()  # by layers

    def lane(self, **options: Any) -> tuple[Any, Lane]:
        """The task with these options, and its lane."""
        task = self._make(self.loaded, **options)
        if self._shared is not None:
            return task, self._shared
        lane = self._lanes.setdefault(task.layers, Lane(self.name, task.run))
        self._lanes.move_to_end(task.layers)
        if len(self._lanes) > _MOST_LANES:
            self._lanes.popitem(last=False)
        return task, lane

    def prepared(self, task: Any, item: Any, number: int, longest: int) -> tuple[Any, list[Row]]:
        """(what `decode` needs, rows) of an item. One of more than `longest` tokens is refused, before its tokens are
        made into Python's objects where it can be."""
        checked = task.checked(item, f"Input {number}")
        repeats = len(task.labels) if self.name == "zero_shot" else 1
        parts = (checked,) if isinstance(checked, str) else checked
        # A text that is not cut, or tokenized again for every label.
        whole = repeats > 1 or getattr(task, "long", "windows") == "windows"
        if whole and sum(map(len, parts)) * repeats > longest:
            size = int(self.loaded.tokenizer.encode_flat(parts)[1].sum()) * repeats
            if size > longest:
                raise too_large(f"Input {number} takes {size} tokens; {longest} are allowed.")
        context, rows = task.rows(checked)
        if (size := sum(map(len, rows))) > longest:
            raise too_large(f"Input {number} takes {size} tokens; {longest} are allowed.")
        return context, rows


class Filling:
    """Words for masks. A text goes through the model several times (`MaskFiller.rounds`), each time as a job."""

    name = "fill"

    def __init__(self, source: str | OpenModel, place: Place) -> None:
        filler = MaskFiller(source, device=place.device, dtype=place.dtype)
        self.loaded = filler.loaded
        self.lane = Lane(self.name, filler.run)

    def filler(self, **options: Any) -> MaskFiller:
        return MaskFiller(self.loaded, **options)


def make_ability(task: str, source: str | OpenModel, place: Place) -> Any:
    """What a task is done with."""
    where: dict[str, Any] = {"device": place.device, "dtype": place.dtype}
    if task == "embed":
        return Embedding(source, place)
    if task == "embed_sparse":
        return Sparse(source, place)
    if task in ("classify", "rerank", "next"):
        return Logits(task, source, place)
    if task == "fill":
        return Filling(source, place)
    if task == "tag":
        tagger = Tagger(source, **where)
        return Rowed(task, Tagger, tagger.loaded, shared=tagger.run)
    if task == "answer":
        answerer = Answerer(source, **where)
        return Rowed(task, Answerer, answerer.loaded, shared=answerer.run)
    if task == "features":
        return Rowed(task, FeatureExtractor, FeatureExtractor(source, **where).loaded, shared=None)
    if task == "zero_shot":
        loaded = open_model(source, BertForSequenceClassification, task=task, **where)
        return Rowed(task, _zero_shot, loaded, shared=partial(row_logits, loaded))
    raise InputError(f"There is no task {task!r}.")


def _zero_shot(loaded: OpenModel, *, labels: Sequence[str], **options: Any) -> ZeroShotClassifier:
    return ZeroShotClassifier(labels, loaded, **options)


def checked_ids(given: Any, vocabulary: int, number: int) -> list[int]:
    ids = list(given)
    for one in (min(ids, default=0), max(ids, default=0)):
        if not 0 <= one < vocabulary:
            raise invalid(f"Input {number} holds the token id {one}; this model's go from 0 to {vocabulary - 1}.")
    return ids


def too_long(number: int, found: int, limit: int) -> Exception:
    return too_large(
        f"`inputs` must have at most {limit} tokens. Given: {found} (input {number}). Set truncate, or send less."
    )
