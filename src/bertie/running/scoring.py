"""Logits of texts and pairs, for the tasks that judge them whole: one vector of numbers to a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from bertie.running.batching import Row
from bertie.running.open import OpenModel
from bertie.running.rows import Cuts, Long, Sliding, TextOrPair, split_text_or_pair, truncated_rows
from bertie.running.task import RowTask
from bertie.text.truncation import Strategy

Answer = TypeVar("Answer")
Judged = TypeVar("Judged")
Text = TypeVar("Text", bound=TextOrPair)


class Reading(NamedTuple):
    """What was read of an item: the tokens that each of its rows counts for, and whether some were left out."""

    weights: list[int]
    is_cut: bool


class ScoringTask(RowTask[Text, Reading, Judged, Answer], Generic[Text, Judged, Answer]):
    """A task that reads an item in one row, cut to the model's length, or in windows, as `long` says."""

    long: Long
    stride: int
    sliding: ClassVar[Sliding] = "longer"

    def cuts(self) -> Cuts:
        return Cuts(self.long, self.loaded.max_length)

    def tokenized(self, items: list[Text], cuts: Cuts) -> Iterator[tuple[Reading, list[Row]]]:
        return readings(self.loaded, items, cuts, stride=self.stride, sliding=self.sliding)


def readings(
    loaded: OpenModel,
    items: Sequence[TextOrPair],
    cuts: Cuts,
    *,
    stride: int,
    sliding: Sliding = "longer",
    strategy: Strategy = "longest_first",
    each: int = 1,
) -> Iterator[tuple[Reading, list[Row]]]:
    """The rows of every item. `each` items that follow one another are one text to the account of what was cut."""
    tokenizer, limit = loaded.tokenizer, loaded.max_length
    found: list[tuple[Reading, list[Row]]] = []
    if cuts.long == "windows":
        for item in items:
            split = split_text_or_pair(tokenizer, item, max_length=limit, stride=stride, sliding=sliding)
            found.append((Reading(split.weights, split.is_cut), split.rows))
    else:
        for row, item in zip(truncated_rows(tokenizer, items, max_length=limit, strategy=strategy), items, strict=True):
            if row.is_cut:
                cuts.refuse(item)
            found.append((Reading([1], row.is_cut), [row]))
    is_cut = [reading.is_cut for reading, _ in found]
    cuts.count(sum(any(is_cut[start : start + each]) for start in range(0, len(items), each)), len(items) // each)
    return iter(found)


def logits_later(loaded: OpenModel, rows: list[Row]) -> Callable[[], Tensor]:
    """`[rows, num_labels]` float32 logits on the CPU, when they are asked for."""
    logits: Tensor = loaded.run(rows).logits
    return loaded.read_later(logits.float())


def row_logits(loaded: OpenModel, rows: list[Row]) -> list[Tensor]:
    """`[num_labels]` float32 logits on the CPU for each row."""
    return list(logits_later(loaded, rows)().unbind(0))


def averaged(logits: Tensor, weights: Sequence[int]) -> Tensor:
    """`[windows, num_labels]` → `[num_labels]`, by the windows' weights."""
    if len(weights) == 1:
        return logits[0]
    shares = torch.tensor(weights, dtype=torch.float32)
    return (logits * (shares / shares.sum())[:, None]).sum(0)
