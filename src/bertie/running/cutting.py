"""Texts to rows of the model for embedding: cut off at the model's length, or in windows that cover all of the text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike

import numpy as np
from numpy.typing import NDArray

from bertie.data import Reader
from bertie.errors import InputError
from bertie.running.long_texts import LONG, Cuts
from bertie.running.pooling import Pieces
from bertie.text import BertTokenizer, split_document
from bertie.text.windows import DEFAULT_STRIDE

TextStream = Iterator[str] | Reader[str] | PathLike[str]
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
    cuts: Cuts = field(default_factory=lambda: Cuts("truncate", 0), compare=False)  # of the call these rows are for

    def __post_init__(self) -> None:
        if self.long not in LONG:
            raise InputError(f"long={self.long!r} is not known.", f"Use one of {', '.join(LONG)}.")

    @cached_property
    def prompt_ids(self) -> Sequence[int]:
        return self.tokenizer.encode_ids([self._cased(self.prompt)])[0][1:-1] if self.prompt else ()

    def pieces(self, texts: Sequence[str], cuts: Cuts | None = None) -> Pieces:
        """The rows of all texts, in order. Texts that are cut are counted (in `cuts`), or refused, as `long` says."""
        cuts = self.cuts if cuts is None else cuts
        given, texts = texts, self.prepared(texts)
        skipped = 0 if self.count_prompt or not self.prompt_ids else 1 + len(self.prompt_ids)
        if self.long != "windows":
            ids, lengths, is_cut = cut_ids(self.tokenizer, texts, self.max_length)
            for number in np.flatnonzero(is_cut).tolist():
                cuts.refuse(given[number])
            cuts.count(int(is_cut.sum()), len(texts))
            return Pieces.of_texts(ids, lengths, skipped=skipped)
        ids, lengths = self.tokenizer.encode_flat(texts)
        whole = Pieces.of_texts(ids, lengths, skipped=skipped)
        if int(lengths.max(initial=0)) <= self.max_length:
            return whole
        parts, done = [], 0
        for number in np.flatnonzero(lengths > self.max_length).tolist():
            parts += [whole.between(done, number), _windows(texts[number], self, skipped)]
            done = number + 1
        return Pieces.joined([*parts, whole.between(done, len(texts))])

    def prepared(self, texts: Sequence[str]) -> Sequence[str]:
        """The texts as they are tokenized: with the prompt, in the model's case."""
        if self.prompt:
            texts = [self.prompt + text for text in texts]
        return [self._cased(text) for text in texts] if self.lower else texts

    def _cased(self, text: str) -> str:
        # Letter by letter, as the Rust library lower-cases: str.lower() would look at a sigma's neighbours.
        return "".join(map(str.lower, text)) if self.lower else text


def cut_ids(
    tokenizer: BertTokenizer, texts: Sequence[str], limit: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """The ids of all texts end to end, how many are each text's, and which texts lost some to fit into `limit`.

    One token more than fits is asked for. It tells a text that is cut from one that just fits, and goes: the last
    before [SEP], or the first after [CLS] where texts lose their beginning.
    """
    ids, lengths = tokenizer.encode_flat(texts, max_length=limit + 1)
    is_cut = lengths > limit
    if is_cut.any():
        ends = np.cumsum(lengths)
        surplus = ends - 2 if tokenizer.truncation_side == "right" else ends - lengths + 1
        ids, lengths = np.delete(ids, surplus[is_cut]), lengths - is_cut
    return ids, lengths, is_cut


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
