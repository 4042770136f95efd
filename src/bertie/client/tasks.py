"""The tasks as methods, once for both clients.

Each method checks what it was given and hands it on with the call that answers a list of it; a client decides how
calls are made. So the methods of `Client` give answers and those of `AsyncClient` awaitables of the same answers. A
text gives one answer, a list a list in its order, an iterator an iterator: as in `bertie.tasks`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from bertie.answers import Ranked
from bertie.client import requests as calls
from bertie.client.requests import Call
from bertie.client.retries import Retrying
from bertie.data.lists import listed
from bertie.errors import InputError

if TYPE_CHECKING:
    from bertie.answers import Floats

DEFAULT_URL = "http://127.0.0.1:8000"
KEY_VARIABLE = "BERTIE_API_KEY"
URL_VARIABLE = "BERTIE_URL"

Make = Callable[[Sequence[Any]], Call[list[Any]]]


class Asking:
    """What a client is told when it is made, and everything it can be asked."""

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        model: str | None = None,
        timeout: float | None = 60.0,
        attempts: int = 6,
        batch_size: int = 32,
        concurrency: int = 4,
    ) -> None:
        """`url` is the server's (BERTIE_URL, else this machine), `api_key` is BERTIE_API_KEY by default.

        `model` names one of several models of a server. Lists and streams go out in batches of `batch_size`, at most
        `concurrency` at a time. `timeout` is the seconds one request may take; None waits for ever. A server that is
        busy or away is tried `attempts` times.
        """
        self.url = _checked_url(url or os.environ.get(URL_VARIABLE) or DEFAULT_URL)
        self.model, self.timeout = model, timeout
        self.batch_size = _count("batch_size", batch_size)
        self.concurrency = _count("concurrency", concurrency)
        self.retrying = Retrying(attempts=attempts)
        self._key = api_key or os.environ.get(KEY_VARIABLE) or None
        if self._key and not all(32 < ord(letter) < 127 for letter in self._key):
            raise InputError("The API key has characters that no HTTP header can carry.", "Is there a line end in it?")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"  # never the key

    @property
    def _headers(self) -> dict[str, str]:
        headers = {"content-type": "application/json", "accept": "application/json", "user-agent": "bertie-client"}
        return headers | ({"authorization": f"Bearer {self._key}"} if self._key else {})

    # -- the two things a client does in its own way --------------------------------------------------------------

    def _send(self, call: Call[Any]) -> Any:
        raise NotImplementedError

    def _answers(
        self,
        given: Any,
        make: Make,
        *,
        one: bool,
        finish: Callable[[list[Any]], Any] = list,
        number: Callable[[int, Any], Any] | None = None,
    ) -> Any:
        """One answer if `given` is `one` item; a list, put in shape by `finish`; an iterator for an iterator.

        `number` tells an answer how many came before it.
        """
        raise NotImplementedError

    def _then(self, value: Any, change: Callable[[Any], Any]) -> Any:
        raise NotImplementedError

    # -- the tasks -----------------------------------------------------------------------------------------------

    def embed(
        self,
        texts: Any,
        *,
        dimensions: int | None = None,
        truncate_dim: int | None = None,
        prompt_name: str | None = None,
        normalize: bool | None = None,
    ) -> Any:
        """A text's float32 vector `[d]`; a list's `[n, d]`; for an iterator an iterator of vectors.

        `truncate_dim` keeps the first numbers of each vector, as `bertie.embed` does; `dimensions` does too, and gives
        unit vectors their length back, as OpenAI's does. `prompt_name` is one of the model's prompts, `normalize` the
        length of the vectors, both the model's own by default.
        """
        make = partial(
            calls.embed,
            model=self.model,
            dimensions=dimensions,
            truncate_dim=truncate_dim,
            prompt_name=prompt_name,
            normalize=normalize,
        )
        return self._answers(texts, make, one=_is_text(texts), finish=_stacked)

    def similarity(self, a: str | Sequence[str], b: str | Sequence[str] | None = None) -> Any:
        """Cosines `[len(a), len(b)]` of texts; of `a` with itself when there is no `b`."""
        first = [a] if isinstance(a, str) else listed(a)
        second = first if b is None else [b] if isinstance(b, str) else listed(b)

        def matrix(vectors: Floats) -> Floats:
            unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
            left = unit[: len(first)]
            cosines: Floats = left @ (left if b is None else unit[len(first) :]).T
            return cosines

        return self._then(self.embed(first if b is None else first + second), matrix)

    def rerank(self, query: str, documents: Sequence[str], *, top_k: int | None = None) -> Any:
        """`Ranked` documents, best first, equal ones in their order."""
        if not isinstance(query, str):
            raise InputError(f"The query is a {type(query).__name__}; a string was wanted.")
        if isinstance(documents, str):
            raise InputError("The documents are one string.", "Pass a list of texts.")
        found = listed(documents, "documents")

        def order(ranked: list[Ranked]) -> list[Ranked]:
            return sorted(ranked, key=lambda one: -one.score)[:top_k]

        make = partial(calls.rerank, query, model=self.model)
        return self._answers(
            found, make, one=False, finish=order, number=lambda place, one: replace(one, index=place, id=place)
        )

    def classify(
        self,
        texts: Any,
        *,
        labels: Sequence[str] | None = None,
        hypothesis: str | None = None,
        top_k: int | None = None,
        multi_label: bool | None = None,
        long: str | None = None,
    ) -> Any:
        """A `Classification` for a text or a pair (a tuple); with `labels` of your own, by an inference model."""
        make = partial(
            calls.classify,
            model=self.model,
            labels=None if labels is None else list(labels),
            hypothesis=hypothesis,
            top_k=top_k,
            multi_label=multi_label,
            long=long,
        )
        return self._answers(texts, make, one=_is_text(texts) or isinstance(texts, tuple))

    def tag(self, texts: Any, *, aggregation: str | None = None, ignore_labels: Sequence[str] | None = None) -> Any:
        """The entities of a text, a list of `Entity`."""
        ignored = None if ignore_labels is None else list(ignore_labels)
        make = partial(calls.tag, model=self.model, aggregation=aggregation, ignore_labels=ignored)
        return self._answers(texts, make, one=_is_text(texts))

    def answer(
        self,
        question: Any,
        context: Any = None,
        *,
        n_best: int | None = None,
        no_answer: bool | None = None,
        threshold: float | None = None,
        max_answer_tokens: int | None = None,
    ) -> Any:
        """An `AnswerResult` for a question and a context; a list for two lists, or for an iterable of pairs."""
        pairs, one = _paired(question, context, "question and context")
        make = partial(
            calls.answer,
            model=self.model,
            n_best=n_best,
            no_answer=no_answer,
            threshold=threshold,
            max_answer_tokens=max_answer_tokens,
        )
        return self._answers(pairs, make, one=one)

    def fill(self, texts: Any, *, top_k: int | None = None, targets: Sequence[str] | None = None) -> Any:
        """A `Filled` for a text with [MASK] in it."""
        wanted = [targets] if isinstance(targets, str) else None if targets is None else list(targets)
        make = partial(calls.fill, model=self.model, top_k=top_k, targets=wanted)
        return self._answers(texts, make, one=_is_text(texts))

    def next_sentence(self, first: Any, second: Any = None) -> Any:
        """A `NextSentence` for two texts; a list for two lists, or for an iterable of pairs."""
        pairs, one = _paired(first, second, "first and second text")
        return self._answers(pairs, partial(calls.next_sentence, model=self.model), one=one)

    def features(self, texts: Any, *, layers: Sequence[int] | None = None, long: str | None = None) -> Any:
        """`Features` of a text or a pair (a tuple): a vector for every token from each of the `layers`."""
        wanted = None if layers is None else list(layers)
        make = partial(calls.features, model=self.model, layers=wanted, long=long)
        one = _is_text(texts) or isinstance(texts, tuple)
        return self._answers(texts, make, one=one, number=lambda place, found: replace(found, index=place))

    def tokenize(self, texts: Any, *, add_special_tokens: bool | None = None) -> Any:
        """A text's list of `Token`."""
        make = partial(calls.tokenize, model=self.model, add_special_tokens=add_special_tokens)
        return self._answers(texts, make, one=_is_text(texts))

    def models(self) -> Any:
        """The names of the server's models."""
        return self._send(calls.models())

    def info(self) -> Any:
        """What the server says about itself."""
        return self._send(calls.info())

    def health(self) -> Any:
        """True from a server that is well; a ServerError otherwise."""
        return self._send(calls.health())


def is_stream(given: Any) -> bool:
    """Something that is read once, in order, and need not end."""
    return isinstance(given, AsyncIterable) or (isinstance(given, Iterable) and iter(given) is given)


def checked_item(item: Any, number: int) -> Any:
    """A text, or a tuple of them."""
    if isinstance(item, list) and len(item) == 2:
        item = tuple(item)
    parts = item if isinstance(item, tuple) else (item,)
    for part in parts:
        if not isinstance(part, str):
            raise InputError(
                f"Text {number} is of type {type(part).__name__}; a string was wanted.",
                "Decode bytes, and leave out or fill in None.",
            )
    return item


def _is_text(given: Any) -> bool:
    return isinstance(given, str)


def _stacked(vectors: list[Floats]) -> Floats:
    return np.stack(vectors) if vectors else np.empty((0, 0), dtype=np.float32)


def _paired(first: Any, second: Any, what: str) -> tuple[Any, bool]:
    """Two texts, two lists of one length, or an iterable of pairs; and whether it is one pair."""
    if second is None:
        if isinstance(first, str):
            raise InputError(f"Only one text was given for {what}.", "Pass two texts, two lists, or a list of pairs.")
        return first, isinstance(first, tuple)
    if isinstance(first, str) and isinstance(second, str):
        return (first, second), True
    if isinstance(first, str) or isinstance(second, str):
        raise InputError(f"Of {what} one is a text and one is not.", "Pass two texts, or two lists of one length.")
    if is_stream(first) or is_stream(second):
        return iter(zip(first, second, strict=True)), False
    left, right = listed(first, what), listed(second, what)
    if len(left) != len(right):
        raise InputError(f"{what}: {len(left)} and {len(right)}; there must be as many of both.")
    return list(zip(left, right, strict=True)), False


def _checked_url(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise InputError(f"{url!r} is not the address of a server.", f"Write it like {DEFAULT_URL}.")
    return url.rstrip("/")


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name} is {value!r}; it takes a whole number of at least 1.")
    return value
