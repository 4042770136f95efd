"""What a session asks and answers: the number that is explained, and a task's own answer in one shape for all tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from bertie.answers import AnswerResult, Classification, Entity, Filled, NextSentence
from bertie.explore.result import Column, Floats, Result, table_html

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True)
class Target:
    """One number of an answer. `label` names it for people.

    `row` is the row it is read from, `place` the token (None: the whole text), `index` the word's id, the label or the
    choice; a span has its last token in `end`.
    """

    label: str
    row: int = 0
    place: int | None = None
    index: int = 0
    end: int | None = None


@dataclass(frozen=True, slots=True)
class Similarity:
    """How similar two texts are, by the model's own measure."""

    score: float
    function: str


@dataclass(frozen=True, slots=True, eq=False)
class Embedded:
    """The vector of a text."""

    vector: Floats


@dataclass(frozen=True, slots=True)
class Choices:
    """The probability of every choice, in their order."""

    probabilities: tuple[float, ...]


Value: TypeAlias = (
    Filled | NextSentence | Classification | tuple[Entity, ...] | AnswerResult | Similarity | Embedded | Choices
)


@dataclass(frozen=True, eq=False, repr=False)
class Answer(Result):
    """A task's own answer: `value` is what the task gives, `top` the same as (label, score) pairs, best first."""

    task: str
    value: Value
    top: tuple[tuple[str, float], ...]

    @property
    def text(self) -> str:
        """The answer in one line."""
        return self.top[0][0] if self.top else "nothing"

    def columns(self) -> dict[str, Column]:
        return {"answer": [label for label, _ in self.top], "score": [score for _, score in self.top]}

    def html(self) -> str:
        return table_html(self.columns(), self.task)

    def draw(self, axes: Axes) -> None:
        labels, values = zip(*reversed(self.top), strict=True) if self.top else ((), ())
        axes.barh(labels, values)
        axes.set_title(self.task)
