"""The typed answers of a server: the fields of the tasks' own answers, without torch behind them.

A program that asks a server should not have to load a deep-learning library to read what it says. So these repeat the
answer types of `bertie.tasks`, name by name and field by field; a test compares the two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bertie.errors import InputError

Floats: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Classification:
    """Labels with their scores, best first."""

    labels: tuple[tuple[str, float], ...]

    @property
    def label(self) -> str:
        return self.labels[0][0]

    @property
    def score(self) -> float:
        return self.labels[0][1]


@dataclass(frozen=True, slots=True)
class Entity:
    """A labelled piece of a text: `text_it_is_from[start:end] == text`."""

    label: str
    text: str
    start: int
    end: int
    score: float
    index: int


@dataclass(frozen=True, slots=True)
class FoundAnswer:
    """A quotation: `context[start:end] == text`."""

    text: str
    start: int
    end: int
    score: float
    logit: float


@dataclass(frozen=True, slots=True)
class AnswerResult:
    """The verdict on a question. `best` is None when the context does not answer it."""

    question: str
    best: FoundAnswer | None
    candidates: tuple[FoundAnswer, ...]
    no_answer_score: float
    no_answer_logit: float

    @property
    def null_difference(self) -> float:
        """How much better "no answer" is than the best quotation."""
        return self.no_answer_logit - self.candidates[0].logit if self.candidates else math.inf


@dataclass(frozen=True, slots=True)
class Candidate:
    """A word for one mask, and the text with it in place."""

    token: str
    score: float
    text: str
    ids: tuple[int, ...]

    @property
    def id(self) -> int | None:
        return self.ids[0] if len(self.ids) == 1 else None


@dataclass(frozen=True, slots=True)
class Filling:
    """A word for every mask, chosen together."""

    tokens: tuple[str, ...]
    score: float
    text: str


@dataclass(frozen=True, slots=True)
class Filled:
    """For each mask its candidates by itself, and the best fillings of all."""

    masks: tuple[tuple[Candidate, ...], ...]
    fillings: tuple[Filling, ...]

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        return self.masks[0]

    @property
    def text(self) -> str:
        return self.fillings[0].text if self.fillings else self.masks[0][0].text


@dataclass(frozen=True, slots=True)
class NextSentence:
    """How likely B is to follow A."""

    probability: float

    @property
    def follows(self) -> bool:
        return self.probability > 0.5

    def __float__(self) -> float:
        return self.probability


@dataclass(frozen=True, slots=True)
class Ranked:
    """A document, where it stood, what it is called (the index again: servers are not told names) and its score."""

    index: int
    id: int
    score: float
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class TokenFeatures:
    """A token and its float32 vector `[hidden]` in each layer that was asked for."""

    token: str
    layers: tuple[tuple[int, Floats], ...]

    def vector(self, layer: int) -> Floats:
        for index, vector in self.layers:
            if index == layer:
                return vector
        known = ", ".join(str(index) for index, _ in self.layers)
        raise InputError(f"Layer {layer} was not asked for; there are {known}.")


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """The tokens of a text. `index` is the number of the text among those that were given."""

    index: int
    tokens: tuple[TokenFeatures, ...]

    def to_google_json(self) -> dict[str, Any]:
        """The object that extract_features.py writes as one line of JSON."""
        return {
            "linex_index": self.index,
            "features": [
                {
                    "token": token.token,
                    "layers": [
                        {"index": index, "values": [round(value, 6) for value in vector.tolist()]}
                        for index, vector in token.layers
                    ],
                }
                for token in self.tokens
            ],
        }


@dataclass(frozen=True, slots=True)
class Token:
    """A word piece and the characters `text[start:stop]` it stands for; special ones stand for none."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None
