"""Texts to rows of the model for embedding: cut off at the model's length, or in windows that cover all of the text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike

import numpy as np

from bertie.data import Reader
from bertie.errors import InputError
from bertie.tasks.pooling import Pieces
from bertie.text import BertTokenizer, split_document
from bertie.text.windows import DEFAULT_STRIDE

TextStream = Iterator[str] | Reader[str] | PathLike[str]
LONG = ("truncate", "windows")
# Texts tokenized in one call: few at first, so that a stream answers soon, then enough for the Rust threads. Characters
# are bounded as well: an encoded token takes a hundred bytes.
_AT_FIRST = 16
_CHARACTERS_AT_ONCE = 1 << 19


@dataclass(frozen=True)
class Cutting:
    """How texts become rows. `count_prompt`: whether the prompt's own tokens (and [CLS]) take part in pooling."""

    tokenizer: BertTokenizer
    max_length: int
    prompt: str = ""
    count_prompt: bool = True
    lower: bool = False
    long: str = "truncate"
    stride: int = DEFAULT_STRIDE

    def __post_init__(self) -> None:
        if self.long not in LONG:
            raise InputError(f"long={self.long!r} is not known.", f"Use one of {', '.join(LONG)}.")

    @cached_property
    def prompt_ids(self) -> Sequence[int]:
        return self.tokenizer.encode_ids([self._cased(self.prompt)])[0][1:-1] if self.prompt else ()

    def pieces(self, texts: Sequence[str]) -> Pieces:
        """The rows of all texts, in order."""
        if self.prompt:
            texts = [self.prompt + text for text in texts]
        if self.lower:
            texts = [self._cased(text) for text in texts]
        skipped = 0 if self.count_prompt or not self.prompt_ids else 1 + len(self.prompt_ids)
        limit = None if self.long == "windows" else self.max_length
        ids, lengths = self.tokenizer.encode_flat(texts, max_length=limit)
        whole = Pieces.of_texts(ids, lengths, skipped=skipped)
        if limit is not None or int(lengths.max(initial=0)) <= self.max_length:
            return whole
        parts, done = [], 0
        for number in np.flatnonzero(lengths > self.max_length).tolist():
            parts += [whole.between(done, number), _windows(texts[number], self, skipped)]
            done = number + 1
        return Pieces.joined([*parts, whole.between(done, len(texts))])

    def _cased(self, text: str) -> str:
        # Letter by letter, as the Rust library lower-cases: str.lower() would look at a sigma's neighbours.
        return "".join(map(str.lower, text)) if self.lower else text


def text_chunks(texts: Iterable[object], most: int) -> Iterator[list[str]]:
    """The texts in lists that grow up to `most`, or an error that says which of them is none."""
    size, characters = min(_AT_FIRST, most), 0
    chunk: list[str] = []
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(
                f"Text number {number} (counted from 0) is {_described(text)}, not a string.",
                "Give a list of strings; leave out or replace missing texts.",
            )
        chunk.append(text)
        characters += len(text)
        if len(chunk) >= size or characters >= _CHARACTERS_AT_ONCE:
            yield chunk
            chunk, characters, size = [], 0, min(2 * size, most)
    if chunk:
        yield chunk


def filled(chunks: Iterable[Pieces], sizes: Iterator[int]) -> Iterator[Pieces]:
    """The same rows in runs of as many tokens as `sizes` says, one after the other, or less than a row fewer.

    The rows of one text stay together, so a text that is longer has a run of its own.
    """
    held: Pieces | None = None
    wanted = next(sizes)
    for chunk in chunks:
        held = chunk if held is None else Pieces.joined([held, chunk])
        while len(held.ids) >= wanted:
            ends = np.append(np.flatnonzero(held.firsts)[1:], len(held))  # where texts end
            tokens = np.append(held.begins, len(held.ids))[ends]
            end = int(ends[max(0, int(np.searchsorted(tokens, wanted, side="right")) - 1)])
            yield held.between(0, end)
            held = held.between(end, len(held))
            wanted = next(sizes)
    if held is not None and len(held):
        yield held


def _windows(text: str, cutting: Cutting, skipped: int) -> Pieces:
    """Each token counts where it has most context. The prompt, which the text begins with, precedes every window."""
    prompt_ids = cutting.prompt_ids
    room = cutting.max_length - len(prompt_ids)
    if room < 3:
        raise InputError(
            f"The prompt has {len(prompt_ids)} tokens and leaves no room for text in windows of {cutting.max_length}.",
            "Use a shorter prompt or a larger max_length.",
        )
    document = split_document(cutting.tokenizer, text, max_length=room, stride=cutting.stride)
    counted = [0] * len(document.windows)  # tokens are counted in runs, one to a window, in the windows' order
    for best in document.best_windows:
        counted[best] += 1
    rows: list[Sequence[int]] = []
    columns: list[tuple[int, int, int, bool, bool]] = []
    token = 0
    for window, count in zip(document.windows, counted, strict=True):
        is_first, is_last = window.index == 0, window.index == len(document.windows) - 1
        ids, shift = window.input_ids, window.shift
        if not is_first:
            ids, shift = (ids[0], *prompt_ids, *ids[1:]), shift + len(prompt_ids)
        start = 0 if is_first else token + shift
        end = len(ids) if is_last else token + count + shift
        if is_first:
            start = min(skipped, end)
        # Position 0 of the whole text is [CLS], so its token t stands at t + 1.
        rows.append(ids)
        columns.append((start, end - start, start if is_first else token + 1, is_first, is_last))
        token += count
    starts, counts, positions, firsts, lasts = (np.array(column) for column in zip(*columns, strict=True))
    lengths = np.array([len(row) for row in rows])
    return Pieces(np.concatenate([np.array(row) for row in rows]), lengths, starts, counts, positions, firsts, lasts)


def _described(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__name__} ({value!r:.40})"


def is_stream(texts: object) -> bool:
    return isinstance(texts, Iterator | Reader | PathLike)
