"""Does B follow A? The question BERT was pretrained on, asked again.

    next_sentence("She opened the door.", "The room was empty.").probability
    next_sentence(first, second, model="bert-base-uncased").follows

The model is bertie-mini, which is small and came with this package, unless another is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import torch

from bertie.answers import NextSentence
from bertie.data import RowReader, as_rows, pairs
from bertie.data.lists import is_table, listed
from bertie.defaults import default_language_model
from bertie.errors import InputError
from bertie.model import BertForNextSentencePrediction
from bertie.running.batching import Row, run_in_order
from bertie.running.inputs import Task, checked_text_or_pair, chunked, described
from bertie.running.long_texts import Cuts
from bertie.running.open import ModelLike, open_model
from bertie.running.rows import truncated_rows
from bertie.text import BertTokenizer


class NextSentencePredictor(Task[tuple[str, str], NextSentence]):
    """`next_sentence` with its model fixed: call it with a pair, a list of pairs or an iterator of pairs."""

    name: ClassVar[str] = "next_sentence"

    def __init__(
        self,
        model: ModelLike | None = None,
        *,
        tokenizer: BertTokenizer | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | str | None = None,
    ) -> None:
        self.loaded = open_model(
            model,
            BertForNextSentencePrediction,
            task=self.name,
            tokenizer=tokenizer,
            device=device,
            dtype=dtype,
            default=default_language_model() if model is None else None,
        )

    def read(self, rows: RowReader) -> Iterable[Any]:
        return pairs(rows)

    def read_table(self, table: Any) -> Iterable[Any]:
        return pairs(as_rows(table))

    def is_one(self, given: Any) -> bool:
        return isinstance(given, (str, tuple))

    def checked(self, item: Any, where: str) -> tuple[str, str]:
        pair = checked_text_or_pair(item, where)
        if isinstance(pair, str):
            raise InputError(f"{where} is one string; next_sentence takes pairs.", "Pass (first, second).")
        return pair

    def stream(self, items: Iterable[tuple[str, str]]) -> Iterator[NextSentence]:
        loaded = self.loaded
        cuts = Cuts("truncate", loaded.max_length, choices=False)

        def rows() -> Iterator[Row]:
            for chunk in chunked(items):
                for row in truncated_rows(loaded.tokenizer, chunk, max_length=loaded.max_length):
                    cuts.note(row.is_cut)
                    yield row

        def run(batch: list[Row]) -> Sequence[float]:
            # The head has two classes and the first says yes.
            found: list[float] = loaded.run(batch).logits.float().softmax(-1)[:, 0].tolist()
            return found

        with cuts.told():
            for probability in run_in_order(rows(), run, budget=loaded.budget):
                yield NextSentence(probability, cuts.next_is_cut())


def next_sentence(
    first: Any,
    second: Any = None,
    *,
    model: ModelLike | None = None,
    tokenizer: BertTokenizer | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = None,
    progress: bool | None = None,
) -> Any:
    """A `NextSentence` for two texts; a list of them for two lists of one length, an iterator for two iterators.

    Without `second`, `first` holds pairs: one tuple, a list or an iterator of them. Two texts that are too long
    together lose tokens from their ends, the longer one first until they are equally long, then both alike.
    """
    task = NextSentencePredictor(model, tokenizer=tokenizer, device=device, dtype=dtype)
    return task(first if second is None else _paired(first, second), progress=progress)


def _paired(first: Any, second: Any) -> Any:
    """(a, b), [(a, b), …] or an iterator of them, from two texts, two lists or two iterators."""
    if isinstance(first, str) or isinstance(second, str):
        return first, second
    for name, value in (("first", first), ("second", second)):
        if isinstance(value, (bytes, dict)) or not (hasattr(value, "__iter__") or is_table(value)):
            raise InputError(f"{name} is {described(value)}; a string, a list or an iterator was wanted.")
    if isinstance(first, Iterator) or isinstance(second, Iterator):
        return _zipped(first, second)
    first, second = listed(first, "first texts"), listed(second, "second texts")
    if len(first) != len(second):
        raise InputError(f"There are {len(first)} first texts and {len(second)} second ones.", "Pass as many of each.")
    return list(zip(first, second, strict=True))


def _zipped(first: Iterable[Any], second: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    seconds = iter(second)
    missing = object()
    number = 0
    for number, text in enumerate(first, start=1):
        following = next(seconds, missing)
        if following is missing:
            raise InputError(f"There is no second text for text {number - 1}.", "Pass as many of each.")
        yield text, following
    if next(seconds, missing) is not missing:
        raise InputError(f"There are {number} first texts and more second ones.", "Pass as many of each.")
