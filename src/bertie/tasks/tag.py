"""The entities of a text, or a label for each of its words, from a `BertForTokenClassification`.

    tag("Ada Lovelace lived in London.", model="my-ner")              list of Entity: .label, .text, .start, .end
    tag_words(["Ada", "lived", "in", "London"], model="my-ner")       list of WordTag, one to a word

Texts of any length are read whole, in overlapping windows; each token is judged in the window where it has most
context, and entities are put together afterwards, so none is cut or doubled where two windows meet. What is found is
quoted character by character: `text[entity.start:entity.end] == entity.text`. `entities.py` says how labels become
entities.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch

from bertie.answers import Entity, WordTag
from bertie.data.tags import OUTSIDE
from bertie.errors import InputError
from bertie.model import BertForTokenClassification
from bertie.running.batching import Row
from bertie.running.documents import DocumentReader, checked_length, checked_stride
from bertie.running.entities import (
    AGGREGATIONS,
    WORD_AGGREGATIONS,
    Aggregation,
    LabelSet,
    Probabilities,
    WordAggregation,
    find_entities,
    judge_words,
    token_probabilities,
)
from bertie.running.inputs import Task, checked_choice, checked_text, described
from bertie.running.open import Loaded, ModelLike, open_model
from bertie.text import BertTokenizer, WindowedDocument

_STRIDE = 64

T = TypeVar("T")


class Tagger(Task[str, list[Entity]]):
    """`tag` with its model and settings fixed: call it with a text, a list or an iterator."""

    name: ClassVar[str] = "tag"

    def __init__(
        self,
        model: ModelLike,
        *,
        aggregation: Aggregation = "simple",
        ignore_labels: Iterable[str] = (OUTSIDE,),
        max_length: int | None = None,
        stride: int = _STRIDE,
        tokenizer: BertTokenizer | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | str | None = None,
    ) -> None:
        checked_choice("aggregation", aggregation, AGGREGATIONS)
        self.aggregation: Aggregation = aggregation
        self.ignored = frozenset((ignore_labels,) if isinstance(ignore_labels, str) else ignore_labels)
        self.judge = _TokenJudge(
            open_model(
                model, BertForTokenClassification, task=self.name, tokenizer=tokenizer, device=device, dtype=dtype
            ),
            max_length,
            stride,
        )
        self.judge.labels.check(self.ignored)

    def stream(self, items: Iterable[str]) -> Iterator[list[Entity]]:
        for _, document, windows in self.judge.judged(items, str):
            yield self.decode(document, windows)

    def rows(self, text: str) -> tuple[WindowedDocument, list[Row]]:
        """A text's tokens, and its rows for the model."""
        return self.judge.rows(text)

    def run(self, rows: list[Row]) -> list[Probabilities]:
        """The labels' probabilities `[length, labels]` in each row; rows of many texts may be mixed."""
        return self.judge.run(rows)

    def decode(self, document: WindowedDocument, windows: Sequence[Probabilities]) -> list[Entity]:
        """The entities, from what `run` gave for the text's rows."""
        probabilities = token_probabilities(document, windows)
        return find_entities(
            document, probabilities, self.judge.labels, aggregation=self.aggregation, ignored=self.ignored
        )


class WordTagger(Task[tuple[str, ...], list[WordTag]]):
    """`tag_words` with its model and settings fixed: call it with a list of words, a list of such lists or an iterator
    of them."""

    name: ClassVar[str] = "tag_words"

    def __init__(
        self,
        model: ModelLike,
        *,
        aggregation: WordAggregation = "first",
        max_length: int | None = None,
        stride: int = _STRIDE,
        tokenizer: BertTokenizer | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | str | None = None,
    ) -> None:
        checked_choice("aggregation", aggregation, WORD_AGGREGATIONS)
        self.aggregation: WordAggregation = aggregation
        self.judge = _TokenJudge(
            open_model(
                model, BertForTokenClassification, task=self.name, tokenizer=tokenizer, device=device, dtype=dtype
            ),
            max_length,
            stride,
        )

    def is_one(self, given: Any) -> bool:
        return isinstance(given, str) or (
            isinstance(given, (list, tuple)) and bool(given) and isinstance(given[0], str)
        )

    def checked(self, item: Any, where: str) -> tuple[str, ...]:
        if not isinstance(item, (list, tuple)):
            raise InputError(
                f"{where} is {described(item)}; a list of words was wanted.",
                "Split it into words first, or use tag(), which takes texts.",
            )
        return tuple(checked_text(word, f"{where}, word {number},") for number, word in enumerate(item))

    def stream(self, items: Iterable[tuple[str, ...]]) -> Iterator[list[WordTag]]:
        # BERT's tokenizer splits at every space, so joined words have the tokens they have alone.
        for words, document, windows in self.judge.judged(items, " ".join):
            yield self._word_tags(words, document, token_probabilities(document, windows))

    def _word_tags(
        self, words: Sequence[str], document: WindowedDocument, probabilities: Probabilities
    ) -> list[WordTag]:
        """A word's tokens are those that begin inside it."""
        starts = [start for start, _ in document.offsets]
        ends = np.cumsum([1 + len(word) for word in words]) - 1
        bounds = [0, *np.searchsorted(starts, ends).tolist()] if words else [0]
        there = [number for number, (first, after) in enumerate(pairwise(bounds)) if first < after]
        judged = judge_words(probabilities, [bounds[number] for number in there], self.aggregation)
        found = dict(zip(there, zip(judged.labels.tolist(), judged.scores.tolist(), strict=True), strict=True))
        names = self.judge.labels.names
        return [
            WordTag(word, names[found[number][0]], found[number][1]) if number in found else WordTag(word, OUTSIDE, 0.0)
            for number, word in enumerate(words)
        ]


def tag(
    texts: Any,
    *,
    model: ModelLike,
    aggregation: Aggregation = "simple",
    ignore_labels: Iterable[str] = (OUTSIDE,),
    max_length: int | None = None,
    stride: int = _STRIDE,
    tokenizer: BertTokenizer | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = None,
    progress: bool | None = None,
) -> Any:
    """The entities of a text, a list of `Entity`; a list of such lists for a list, an iterator for an iterator.

    - `aggregation`: "simple" joins tokens to entities; "first", "average" and "max" give each word one label before
      joining; "none" gives every token with its own label (`B-PER`), joining nothing. `entities.py` has the details,
      and where transformers' pipeline does otherwise.
    - `ignore_labels`: types (with "none": labels) that are left out.
    - `max_length`, `stride`: the tokens of a window (default: what the model takes), and how many of them two
      neighbours share. Nothing is truncated; transformers' pipeline truncates unless it is given a stride, and with one
      cuts an entity that is longer than the stride where two windows meet.
    """
    task = Tagger(
        model,
        aggregation=aggregation,
        ignore_labels=ignore_labels,
        max_length=max_length,
        stride=stride,
        tokenizer=tokenizer,
        device=device,
        dtype=dtype,
    )
    return task(texts, progress=progress)


def tag_words(
    sentences: Any,
    *,
    model: ModelLike,
    aggregation: WordAggregation = "first",
    max_length: int | None = None,
    stride: int = _STRIDE,
    tokenizer: BertTokenizer | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = None,
    progress: bool | None = None,
) -> Any:
    """A label for each word of a sentence that is split already: a list of words gives a list of `WordTag`.

    A list of sentences gives a list of such lists, an iterator of them an iterator. "first", as in CoNLL scoring, takes
    a word's label from its first token; "average" and "max" as for `tag`.
    """
    task = WordTagger(
        model,
        aggregation=aggregation,
        max_length=max_length,
        stride=stride,
        tokenizer=tokenizer,
        device=device,
        dtype=dtype,
    )
    return task(sentences, progress=progress)


class _TokenJudge:
    """A model that gives every token of a text the probabilities of its labels."""

    def __init__(self, loaded: Loaded, max_length: int | None, stride: int) -> None:
        self.loaded = loaded
        self.labels = LabelSet(loaded.model.config.id2label)
        self.reader = DocumentReader(
            loaded, checked_length(loaded, max_length), checked_stride(stride), keep_words=True
        )

    def judged(
        self, items: Iterable[T], text_of: Callable[[T], str]
    ) -> Iterator[tuple[T, WindowedDocument, list[Probabilities]]]:
        """Each item, its text's tokens, and their probabilities `[length, labels]` in each window, in order."""
        return self.reader.judged(items, lambda item: (text_of(item), None), self.start)

    def rows(self, text: str) -> tuple[WindowedDocument, list[Row]]:
        return self.reader.rows(text)

    def run(self, rows: list[Row]) -> list[Probabilities]:
        return self.start(rows)()

    def start(self, rows: list[Row]) -> Callable[[], list[Probabilities]]:
        """As `run`, to be read later."""
        probabilities = self.loaded.read_later(self.loaded.run(rows).logits.float().softmax(dim=-1))
        return lambda: [part.numpy() for part in self.loaded.split(probabilities(), rows)]
