"""Token vectors to one vector, for many packed texts at once.

A text may lie in several rows (windows), and a row's tokens may count only in part: each token of a long text counts in
the window where it has most context, and nowhere else. So pooling has two steps. `pool` sums what counts in each row,
for a whole batch and on the device where the token vectors are; `join` adds up the rows of each text. A text in one row
goes the same way. `divide` makes means of sums.

`[CLS]` and `[SEP]` count like other tokens, as in sentence-transformers: those of the first and of the last window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertie.arguments import one_or_several
from bertie.engine.runner import Means
from bertie.errors import InputError

POOLING_MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
Ints = NDArray[np.int64]
_FEW_ROWS = 64


@dataclass(frozen=True)
class Pooling:
    """Which vectors stand side by side. Without `include_prompt` the prompt's tokens are seen but not counted."""

    modes: tuple[str, ...]
    include_prompt: bool = True


DEFAULT_POOLING = Pooling(("mean",))


@dataclass(frozen=True, eq=False)
class Pieces:
    """Rows of texts end to end, and which of their tokens count: `starts[i]` and the `counts[i]` after it.

    The first token of row i that counts is its text's `positions[i]`-th. A text is one row, first and last, or several
    rows in order. All columns have one entry per row; only `ids` has one per token.
    """

    ids: Ints  # [tokens]
    lengths: Ints
    starts: Ints
    counts: Ints
    positions: Ints
    firsts: NDArray[np.bool_]
    lasts: NDArray[np.bool_]

    @classmethod
    def of_texts(cls, ids: Ints, lengths: Ints, *, skipped: int = 0) -> Pieces:
        """One row to a text; its first `skipped` tokens do not count."""
        starts = np.minimum(lengths, skipped)
        whole = np.ones(len(lengths), dtype=np.bool_)
        return cls(ids, lengths, starts, lengths - starts, starts, whole, whole)

    @classmethod
    def joined(cls, parts: Sequence[Pieces]) -> Pieces:
        if len(parts) == 1:
            return parts[0]
        return cls(*map(np.concatenate, zip(*((part.ids, *part._columns) for part in parts), strict=True)))

    @property
    def _columns(self) -> tuple[NDArray[Any], ...]:
        return self.lengths, self.starts, self.counts, self.positions, self.firsts, self.lasts

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def begins(self) -> Ints:
        """Where each row begins among the tokens."""
        return np.cumsum(self.lengths) - self.lengths

    @cached_property
    def whole(self) -> bool:
        """Whether every text is one row."""
        return bool(self.firsts.all()) and bool(self.lasts.all())

    def take(self, rows: Ints) -> Pieces:
        """Some of the rows, in the order given."""
        ids = self.ids[ranges(self.begins[rows], self.lengths[rows])]
        return Pieces(ids, *(column[rows] for column in self._columns))

    def between(self, first: int, end: int) -> Pieces:
        """Rows `first` to `end` (exclusive), without a copy."""
        begin = int(self.begins[first]) if first < len(self) else len(self.ids)
        stop = int(self.begins[end]) if end < len(self) else len(self.ids)
        return Pieces(self.ids[begin:stop], *(column[first:end] for column in self._columns))


def ranges(begins: Ints, lengths: Ints) -> Ints:
    """`begins[i]`, `begins[i] + 1`, … as many as `lengths[i]` says, for every i in turn.

    >>> ranges(np.array([7, 2]), np.array([3, 2])).tolist()
    [7, 8, 9, 2, 3]
    """
    if len(begins) == 1:
        return np.arange(begins[0], begins[0] + lengths[0])
    ends = np.cumsum(lengths)
    found: Ints = np.arange(ends[-1] if len(ends) else 0) + np.repeat(begins - (ends - lengths), lengths)
    return found


def upload(values: NDArray[np.generic], device: torch.device) -> Tensor:
    """A copy on the device. To a GPU it goes from pinned memory, so that nobody waits for it."""
    tensor = torch.from_numpy(values)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def read_pooling(given: str | Sequence[str] | None, default: Pooling) -> Pooling:
    """What a caller asks for: a mode, several (side by side, in that order), or None for the checkpoint's own."""
    if given is None:
        return default
    modes = one_or_several(given)
    unknown = [mode for mode in modes if mode not in POOLING_MODES]
    if unknown or not modes:
        raise InputError(
            f"There is no pooling {unknown[0]!r}." if unknown else "pooling=[] names no mode.",
            f"Use one of {', '.join(POOLING_MODES)}, or a list of them for vectors side by side.",
        )
    return Pooling(modes, include_prompt=default.include_prompt)


def pool(packed: Tensor, pieces: Pieces, modes: Sequence[str]) -> Tensor:
    """`[rows, modes, hidden]` float32 of a batch whose token vectors are `packed`, `[tokens, hidden]`: not yet divided.

    It stays on the device, and nothing here waits for it.
    """
    packed = packed.float()
    begins = pieces.begins + pieces.starts
    counted = packed
    if not np.array_equal(pieces.counts, pieces.lengths):
        counted = packed[upload(ranges(begins, pieces.counts), packed.device)]
    return hear(torch.stack([_pool(mode, packed, counted, pieces, begins) for mode in modes], dim=1), pieces, modes)


def hear(pooled: Tensor, pieces: Pieces, modes: Sequence[str]) -> Tensor:
    """`[rows, modes, hidden]` with zeros in place of a first or last token that is not its text's own."""
    for number, mode in enumerate(modes):
        if mode in ("cls", "lasttoken"):
            heard = (pieces.counts > 0) & (pieces.firsts if mode == "cls" else pieces.lasts)
            if not heard.all():
                pooled[:, number] *= upload(heard.astype(np.float32), pooled.device)[:, None]
    return pooled


def _pool(mode: str, packed: Tensor, counted: Tensor, pieces: Pieces, begins: Ints) -> Tensor:
    """`[rows, hidden]`; zeros (and for "max" what is least) for a row of which no token counts, or any token."""
    if mode in ("cls", "lasttoken"):
        places = begins if mode == "cls" else begins + np.maximum(pieces.counts - 1, 0)
        return packed[upload(np.minimum(places, packed.shape[0] - 1), packed.device)]
    if mode == "max":
        least, lengths = torch.finfo(counted.dtype).min, upload(pieces.counts, packed.device)
        return torch.segment_reduce(counted, "max", lengths=lengths, axis=0, unsafe=True, initial=least)
    if mode == "weightedmean":
        weights = ranges(pieces.positions + 1, pieces.counts).astype(np.float32)
        counted = counted * upload(weights, packed.device)[:, None]
    return _segment_sums(counted, pieces.counts)


def _segment_sums(values: Tensor, lengths: Ints) -> Tensor:
    """`[tokens, …]` → `[rows, …]`: each row's tokens added up one after the other, with the same bits every time."""
    if values.is_cuda and len(lengths) == 1:
        return values.sum(dim=0, keepdim=True)
    if values.is_cuda:  # one thread to a number of the answer; index_add_ would add in any order
        return torch.segment_reduce(values, "sum", lengths=upload(lengths, values.device), axis=0, unsafe=True)
    if len(lengths) <= _FEW_ROWS:
        # NumPy adds in the same order and starts no threads; torch's wait for each other where cores are busy.
        tokens, sums, end = values.numpy(), np.empty((len(lengths), *values.shape[1:]), np.float32), 0
        for row, length in enumerate(lengths.tolist()):
            np.add.reduce(tokens[end : end + length], axis=0, out=sums[row])
            end += length
        return torch.from_numpy(sums)
    rows = torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths))
    return values.new_zeros(len(lengths), *values.shape[1:]).index_add_(0, rows, values)


def join(pooled: Tensor, pieces: Pieces, modes: Sequence[str]) -> Tensor:
    """`[rows, modes, hidden]` → `[texts, modes, hidden]`: the rows of each text added up, or the greatest of them."""
    rows = np.diff(np.append(np.flatnonzero(pieces.firsts), len(pieces)))
    joined = [
        torch.segment_reduce(pooled[:, i], "max", lengths=torch.from_numpy(rows), axis=0, unsafe=True)
        if mode == "max"
        else _segment_sums(pooled[:, i], rows)
        for i, mode in enumerate(modes)
    ]
    return torch.stack(joined, dim=1)


def divide(pooled: Tensor, pieces: Pieces, modes: Sequence[str]) -> Tensor:
    """`[texts, modes, hidden]` sums → `[texts, modes · hidden]`. A text of which no token counts becomes zeros."""
    if any(mode not in ("cls", "lasttoken", "max") for mode in modes) or not pieces.counts.all():
        divisors = np.stack([_divisors(mode, pieces) for mode in modes], axis=1)  # [texts, modes]
        if divisors.size == 1:
            return pooled.flatten(1) / float(divisors[0, 0])  # a number needs no copy to the device
        pooled = pooled / upload(divisors, pooled.device)[:, :, None]
    return pooled.flatten(1)


def means(pieces: Pieces, mode: str, *, unit: bool) -> Means | None:
    """Texts of one row each, as a mean of some of their tokens; None for a mode that is none."""
    firsts, counts = pieces.begins + pieces.starts, pieces.counts
    if mode in ("max", "weightedmean"):
        return None
    if mode in ("cls", "lasttoken"):
        if mode == "lasttoken":
            firsts = firsts + np.maximum(counts - 1, 0)
        counts = np.minimum(counts, 1)
    return Means(pieces.lengths.tolist(), firsts, counts, _divisors(mode, pieces), unit)


def _divisors(mode: str, pieces: Pieces) -> NDArray[np.float32]:
    """What each text's sum is divided by; infinite where no token counts."""
    heads = np.flatnonzero(pieces.firsts)
    counts = np.add.reduceat(pieces.counts, heads)
    if mode == "mean":
        found = counts.astype(np.float64)
    elif mode == "mean_sqrt_len_tokens":
        found = np.sqrt(counts)
    elif mode == "weightedmean":
        # The sum of position + 1 over each row's tokens.
        found = np.add.reduceat(pieces.counts * (2 * pieces.positions + pieces.counts + 1) / 2, heads)
    else:
        found = np.ones(len(counts))
    return np.where(counts > 0, found, np.inf).astype(np.float32)
