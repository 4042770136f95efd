"""How a packed batch goes through fused layers in training: its tables on the device, and attention over it.

All that the layers read besides weights and states lies in one buffer of int32, so that it comes in one copy:

    seeds of dropout [layers·3, 4] │ attention programs [P, 4] │ those of long texts [B, 4] │ starts [N]
    seeds of dropout [layers·3, 4] │ ends of texts [T + 1]                                        FlashAttention's

Our kernels (attention.py, gradients.py) are for batches whose texts all fit into a tile of theirs, 128 tokens; the rest
is FlashAttention's. A *filled* batch has its tokens, programs and texts filled up to round numbers, so that batches of
nearly one size have one `Form` and can be replayed by one recording (recorded.py). What fills it up are texts of their
own, which no other text sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertie.engine.gpu.attention import attention
from bertie.engine.gpu.gradients import WHOLE, RowSums, attention_backward, column_sums
from bertie.engine.gpu.launch import rows_like, rows_of
from bertie.engine.gpu.schedule import TILE, Schedule, host_tables, to_device
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
    programs: int = 0  # of our attention kernel; 0: FlashAttention
    programs_back: int = 0  # those of long texts, which the way back takes whole
    texts: int = 0  # FlashAttention's
    longest: int = 0

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of the buffer's parts."""
        seeds = SEEDS * self.layers * _SEED
        if self.programs:
            return seeds, 4 * self.programs, 4 * self.programs_back, self.rows
        return seeds, self.texts + 1


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
        longest = max(lengths)
        flat = np.zeros((SEEDS * layers, _SEED), dtype=np.int32)
        if seeds is not None:
            flat[:, 0] = seeds
        parts = [flat.ravel()]
        if longest <= WHOLE:
            # Long texts are walked over in small tiles on the way forward; the way back takes them whole.
            tables = host_tables(lengths, tile=TILE)
            programs, starts = tables[:-rows], tables[-rows:]
            whole = _long_programs(lengths)
            counts = len(programs) // 4, len(whole) // 4
            if filled:
                counts = _spare(counts[0]), _spare(counts[1])
            form = Form(layers, rows, dropout, programs=counts[0], programs_back=counts[1])
            parts += [programs, whole, starts]
        else:
            ends = np.array([0, *accumulate(lengths)], dtype=np.int32)
            form = Form(layers, rows, dropout, texts=len(lengths), longest=longest)
            if filled:
                texts = filled_up(len(lengths), 32)
                form = Form(layers, rows, dropout, texts=texts, longest=filled_up(longest, 128))
                ends = np.concatenate([ends, np.full(texts - len(lengths), rows, dtype=np.int32)])
            parts.append(ends)
        self.form = form
        self.buffer = _side_by_side(parts, form.sizes)

    def to(self, device: torch.device) -> Tensor:
        """The buffer, in a copy that nothing waits for."""
        return to_device(self.buffer, device)


def _long_programs(lengths: Sequence[int]) -> NDArray[np.int32]:
    """`[texts · 4]`: one program for each text that is longer than a small tile."""
    counts = np.asarray(lengths, dtype=np.int32)
    ends = np.cumsum(counts, dtype=np.int32)
    long = counts > TILE
    first, end = (ends - counts)[long], ends[long]
    return np.stack([first, end, first, end], axis=1).ravel()


def _texts_of(tokens: int) -> list[int]:
    whole, rest = divmod(tokens, _FILLING)
    return [_FILLING] * whole + [rest] * (rest > 0)


def _spare(programs: int) -> int:
    """A few more than there are: a program with nothing to do costs next to nothing, a recording does."""
    step = max(16, 1 << max(0, programs.bit_length() - 3))
    return -(-programs // step) * step


def _side_by_side(parts: list[NDArray[np.int32]], sizes: tuple[int, ...]) -> NDArray[np.int32]:
    """The parts, each with zeros up to its size."""
    flat = np.zeros(sum(sizes), dtype=np.int32)
    start = 0
    for part, size in zip(parts, sizes, strict=True):
        flat[start : start + len(part)] = part
        start += size
    return flat


class Passage:
    """A batch's buffer on the device, as layers use it."""

    def __init__(self, form: Form, buffer: Tensor) -> None:
        self.form = form
        seeds, *tables = torch.split(buffer, list(form.sizes))
        self._seeds = seeds.view(-1, SEEDS, _SEED)
        self._ends = tables[0]
        self._plans: list[Schedule] = []
        if form.programs:
            programs, whole, starts = tables
            self._plans.append(Schedule(programs.view(-1, 4), starts))
            if form.programs_back:
                self._plans.append(Schedule(whole.view(-1, 4), starts, WHOLE))

    def seeds(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """Of a layer's three dropouts."""
        return self._seeds[layer, 0], self._seeds[layer, 1], self._seeds[layer, 2]

    def attention(self, qkv: Tensor, heads: int, layer: int) -> tuple[Tensor, tuple[Tensor, ...]]:
        """`[tokens, 3·N·H]` → the context `[tokens, N·H]`, and what the way back needs besides qkv and the context."""
        if self._plans:
            out = rows_of(len(qkv), qkv.shape[1] // 3, qkv.dtype, qkv.device)
            drop, seed = self.form.dropout, self.seeds(layer)[0]
            return attention(qkv, heads, self._plans[0], out=out, dropout=drop, seed=seed), ()
        q, k, v = _split(_with_room(qkv), heads)
        form, ends = self.form, self._ends
        found = torch.ops.aten._flash_attention_forward(
            q, k, v, ends, ends, form.longest, form.longest, form.dropout, False, False
        )
        return found[0].flatten(1)[: len(qkv)], tuple(found[1:4])

    def attention_backward(
        self, grad: Tensor, qkv: Tensor, context: Tensor, kept: Sequence[Tensor], heads: int, layer: int
    ) -> tuple[Tensor, Tensor]:
        """The gradient of qkv, and sums over some of its rows each, `[blocks, 3·N·H]`."""
        if self._plans:
            drop, seed = self.form.dropout, self.seeds(layer)[0]
            return attention_backward(qkv, grad, heads, self._plans, dropout=drop, seed=seed)
        q, k, v = _split(_with_room(qkv), heads)
        form, ends = self.form, self._ends
        found = torch.ops.aten._flash_attention_backward(
            _with_room(grad).view_as(q), q, k, v, _with_room(context).view_as(q), kept[0], ends, ends, form.longest,
            form.longest, form.dropout, False, kept[1], kept[2],
        )  # fmt: skip
        of_qkv = rows_like(qkv)
        torch.cat([part.flatten(1)[: len(qkv)] for part in found[:3]], dim=1, out=of_qkv)
        sums = RowSums(len(qkv), [qkv.shape[1]], qkv.device)
        column_sums(of_qkv, sums=sums.part(0))
        return of_qkv, sums.buffer


def _with_room(x: Tensor) -> Tensor:
    """x and the rows behind it that `rows_of` cut off, for FlashAttention to make as many of its own."""
    rows = x.untyped_storage().nbytes() // (x.element_size() * x.shape[1])
    return x.as_strided((rows, x.shape[1]), x.stride(), 0)


def _split(qkv: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """`[tokens, 3·N·H]` → three views `[tokens, N, H]`."""
    q, k, v = qkv.view(len(qkv), 3, heads, -1).unbind(1)
    return q, k, v
