"""How a packed batch goes through fused layers in training: its tables on the device, and attention over it.

All that the layers read besides weights and states lies in one buffer of int32, so that it comes in one copy:

    seeds of dropout [layers·3, 4] │ programs of attention: small, whole, long [P, 4] each │ starts [N]

Which kernels take a text goes by its length. Up to 64 tokens several texts are one *small* tile, both ways. Up to 128
the way forward walks over a text in small tiles, and the way back takes it *whole* (attention.py, gradients.py). What
is longer is *long*, both ways (long_attention.py).

A *filled* batch has its tokens and programs filled up to round numbers, so that batches of nearly one size have one
`Form` and can be replayed by one recording (cuda_graphs.py). What fills it up are texts of their own, which no other
text sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertie.engine.gpu.attention import attention
from bertie.engine.gpu.attention_schedule import TILE, Schedule, tile_programs, to_device
from bertie.engine.gpu.training.gradients import WHOLE, attention_backward
from bertie.engine.gpu.training.long_attention import LONG, long_attention, long_attention_backward
from bertie.engine.gpu.triton_launch import rows_like, rows_of
from bertie.ops.packing import Packing

SEEDS = 3  # of a layer: attention's, and those of its two outputs
_SEED = 4  # numbers to a seed, of which the first counts: Triton likes addresses that are multiples of 16
_FILLING = 64  # tokens of a text that fills up


@dataclass(frozen=True)
class Form:
    """What a pass over a batch looks like to the GPU: all that launches depend on."""

    layers: int
    rows: int  # tokens, with those that fill up
    dropout: float = 0.0  # in attention
    small: int = 0  # programs of attention
    whole: int = 0
    long: int = 0

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of the buffer's parts."""
        return SEEDS * self.layers * _SEED, 4 * self.small, 4 * self.whole, 4 * self.long, self.rows


# Operations of a step from which on the GPU is what is waited for: an H200 takes 8 ms for them, a host as long for what
# of a step is not recorded. Below, rows that fill up cost no time, and the fewer forms there are the better.
_BUSY = 3e12


def filled_up(count: int, least: int, share: int = 128) -> int:
    """To a multiple of `least`, or of the largest power of two that is at most 1/share of it."""
    step = max(least, 1 << max(0, (count // share).bit_length() - 1))
    return -(-count // step) * step


def rows_for(tokens: int, weights: int) -> int:
    """Tokens of a batch filled up, for layers with so many weights: by an eighth at most, or where that costs by 1/128.

    But not quite: for a multiple of 32 rows cuBLAS takes kernels that are 3 to 5 % slower.
    """
    share = 128 if 6.0 * tokens * weights > _BUSY else 8
    return filled_up(tokens + 16, 64, share) - 16


class TrainingBatch:
    """One packed batch on the host: its form, and the numbers of its buffer."""

    def __init__(
        self, packing: Packing, layers: int, *, dropout: float, seeds: Sequence[int] | None, rows: int | None = None
    ) -> None:
        """`rows`: filled up to so many (see `rows_for`), and everything else about it to round numbers too."""
        self.packing, self.tokens = packing, packing.num_tokens
        filled = rows is not None
        rows = self.tokens if rows is None else rows
        lengths = [*packing.lengths, *_texts_of(rows - self.tokens)]
        seeds_of = np.zeros((SEEDS * layers, _SEED), dtype=np.int32)
        if seeds is not None:
            seeds_of[:, 0] = seeds
        counts = np.asarray(lengths, dtype=np.int32)
        starts = np.cumsum(counts, dtype=np.int32) - counts
        tables = [tile_programs(lengths, TILE, longest=WHOLE), _whole_programs(starts, counts), _long(starts, counts)]
        programs = [_spare(len(table)) if filled else len(table) for table in tables]
        self.form = Form(layers, rows, dropout, *programs)
        self.buffer = _side_by_side([seeds_of, *tables, np.repeat(starts, counts)], self.form.sizes)

    def to(self, device: torch.device) -> Tensor:
        """The buffer, in a copy that nothing waits for."""
        return to_device(self.buffer, device)


def _whole_programs(starts: NDArray[np.int32], counts: NDArray[np.int32]) -> NDArray[np.int32]:
    """`[programs, 4]`: one for each text that is longer than a small tile, and no longer than a whole one."""
    chosen = (counts > TILE) & (counts <= WHOLE)
    first, end = starts[chosen], (starts + counts)[chosen]
    return np.stack([first, end, first, end], axis=1)


def _long(starts: NDArray[np.int32], counts: NDArray[np.int32]) -> NDArray[np.int32]:
    """`[programs, 4]`: a tile each of the texts that are longer than a whole one, the longest first."""
    chosen = np.flatnonzero(counts > WHOLE)
    chosen = chosen[np.argsort(-counts[chosen], kind="stable")]
    lines = [
        (first, min(first + LONG, end), start, end)
        for start, end in zip(starts[chosen].tolist(), (starts + counts)[chosen].tolist(), strict=True)
        for first in range(start, end, LONG)
    ]
    return np.array(lines, dtype=np.int32).reshape(-1, 4)


def _texts_of(tokens: int) -> list[int]:
    whole, rest = divmod(tokens, _FILLING)
    return [_FILLING] * whole + [rest] * (rest > 0)


def _spare(programs: int) -> int:
    """A few more than there are, if any: a program with nothing to do costs next to nothing, a recording does."""
    step = max(16, 1 << max(0, programs.bit_length() - 3))
    return -(-programs // step) * step


def _side_by_side(parts: list[NDArray[np.int32]], sizes: tuple[int, ...]) -> NDArray[np.int32]:
    """The parts, each with zeros up to its size."""
    flat = np.zeros(sum(sizes), dtype=np.int32)
    start = 0
    for part, size in zip(parts, sizes, strict=True):
        flat[start : start + part.size] = part.ravel()
        start += size
    return flat


class Passage:
    """A batch's buffer on the device, as layers use it."""

    def __init__(self, form: Form, buffer: Tensor) -> None:
        self.form = form
        seeds, small, whole, long, starts = torch.split(buffer, list(form.sizes))
        self._seeds = seeds.view(-1, SEEDS, _SEED)
        self._small = Schedule(small.view(-1, 4), starts)
        self._whole = Schedule(whole.view(-1, 4), starts, WHOLE)
        self._long = Schedule(long.view(-1, 4), starts, LONG)

    def seeds(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """Of a layer's three dropouts."""
        return self._seeds[layer, 0], self._seeds[layer, 1], self._seeds[layer, 2]

    def attention(self, qkv: Tensor, heads: int, layer: int) -> tuple[Tensor, tuple[Tensor, ...]]:
        """`[tokens, 3·N·H]` → the context `[tokens, N·H]`, and what the way back needs besides qkv and the context."""
        out = rows_of(len(qkv), qkv.shape[1] // 3, qkv.dtype, qkv.device)
        drop, seed = self.form.dropout, self.seeds(layer)[0]
        if self.form.small:
            attention(qkv, heads, self._small, out=out, dropout=drop, seed=seed)
        if self.form.long:
            return out, (long_attention(qkv, heads, self._long, out=out, dropout=drop, seed=seed),)
        return out, ()

    def attention_backward(
        self, grad: Tensor, qkv: Tensor, context: Tensor, kept: Sequence[Tensor], heads: int, layer: int
    ) -> tuple[Tensor, Tensor]:
        """The gradient of qkv, and sums over some of its rows each, `[programs, 3·N·H]`."""
        drop, seed = self.form.dropout, self.seeds(layer)[0]
        plans = [plan for plan in (self._small, self._whole) if len(plan.programs)]
        counts = [len(plan.programs) for plan in plans]
        out = rows_like(qkv)
        sums = torch.empty(sum(counts) + self.form.long, qkv.shape[1], device=qkv.device, dtype=torch.float32)
        *parts, of_long = torch.split(sums, [*counts, self.form.long])
        for plan, part in zip(plans, parts, strict=True):
            attention_backward(qkv, grad, heads, plan, out=out, column_sums=part, dropout=drop, seed=seed)
        if self.form.long:
            long_attention_backward(
                qkv, context, grad, kept[0], heads, self._long, out=out, column_sums=of_long, dropout=drop, seed=seed
            )
        return out, sums
