"""What the tasks answer, as types: one definition for the tasks, the server and the client.

Nothing here needs torch: a program that asks a server should not have to load a deep-learning library to read what it
says. Fields hold plain values, and arrays of numpy where there are vectors. `truncated`, wherever it stands: the text
was longer than the model, and only a part of it was read. (A server counts such texts for a whole request instead, and
the client warns of them.)
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from bertie.display import Displayed, clipped, scores
from bertie.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, repr=False)
class Classification(Displayed):
    """Labels with their scores, best first: all that were asked for."""

    labels: tuple[tuple[str, float], ...]
    truncated: bool = False

    @property
    def label(self) -> str:
        """The best label."""
        return self.labels[0][0]

    @property
    def score(self) -> float:
        """The best label's score; a regression's value."""
        return self.labels[0][1]

    def line(self) -> str:
        return scores(self.labels)

    def rows(self) -> list[dict[str, object]]:
        return [{"label": label, "score": score} for label, score in self.labels]


@dataclass(frozen=True, slots=True)
class Entity:
    """A labelled piece of a text: `text_it_is_from[start:end] == text`.

    `index` is the number of its first token in the text, special tokens not counted.
    """

    label: str
    text: str
    start: int
    end: int
    score: float
    index: int


@dataclass(frozen=True, slots=True)
class WordTag:
    """A word with its label. A word of which no token is left (empty, invisible characters) is "O" with score 0."""

    word: str
    label: str
    score: float


@dataclass(frozen=True, slots=True)
class FoundAnswer:
    """A quotation: `context[start:end] == text`. `score` is its probability, `logit` its start + end logit.

    Both are of this place: where the same words stand elsewhere, those have a share of the probability of their own.
    """

    text: str
    start: int
    end: int
    score: float
    logit: float


@dataclass(frozen=True, slots=True, repr=False)
class AnswerResult(Displayed):
    """The verdict on a question. `best` is None when the context does not answer it.

    `candidates` are the best quotations whether or not "no answer" was the verdict; their texts differ.
    `no_answer_score` is the probability that there is no answer, on the candidates' scale (0 where that was not
    allowed), and `no_answer_logit` what it was made from.
    """

    question: str
    best: FoundAnswer | None
    candidates: tuple[FoundAnswer, ...]
    no_answer_score: float
    no_answer_logit: float

    @property
    def null_difference(self) -> float:
        """How much better "no answer" is than the best quotation; the verdict compares it with the threshold."""
        return self.no_answer_logit - self.candidates[0].logit if self.candidates else math.inf

    def line(self) -> str:
        found = "no answer" if self.best is None else f"{clipped(self.best.text)!r} {self.best.score:.3f}"
        return f"{found}, {len(self.candidates)} candidates"

    def rows(self) -> list[dict[str, object]]:
        none = {"answer": "(no answer)", "score": self.no_answer_score}
        found = [{"answer": one.text, "score": one.score} for one in self.candidates]
        return [none, *found] if self.best is None else [*found, none]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A word for one mask. `text` is the text with the word in its place."""

    token: str
    score: float
    text: str
    ids: tuple[int, ...]  # one, or several for a target of several word pieces

    @property
    def id(self) -> int | None:
        """The token's id; None for a target of several word pieces."""
        return self.ids[0] if len(self.ids) == 1 else None


@dataclass(frozen=True, slots=True)
class Filling:
    """A word for every mask, chosen together; `score` is the product of their probabilities."""

    tokens: tuple[str, ...]
    score: float
    text: str


@dataclass(frozen=True, slots=True, repr=False)
class Filled(Displayed):
    """A text's answer: for each mask its `masks` candidates by itself, and the best `fillings` of all, best first."""

    masks: tuple[tuple[Candidate, ...], ...]
    fillings: tuple[Filling, ...]

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The candidates of the first mask: of the only one, in most texts."""
        return self.masks[0]

    @property
    def text(self) -> str:
        """The text with its best filling."""
        return self.fillings[0].text if self.fillings else self.masks[0][0].text

    def line(self) -> str:
        if len(self.masks) == 1:
            return scores((one.token, one.score) for one in self.candidates)
        return f"{len(self.masks)} masks, {scores((clipped(one.text), one.score) for one in self.fillings)}"

    def rows(self) -> list[dict[str, object]]:
        if self.fillings:
            return [{"words": " · ".join(one.tokens), "score": one.score, "text": one.text} for one in self.fillings]
        return [
            {"mask": number, "word": one.token, "score": one.score}
            for number, mask in enumerate(self.masks, start=1)
            for one in mask
        ]


@dataclass(frozen=True, slots=True)
class Generated:
    """What was written after a prompt: its text and its ids, without the prompt and without what ended it."""

    prompt: str
    text: str
    ids: tuple[int, ...]
    alternatives: tuple[Generated, ...] = ()  # the further ones, when num_return_sequences asked for more


@dataclass(frozen=True, slots=True)
class NextSentence:
    """How likely B is to follow A: the softmax of the head's class 0 (class 1 says that B was picked at random)."""

    probability: float
    truncated: bool = False

    @property
    def follows(self) -> bool:
        """Whether the second text is more likely to follow than not."""
        return self.probability > 0.5

    def __float__(self) -> float:
        return self.probability


@dataclass(frozen=True, slots=True)
class Ranked:
    """A document, where it stood (`index`), what it is called (`id`: given, or the index again) and its score."""

    index: int
    id: Hashable
    score: float
    text: str
    truncated: bool = False


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TokenFeatures(Displayed):
    """A token, special ones included, and its float32 vector `[hidden]` in each layer that was asked for."""

    token: str
    layers: tuple[tuple[int, Floats], ...]

    def vector(self, layer: int) -> Floats:
        """The vector of a layer, by the number it was asked for with."""
        for index, vector in self.layers:
            if index == layer:
                return vector
        known = ", ".join(str(index) for index, _ in self.layers)
        raise InputError(f"Layer {layer} was not asked for; there are {known}.")

    def line(self) -> str:
        return f"{self.token!r}, layers {', '.join(str(index) for index, _ in self.layers)}"

    def rows(self) -> list[dict[str, object]]:
        return [
            {"layer": index, "numbers": len(vector), "norm": float((vector * vector).sum() ** 0.5)}
            for index, vector in self.layers
        ]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Representation(Displayed):
    """A text as a retrieval model has it; what was not asked for is None.

    `dense` is one vector, `sparse` the weight of each id of the vocabulary that has one, `multi` a vector for every
    token, `[tokens, d]`, of length 1.
    """

    dense: Floats | None
    sparse: dict[int, float] | None
    multi: Floats | None
    truncated: bool = False

    def line(self) -> str:
        return ", ".join(f"{row['kind']} {row['size']}" for row in self.rows())

    def rows(self) -> list[dict[str, object]]:
        sizes = {
            "dense": None if self.dense is None else f"{len(self.dense)} numbers",
            "sparse": None if self.sparse is None else f"{len(self.sparse)} weights",
            "multi": None if self.multi is None else f"{len(self.multi)} vectors of {self.multi.shape[1]} numbers",
        }
        return [{"kind": kind, "size": size} for kind, size in sizes.items() if size is not None]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Features(Displayed):
    """The tokens of a text. `index` is the number of the text among those that were given."""

    index: int
    tokens: tuple[TokenFeatures, ...]
    truncated: bool = False

    def to_google_json(self) -> dict[str, object]:
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

    def line(self) -> str:
        layers = self.tokens[0].layers if self.tokens else ()
        return f"{len(self.tokens)} tokens, layers {', '.join(str(index) for index, _ in layers)}"

    def rows(self) -> list[dict[str, object]]:
        return [
            {"token": token.token, **{f"norm in layer {row['layer']}": row["norm"] for row in token.rows()}}
            for token in self.tokens
        ]


@dataclass(frozen=True, slots=True)
class Token:
    """A word piece and the characters `text[start:stop]` it stands for; special ones stand for none."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


@dataclass(frozen=True, slots=True)
class Hit:
    """A text that was found. `position` is its number in the index, counted from 0."""

    id: str
    score: float
    text: str
    position: int


# -- over HTTP --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Prediction:
    """A label of a `Classification`, which is sent as a list of them."""

    label: str
    score: float


@dataclass(slots=True)
class SentLayer:
    index: int
    values: list[float]


@dataclass(slots=True)
class SentToken:
    token: str
    layers: list[SentLayer]


@dataclass(slots=True)
class SentFeatures:
    """`Features` as they are sent."""

    tokens: list[SentToken]


@dataclass(frozen=True)
class TaskRoute:
    """Where a server answers a task: a list of `inputs` there gives as many `results`, each of the type `sent`.

    `method` is what clients call it, if not as the task is called. `checkpoints` are the classes of models that are
    served for it when no task is named, where `bertie.serve.tasks` does not say it.
    """

    path: str
    sent: object
    method: str = ""
    checkpoints: tuple[str, ...] = ()


# What the server makes its own routes of, and the client its requests.
TASK_ROUTES: dict[str, TaskRoute] = {
    "classify": TaskRoute("/v1/classify", list[Prediction]),
    "tag": TaskRoute("/v1/tag", list[Entity]),
    "answer": TaskRoute("/v1/answer", AnswerResult),
    "fill": TaskRoute("/v1/fill", Filled),
    "next": TaskRoute("/v1/next", NextSentence, method="next_sentence"),
    "features": TaskRoute("/v1/features", SentFeatures),
}
