"""What runs a task for the server: texts to items for a lane, and the lane's answers to answers of the task.

A runner belongs to one task and one loaded model. What makes items tokenizes, on the event loop or in a helper thread
where there is much to do; its lanes run in the engine's thread, and what they compute with is the offline task's own
code, so that the answers are the offline task's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertie.model import BertForMaskedLM, BertForNextSentencePrediction, BertForSequenceClassification
from bertie.running.open import OpenModel, open_model
from bertie.running.pooling import Pieces
from bertie.running.rows import Cuts, Cutting, Row, Sliding, TextOrPair, split_text_or_pair, truncated_rows
from bertie.running.sentence_folder import Normalize
from bertie.serve.failures import Refusal, invalid, too_large
from bertie.serve.queues import Lane
from bertie.serve.settings import Truncation
from bertie.tasks.classify import Function, label_names, score_function
from bertie.tasks.embed import Embedder
from bertie.tasks.fill import MaskFiller
from bertie.tasks.rerank import Reranker

Floats = NDArray[np.float32]
Source = str | OpenModel
Options = Mapping[str, Any]  # of a task, as its constructor takes them
Judged = tuple[Tensor, list[int]]  # [windows, labels] logits of a text, and the windows' weights

# Lanes that are kept, for a task whose options are part of its lane.
_MOST_LANES = 64
_WITHOUT_LIMIT = 1 << 30


@dataclass(frozen=True)
class Place:
    """Where a model runs."""

    device: str | None = None
    dtype: str | None = None


class Runner(Protocol):
    """What the server asks of every runner."""

    @property
    def loaded(self) -> OpenModel: ...

    def warm_up(self) -> None:
        """What the first request would otherwise wait for, beside the first batches of the model."""


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


class LogitsRunner:
    """A head that judges whole rows: a classifier, a cross-encoder, next sentence. Answers are rows of logits."""

    def __init__(self, task: str, source: Source, place: Place) -> None:
        kind = BertForNextSentencePrediction if task == "next" else BertForSequenceClassification
        self.loaded = open_model(source, kind, task=task, device=place.device, dtype=place.dtype)
        self.lane = Lane(task, self._run)
        self.config = self.loaded.model.config
        self.names = label_names(self.config)

    def warm_up(self) -> None:
        pass

    def items(
        self,
        first: int,
        texts: Sequence[TextOrPair],
        *,
        truncation: Truncation,
        cuts: Cuts,
        long: str = "truncate",
        sliding: Sliding = "longer",
    ) -> list[tuple[list[Row], list[int]]]:
        """For each text its rows and their weights. `first` is the number of the first text in its request."""
        tokenizer, limit = self.loaded.tokenizer, self.loaded.max_length
        if long == "windows":
            found = [split_text_or_pair(tokenizer, text, max_length=limit, sliding=sliding) for text in texts]
            cuts.count(sum(one.is_cut for one in found), len(found))
            return [(one.rows, one.weights) for one in found]
        rows = cut_rows(self.loaded, first, texts, cuts, refuse=truncation == "error")
        return [([row], [1]) for row in rows]

    @torch.inference_mode()
    def _run(self, rows: list[Row]) -> list[Floats]:
        logits: Floats = self.loaded.run(rows).logits.float().cpu().numpy()
        return list(logits)

    @cached_property
    def rank_rule(self) -> tuple[int, Function]:
        """The label that means relevance, and how its logit becomes a score."""
        return self.rank_by(None)

    def rank_by(self, label: str | None) -> tuple[int, Function]:
        """The same by the name of a label."""
        ranker = Reranker(self.loaded, relevant=label)
        return ranker.label, ranker.function

    def function(self, multi_label: bool | None) -> Function:
        return score_function(self.config, multi_label)


class RowTask(Protocol):
    """A task that says itself how items become rows, what the model gives for them, and what that means.

    Items, contexts and the model's outputs are the task's own business.
    """

    def checked(self, item: Any, where: str) -> Any: ...

    def rows(self, item: Any) -> tuple[Any, list[Row]]: ...

    def run(self, rows: list[Row]) -> Sequence[Any]: ...

    def decode(self, context: Any, outputs: list[Any]) -> Any: ...


class RowRunner:
    """A `RowTask`, made for every request and not kept: what a client sends as its labels must not stay here.

    `run` is the task's own where rows of requests with different options may share a batch. Otherwise `apart` is the
    option that keeps them apart. `repeats` is how often a text is read with these options.
    """

    def __init__(
        self,
        name: str,
        loaded: OpenModel,
        make: Callable[..., RowTask],
        *,
        run: Callable[[list[Row]], Sequence[object]] | None = None,
        apart: str = "",
        warm: str | tuple[str, str] | None = None,
        repeats: Callable[[Options], int] = lambda options: 1,
    ) -> None:
        self.name, self.loaded, self.make, self.repeats = name, loaded, make, repeats
        self._apart, self._warm = apart, warm
        self._shared = None if run is None else Lane(name, run)
        self._lanes: OrderedDict[object, Lane[Row, object]] = OrderedDict()

    def warm_up(self) -> None:
        if self._warm is not None:
            task = self.make(self.loaded)
            self.lane(task).run(task.rows(self._warm)[1])

    def lane(self, task: RowTask) -> Lane[Row, object]:
        """The lane of a task with its options."""
        if self._shared is not None:
            return self._shared
        option = getattr(task, self._apart)
        lane = self._lanes.setdefault(option, Lane(self.name, task.run))
        self._lanes.move_to_end(option)
        if len(self._lanes) > _MOST_LANES:
            self._lanes.popitem(last=False)
        return lane

    def prepared(
        self, task: RowTask, options: Options, item: object, number: int, longest: int
    ) -> tuple[Any, list[Row]]:
        """(what `decode` needs, rows) of an item. One of more than `longest` tokens is refused, before its tokens are
        made into Python's objects where it can be."""
        checked = task.checked(item, f"Input {number}")
        repeats = self.repeats(options)
        parts = (checked,) if isinstance(checked, str) else checked
        # A text that is not cut, or tokenized again for every label.
        whole = repeats > 1 or options.get("long", "windows") == "windows"
        if whole and sum(map(len, parts)) * repeats > longest:
            size = int(self.loaded.tokenizer.encode_flat(parts)[1].sum()) * repeats
            if size > longest:
                raise too_large(f"Input {number} takes {size} tokens; {longest} are allowed.")
        context, rows = task.rows(checked)
        if (size := sum(map(len, rows))) > longest:
            raise too_large(f"Input {number} takes {size} tokens; {longest} are allowed.")
        return context, rows


class FillRunner:
    """Words for masks. A text goes through the model several times (`MaskFiller.rounds`), each time as a job."""

    def __init__(self, source: Source, place: Place) -> None:
        filler = MaskFiller(source, device=place.device, dtype=place.dtype)
        self.loaded = filler.loaded
        self.lane = Lane("fill", filler.run)

    def warm_up(self) -> None:
        pass


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
