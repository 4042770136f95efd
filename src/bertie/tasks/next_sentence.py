"""Does B follow A? The question BERT was pretrained on, asked again.

    next_sentence("She opened the door.", "The room was empty.").probability
    next_sentence(first, second, model="bert-base-uncased").follows

The model is bertie-mini, which is small and came with this package, unless another is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar, Unpack, overload

from bertie.answers import NextSentence
from bertie.defaults import default_language_model
from bertie.model import BertForNextSentencePrediction
from bertie.running.open import ModelLike
from bertie.running.paired import PairedTask
from bertie.running.rows import Cuts, Long, Reading, Row
from bertie.running.task import RunSettings, ScoringTask, Streamed, described_as


class NextSentencePredictor(ScoringTask[tuple[str, str], float, NextSentence], PairedTask[NextSentence]):
    """A `NextSentence` for two texts; a list of them for two lists of one length, an iterator for two iterators.

    Without `second`, `first` holds pairs: one tuple, a list or an iterator of them. If two texts are
    too long together, they are cut at their ends: the longer one first until both have the same length, then both.
    """

    name: ClassVar[str] = "next_sentence"
    names: ClassVar[tuple[str, str]] = ("first text", "second text")
    long: Long = "truncate"
    stride = 0

    def __init__(
        self,
        model: ModelLike | None = None,
        **settings: Unpack[RunSettings],
    ) -> None:
        self.open(model, BertForNextSentencePrediction, settings, default=default_language_model)

    def cuts(self) -> Cuts:
        return Cuts(self.long, self.loaded.max_length, choices=False)

    def start(self, rows: list[Row]) -> Callable[[], list[float]]:
        logits = self.loaded.logits(rows)

        def read() -> list[float]:
            found: list[float] = logits().softmax(-1)[:, 0].tolist()  # of two classes, the first says yes
            return found

        return read

    def decode(self, context: Reading, judged: list[float]) -> NextSentence:
        return NextSentence(judged[0], context.is_cut)


class NextSentenceSettings(RunSettings, total=False):
    model: ModelLike | None


@overload
def next_sentence(
    first: str | tuple[str, str], second: str | None = None, **settings: Unpack[NextSentenceSettings]
) -> NextSentence: ...


@overload
def next_sentence(
    first: Iterator[str] | Streamed[tuple[str, str]],
    second: Iterator[str] | None = None,
    **settings: Unpack[NextSentenceSettings],
) -> Iterator[NextSentence]: ...


@overload
def next_sentence(
    first: list[str] | list[tuple[str, str]],
    second: list[str] | None = None,
    **settings: Unpack[NextSentenceSettings],
) -> list[NextSentence]: ...


def next_sentence(
    first: object, second: object = None, **settings: Unpack[NextSentenceSettings]
) -> NextSentence | list[NextSentence] | Iterator[NextSentence]:
    return NextSentencePredictor(**settings).paired(first, second)


described_as(next_sentence, NextSentencePredictor)
