"""Documents sorted by how well they answer a query.

    for best in rerank("who wrote it?", documents, model="my-cross-encoder", top_k=3):
        print(best.score, best.text)

A cross-encoder (`BertForSequenceClassification`) reads query and document together. With one label the score is what
sentence-transformers' `CrossEncoder` gives: the activation the checkpoint names, and the sigmoid where it names none.
With several labels it is the probability of the one that means "relevant". An embedding model (a `BertModel`, or a
sentence-transformers folder) ranks by cosine instead: it reads each text alone, which is quicker and coarser. A model
with a vector for every token (ColBERT, or BGE-M3 with `vectors="multi"`) ranks by MaxSim: each of the query's vectors
counts as its best match in the document, and those are added up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from heapq import nlargest
from itertools import chain, tee
from typing import ClassVar, Literal, Protocol, TypedDict, Unpack, overload

import torch
from torch import Tensor

from bertie.answers import Ranked, Representation
from bertie.arguments import one_of, whole_number
from bertie.checkpoint.open_checkpoint import open_checkpoint
from bertie.config import read_json_object
from bertie.data.lists import listed
from bertie.errors import BertieError, InputError
from bertie.family import kind_of
from bertie.json_values import fields, text
from bertie.loading import model_class
from bertie.model import BertForSequenceClassification, BertModel
from bertie.running.open import ModelLike, OpenModel, is_named, open_model
from bertie.running.rows import DEFAULT_STRIDE, LONG, Cuts, Cutting, Long, Reading, Row, Sliding
from bertie.running.task import ScoringTask, checked_text, described, described_as, is_collection, with_bar
from bertie.tasks.classify import FUNCTIONS, Function, label_names, scores
from bertie.tasks.embed import Embedder
from bertie.tasks.represent import COLBERT, Representer, max_sim
from bertie.text import BertTokenizer

# What people call the label that says a document is good, when there are several.
RELEVANT = ("relevant", "is_relevant", "relevance", "yes", "true")


class PairScorer(Protocol):
    """How well documents answer: each one's score, and whether only a part of it was read."""

    def scored(self, query: str, documents: Iterable[str]) -> Iterator[tuple[float, bool]]:
        """Documents of one query."""

    def counted(self, items: Iterable[tuple[str, str]], cuts: Cuts) -> Iterator[tuple[float, bool]]:
        """(query, document) pairs; what is cut is counted in `cuts`, and nobody is warned."""

    def cuts(self) -> Cuts:
        """A new account of long texts."""

    def check(self, items: list[tuple[str, str]]) -> None:
        """Raise what `counted` would raise for one of these pairs: with `long="error"`, for one that is too long."""


class Reranker:
    """`Ranked` documents, best first (equal ones in their order); a list of such lists for a list of queries.

    `query` is one text or a list of them. `documents` is a list or an iterator; with `top_k` an iterator of any length
    needs no more memory than its answer. `ids` names the documents. A document longer than the model counts as its best
    window (`long="windows"`; windows overlap by `stride` tokens), is cut with a warning (`"truncate"`, as
    sentence-transformers does), or refused (`"error"`). A query of more than half the model's length is cut.
    `function` sets how logits become scores; `relevant` is the name of the label to rank by, where there are several
    (otherwise the one called "relevant", "yes" or "true"; a classifier that has none of these is refused). Without a
    classifier in the checkpoint, and without a model, the ranking is by cosine of embeddings (`bertie.embed`), or with
    `vectors="multi"` by MaxSim of the tokens' (`bertie.represent`), which is ColBERT's default; long documents are then
    cut.
    """

    name: ClassVar[str] = "rerank"

    def __init__(
        self,
        model: ModelLike | None = None,
        *,
        function: Function | None = None,
        relevant: str | None = None,
        vectors: Literal["dense", "multi"] | None = None,
        long: Long = "windows",
        stride: int = DEFAULT_STRIDE,
        tokenizer: BertTokenizer | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | str | None = None,
    ) -> None:
        one_of("function", function, (None, *FUNCTIONS))
        one_of("long", long, LONG)
        one_of("vectors", vectors, (None, "dense", "multi"))
        if vectors == "multi" or (vectors is None and is_colbert(model)):
            if not is_named(model):
                raise InputError("{vectors} needs the checkpoint's files.", "Give its folder.", vectors="multi")
            cut = "error" if long == "error" else "truncate"
            queries, texts = (
                Representer(model, vectors="multi", query=query, long=cut, device=device, dtype=dtype)
                for query in (True, False)
            )
            self.scorer: PairScorer = _MaxSim(queries, texts)
            self.loaded = texts.loaded
            return
        if embeds(model):
            for name, value in (("function", function), ("relevant", relevant)):
                if value is not None:
                    raise InputError(
                        f"{{{name}}} is for classifiers; an embedding model ranks by cosine.",
                        "Leave it out, or use a cross-encoder.",
                        **{name: value},
                    )
            embedder = Embedder(model, tokenizer=tokenizer, device=device, dtype=dtype, normalize=True)
            self.scorer = _Cosine(embedder, long)
            self.loaded = embedder.loaded
            return
        self.loaded = open_model(
            model, BertForSequenceClassification, task=self.name, tokenizer=tokenizer, device=device, dtype=dtype
        )
        names = label_names(self.loaded.config)
        if relevant is not None:
            one_of("relevant", relevant, names)
        found = relevant_label(names) if relevant is None else names.index(relevant)
        if found is None:
            shown = ", ".join(map(repr, names[:6])) + (" …" if len(names) > 6 else "")
            raise InputError(
                f"{self.loaded.name or 'The model'} is a classifier with the labels {shown}; none of them means that "
                "a document is relevant.",
                "Use a reranker (a cross-encoder), or name the label to rank by: {relevant}.",
                relevant=names[-1],
            )
        self.label = found
        self.function = function or default_function(self.loaded)
        self.scorer = _CrossEncoder(self.loaded, found, self.function, long, stride)

    @overload
    def __call__(
        self, query: str, documents: Iterable[str], *, top_k: int | None = ..., ids: Iterable[Hashable] | None = ...,
        progress: bool | None = ...,
    ) -> list[Ranked]: ...  # fmt: skip

    @overload
    def __call__(
        self, query: list[str] | tuple[str, ...], documents: Iterable[str], *, top_k: int | None = ...,
        ids: Iterable[Hashable] | None = ..., progress: bool | None = ...,
    ) -> list[list[Ranked]]: ...  # fmt: skip

    def __call__(
        self,
        query: object,
        documents: Iterable[str],
        *,
        top_k: int | None = None,
        ids: Iterable[Hashable] | None = None,
        progress: bool | None = None,
    ) -> list[Ranked] | list[list[Ranked]]:
        """The ranking of one query, or a list of rankings for a list of queries."""
        whole_number("top_k", top_k, or_none="all documents")
        if not is_collection(documents):
            raise InputError(f"documents is {described(documents)}; it must be a list or an iterator of strings.")
        several = is_collection(query)
        total = None
        if not isinstance(documents, Iterator) or several:
            documents = listed(documents, "documents")
            total = len(documents)
        if not several:
            return self._rank(checked_text(query, "The query"), documents, total, top_k, ids, progress)
        queries = [checked_text(one, f"Query {number}") for number, one in enumerate(listed(query, "queries"))]
        ids = None if ids is None else list(ids)
        return [self._rank(one, documents, total, top_k, ids, progress) for one in queries]

    def _rank(
        self,
        query: str,
        documents: Iterable[str],
        total: int | None,
        top_k: int | None,
        ids: Iterable[Hashable] | None,
        progress: bool | None,
    ) -> list[Ranked]:
        waiting: deque[tuple[int, Hashable, str]] = deque()  # read ahead by the model, not scored yet

        def texts() -> Iterator[str]:
            for entry in _numbered(documents, total, ids):
                waiting.append(entry)
                yield entry[2]

        def ranked() -> Iterator[Ranked]:
            for score, is_cut in self.scorer.scored(query, texts()):
                index, name, text = waiting.popleft()
                yield Ranked(index, name, score, text, is_cut)

        found = with_bar(ranked(), self.name, total, progress)
        if top_k is None:
            return sorted(found, key=lambda one: -one.score)
        return nlargest(top_k, found, key=lambda one: one.score)  # holds no more than it gives


class _CrossEncoder(ScoringTask[tuple[str, str], Tensor, tuple[float, bool]]):
    """Query and document read together: (score, whether only a part was read)."""

    sliding: ClassVar[Sliding] = "second"

    def __init__(self, loaded: OpenModel, label: int, function: Function, long: Long, stride: int) -> None:
        self.loaded, self.label, self.function, self.long, self.stride = loaded, label, function, long, stride

    def scored(self, query: str, documents: Iterable[str]) -> Iterator[tuple[float, bool]]:
        return self.stream((query, document) for document in documents)

    def start(self, rows: list[Row]) -> Callable[[], list[Tensor]]:
        return self.loaded.row_logits(rows)

    def check(self, items: list[tuple[str, str]]) -> None:
        self.tokenized(items, self.cuts())

    def decode(self, context: Reading, judged: list[Tensor]) -> tuple[float, bool]:
        # A document is as good as its best window.
        return float(scores(torch.stack(judged), self.function)[:, self.label].max()), context.is_cut


@dataclass(frozen=True)
class _Cosine:
    """Cosine of query and document, by the embedding task, each with the prompt that the checkpoint has for it."""

    embedder: Embedder
    long: Long

    def scored(self, query: str, documents: Iterable[str]) -> Iterator[tuple[float, bool]]:
        embed = self.embedder.embed
        (asked,) = embed([query], prompt_name="query", long=self.long, progress=False)
        cut: deque[bool] = deque()

        def noted() -> Iterator[str]:
            for document in documents:
                cut.append(self.long == "truncate" and self.embedder.is_cut(document, prompt_name="document"))
                yield document

        for vector in embed(noted(), prompt_name="document", long=self.long, progress=False):
            yield float(vector @ asked), cut.popleft()

    def counted(self, items: Iterable[tuple[str, str]], cuts: Cuts) -> Iterator[tuple[float, bool]]:
        first, second = tee(items)
        cut: deque[bool] = deque()

        def noted() -> Iterator[str]:
            for _, document in second:
                cut.append(self.long == "truncate" and self.embedder.is_cut(document, prompt_name="document"))
                yield document

        vectors = self.embedder.vector_stream
        queries = vectors(self._cutting("query", cuts)).vectors(query for query, _ in first)
        documents = vectors(self._cutting("document", cuts)).vectors(noted())
        for asked, vector in zip(chain.from_iterable(queries), chain.from_iterable(documents), strict=True):
            yield float(vector @ asked), cut.popleft()

    def cuts(self) -> Cuts:
        return Cuts(self.long, self.embedder.max_length)

    def check(self, items: list[tuple[str, str]]) -> None:
        for name, texts in zip(("query", "document"), zip(*items, strict=True), strict=True):
            self._cutting(name, self.cuts()).pieces(texts)

    def _cutting(self, prompt_name: str, cuts: Cuts) -> Cutting:
        return replace(self.embedder.cutting(prompt_name=prompt_name, long=self.long), cuts=cuts)


@dataclass(frozen=True)
class _MaxSim:
    """Every token of the query against every token of the document."""

    queries: Representer
    documents: Representer

    def scored(self, query: str, documents: Iterable[str]) -> Iterator[tuple[float, bool]]:
        (asked,) = self.queries([query], progress=False)
        for found in self.documents(iter(documents), progress=False):
            yield self._score(asked, found)

    def counted(self, items: Iterable[tuple[str, str]], cuts: Cuts) -> Iterator[tuple[float, bool]]:
        first, second = tee(items)
        asked = self.queries.counted((query for query, _ in first), cuts)
        found = self.documents.counted((document for _, document in second), cuts)
        return map(self._score, asked, found)

    def cuts(self) -> Cuts:
        return self.documents.cuts()

    def check(self, items: list[tuple[str, str]]) -> None:
        for representer, texts in zip((self.queries, self.documents), zip(*items, strict=True), strict=True):
            list(representer.tokenized(list(texts), representer.cuts()))

    @staticmethod
    def _score(asked: Representation, found: Representation) -> tuple[float, bool]:
        assert asked.multi is not None  # it was asked for
        assert found.multi is not None
        return max_sim(asked.multi, found.multi), found.truncated


class RerankSettings(TypedDict, total=False):
    model: ModelLike | None
    function: Function | None
    relevant: str | None
    vectors: Literal["dense", "multi"] | None
    long: Long
    stride: int
    tokenizer: BertTokenizer | None
    device: torch.device | str | None
    dtype: torch.dtype | str | None


@overload
def rerank(
    query: str, documents: Iterable[str], *, top_k: int | None = ..., ids: Iterable[Hashable] | None = ...,
    progress: bool | None = ..., **settings: Unpack[RerankSettings],
) -> list[Ranked]: ...  # fmt: skip


@overload
def rerank(
    query: list[str] | tuple[str, ...], documents: Iterable[str], *, top_k: int | None = ...,
    ids: Iterable[Hashable] | None = ..., progress: bool | None = ..., **settings: Unpack[RerankSettings],
) -> list[list[Ranked]]: ...  # fmt: skip


def rerank(
    query: str | list[str] | tuple[str, ...],
    documents: Iterable[str],
    *,
    top_k: int | None = None,
    ids: Iterable[Hashable] | None = None,
    progress: bool | None = None,
    **settings: Unpack[RerankSettings],
) -> list[Ranked] | list[list[Ranked]]:
    return Reranker(**settings)(query, documents, top_k=top_k, ids=ids, progress=progress)


described_as(rerank, Reranker)


def embeds(model: ModelLike | None) -> bool:
    """Is this a model without a head: one that gives vectors?"""
    if model is None:
        return True
    if is_named(model):
        return kind_of(model_class(open_checkpoint(model))) is BertModel
    return isinstance(getattr(model, "model", model), BertModel)


def is_colbert(model: ModelLike | None) -> bool:
    """Does the checkpoint carry ColBERT's own layer, with which it was trained to give a vector to every token?"""
    return is_named(model) and COLBERT in open_checkpoint(model).tensors.info


def relevant_label(names: Sequence[str]) -> int | None:
    """Which label says that a document is relevant: the only one, or one that is called so. None if there is none."""
    if len(names) == 1:
        return 0
    return next((index for index, name in enumerate(names) if name.strip().lower() in RELEVANT), None)


def default_function(loaded: OpenModel) -> Function:
    """What the checkpoint names as a cross-encoder's activation; else sigmoid for one label, softmax for several."""
    if loaded.config.num_labels > 1:
        return "softmax"
    named = _named_activation(loaded)
    # The name is a class's full path; it is compared and never imported.
    return "none" if named is not None and named.rpartition(".")[2] == "Identity" else "sigmoid"


def _named_activation(loaded: OpenModel) -> str | None:
    extra = loaded.config.extra
    places: list[object] = [extra.get("sentence_transformers"), extra]
    if loaded.folder is not None:
        file = loaded.folder / "config_sentence_transformers.json"
        if file.is_file():
            with suppress(BertieError):
                places.insert(0, read_json_object(file))
    for place in map(fields, places):
        named = text(place.get("activation_fn", place.get("sbert_ce_default_activation_function")))
        if named is not None:
            return named
    return None


def _numbered(
    documents: Iterable[str], total: int | None, ids: Iterable[Hashable] | None
) -> Iterator[tuple[int, Hashable, str]]:
    missing = object()
    names = iter(()) if ids is None else iter(ids)
    if total is not None and isinstance(ids, Sequence) and len(ids) != total:
        raise InputError(f"There are {total} documents and {len(ids)} ids.", "Pass one id for each document.")
    for index, document in enumerate(documents):
        name: Hashable = index if ids is None else next(names, missing)
        if name is missing:
            raise InputError(f"There is no id for document {index}.", "Pass one id for each document.")
        yield index, name, checked_text(document, f"Document {index}")
    if next(names, missing) is not missing:
        raise InputError("There are more ids than documents.", "Pass one id for each document.")
