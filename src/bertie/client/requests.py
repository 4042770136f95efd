"""What each task sends to which route, and how its answer is read. No network here, and nothing about waiting.

A task takes a list of items to one `Call`; the clients cut longer lists into several. Vectors travel as base64 of
float32, a third of the size of decimal numbers and exact.
"""

from __future__ import annotations

import base64
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from bertie.answers import (
    AnswerResult,
    Candidate,
    Classification,
    Entity,
    Features,
    Filled,
    Filling,
    FoundAnswer,
    NextSentence,
    Ranked,
    Token,
    TokenFeatures,
)
from bertie.client.retries import ServerError
from bertie.errors import TruncationWarning

if TYPE_CHECKING:
    from bertie.answers import Floats

A = TypeVar("A")


@dataclass(frozen=True)
class Call(Generic[A]):
    """A request and how to read the JSON of its answer."""

    path: str
    body: dict[str, Any] | None
    read: Callable[[Any], A]

    @property
    def method(self) -> str:
        return "GET" if self.body is None else "POST"

    def answer(self, payload: Any) -> A:
        """The typed answer; a payload of another shape is not a server of ours. Texts that it cut are told."""
        usage = payload.get("usage") if isinstance(payload, dict) else None
        if isinstance(usage, dict) and usage.get("truncated_texts"):
            warnings.warn(
                f"The server cut {usage['truncated_texts']} texts to its model's length.",
                TruncationWarning,
                stacklevel=4,
            )
        try:
            return self.read(payload)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as problem:
            raise ServerError(
                f"{self.path} gave an answer that cannot be read ({type(problem).__name__}: {problem}).",
                "Is it a bertie server, and of the same version?",
            ) from None


def _given(**settings: Any) -> dict[str, Any]:
    """The settings that were given; the server has defaults for the others."""
    return {name: value for name, value in settings.items() if value is not None}


def embed(texts: Sequence[str], **settings: Any) -> Call[list[Floats]]:
    body = {"input": list(texts), "encoding_format": "base64", **_given(**settings)}

    def read(payload: Any) -> list[Floats]:
        rows = sorted(payload["data"], key=lambda row: row["index"])
        vectors = [np.frombuffer(base64.b64decode(row["embedding"]), dtype="<f4") for row in rows]
        return _as_many(vectors, texts)

    return Call("/v1/embeddings", body, read)


def _results(path: str, items: Sequence[Any], read_one: Callable[[Any], A], settings: dict[str, Any]) -> Call[list[A]]:
    """A call to one of our own routes, which take `inputs` and answer with as many `results`."""
    body = {"inputs": list(items), **_given(**settings)}
    return Call(path, body, lambda payload: _as_many([read_one(one) for one in payload["results"]], items))


def classify(items: Sequence[Any], **settings: Any) -> Call[list[Classification]]:
    return _results("/v1/classify", items, _classification, settings)


def tag(texts: Sequence[str], **settings: Any) -> Call[list[list[Entity]]]:
    return _results("/v1/tag", texts, lambda one: [Entity(**_only(Entity, row)) for row in one], settings)


def answer(pairs: Sequence[tuple[str, str]], **settings: Any) -> Call[list[AnswerResult]]:
    inputs = [{"question": question, "context": context} for question, context in pairs]
    return _results("/v1/answer", inputs, _answer_result, settings)


def fill(texts: Sequence[str], **settings: Any) -> Call[list[Filled]]:
    return _results("/v1/fill", texts, _filled, settings)


def next_sentence(pairs: Sequence[tuple[str, str]], **settings: Any) -> Call[list[NextSentence]]:
    return _results("/v1/next", pairs, lambda one: NextSentence(float(one["probability"])), settings)


def features(texts: Sequence[Any], **settings: Any) -> Call[list[Features]]:
    return _results("/v1/features", texts, _features, settings)


def rerank(query: str, documents: Sequence[str], **settings: Any) -> Call[list[Ranked]]:
    """Scores in the order of the documents; whoever asked puts them in the order of the scores."""

    def read(payload: Any) -> list[Ranked]:
        rows = sorted(payload["results"], key=lambda row: row["index"])
        ranked = [Ranked(n, n, float(row["relevance_score"]), documents[n]) for n, row in enumerate(rows)]
        return _as_many(ranked, documents)

    return Call("/v1/rerank", {"query": query, "documents": list(documents), **_given(**settings)}, read)


def tokenize(texts: Sequence[str], **settings: Any) -> Call[list[list[Token]]]:
    def read(payload: Any) -> list[list[Token]]:
        return _as_many([[Token(**_only(Token, token)) for token in row] for row in payload], texts)

    return Call("/tokenize", {"inputs": list(texts), **_given(**settings)}, read)


def models() -> Call[list[str]]:
    return Call("/v1/models", None, lambda payload: [row["id"] for row in payload["data"]])


def info() -> Call[dict[str, Any]]:
    return Call("/info", None, dict)


def health() -> Call[bool]:
    return Call("/health", None, lambda payload: True)


# -- reading -----------------------------------------------------------------------------------------------------


def _as_many(answers: list[A], items: Sequence[Any]) -> list[A]:
    if len(answers) != len(items):
        raise ValueError(f"{len(answers)} answers to {len(items)} texts")
    return answers


def _only(kind: type[Any], row: dict[str, Any]) -> dict[str, Any]:
    """The fields of a dataclass; a newer server may send more."""
    return {name: row[name] for name in kind.__dataclass_fields__}


def _classification(one: Any) -> Classification:
    return Classification(tuple((row["label"], float(row["score"])) for row in one))


def _answer_result(one: Any) -> AnswerResult:
    def found(row: Any) -> FoundAnswer:
        return FoundAnswer(**_only(FoundAnswer, row))

    return AnswerResult(
        question=one["question"],
        best=None if one["best"] is None else found(one["best"]),
        candidates=tuple(found(row) for row in one["candidates"]),
        no_answer_score=float(one["no_answer_score"]),
        no_answer_logit=float(one["no_answer_logit"]),
    )


def _filled(one: Any) -> Filled:
    return Filled(
        masks=tuple(
            tuple(Candidate(row["token"], float(row["score"]), row["text"], tuple(row["ids"])) for row in mask)
            for mask in one["masks"]
        ),
        fillings=tuple(Filling(tuple(row["tokens"]), float(row["score"]), row["text"]) for row in one["fillings"]),
    )


def _features(one: Any) -> Features:
    return Features(
        index=0,
        tokens=tuple(
            TokenFeatures(
                token["token"],
                tuple((layer["index"], np.asarray(layer["values"], dtype=np.float32)) for layer in token["layers"]),
            )
            for token in one["tokens"]
        ),
    )
