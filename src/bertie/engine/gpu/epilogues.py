# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# mypy: disable-error-code="import-not-found,import-untyped"
# ruff: noqa: N803 (Triton's constants are in capitals)
"""What lies between a layer's products, each as one pass over memory.

- `embed`: three table look-ups, their sum, LayerNorm.
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

from bertie.engine.gpu.launch import INTERPRETED, launch

FP8 = torch.float8_e4m3fn


@triton.jit
def _normalised(x, in_row, gamma, beta, column, width, eps):
    """LayerNorm of rows `[ROWS, COLUMNS]`, of which the first `width` columns are real."""
    mean = tl.sum(x, 1) / width
    centred = tl.where(in_row[None, :], x - mean[:, None], 0.0)
    variance = tl.sum(centred * centred, 1) / width
    weight = tl.load(gamma + column, mask=in_row, other=0.0).to(tl.float32)
    shift = tl.load(beta + column, mask=in_row, other=0.0).to(tl.float32)
    return centred * tl.rsqrt(variance + eps)[:, None] * weight[None, :] + shift[None, :]


@triton.jit
def _rounded(x, scale):
    """fp8 e4m3 of x in units of `scale`; what lies beyond its range goes to its end."""
    shrunk = x * (1.0 / tl.load(scale))  # one division for all
    return tl.minimum(tl.maximum(shrunk, -448.0), 448.0).to(tl.float8e4nv)


@triton.jit
def _add_norm_kernel(
    x,  # [tokens, D]: a product, its bias added; or [parts, tokens, D] fp32, to be added up
    bias,  # [D], where there are parts
    residual,  # [tokens, D]
    gamma,
    beta,
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
):
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
    normal = _normalised(total, in_row, gamma, beta, column, width, eps)
    tl.store(out + place, normal.to(out.dtype.element_ty), mask=mask)
    if TO_FP8:
        tl.store(out8 + place, _rounded(normal, scale8), mask=mask)


@triton.jit
def _embed_kernel(
    ids,  # [tokens]
    type_ids,  # [tokens], or None: all 0
    positions,  # [tokens], or None: a token's place in its text
    starts,  # [tokens] int32: where each token's text starts
    words,
    places,
    types,
    gamma,
    beta,
    out,
    out8,
    scale8,
    tokens,
    width,
    eps,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    HAS_TYPES: tl.constexpr,
    HAS_POSITIONS: tl.constexpr,
    TO_FP8: tl.constexpr,
):
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
        position = tl.where(real, position, 0)
    total = tl.load(words + word[:, None] * width + column[None, :], mask=mask, other=0.0).to(tl.float32)
    if HAS_TYPES:
        segment = tl.load(type_ids + row, mask=real, other=0).to(tl.int64)
        total += tl.load(types + segment[:, None] * width + column[None, :], mask=mask, other=0.0).to(tl.float32)
    else:
        total += tl.load(types + column, mask=in_row, other=0.0).to(tl.float32)[None, :]
    total += tl.load(places + position[:, None] * width + column[None, :], mask=mask, other=0.0).to(tl.float32)
    normal = _normalised(total, in_row, gamma, beta, column, width, eps)
    place = row.to(tl.int64)[:, None] * width + column[None, :]
    tl.store(out + place, normal.to(out.dtype.element_ty), mask=mask)
    if TO_FP8:
        tl.store(out8 + place, _rounded(normal, scale8), mask=mask)


@triton.jit
def _tail(x, HARDWARE: tl.constexpr):
    """Φ(−|x|), the share of a normal distribution beyond x, and exp(−x²/2), which it is made of.

    Abramowitz & Stegun 1964, 7.1.26: within 1e-7, in one exponential and one division. Of both the hardware has forms
    of one instruction, good to the last bit or two; those of the language guard against cases that are none here.
    """
    if HARDWARE:
        bell = tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x * x * -0.7213475204444817], dtype=tl.float32, is_pure=True, pack=1
        )  # ½·log₂e
        t = tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [1.0 + 0.23164189 * tl.abs(x)], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        bell = tl.exp(-0.5 * x * x)
        t = 1.0 / (1.0 + 0.23164189 * tl.abs(x))  # 0.3275911 / √2
    share = 0.5307027145 * t - 0.7265760135
    share = share * t + 0.7107068705
    share = share * t - 0.142248368
    share = share * t + 0.127414796
    return share * t * bell, bell


@triton.jit
def _gelu_of(x, EXACT: tl.constexpr, HARDWARE: tl.constexpr):
    if EXACT:  # x·Φ(x), on both sides of 0
        tail, _ = _tail(x, HARDWARE)
        return tl.maximum(x, 0.0) - tl.abs(x) * tail
    inner = x * (0.7978845608028654 + 0.035677408136300125 * x * x)  # √(2/π)·(x + 0.044715 x³)
    if HARDWARE:  # one instruction, good to 2⁻¹¹, and fp8 keeps 2⁻⁴
        bent = tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [inner], dtype=tl.float32, is_pure=True, pack=1
        )
        return 0.5 * x * (1.0 + bent)
    return x * tl.sigmoid(2.0 * inner)


@triton.jit
def _gelu_kernel(
    x, out, scale, count, BLOCK: tl.constexpr, EXACT: tl.constexpr, HARDWARE: tl.constexpr, TO_FP8: tl.constexpr
):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = place < count
    bent = _gelu_of(tl.load(x + place, mask=real, other=0.0).to(tl.float32), EXACT, HARDWARE)
    if TO_FP8:
        tl.store(out + place, _rounded(bent, scale), mask=real)
    else:
        tl.store(out + place, bent.to(out.dtype.element_ty), mask=real)


# -- how they are called ---------------------------------------------------------------------------------------------


def _rows_and_warps(width: int) -> tuple[int, int]:
    """Rows of a program and its warps: few of both, so that many programs have loads under way."""
    return (2, 2) if width <= 1024 else (1, 8)


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
    rows, warps = _rows_and_warps(width)
    out = torch.empty_like(residual)
    out8 = None if fp8_scale is None else torch.empty(tokens, width, device=x.device, dtype=FP8)
    _add_norm_kernel[(triton.cdiv(tokens, rows),)](
        x,
        bias,
        residual,
        gamma,
        beta,
        out,
        out8,
        fp8_scale,
        tokens,
        width,
        eps,
        PARTS=len(x) if x.dim() == 3 else 0,
        ROWS=rows,
        COLUMNS=triton.next_power_of_2(width),
        TO_FP8=fp8_scale is not None,
        num_warps=warps,
    )
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
    fp8_scale: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Ids `[tokens]` → `[tokens, D]`, and its fp8 form where a scale is given."""
    words, places, types = tables
    tokens, width = len(ids), words.shape[1]
    rows, warps = _rows_and_warps(width)
    out = torch.empty(tokens, width, device=ids.device, dtype=words.dtype)
    out8 = None if fp8_scale is None else torch.empty(tokens, width, device=ids.device, dtype=FP8)
    _embed_kernel[(triton.cdiv(tokens, rows),)](
        ids,
        type_ids,
        positions,
        starts,
        words,
        places,
        types,
        gamma,
        beta,
        out,
        out8,
        fp8_scale,
        tokens,
        width,
        eps,
        ROWS=rows,
        COLUMNS=triton.next_power_of_2(width),
        HAS_TYPES=type_ids is not None,
        HAS_POSITIONS=positions is not None,
        TO_FP8=fp8_scale is not None,
        num_warps=warps,
    )
    return out, out8


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
