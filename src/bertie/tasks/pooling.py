"""Token vectors to one vector, for many packed texts at once.

A text may lie in several rows (windows), and a row's tokens may count only in part: each token of a long text counts in
the window where it has most context, and nowhere else. So pooling has two steps. `pool_parts` sums what counts in each
row; `join_parts` adds up a text's rows and divides. A text in one row goes the same way.

`[CLS]` and `[SEP]` count like other tokens, as in sentence-transformers: those of the first and of the last window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bertie.errors import InputError
from bertie.tasks.batching import Row

POOLING_MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")


@dataclass(frozen=True)
class Pooling:
    """Which vectors stand side by side. Without `include_prompt` the prompt's tokens are seen but not counted."""

    modes: tuple[str, ...]
    include_prompt: bool = True


DEFAULT_POOLING = Pooling(("mean",))


@dataclass(frozen=True, slots=True)
class Piece:
    """A row and the tokens of it that count, `start` to `end` (exclusive), the first of them the text's `position`-th.

    A text is one piece, first and last, or several in order.
    """

    row: Row
    start: int
    end: int
    position: int = 0
    is_first: bool = True
    is_last: bool = True

    def __len__(self) -> int:
        return len(self.row)

    @property
    def count(self) -> int:
        return self.end - self.start

    @property
    def is_whole(self) -> bool:
        return self.is_first and self.is_last


@dataclass(frozen=True, slots=True)
class Part:
    """What one row gives to its text, `[modes, hidden]`: sums, or the vector itself where the text is one piece."""

    values: Tensor
    piece: Piece


def read_pooling(given: str | Sequence[str] | None, default: Pooling) -> Pooling:
    """What a caller asks for: a mode, several (side by side, in that order), or None for the checkpoint's own."""
    if given is None:
        return default
    modes = (given,) if isinstance(given, str) else tuple(given)
    unknown = [mode for mode in modes if mode not in POOLING_MODES]
    if unknown or not modes:
        raise InputError(
            f"There is no pooling {unknown[0]!r}." if unknown else "pooling=[] names no mode.",
            f"Use one of {', '.join(POOLING_MODES)}, or a list of them for vectors side by side.",
        )
    return Pooling(modes, include_prompt=default.include_prompt)


def pool_parts(packed: Tensor, pieces: Sequence[Piece], modes: Sequence[str]) -> list[Part]:
    """The parts of a batch whose token vectors are `packed`, `[tokens, hidden]`; computed in fp32, given on the CPU."""
    packed = packed.float()
    starts, begin = [], 0
    for piece in pieces:
        starts.append(begin + piece.start)
        begin += len(piece)
    counted = packed
    if begin != sum(piece.count for piece in pieces):
        kept = [torch.arange(start, start + piece.count) for start, piece in zip(starts, pieces, strict=True)]
        counted = packed[torch.cat(kept).to(packed.device)]
    sums = torch.stack([_pool(mode, packed, counted, pieces, starts) for mode in modes], dim=1).cpu()
    divisors = torch.tensor([[_divisor(mode, [piece]) if piece.is_whole else 1 for mode in modes] for piece in pieces])
    return [Part(one, piece) for one, piece in zip((sums / divisors[:, :, None]).unbind(), pieces, strict=True)]


def _pool(mode: str, packed: Tensor, counted: Tensor, pieces: Sequence[Piece], starts: Sequence[int]) -> Tensor:
    """`[pieces, hidden]`; zeros (and for "max" what is least) for a piece that has no say."""
    device = packed.device
    if mode in ("cls", "lasttoken"):
        first = mode == "cls"
        rows = [start + (0 if first or not p.count else p.count - 1) for start, p in zip(starts, pieces, strict=True)]
        heard = [float(p.count > 0 and (p.is_first if first else p.is_last)) for p in pieces]
        chosen = packed[torch.tensor(rows, device=device).clamp(max=packed.shape[0] - 1)]
        return chosen * torch.tensor(heard, device=device)[:, None]
    lengths = torch.tensor([piece.count for piece in pieces], device=device)
    if mode == "max":
        least = torch.finfo(counted.dtype).min
        return torch.segment_reduce(counted, "max", lengths=lengths, axis=0, unsafe=True, initial=least)
    if mode == "weightedmean":
        weights = [torch.arange(piece.position + 1, piece.position + 1 + piece.count) for piece in pieces]
        counted = counted * torch.cat(weights).to(device, counted.dtype)[:, None]
    return torch.segment_reduce(counted, "sum", lengths=lengths, axis=0, unsafe=True)


def _divisor(mode: str, pieces: Sequence[Piece]) -> float:
    """What a text's sum is divided by; infinite where no token counts, which makes the vector zero."""
    count = sum(piece.count for piece in pieces)
    if count == 0:
        return math.inf
    if mode == "mean":
        return count
    if mode == "mean_sqrt_len_tokens":
        return math.sqrt(count)
    if mode == "weightedmean":
        return sum(piece.count * (2 * piece.position + piece.count + 1) // 2 for piece in pieces)
    return 1


def join_parts(parts: Sequence[Part], modes: Sequence[str]) -> Tensor:
    """One text's vector, `[modes · hidden]`. A text of which no token counts has the vector of zeros."""
    if parts[0].piece.is_whole:
        return parts[0].values.reshape(-1)
    pieces = [part.piece for part in parts]
    values = torch.stack([part.values for part in parts])  # [pieces, modes, hidden]
    joined = [
        (values[:, i].amax(dim=0) if mode == "max" else values[:, i].sum(dim=0)) / _divisor(mode, pieces)
        for i, mode in enumerate(modes)
    ]
    return torch.cat(joined)
