"""The tasks as methods, once for both clients.

A method says how its task is asked (`Plan`); a client decides how that is waited for. So a method of `Client` gives
answers and the same method of `AsyncClient` awaitables of them. A text gives one answer, a list a list in its order, an
iterator an iterator: as in `bertie.tasks`.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, update_wrapper
from itertools import islice
from types import ModuleType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeVar, overload

import numpy as np

from bertie.answers import (
    TASK_ROUTES,
    AnswerResult,
    Classification,
    Entity,
    Features,
    Filled,
    NextSentence,
    Prediction,
    Ranked,
    SentFeatures,
    Token,
)  # fmt: skip
from bertie.arguments import whole_number
from bertie.client import requests
from bertie.client.requests import BUSY, Call, Results, Retrying
from bertie.data.lists import listed
from bertie.errors import InputError, MissingExtra

if TYPE_CHECKING:
    import httpx

    from bertie.answers import Floats
    from bertie.client.asynchronous import AsyncClient
    from bertie.client.synchronous import Client

DEFAULT_URL = "http://127.0.0.1:8000"
KEY_VARIABLE = "BERTIE_API_KEY"
URL_VARIABLE = "BERTIE_URL"

P = ParamSpec("P")
I = TypeVar("I")  # noqa: E741  # an item
A = TypeVar("A")  # its answer
L = TypeVar("L")  # the answer to a list
W = TypeVar("W")  # an answer as it is sent
I_contra = TypeVar("I_contra", contravariant=True)
A_co = TypeVar("A_co", covariant=True)
L_co = TypeVar("L_co", covariant=True)
TextOrPair = str | tuple[str, str]


@dataclass(frozen=True)
class Plan(Generic[I, A, L]):
    """How items are asked for, what a list of their answers becomes, and how an answer learns its place.

    `second` are the texts that go with those given, where a task takes pairs; `what` is what the two are.
    """

    make: Callable[[Sequence[Any]], Call[list[A]]]
    finish: Callable[[list[A]], L]
    number: Callable[[int, A], A] = lambda place, answer: answer
    takes_pairs: bool = False  # so that a tuple is one item
    second: object = None
    what: str = ""
    items: Sequence[I] | None = None  # of a method that collects them itself


class SyncMethod(Protocol[P, I_contra, A_co, L_co]):
    """A task of a `Client`."""

    @overload
    def __call__(self, given: Iterator[I_contra], /, *args: P.args, **options: P.kwargs) -> Iterator[A_co]: ...

    @overload
    def __call__(self, given: I_contra, /, *args: P.args, **options: P.kwargs) -> A_co: ...

    @overload
    def __call__(self, given: Iterable[I_contra], /, *args: P.args, **options: P.kwargs) -> L_co: ...


class AsyncMethod(Protocol[P, I_contra, A_co, L_co]):
    """A task of an `AsyncClient`."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # what is iterated both ways is read asynchronously
        self, given: Iterator[I_contra] | AsyncIterable[I_contra], /, *args: P.args, **options: P.kwargs
    ) -> AsyncIterator[A_co]: ...

    @overload
    def __call__(self, given: I_contra, /, *args: P.args, **options: P.kwargs) -> Awaitable[A_co]: ...

    @overload
    def __call__(self, given: Iterable[I_contra], /, *args: P.args, **options: P.kwargs) -> Awaitable[L_co]: ...


_MISSING = object()
# What a method calls that which it is given, where it is not "texts".
_FIRST = {"answer": "question", "next_sentence": "first"}


class task(Generic[P, I, A, L]):  # noqa: N801  # a decorator
    """A method that takes items, made of one that says how they are asked for."""

    def __init__(self, plan: Callable[Concatenate[Any, P], Plan[I, A, L]]) -> None:
        self._plan, self.__doc__ = plan, plan.__doc__
        self._first = _FIRST.get(plan.__name__, "texts")

    @overload
    def __get__(self, client: Client, owner: type) -> SyncMethod[P, I, A, L]: ...

    @overload
    def __get__(self, client: AsyncClient, owner: type) -> AsyncMethod[P, I, A, L]: ...

    def __get__(self, client: Client | AsyncClient, owner: type) -> object:
        def method(given: object = _MISSING, *args: P.args, **options: P.kwargs) -> object:
            if given is _MISSING and self._first not in options:
                raise TypeError(f"{self._plan.__name__}() needs {self._first}.")
            given = options.pop(self._first) if given is _MISSING else given
            return client._asked(given, self._plan(client, *args, **options))

        return self if client is None else update_wrapper(method, self._plan)


class whole(Generic[P, L]):  # noqa: N801  # a decorator
    """A method with one answer to all that it is given."""

    def __init__(self, plan: Callable[Concatenate[Any, P], Plan[Any, Any, L]]) -> None:
        self._plan, self.__doc__ = plan, plan.__doc__

    @overload
    def __get__(self, client: Client, owner: type) -> Callable[P, L]: ...

    @overload
    def __get__(self, client: AsyncClient, owner: type) -> Callable[P, Awaitable[L]]: ...

    def __get__(self, client: Client | AsyncClient, owner: type) -> object:
        def method(*args: P.args, **options: P.kwargs) -> object:
            return client._all(self._plan(client, *args, **options))

        return self if client is None else update_wrapper(method, self._plan)


class TaskMethods:
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
        url = url or os.environ.get(URL_VARIABLE) or DEFAULT_URL
        if not url.startswith(("http://", "https://")):
            raise InputError(f"{url!r} is not the address of a server.", f"Write it like {DEFAULT_URL}.")
        whole_number("batch_size", batch_size)
        whole_number("concurrency", concurrency)
        self.url = url.rstrip("/")
        self.model, self.timeout, self.batch_size, self.concurrency = model, timeout, batch_size, concurrency
        self.retrying = Retrying(attempts=attempts)
        self._key = api_key or os.environ.get(KEY_VARIABLE) or None
        if self._key and not all(32 < ord(letter) < 127 for letter in self._key):
            raise InputError("The API key has characters that no HTTP header can carry.", "Is there a line end in it?")
        self._httpx = import_httpx()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"  # never the key

    def _connection(self, least: int, **timeouts: float | None) -> dict[str, Any]:
        """What both clients of httpx are made with, for `least` connections or more."""
        headers = {"content-type": "application/json", "accept": "application/json", "user-agent": "bertie-client"}
        return {
            "base_url": self.url,
            "headers": headers | ({"authorization": f"Bearer {self._key}"} if self._key else {}),
            "timeout": self._httpx.Timeout(self.timeout, connect=10.0, **timeouts),
            "limits": self._httpx.Limits(max_connections=max(self.concurrency, least)),
        }

    # -- what both clients do alike -------------------------------------------------------------------------------

    def _pause_after(self, problem: httpx.TransportError, attempt: int) -> float:
        """How long to wait after a connection that failed, or the final error."""
        httpx = self._httpx
        pause = self.retrying.pause(attempt)
        match problem:
            case httpx.ReadTimeout() | httpx.WriteTimeout() | httpx.PoolTimeout():
                # It may be working on it: asking again makes it worse.
                raise requests.too_slow(self.url, self.timeout) from None
            case httpx.UnsupportedProtocol() | httpx.LocalProtocolError():
                pause = None
        if pause is None:
            raise requests.unreachable(self.url, problem) from None
        return pause

    def _pause_for(self, response: httpx.Response, attempt: int) -> float:
        """How long to wait for a server that is busy, or its refusal."""
        pause = None
        if response.status_code in BUSY:
            pause = self.retrying.pause(attempt, requests.retry_after(response.headers))
        if pause is not None:
            return pause
        try:
            payload: object = json.loads(response.content)
        except ValueError:
            payload = None
        raise requests.refusal(response.status_code, payload, url=self.url)

    def _chunks(self, items: Iterable[I]) -> Iterator[list[I]]:
        checked = (checked_item(item, place) for place, item in enumerate(items))
        return iter(lambda: list(islice(checked, self.batch_size)), [])

    def _task(
        self, name: str, kind: type[Results[W]], read: Callable[[W], A], **settings: object
    ) -> Callable[[Sequence[object]], Call[list[A]]]:
        """How items are sent to one of our own routes, which give a result of a `kind` for every item."""
        return partial(requests.task, name, kind, read, requests.given(model=self.model, **settings))

    # -- the tasks -------------------------------------------------------------------------------------------------

    @task
    def embed(
        self,
        *,
        dimensions: int | None = None,
        truncate_dim: int | None = None,
        prompt_name: str | None = None,
        normalize: bool | None = None,
    ) -> Plan[str, Floats, Floats]:
        """A text's float32 vector `[d]`; a list's `[n, d]`; for an iterator an iterator of vectors.

        `truncate_dim` keeps the first numbers of each vector, as `bertie.embed` does; `dimensions` does too, and gives
        unit vectors their length back, as OpenAI's does. `prompt_name` is one of the model's prompts, `normalize` the
        length of the vectors, both the model's own by default.
        """
        make = partial(
            requests.embed, model=self.model, dimensions=dimensions, truncate_dim=truncate_dim,
            prompt_name=prompt_name, normalize=normalize,
        )  # fmt: skip
        return Plan(make, _stacked)

    @whole
    def similarity(self, a: str | Sequence[str], b: str | Sequence[str] | None = None) -> Plan[str, Floats, Floats]:
        """Cosines `[len(a), len(b)]` of texts; of `a` with itself when there is no `b`."""
        first = texts_of(a)
        second = [] if b is None else texts_of(b)

        def matrix(vectors: list[Floats]) -> Floats:
            unit = _stacked(vectors)
            unit = unit / np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), 1e-12)
            left = unit[: len(first)]
            cosines: Floats = left @ (left if b is None else unit[len(first) :]).T
            return cosines

        return Plan(partial(requests.embed, model=self.model), matrix, items=first + second)

    @whole
    def rerank(
        self, query: str, documents: Sequence[str], *, top_k: int | None = None
    ) -> Plan[str, Ranked, list[Ranked]]:
        """`Ranked` documents, best first, equal ones in their order."""
        if not isinstance(query, str):
            raise InputError(f"The query is a {type(query).__name__}; it must be a string.")
        if isinstance(documents, str):
            raise InputError("The documents are one string.", "Pass a list of texts.")
        return Plan(
            partial(requests.rerank, query, model=self.model),
            lambda ranked: sorted(ranked, key=lambda one: -one.score)[:top_k],
            lambda place, one: replace(one, index=place, id=place),
            items=texts_of(documents, "documents"),
        )

    @task
    def classify(
        self,
        *,
        labels: Sequence[str] | None = None,
        hypothesis: str | None = None,
        top_k: int | None = None,
        multi_label: bool | None = None,
        long: str | None = None,
    ) -> Plan[TextOrPair, Classification, list[Classification]]:
        """A `Classification` for a text or a pair (a tuple); with `labels` of your own, by an inference model."""
        make = self._task(
            "classify", Results[list[Prediction]], requests.classification, hypothesis=hypothesis, top_k=top_k,
            labels=None if labels is None else list(labels), multi_label=multi_label, long=long,
        )  # fmt: skip
        return Plan(make, list, takes_pairs=True)

    @task
    def tag(
        self, *, aggregation: str | None = None, ignore_labels: Sequence[str] | None = None
    ) -> Plan[str, list[Entity], list[list[Entity]]]:
        """The entities of a text, a list of `Entity`."""
        ignored = None if ignore_labels is None else list(ignore_labels)
        return Plan(
            self._task("tag", Results[list[Entity]], _same, aggregation=aggregation, ignore_labels=ignored), list
        )

    @task
    def answer(
        self,
        context: str | Iterable[str] | None = None,
        *,
        n_best: int | None = None,
        no_answer: bool | None = None,
        threshold: float | None = None,
        max_answer_tokens: int | None = None,
    ) -> Plan[TextOrPair, AnswerResult, list[AnswerResult]]:
        """An `AnswerResult` for a question and a context; a list for two lists, or for an iterable of pairs."""
        send = self._task(
            "answer", Results[AnswerResult], _same, n_best=n_best, no_answer=no_answer, threshold=threshold,
            max_answer_tokens=max_answer_tokens,
        )  # fmt: skip

        def make(pairs: Sequence[tuple[str, str]]) -> Call[list[AnswerResult]]:
            return send([{"question": question, "context": context} for question, context in pairs])

        return Plan(make, list, takes_pairs=True, second=context, what="question and context")

    @task
    def fill(
        self, *, top_k: int | None = None, targets: str | Sequence[str] | None = None
    ) -> Plan[str, Filled, list[Filled]]:
        """A `Filled` for a text with [MASK] in it."""
        wanted = None if targets is None else texts_of(targets)
        return Plan(self._task("fill", Results[Filled], _same, top_k=top_k, targets=wanted), list)

    @task
    def next_sentence(
        self, second: str | Iterable[str] | None = None
    ) -> Plan[TextOrPair, NextSentence, list[NextSentence]]:
        """A `NextSentence` for two texts; a list for two lists, or for an iterable of pairs."""
        make = self._task("next", Results[NextSentence], _same)
        return Plan(make, list, takes_pairs=True, second=second, what="first and second text")

    @task
    def features(
        self, *, layers: Sequence[int] | None = None, long: str | None = None
    ) -> Plan[TextOrPair, Features, list[Features]]:
        """`Features` of a text or a pair (a tuple): a vector for every token from each of the `layers`."""
        wanted = None if layers is None else list(layers)
        make = self._task("features", Results[SentFeatures], requests.features, layers=wanted, long=long)
        return Plan(make, list, lambda place, found: replace(found, index=place), takes_pairs=True)

    @task
    def tokenize(self, *, add_special_tokens: bool | None = None) -> Plan[str, list[Token], list[list[Token]]]:
        """A text's list of `Token`."""
        return Plan(partial(requests.tokenize, model=self.model, add_special_tokens=add_special_tokens), list)

    @task
    def ask(self, task: str, /, **options: object) -> Plan[TextOrPair, Any, list[Any]]:
        """`client.ask(texts, "tag")`: any task of `bertie.answers.TASK_ROUTES`, with the options of its route."""
        of_any: Any = Results
        return Plan(self._task(task, of_any[TASK_ROUTES[task].sent], _same, **options), list, takes_pairs=True)

    @whole
    def models(self) -> Plan[None, list[str], list[str]]:
        """The names of the server's models."""
        return _get("/v1/models", requests.Names, lambda found: [one.id for one in found.data])

    @whole
    def info(self) -> Plan[None, dict[str, Any], dict[str, Any]]:
        """What the server says about itself."""
        return _get("/info", dict[str, Any], dict)

    @whole
    def health(self) -> Plan[None, bool, bool]:
        """True from a server that is ready; a ServerError otherwise."""
        return _get("/health", object, lambda found: True)


def _routed(name: str) -> Callable[..., object]:
    """The method of a task that has only its route: its options are sent as they are."""

    def method(client: Any, texts: object, **options: object) -> object:
        return client.ask(texts, name, **options)

    method.__name__ = method.__qualname__ = name
    return method


for _name, _route in TASK_ROUTES.items():
    if not hasattr(TaskMethods, _route.method or _name):
        setattr(TaskMethods, _name, _routed(_name))


def _get(path: str, kind: type[W], read: Callable[[W], A]) -> Plan[None, A, A]:
    call = requests.call(path, None, kind, lambda found: [read(found)])
    return Plan(lambda _: call, lambda found: found[0])


def _stacked(vectors: list[Floats]) -> Floats:
    return np.stack(vectors) if vectors else np.empty((0, 0), dtype=np.float32)


def _same(answer: A) -> A:
    return answer


def import_httpx() -> ModuleType:
    """httpx, and msgspec, which reads answers."""
    try:
        import httpx
        import msgspec  # noqa: F401
    except ImportError as missing:
        raise MissingExtra(missing.name or "httpx", "serve", "Asking a server") from None
    return httpx


def is_stream(given: object) -> bool:
    """Something that is read once, in order, and need not end."""
    return isinstance(given, AsyncIterable) or (isinstance(given, Iterable) and iter(given) is given)


def checked_item(item: I, number: int) -> I:
    """A text, or two of them."""
    together = isinstance(item, tuple) or (isinstance(item, list) and len(item) == 2)
    parts: Any = item if together else (item,)
    for part in parts:
        if not isinstance(part, str):
            raise InputError(
                f"Text {number} is of type {type(part).__name__}; it must be a string.",
                "Decode bytes, and remove or replace None.",
            )
    return item


def shaped(given: Any, plan: Plan[I, A, L]) -> tuple[Literal["one", "stream", "list"], Any]:
    """What was given to a method, and which shape its answer has."""
    given = paired(given, plan.second, plan.what) if plan.what else given
    if isinstance(given, str) or (plan.takes_pairs and isinstance(given, tuple)):
        return "one", [checked_item(given, 0)]
    return ("stream", given) if is_stream(given) else ("list", texts_of(given))


def texts_of(given: Any, what: str = "texts") -> list[Any]:
    """All of a list is looked at before any of it is sent."""
    texts = [given] if isinstance(given, str) else listed(given, what)
    return [checked_item(text, number) for number, text in enumerate(texts)]


def paired(first: Any, second: Any, what: str) -> Any:
    """(first, second) of two texts; a list of such pairs for two lists of one length, an iterator for iterators."""
    alone = [isinstance(one, str) for one in (first, second)]
    if second is None:
        if alone[0]:
            raise InputError(f"Only one text was given for {what}.", "Pass two texts, two lists, or a list of pairs.")
        return first
    if all(alone):
        return first, second
    if any(alone):
        raise InputError(f"Of {what} one is a text and one is not.", "Pass two texts, or two lists of one length.")
    if is_stream(first) or is_stream(second):
        return iter(zip(first, second, strict=True))
    left, right = listed(first, what), listed(second, what)
    if len(left) != len(right):
        raise InputError(f"{what}: {len(left)} and {len(right)}; both must have the same length.")
    return list(zip(left, right, strict=True))
