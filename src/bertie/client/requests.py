"""One request and how its answer is read, and what follows from one that failed. No network here, no waiting.

Vectors travel as base64 of float32, a third of the size of decimal numbers and exact. Every route of the server only
computes, so a request may be sent twice without harm. It is sent again when the server said that it is busy (429) or
away (503), or when the connection failed; other refusals are final. The pause doubles from one attempt to the next, a
random part of it is left out so that many clients do not come back at the same moment, and it is never shorter than
the server's Retry-After.
"""

from __future__ import annotations

import base64
import json
import random
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from bertie.answers import (
    TASK_ROUTES,
    Classification,
    Features,
    Prediction,
    Ranked,
    SentFeatures,
    SentToken,
    Token,
    TokenFeatures,
)  # fmt: skip
from bertie.arguments import whole_number
from bertie.errors import BertieError, InputError, TruncationWarning
from bertie.json_values import fields, text

if TYPE_CHECKING:
    from bertie.answers import Floats

A = TypeVar("A")
W = TypeVar("W")

BUSY = (429, 503)


class ServerError(BertieError, OSError):
    """A server that cannot be reached, or that did not answer. `status` is HTTP's; None where there was no response."""

    def __init__(self, cause: str, remedy: str | None = None, *, status: int | None = None) -> None:
        super().__init__(cause, remedy)
        self.status = status


# -- what a server sends, as types ------------------------------------------------------------------------------------


@dataclass
class Usage:
    truncated_texts: int = 0


@dataclass(kw_only=True)
class Counted:
    usage: Usage = field(default_factory=Usage)


@dataclass
class Results(Counted, Generic[A]):
    results: list[A]


@dataclass
class Vector:
    index: int
    embedding: str  # base64


@dataclass
class Vectors(Counted):
    data: list[Vector]


@dataclass
class Rank:
    index: int
    relevance_score: float


@dataclass
class Named:
    id: str


@dataclass
class Names:
    data: list[Named]


@dataclass(frozen=True)
class Call(Generic[A]):
    """A request and how to read the JSON of its answer."""

    path: str
    body: dict[str, object] | None
    answer: Callable[[bytes], A]

    @property
    def method(self) -> str:
        return "GET" if self.body is None else "POST"

    @property
    def content(self) -> bytes | None:
        """JSON in ASCII, so that lone surrogates, which UTF-8 has no form for, reach the server as they are."""
        try:
            return None if self.body is None else json.dumps(self.body, allow_nan=False).encode()
        except ValueError as problem:
            raise InputError(f"This cannot be sent as JSON: {problem}.") from None


def call(path: str, body: dict[str, object] | None, kind: type[W], read: Callable[[W], A]) -> Call[A]:
    """A call whose JSON is of a `kind`, of which `read` makes the answer. Texts that the server cut are told."""

    def answer(content: bytes) -> A:
        import msgspec

        try:
            payload = msgspec.json.decode(content, type=kind)
            found = read(payload)
        except (msgspec.MsgspecError, ValueError, KeyError) as problem:
            raise ServerError(
                f"{path} gave an answer that cannot be read ({type(problem).__name__}: {problem}).",
                "Is it a bertie server, and of the same version?",
            ) from None
        cut = payload.usage.truncated_texts if isinstance(payload, Counted) else 0
        if cut:
            warnings.warn(f"The server cut {cut} texts to its model's length.", TruncationWarning, stacklevel=4)
        return found

    return Call(path, body, answer)


def given(**settings: object) -> dict[str, object]:
    """The settings that were given; the server has defaults for the others."""
    return {name: value for name, value in settings.items() if value is not None}


def as_many(answers: list[A], items: Sequence[object]) -> list[A]:
    if len(answers) != len(items):
        raise ValueError(f"{len(answers)} answers to {len(items)} texts")
    return answers


# -- what each task sends, and how it is read -------------------------------------------------------------------------


def task(
    name: str, kind: type[Results[W]], read: Callable[[W], A], settings: dict[str, object], items: Sequence[object]
) -> Call[list[A]]:
    """A call to one of our own routes, which take `inputs` and answer with as many `results`."""
    body = {"inputs": list(items), **settings}
    return call(TASK_ROUTES[name].path, body, kind, lambda found: as_many(list(map(read, found.results)), items))


def embed(texts: Sequence[str], **settings: object) -> Call[list[Floats]]:
    def read(found: Vectors) -> list[Floats]:
        rows = sorted(found.data, key=lambda row: row.index)
        return as_many([np.frombuffer(base64.b64decode(row.embedding), dtype="<f4") for row in rows], texts)

    return call(
        "/v1/embeddings", {"input": list(texts), "encoding_format": "base64", **given(**settings)}, Vectors, read
    )


def rerank(query: str, documents: Sequence[str], **settings: object) -> Call[list[Ranked]]:
    """Scores in the order of the documents; whoever asked puts them in the order of the scores."""

    def read(found: Results[Rank]) -> list[Ranked]:
        rows = as_many(sorted(found.results, key=lambda row: row.index), documents)
        return [Ranked(n, n, row.relevance_score, documents[n]) for n, row in enumerate(rows)]

    return call("/v1/rerank", {"query": query, "documents": list(documents), **given(**settings)}, Results[Rank], read)


def tokenize(texts: Sequence[str], **settings: object) -> Call[list[list[Token]]]:
    body = {"inputs": list(texts), **given(**settings)}
    return call("/tokenize", body, list[list[Token]], lambda found: as_many(found, texts))


def classification(one: list[Prediction]) -> Classification:
    return Classification(tuple((row.label, row.score) for row in one))


def features(one: SentFeatures) -> Features:
    def layers(token: SentToken) -> tuple[tuple[int, Floats], ...]:
        return tuple((layer.index, np.asarray(layer.values, dtype=np.float32)) for layer in token.layers)

    return Features(0, tuple(TokenFeatures(token.token, layers(token)) for token in one.tokens))


# -- when there is no answer ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Retrying:
    """`attempts` in all; pauses start at `first` seconds, double, and stay below `longest`."""

    attempts: int = 6
    first: float = 0.25
    longest: float = 20.0

    def __post_init__(self) -> None:
        whole_number("attempts", self.attempts)

    def pause(self, attempt: int, retry_after: float | None = None) -> float | None:
        """Seconds to wait after attempt number `attempt` (from 1); None to give up.

        A server that asks for more patience than `longest` is not waited for.
        """
        if attempt >= self.attempts or (retry_after or 0) > self.longest:
            return None
        grown = min(self.first * 2.0 ** (attempt - 1), self.longest)
        return max(grown * random.uniform(0.5, 1.0), retry_after or 0.0)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a response asks to wait: Retry-After as a number or as a date."""
    value = headers.get("retry-after", "")
    try:
        return max(float(value), 0.0)
    except ValueError:
        pass
    try:
        return max(parsedate_to_datetime(value).timestamp() - time.time(), 0.0)
    except ValueError:
        return None


def refusal(status: int, payload: object, *, url: str) -> BertieError:
    """The error for a response that is not an answer, with the server's own words.

    What the request itself got wrong is an InputError, as it is without a server in between.
    """
    cause, remedy = _words(payload)
    said = cause or f"The server answered with status {status}."
    if status in (400, 413, 422):
        return InputError(said, remedy)
    if status in (401, 403):
        return ServerError(said, remedy or "Put a key that the server knows into BERTIE_API_KEY.", status=status)
    look = f"Look at {url}/info for what this server can do." if status == 404 else ""
    return ServerError(said, remedy or look or f"Look at {url}/health and the server's log.", status=status)


def unreachable(url: str, problem: Exception) -> ServerError:
    return ServerError(
        f"{url} cannot be reached: {problem or type(problem).__name__}.",
        "Start a server with `bertie serve -m MODEL`, or give its address with {url=}.",
    )


def too_slow(url: str, seconds: float | None) -> ServerError:
    return ServerError(
        f"{url} did not answer within {seconds} seconds.", "Allow more with {timeout=}, or send fewer texts."
    )


def _words(payload: object) -> tuple[str | None, str | None]:
    """Cause and remedy in any of the shapes that servers use: ours, OpenAI's, text-embeddings-inference's."""
    given = fields(payload)
    error = given.get("error", given.get("detail"))
    if inner := fields(error):
        given, error = inner, inner.get("message")
    return text(given.get("cause") or given.get("message") or error), text(given.get("remedy"))
