"""Documents in the order of how well they answer a query.

    for best in rerank("who wrote it?", documents, model="my-cross-encoder", top_k=3):
        print(best.score, best.text)

A cross-encoder (`BertForSequenceClassification`) reads query and document together. With one label the score is what
sentence-transformers' `CrossEncoder` gives: the activation the checkpoint names, and the sigmoid where it names none.
With several labels it is the probability of the one that means "relevant". An embedding model (a `BertModel`, or a
sentence-transformers folder) ranks by cosine instead: it reads each text alone, which is quicker and coarser.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from heapq import nlargest
from typing import Any, ClassVar

import torch

from bertie.answers import Ranked
from bertie.checkpoint.read import open_checkpoint
from bertie.config import read_json_object
from bertie.data.lists import is_table, listed
from bertie.errors import BertieError, InputError
from bertie.loading import model_class
from bertie.model import BertForSequenceClassification, BertModel
from bertie.running.inputs import checked_choice, checked_count, checked_text, described
from bertie.running.long_texts import LONG, Cuts, Long
from bertie.running.open import Loaded, ModelLike, open_model
from bertie.running.progress import with_progress
from bertie.running.rows import DEFAULT_STRIDE
from bertie.running.scoring import window_logits
from bertie.tasks.classify import FUNCTIONS, Function, label_names, scores
from bertie.text import BertTokenizer

# A query and documents → each document's score, and whether only a part of it was read.
Score = Callable[[str, Iterable[str]], Iterator[tuple[float, bool]]]

# What people call the label that says a document is good, when there are several.
RELEVANT = ("relevant", "is_relevant", "relevance", "yes", "true")


class Reranker:
    """`rerank` with its model fixed: call it with a query and its documents."""

    name: ClassVar[str] = "rerank"

    def __init__(
        self,
        model: ModelLike | None = None,
        *,
        function: Function | None = None,
        relevant: str | None = None,
        long: Long = "windows",
        stride: int = DEFAULT_STRIDE,
        tokenizer: BertTokenizer | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | str | None = None,
    ) -> None:
        checked_choice("function", function, (None, *FUNCTIONS))
        checked_choice("long", long, LONG)
        self.long, self.stride = long, stride
        if embeds(model):
            for name, value in (("function", function), ("relevant", relevant)):
                if value is not None:
                    raise InputError(
                        f"{name}={value!r} is for classifiers; an embedding model ranks by cosine.",
                        "Leave it out, or use a cross-encoder.",
                    )
            self._score: Score = _Cosine(model, long, tokenizer, device, dtype)
            return
        self.loaded = open_model(
            model, BertForSequenceClassification, task=self.name, tokenizer=tokenizer, device=device, dtype=dtype
        )
        names = label_names(self.loaded.model.config)
        if relevant is not None:
            checked_choice("relevant", relevant, names)
        found = relevant_label(names) if relevant is None else names.index(relevant)
        if found is None:
            shown = ", ".join(map(repr, names[:6])) + (" …" if len(names) > 6 else "")
            raise InputError(
                f"{self.loaded.name or 'The model'} is a classifier with the labels {shown}; none of them means that "
                "a document is relevant.",
                f"Use a reranker (a cross-encoder), or name the label to rank by: relevant={names[-1]!r}.",
            )
        self.label = found
        self.function = function or default_function(self.loaded)
        self._score = self._read_together

    def __call__(
        self,
        query: Any,
        documents: Iterable[str],
        *,
        top_k: int | None = None,
        ids: Iterable[Hashable] | None = None,
        progress: bool | None = None,
    ) -> Any:
        """The ranking of one query, or a list of rankings for a list of queries."""
        checked_count("top_k", top_k, none_means="all documents")
        if isinstance(documents, (str, bytes, dict)) or not (hasattr(documents, "__iter__") or is_table(documents)):
            raise InputError(f"documents is {described(documents)}; a list or an iterator of strings was wanted.")
        several = not isinstance(query, str) and (hasattr(query, "__iter__") or is_table(query))
        if not isinstance(documents, Iterator) or several:
            documents = listed(documents, "documents")
        if not several:
            return self._rank(checked_text(query, "The query"), documents, top_k, ids, progress)
        queries = [checked_text(one, f"Query {number}") for number, one in enumerate(listed(query, "queries"))]
        ids = None if ids is None else list(ids)
        return [self._rank(one, documents, top_k, ids, progress) for one in queries]

    def _rank(
        self,
        query: str,
        documents: Iterable[str],
        top_k: int | None,
        ids: Iterable[Hashable] | None,
        progress: bool | None,
    ) -> list[Ranked]:
        waiting: deque[tuple[int, Hashable, str]] = deque()  # read ahead by the model, not scored yet

        def texts() -> Iterator[str]:
            for entry in _numbered(documents, ids):
                waiting.append(entry)
                yield entry[2]

        def ranked() -> Iterator[Ranked]:
            for score, is_cut in self._score(query, texts()):
                index, name, text = waiting.popleft()
                yield Ranked(index, name, score, text, is_cut)

        total = len(documents) if isinstance(documents, Sequence) else None
        found = with_progress(ranked(), what=self.name, total=total, show=progress)
        if top_k is None:
            return sorted(found, key=lambda one: -one.score)
        return nlargest(top_k, found, key=lambda one: one.score)  # holds no more than it gives

    def _read_together(self, query: str, documents: Iterable[str]) -> Iterator[tuple[float, bool]]:
        pairs = ((query, document) for document in documents)
        with Cuts(self.long, self.loaded.max_length).told() as cuts:
            for logits, _ in window_logits(self.loaded, pairs, cuts=cuts, stride=self.stride, sliding="second"):
                # A document is as good as its best window.
                yield float(scores(logits, self.function)[:, self.label].max()), cuts.next_is_cut()


class _Cosine:
    """Cosine of query and document, by the embedding task, each with the prompt that the checkpoint has for it."""

    def __init__(
        self,
        model: ModelLike | None,
        long: Long,
        tokenizer: BertTokenizer | None,
        device: torch.device | str | None,
        dtype: torch.dtype | str | None,
    ) -> None:
        from bertie.tasks.embed import Embedder

        self._embedder = Embedder(model, tokenizer=tokenizer, device=device, dtype=dtype, normalize=True)
        self._long = long

    def __call__(self, query: str, documents: Iterable[str]) -> Iterator[tuple[float, bool]]:
        embed = self._embedder.embed
        (asked,) = embed([query], prompt_name="query", long=self._long, progress=False)
        cut: deque[bool] = deque()

        def noted() -> Iterator[str]:
            for document in documents:
                cut.append(self._long == "truncate" and self._embedder.is_cut(document, prompt_name="document"))
                yield document

        for vector in embed(noted(), prompt_name="document", long=self._long, progress=False):
            yield float(vector @ asked), cut.popleft()


def rerank(
    query: Any,
    documents: Iterable[str],
    *,
    model: ModelLike | None = None,
    top_k: int | None = None,
    ids: Iterable[Hashable] | None = None,
    function: Function | None = None,
    relevant: str | None = None,
    long: Long = "windows",
    stride: int = DEFAULT_STRIDE,
    tokenizer: BertTokenizer | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = None,
    progress: bool | None = None,
) -> Any:
    """`Ranked` documents, best first (equal ones in their order); a list of such lists for a list of queries.

    `documents` is a list or an iterator; with `top_k` an iterator of any length needs no more memory than its answer.
    `ids` names the documents. A document longer than the model counts as its best window (`long="windows"`), is cut
    with a warning (`"truncate"`, as sentence-transformers does), or refused (`"error"`). A query of more than half the
    model's length is cut.
    `function` sets how logits become scores; `relevant` is the name of the label to rank by, where there are several
    (otherwise the one called "relevant", "yes" or "true"; a classifier that has none of these is refused). Without a
    classifier in the checkpoint, and without a model, the ranking is by cosine of embeddings (`bertie.embed`).
    """
    task = Reranker(
        model,
        function=function,
        relevant=relevant,
        long=long,
        stride=stride,
        tokenizer=tokenizer,
        device=device,
        dtype=dtype,
    )
    return task(query, documents, top_k=top_k, ids=ids, progress=progress)


def embeds(model: ModelLike | None) -> bool:
    """Is this a model without a head: one that gives vectors?"""
    if model is None:
        return True
    if isinstance(model, (str, os.PathLike)):
        return model_class(open_checkpoint(model)) is BertModel
    return isinstance(model.model if isinstance(model, Loaded) else model, BertModel)


def relevant_label(names: Sequence[str]) -> int | None:
    """Which label says that a document is relevant: the only one, or one that is called so. None if there is none."""
    if len(names) == 1:
        return 0
    return next((index for index, name in enumerate(names) if name.strip().lower() in RELEVANT), None)


def default_function(loaded: Loaded) -> Function:
    """What the checkpoint names as a cross-encoder's activation; else sigmoid for one label, softmax for several."""
    config = loaded.model.config
    if config.num_labels > 1:
        return "softmax"
    named = _named_activation(loaded)
    # The name is a class's full path; it is compared and never imported.
    return "none" if named is not None and named.rpartition(".")[2] == "Identity" else "sigmoid"


def _named_activation(loaded: Loaded) -> str | None:
    extra = loaded.model.config.extra
    places: list[Any] = [extra.get("sentence_transformers"), extra]
    if loaded.folder is not None:
        file = loaded.folder / "config_sentence_transformers.json"
        if file.is_file():
            with suppress(BertieError):
                places.insert(0, read_json_object(file))
    for place in places:
        if isinstance(place, dict):
            named = place.get("activation_fn", place.get("sbert_ce_default_activation_function"))
            if isinstance(named, str):
                return named
    return None


def _numbered(documents: Iterable[Any], ids: Iterable[Hashable] | None) -> Iterator[tuple[int, Hashable, str]]:
    missing = object()
    names = iter(()) if ids is None else iter(ids)
    if ids is not None and isinstance(ids, Sequence) and isinstance(documents, Sequence) and len(ids) != len(documents):
        raise InputError(f"There are {len(documents)} documents and {len(ids)} ids.", "Pass one id for each document.")
    for index, document in enumerate(documents):
        name: Any = index if ids is None else next(names, missing)
        if name is missing:
            raise InputError(f"There is no id for document {index}.", "Pass one id for each document.")
        yield index, name, checked_text(document, f"Document {index}")
    if next(names, missing) is not missing:
        raise InputError("There are more ids than documents.", "Pass one id for each document.")
