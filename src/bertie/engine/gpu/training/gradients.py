"""What training needs between a layer's products: dropout on the way forward, and every gradient on the way back.

- `drop_add_norm` and `drop_add_norm_backward`: LayerNorm(dropout(x) + residual). Which values were dropped is not kept:
  the same seed gives the same mask again.
- `gelu_backward`: through the activation.
- `attention_backward`: through attention, for texts that fit into a tile whole. Scores are computed again, which is
  cheaper than having kept them; a row's softmax, and all that its gradient needs, is inside one program.
- `column_sums`: the gradient of a bias.

Gradients of a LayerNorm's weights and of biases are sums over all tokens. Programs write the sums of their own rows,
and one more pass (`totals`) adds those up, always in the same order: the same batch gives the same bits. All arithmetic
inside is fp32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from bertie.engine.gpu.attention_schedule import Schedule
from bertie.engine.gpu.kernel_functions import dropout_numbers, exp2, is_kept, normal_tail, softmax_power, weights_kept
from bertie.engine.gpu.triton_launch import INTERPRETED, launch, next_power_of_2, rows_and_warps, rows_like, rows_of

WHOLE = 128  # texts up to this length fit into one tile of attention_backward


@triton.jit(do_not_specialize=["dropped", "tokens"])
def _drop_add_norm_kernel(
    x,  # [tokens, D]
    residual,  # [tokens, D]
    gamma, beta,
    normal,  # [tokens, D]: normalised, but not yet weighted; kept for the way back
    steep,  # [tokens] fp32: what it was multiplied with to be so
    out,  # [tokens, D]
    tokens,
    width,  # D
    eps,
    seed,  # [1] int32, on the device: a recorded pass reads another one every time
    dropped,  # the chance of being dropped, in units of 2⁻¹⁶
    rescale,  # 1 / (1 − that chance)
    DROPS: tl.constexpr,
    KEEPS: tl.constexpr,  # whether `normal` and `steep` are wanted
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    in_row = column < width
    mask = (row < tokens)[:, None] & in_row[None, :]
    place = row.to(tl.int64)[:, None] * width + column[None, :]
    value = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
    if DROPS:
        kept = is_kept(tl.load(seed), row[:, None], width, 0, column[None, :], dropped)
        value = tl.where(kept, value * rescale, 0.0)
    total = value + tl.load(residual + place, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(total, 1) / width
    centred = tl.where(in_row[None, :], total - mean[:, None], 0.0)
    factor = tl.rsqrt(tl.sum(centred * centred, 1) / width + eps)
    bare = centred * factor[:, None]
    if KEEPS:
        tl.store(normal + place, bare.to(normal.dtype.element_ty), mask=mask)
        tl.store(steep + row, factor, mask=row < tokens)
    weight = tl.load(gamma + column, mask=in_row, other=0.0).to(tl.float32)
    shift = tl.load(beta + column, mask=in_row, other=0.0).to(tl.float32)
    made = bare * weight[None, :] + shift[None, :]
    tl.store(out + place, made.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["dropped", "tokens"])
def _drop_add_norm_backward_kernel(
    grad,  # [tokens, D], of the norm's output
    more,  # [tokens, D], to be added to it, or None
    normal,  # [tokens, D]
    steep,  # [tokens]
    gamma,
    grad_residual,  # [tokens, D]
    grad_x,  # [tokens, D]; written where anything is dropped, otherwise it is grad_residual
    sums,  # [blocks of rows, 3·D] fp32: of gamma, of beta, of x's bias
    tokens, width, sums_stride, seed, dropped, rescale, DROPS: tl.constexpr, ROWS: tl.constexpr,
    STEPS: tl.constexpr,  # a program takes STEPS times ROWS rows
    COLUMNS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    column = tl.arange(0, COLUMNS)
    in_row = column < width
    weight = tl.load(gamma + column, mask=in_row, other=0.0).to(tl.float32)
    of_gamma = tl.zeros([COLUMNS], tl.float32)
    of_beta = tl.zeros([COLUMNS], tl.float32)
    of_bias = tl.zeros([COLUMNS], tl.float32)
    for step in range(STEPS):
        row = (program * STEPS + step) * ROWS + tl.arange(0, ROWS)
        mask = (row < tokens)[:, None] & in_row[None, :]
        place = row.to(tl.int64)[:, None] * width + column[None, :]
        above = tl.load(grad + place, mask=mask, other=0.0).to(tl.float32)
        if more is not None:
            above += tl.load(more + place, mask=mask, other=0.0).to(tl.float32)
        bare = tl.load(normal + place, mask=mask, other=0.0).to(tl.float32)
        factor = tl.load(steep + row, mask=row < tokens, other=0.0)
        of_gamma += tl.sum(above * bare, 0)
        of_beta += tl.sum(above, 0)
        weighted = above * weight[None, :]
        level = tl.sum(weighted, 1) / width
        slope = tl.sum(weighted * bare, 1) / width
        below = (weighted - level[:, None] - bare * slope[:, None]) * factor[:, None]
        below = tl.where(mask, below, 0.0)
        tl.store(grad_residual + place, below.to(grad_residual.dtype.element_ty), mask=mask)
        if DROPS:
            kept = is_kept(tl.load(seed), row[:, None], width, 0, column[None, :], dropped)
            below = tl.where(kept, below * rescale, 0.0)
            tl.store(grad_x + place, below.to(grad_x.dtype.element_ty), mask=mask)
        of_bias += tl.sum(below, 0)
    place = sums + program.to(tl.int64) * sums_stride + column
    tl.store(place, of_gamma, mask=in_row)
    tl.store(place + width, of_beta, mask=in_row)
    tl.store(place + 2 * width, of_bias, mask=in_row)


@triton.jit(do_not_specialize=["tokens"])
def _gelu_backward_kernel(
    x,  # [tokens, I]: what went into the activation
    grad,  # [tokens, I]
    grad_x,  # [tokens, I]
    sums,  # [blocks of rows, I] fp32
    tokens, width, sums_stride, EXACT: tl.constexpr, ROWS: tl.constexpr, STEPS: tl.constexpr, COLUMNS: tl.constexpr,
    HARDWARE: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    in_row = column < width
    total = tl.zeros([COLUMNS], tl.float32)
    for step in range(STEPS):
        row = (block * STEPS + step) * ROWS + tl.arange(0, ROWS)
        mask = (row < tokens)[:, None] & in_row[None, :]
        place = row.to(tl.int64)[:, None] * width + column[None, :]
        value = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
        above = tl.load(grad + place, mask=mask, other=0.0).to(tl.float32)
        if EXACT:  # Φ(x) + x·φ(x)
            tail, bell = normal_tail(value, HARDWARE)
            slope = tl.where(value > 0, 1.0 - tail, tail) + value * 0.3989422804014327 * bell
        else:  # with u = √(2/π)·(x + 0.044715 x³): x·σ(2u), and its derivative
            gate = tl.sigmoid(value * (1.5957691216057308 + 0.07135481627260025 * value * value))
            slope = gate + value * gate * (1.0 - gate) * (1.5957691216057308 + 0.21406444881780075 * value * value)
        below = above * slope
        tl.store(grad_x + place, below.to(grad_x.dtype.element_ty), mask=mask)
        total += tl.sum(below, 0)
    tl.store(sums + block.to(tl.int64) * sums_stride + column, total, mask=in_row)


@triton.jit(do_not_specialize=["tokens"])
def _column_sums_kernel(
    x,  # [tokens, width], its rows `stride` apart
    sums,  # [blocks of rows, width] fp32
    tokens, width, stride, sums_stride, ROWS: tl.constexpr, STEPS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    in_row = column < width
    total = tl.zeros([COLUMNS], tl.float32)
    for step in range(STEPS):
        row = (block * STEPS + step) * ROWS + tl.arange(0, ROWS)
        mask = (row < tokens)[:, None] & in_row[None, :]
        place = row.to(tl.int64)[:, None] * stride + column[None, :]
        total += tl.sum(tl.load(x + place, mask=mask, other=0.0).to(tl.float32), 0)
    tl.store(sums + block.to(tl.int64) * sums_stride + column, total, mask=in_row)


@triton.jit(do_not_specialize=["dropped"])
def _attention_backward_kernel(
    qkv,  # [tokens, 3·N·H]
    grad,  # [tokens, N·H], of the context
    grad_qkv,  # [tokens, 3·N·H]
    sums,  # [programs, 3·N·H] fp32: of the rows of a program
    programs,  # [programs, 4] int32
    starts,  # [tokens] int32
    seed,  # [1] int32
    width,  # N·H
    to_power,  # log₂e / √H
    to_score,  # 1 / √H
    dropped, rescale, HEAD: tl.constexpr, LANES: tl.constexpr, ROWS: tl.constexpr, HARDWARE: tl.constexpr,
    DROPS: tl.constexpr,
):  # fmt: skip
    program = programs + 4 * tl.program_id(1)
    first, end = tl.load(program), tl.load(program + 1)
    num_keys = tl.load(program + 3) - tl.load(program + 2)
    head = tl.program_id(0)
    lane = tl.arange(0, LANES)
    row = tl.arange(0, ROWS)
    sums += tl.program_id(1).to(tl.int64) * (3 * width) + head * HEAD + lane
    if (first == end) | (num_keys > ROWS):  # a spare program of a recorded pass, or a piece of a longer text
        nothing = tl.zeros([LANES], tl.float32)
        for part in tl.static_range(3):
            tl.store(sums + part * width, nothing, mask=lane < HEAD)
        return
    there = first + row < end
    mask = there[:, None] & (lane < HEAD)[None, :]
    base = first.to(tl.int64) * (3 * width) + head * HEAD
    inside = row[:, None] * (3 * width) + lane[None, :]
    q = tl.load(qkv + base + inside, mask=mask, other=0.0)
    k = tl.load(qkv + base + width + inside, mask=mask, other=0.0)
    v = tl.load(qkv + base + 2 * width + inside, mask=mask, other=0.0)
    of_context = first.to(tl.int64) * width + head * HEAD + row[:, None] * width + lane[None, :]
    above = tl.load(grad + of_context, mask=mask, other=0.0)
    mine = tl.load(starts + first + row, mask=there, other=-1)
    theirs = tl.load(starts + first + row, mask=there, other=-2)

    scores = tl.dot(q, tl.trans(k))
    same = mine[:, None] == theirs[None, :]  # nowhere, for rows past the end: their weights are 0, not merely unused
    top = tl.max(tl.where(same, scores, -1e30), 1) * to_power
    weights = tl.where(same, exp2(scores * to_power - top[:, None], HARDWARE), 0.0)
    weights = weights * (1.0 / tl.maximum(tl.sum(weights, 1), 1e-30))[:, None]
    if DROPS:
        kept = weights_kept(seed, head, (first + row)[:, None], 0, row[None, :], dropped)
        left = tl.where(kept, weights * rescale, 0.0)
        of_v = tl.dot(tl.trans(left.to(v.dtype)), above)
    else:
        of_v = tl.dot(tl.trans(weights.to(v.dtype)), above)
    tl.store(sums + 2 * width, tl.sum(of_v, 0), mask=lane < HEAD)
    tl.store(grad_qkv + base + 2 * width + inside, of_v.to(grad_qkv.dtype.element_ty), mask=mask)
    of_weights = tl.dot(above, tl.trans(v))
    if DROPS:
        of_weights = tl.where(kept, of_weights * rescale, 0.0)
    level = tl.sum(weights * of_weights, 1)
    of_scores = (weights * (of_weights - level[:, None]) * to_score).to(q.dtype)
    of_q = tl.dot(of_scores, k)
    tl.store(sums, tl.sum(of_q, 0), mask=lane < HEAD)
    tl.store(grad_qkv + base + inside, of_q.to(grad_qkv.dtype.element_ty), mask=mask)
    of_k = tl.dot(tl.trans(of_scores), q)
    # Of keys there is nothing to add up: what is added to all of them alike changes no softmax.
    tl.store(sums + width, tl.zeros([LANES], tl.float32), mask=lane < HEAD)
    tl.store(grad_qkv + base + width + inside, of_k.to(grad_qkv.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["rows_a", "rows_b", "rows_c"])
def _totals_kernel(
    a,  # [rows, width] fp32
    b, c,
    out,  # [width of a + of b + of c] fp32
    rows_a, rows_b, rows_c, width_a, width_b, width_c, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    sums, rows, width = a, rows_a, width_a
    if block >= tl.cdiv(width_a, COLUMNS):
        block -= tl.cdiv(width_a, COLUMNS)
        out += width_a
        sums, rows, width = b, rows_b, width_b
        if block >= tl.cdiv(width_b, COLUMNS):
            block -= tl.cdiv(width_b, COLUMNS)
            out += width_b
            sums, rows, width = c, rows_c, width_c
    row = tl.arange(0, ROWS)
    column = block * COLUMNS + tl.arange(0, COLUMNS)
    in_row = column < width
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, rows, ROWS):
        there = (start + row < rows)[:, None] & in_row[None, :]
        total += tl.load(sums + (start + row).to(tl.int64)[:, None] * width + column[None, :], mask=there, other=0.0)
    tl.store(out + column, tl.sum(total, 0), mask=in_row)


# -- how they are called ---------------------------------------------------------------------------------------------


class RowSums:
    """Sums over tokens, several side by side: blocks of rows write theirs, and one pass adds all of them up.

    >>> sums = RowSums(tokens, [3 * D, I], device)
    >>> gelu_backward(…, sums=sums.part(1))
    >>> of_norm, of_bias = sums.total()
    """

    def __init__(self, tokens: int, widths: list[int], device: torch.device, *, norms: bool = False) -> None:
        self.widths = widths
        blocks = -(-tokens // (norm_block_rows(tokens) if norms else block_rows(tokens)))
        self.buffer = rows_of(blocks, sum(widths), torch.float32, device)
        self.parts = torch.split(self.buffer, widths, dim=1)

    def part(self, number: int) -> Tensor:
        return self.parts[number]

    def total(self) -> tuple[Tensor, ...]:
        return torch.split(totals([self.buffer]), self.widths)


def totals(sums: Sequence[Tensor], out: Tensor | None = None) -> Tensor:
    """Up to three of `[rows, width]` → `[widths]`, one after the other: their sums over rows, in fp32.

    PyTorch's own sum takes three times as long over a few hundred rows.
    """
    widths = [part.shape[1] for part in sums]
    if out is None:
        out = torch.empty(sum(widths), device=sums[0].device, dtype=torch.float32)
    columns, spare = 32, 3 - len(sums)
    launch(
        _totals_kernel,
        (sum(-(-width // columns) for width in widths),),
        (*sums, *[sums[0]] * spare, out, *(len(part) for part in sums), *[0] * spare, *widths, *[0] * spare),
        {"ROWS": 64, "COLUMNS": columns},
        num_warps=4,
    )
    return out


def block_rows(tokens: int) -> int:
    """Rows that one program adds up: more for larger batches. There are two, each compiled once."""
    return 32 if tokens >= 4096 else 8


def norm_block_rows(tokens: int) -> int:
    """The same for the programs of a norm, which are longer on their way and want company."""
    return 16 if tokens >= 4096 else 8


class Kept(NamedTuple):
    """What a norm's backward pass reads."""

    normal: Tensor  # [tokens, D]: normalised, before gamma and beta
    steep: Tensor  # [tokens, 1] fp32: 1 / √(variance + ε)


def drop_add_norm(
    x: Tensor,
    residual: Tensor,
    gamma: Tensor,
    beta: Tensor,
    eps: float,
    *,
    dropout: float,
    seed: Tensor | None,
    keep: bool,
) -> tuple[Tensor, Kept]:
    """LayerNorm(dropout(x) + residual), `[tokens, D]`, and (with `keep`) what the way back reads.

    `seed` is one int32 on the device, at an address that is a multiple of 16.
    """
    tokens, width = x.shape
    rows, warps = rows_and_warps(width)
    out = rows_like(residual)
    kept = Kept(rows_like(residual), rows_of(tokens, 1, torch.float32, x.device)) if keep else Kept(out, gamma)
    launch(
        _drop_add_norm_kernel,
        (-(-tokens // rows),),
        (x, residual, gamma, beta, *kept, out, tokens, width, eps, seed, *dropout_numbers(dropout)),
        {"DROPS": dropout > 0, "KEEPS": keep, "ROWS": rows, "COLUMNS": next_power_of_2(width)},
        num_warps=warps,
    )
    return out, kept


def drop_add_norm_backward(
    grad: Tensor,
    kept: Kept,
    gamma: Tensor,
    *,
    dropout: float,
    seed: Tensor | None,
    sums: Tensor,
    more: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Gradients of the residual and of x, `[tokens, D]`; into `sums` `[blocks, 3·D]` of gamma, beta and x's bias.

    The gradient that comes in is `grad`, or `grad + more`.
    """
    tokens, width = grad.shape
    rows, warps = (2, 4) if width <= 1024 and tokens >= 4096 else (1, 4 if width <= 1024 else 8)
    grad_residual = rows_like(kept.normal)
    grad_x = rows_like(kept.normal) if dropout > 0 else grad_residual
    launch(
        _drop_add_norm_backward_kernel,
        (len(sums),),
        (
            grad, more, *kept, gamma, grad_residual, grad_x, sums, tokens, width, sums.stride(0), seed,
            *dropout_numbers(dropout),
        ),
        {
            "DROPS": dropout > 0, "ROWS": rows, "STEPS": norm_block_rows(tokens) // rows,
            "COLUMNS": next_power_of_2(width),
        },
        num_warps=warps,
    )  # fmt: skip
    return grad_residual, grad_x


def gelu_backward(x: Tensor, grad: Tensor, *, exact: bool, sums: Tensor) -> Tensor:
    """The gradient of the activation's input `[tokens, I]`; into `sums` `[blocks, I]` its sum over tokens."""
    tokens, width = x.shape
    rows, columns = 1, min(1024, next_power_of_2(width))
    grad_x = rows_like(x)
    launch(
        _gelu_backward_kernel,
        (len(sums), -(-width // columns)),
        (x, grad, grad_x, sums, tokens, width, sums.stride(0)),
        {
            "EXACT": exact, "ROWS": rows, "STEPS": block_rows(tokens) // rows, "COLUMNS": columns,
            "HARDWARE": not INTERPRETED,
        },
        num_warps=4,
    )  # fmt: skip
    return grad_x


def column_sums(x: Tensor, *, sums: Tensor) -> None:
    """`[tokens, width]` → into `sums` `[blocks, width]`."""
    tokens, width = x.shape
    rows, columns = 4, min(1024, next_power_of_2(width))
    launch(
        _column_sums_kernel,
        (len(sums), -(-width // columns)),
        (x, sums, tokens, width, x.stride(0), sums.stride(0)),
        {"ROWS": rows, "STEPS": block_rows(tokens) // rows, "COLUMNS": columns},
        num_warps=4,
    )


def attention_backward(
    qkv: Tensor,
    grad: Tensor,
    heads: int,
    plan: Schedule,
    *,
    out: Tensor,
    column_sums: Tensor,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> None:
    """Into `out` the gradient of `[tokens, 3·N·H]` from that of the context `[tokens, N·H]`, for the plan's texts.

    Those are the ones that fit into a tile of it whole; pieces of longer ones are skipped. Into `column_sums`
    `[programs, 3·N·H]` goes what a program's rows add up to.
    """
    width = qkv.shape[1] // 3
    head = width // heads
    launch(
        _attention_backward_kernel,
        (heads, len(plan.programs)),
        (
            qkv, grad, out, column_sums, plan.programs, plan.starts, seed, width, softmax_power(head),
            1 / math.sqrt(head), *dropout_numbers(dropout),
        ),
        {
            "HEAD": head, "LANES": max(16, next_power_of_2(head)), "ROWS": plan.tile, "HARDWARE": not INTERPRETED,
            "DROPS": dropout > 0,
        },
        num_warps=4,
        num_stages=1,
    )  # fmt: skip
