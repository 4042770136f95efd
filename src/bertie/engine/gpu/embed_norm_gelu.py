"""What lies between a layer's products, each as one pass over memory.

- `embed`: three table look-ups, their sum, LayerNorm. `count_positions`: where those of positions are, for models whose
  positions do not count padding.
- `add_norm`: a product, plus what came into the block, LayerNorm.
- `gelu`: the activation, where the product before it could not do it on its way out (fp8 products cannot).

`embed` and `add_norm` write half precision, which the next block adds to, and where the next product is in fp8 also
the rounded form it reads. All arithmetic inside is fp32; the variance is taken about the mean, in a second look at
registers, not as a difference of squares.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from bertie.engine.gpu.kernel_functions import gelu_of, layer_norm, to_fp8
from bertie.engine.gpu.triton_launch import INTERPRETED, launch, next_power_of_2, rows_and_warps

FP8 = torch.float8_e4m3fn


@triton.jit
def _add_norm_kernel(
    x,  # [tokens, D]: a product, its bias added; or [parts, tokens, D] fp32, to be added up
    bias,  # [D], where there are parts
    residual,  # [tokens, D]
    gamma, beta,
    out,  # [tokens, D]
    out8,  # [tokens, D] fp8
    scale8,  # [1] fp32
    tokens,
    width,  # D
    eps,
    PARTS: tl.constexpr,  # 0: x is whole
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,  # D filled up to a power of two
    TO_FP8: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    in_row = column < width
    mask = (row < tokens)[:, None] & in_row[None, :]
    place = row.to(tl.int64)[:, None] * width + column[None, :]
    total = tl.load(residual + place, mask=mask, other=0.0).to(tl.float32)
    if PARTS == 0:
        total += tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
    else:
        total += tl.load(bias + column, mask=in_row, other=0.0).to(tl.float32)[None, :]
        for part in tl.static_range(PARTS):
            total += tl.load(x + part * tokens * width + place, mask=mask, other=0.0)
    normal = layer_norm(total, in_row, gamma, beta, column, width, eps)
    tl.store(out + place, normal.to(out.dtype.element_ty), mask=mask)
    if TO_FP8:
        tl.store(out8 + place, to_fp8(normal, scale8), mask=mask)


@triton.jit
def _embed_kernel(
    ids,  # [tokens]
    type_ids,  # [tokens], or None: all 0
    positions,  # [tokens], or None: a token's place in its text
    starts,  # [tokens] int32: where each token's text starts
    words, places, types, gamma, beta, out, out8, scale8, tokens, width, eps,
    first,  # the position of a text's first token
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, HAS_TYPES: tl.constexpr, HAS_POSITIONS: tl.constexpr, TO_FP8: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real = row < tokens
    column = tl.arange(0, COLUMNS)
    in_row = column < width
    mask = real[:, None] & in_row[None, :]
    word = tl.load(ids + row, mask=real, other=0).to(tl.int64)
    if HAS_POSITIONS:
        position = tl.load(positions + row, mask=real, other=0).to(tl.int64)
    else:
        position = (row - tl.load(starts + row, mask=real, other=0)).to(tl.int64)
        position = tl.where(real, position, 0) + first
    total = tl.load(words + word[:, None] * width + column[None, :], mask=mask, other=0.0).to(tl.float32)
    if HAS_TYPES:
        segment = tl.load(type_ids + row, mask=real, other=0).to(tl.int64)
        total += tl.load(types + segment[:, None] * width + column[None, :], mask=mask, other=0.0).to(tl.float32)
    else:
        total += tl.load(types + column, mask=in_row, other=0.0).to(tl.float32)[None, :]
    total += tl.load(places + position[:, None] * width + column[None, :], mask=mask, other=0.0).to(tl.float32)
    normal = layer_norm(total, in_row, gamma, beta, column, width, eps)
    place = row.to(tl.int64)[:, None] * width + column[None, :]
    tl.store(out + place, normal.to(out.dtype.element_ty), mask=mask)
    if TO_FP8:
        tl.store(out8 + place, to_fp8(normal, scale8), mask=mask)


@triton.jit(do_not_specialize=["tokens"])
def _positions_kernel(
    ids,  # [tokens]
    starts,  # [tokens] int32
    positions,  # [tokens] int32
    tokens, padding, ROWS: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * ROWS
    row = first + tl.arange(0, ROWS)
    own = tl.load(starts + row, mask=row < tokens, other=0)
    counted = tl.zeros([ROWS], tl.int32)
    for block in range(tl.load(starts + first), first + ROWS, ROWS):  # from where the first row's text starts
        other = block + tl.arange(0, ROWS)
        real = tl.load(ids + other, mask=other < tokens, other=padding) != padding
        before = (other[None, :] >= own[:, None]) & (other[None, :] <= row[:, None])
        counted += tl.sum((before & real[None, :]).to(tl.int32), 1)
    is_real = tl.load(ids + row, mask=row < tokens, other=padding) != padding
    tl.store(positions + row, tl.where(is_real, counted, 0) + padding, mask=row < tokens)


@triton.jit
def _gelu_kernel(
    x, out, scale, count, BLOCK: tl.constexpr, EXACT: tl.constexpr, HARDWARE: tl.constexpr, TO_FP8: tl.constexpr
):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = place < count
    bent = gelu_of(tl.load(x + place, mask=real, other=0.0).to(tl.float32), EXACT, HARDWARE)
    if TO_FP8:
        tl.store(out + place, to_fp8(bent, scale), mask=real)
    else:
        tl.store(out + place, bent.to(out.dtype.element_ty), mask=real)


# -- how they are called ---------------------------------------------------------------------------------------------


def add_norm(
    x: Tensor,
    residual: Tensor,
    gamma: Tensor,
    beta: Tensor,
    eps: float,
    *,
    bias: Tensor | None = None,
    fp8_scale: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """LayerNorm(x + residual), `[tokens, D]`, and its fp8 form in units of `fp8_scale` where one is given.

    x may come as parts `[parts, tokens, D]` in fp32 that are still to be added up, with a `bias`.
    """
    tokens, width = residual.shape
    rows, warps = rows_and_warps(width)
    out = torch.empty_like(residual)
    out8 = None if fp8_scale is None else torch.empty(tokens, width, device=x.device, dtype=FP8)
    _add_norm_kernel[(triton.cdiv(tokens, rows),)](
        x, bias, residual, gamma, beta, out, out8, fp8_scale, tokens, width, eps,
        PARTS=len(x) if x.dim() == 3 else 0, ROWS=rows, COLUMNS=next_power_of_2(width), TO_FP8=fp8_scale is not None,
        num_warps=warps,
    )  # fmt: skip
    return out, out8


def embed(
    ids: Tensor,
    type_ids: Tensor | None,
    positions: Tensor | None,
    starts: Tensor,
    tables: tuple[Tensor, Tensor, Tensor],  # words, positions, segments
    gamma: Tensor,
    beta: Tensor,
    eps: float,
    *,
    first: int = 0,
    fp8_scale: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Ids `[tokens]` → `[tokens, D]`, and its fp8 form where a scale is given.

    Where no positions are given, texts have those from `first` on.
    """
    words, places, types = tables
    tokens, width = len(ids), words.shape[1]
    rows, warps = rows_and_warps(width)
    out = torch.empty(tokens, width, device=ids.device, dtype=words.dtype)
    out8 = None if fp8_scale is None else torch.empty(tokens, width, device=ids.device, dtype=FP8)
    _embed_kernel[(triton.cdiv(tokens, rows),)](
        ids, type_ids, positions, starts, words, places, types, gamma, beta, out, out8, fp8_scale, tokens, width, eps,
        first, ROWS=rows, COLUMNS=next_power_of_2(width), HAS_TYPES=type_ids is not None,
        HAS_POSITIONS=positions is not None, TO_FP8=fp8_scale is not None, num_warps=warps,
    )  # fmt: skip
    return out, out8


def count_positions(ids: Tensor, starts: Tensor, padding: int) -> Tensor:
    """Ids `[tokens]` → positions `[tokens]` int32, as `Packing.positions` counts: without padding, after its row."""
    positions = torch.empty_like(starts)
    rows = 64
    constants = {"ROWS": rows}
    launch(
        _positions_kernel, (-(-len(ids) // rows),), (ids, starts, positions, len(ids), padding), constants, num_warps=4
    )
    return positions


def gelu(x: Tensor, *, fp8_scale: Tensor | None = None, exact: bool = False, out: Tensor | None = None) -> Tensor:
    """GELU of `[tokens, I]`: in x's dtype, or in fp8 in units of `fp8_scale`."""
    if out is None:
        out = torch.empty_like(x, dtype=x.dtype if fp8_scale is None else FP8)
    block = 4096
    launch(
        _gelu_kernel,
        (-(-x.numel() // block),),
        (x, out, fp8_scale, x.numel()),
        {"BLOCK": block, "EXACT": exact, "HARDWARE": not INTERPRETED, "TO_FP8": fp8_scale is not None},
        num_warps=8,
    )
    return out
