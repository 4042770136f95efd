"""Attention over texts that no tile holds whole, both ways, for training.

A program takes a tile of one text for one head, and walks over the whole text in blocks. There are three kernels:

- forward: a tile of queries walks over the keys with a running softmax, and keeps of every row the logarithm of its
  sum, from which the way back has its weights again without looking for the largest score.
- backward, for queries: a tile of queries walks over the keys once more.
- backward, for keys and values: a tile of keys walks over the queries.

Scores are computed twice on the way back (seven products instead of five), and nothing is added up by several programs:
the same batch gives the same bits, which FlashAttention's way back does not (Dao et al. 2022,
https://arxiv.org/abs/2205.14135, whose mathematics this is).

Rows and keys past a text's end need no mask on the way back. Their vectors are loaded as zeros, and add nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from bertie.engine.gpu.attention_schedule import Schedule
from bertie.engine.gpu.kernel_functions import dropout_numbers, exp2, softmax_power, weights_kept
from bertie.engine.gpu.triton_launch import INTERPRETED, Arguments, Kernel, launch, next_power_of_2, with_room

LONG = 64  # rows of a tile


class Walk(NamedTuple):
    """How a kernel walks: keys or rows to a block, warps, blocks that are loaded ahead, most registers to a thread."""

    block: int
    warps: int
    stages: int
    registers: int | None = None


FORWARD = Walk(64, 4, 3)
FOR_QUERIES = Walk(32, 4, 3)
FOR_KEYS = Walk(32, 4, 2, registers=128)


@triton.jit
def _inside(there, lane, HEAD: tl.constexpr, LANES: tl.constexpr):
    """The mask of `[rows, lanes]`; where a head fills its lanes, that of the rows alone."""
    mask = there[:, None]
    if HEAD < LANES:
        mask = mask & (lane < HEAD)[None, :]
    return mask


@triton.jit(do_not_specialize=["dropped", "tokens"])
def _forward_kernel(
    qkv,  # [tokens, 3·N·H]
    out,  # [tokens, N·H]
    sums,  # [N, tokens] fp32: log₂ of a row's sum of 2^(score · to_power)
    programs,  # [programs, 4] int32: first row, end of rows, first and end of the text
    seed,  # [1] int32
    tokens,
    width,  # N·H
    to_power,  # log₂e / √H
    dropped, rescale, HEAD: tl.constexpr, LANES: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
    HARDWARE: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    program = programs + 4 * tl.program_id(1)
    first, end = tl.load(program), tl.load(program + 1)
    start, stop = tl.load(program + 2), tl.load(program + 3)
    if first == end:
        return  # a spare program of a recorded pass
    head = tl.program_id(0)
    lane = tl.arange(0, LANES)
    row = tl.arange(0, TILE)
    key = tl.arange(0, BLOCK)
    mask = _inside(first + row < end, lane, HEAD, LANES)
    rows = qkv + first.to(tl.int64) * (3 * width) + head * HEAD
    q = tl.load(rows + row[:, None] * (3 * width) + lane[None, :], mask=mask, other=0.0)
    keys = qkv + start.to(tl.int64) * (3 * width) + width + head * HEAD + key[:, None] * (3 * width) + lane[None, :]
    top = tl.full([TILE], -1e30, tl.float32)
    total = tl.zeros([TILE], tl.float32)
    context = tl.zeros([TILE, LANES], tl.float32)
    for block in range(0, stop - start, BLOCK):
        there = start + block + key < stop
        inside = _inside(there, lane, HEAD, LANES)
        at = keys + block * (3 * width)
        k = tl.load(at, mask=inside, other=0.0)
        v = tl.load(at + width, mask=inside, other=0.0)
        scores = tl.where(there[None, :], tl.dot(q, tl.trans(k)), -1e30)
        new_top = tl.maximum(top, tl.max(scores, 1) * to_power)
        weights = exp2(scores * to_power - new_top[:, None], HARDWARE)
        shrink = exp2(top - new_top, HARDWARE)
        total = total * shrink + tl.sum(weights, 1)
        if DROPS:
            kept = weights_kept(seed, head, (first + row)[:, None], block, key[None, :], dropped)
            weights = tl.where(kept, weights * rescale, 0.0)
        context = tl.dot(weights.to(v.dtype), v, context * shrink[:, None])
        top = new_top
    context = context * (1.0 / total)[:, None]
    place = out + first.to(tl.int64) * width + head * HEAD + row[:, None] * width + lane[None, :]
    tl.store(place, context.to(out.dtype.element_ty), mask=mask)
    tl.store(sums + head.to(tl.int64) * tokens + first + row, top + tl.log2(total), mask=first + row < end)


@triton.jit(do_not_specialize=["dropped", "tokens"])
def _for_queries_kernel(
    qkv,  # [tokens, 3·N·H]
    context,  # [tokens, N·H]
    grad,  # [tokens, N·H], of the context
    grad_qkv,  # [tokens, 3·N·H]
    column_sums,  # [programs, 3·N·H] fp32: of the rows of a program
    sums,  # [N, tokens]
    levels,  # [N, tokens] fp32: a row's mean gradient of its weights
    programs, seed, tokens, width, to_power,
    to_score,  # 1 / √H
    dropped, rescale, HEAD: tl.constexpr, LANES: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
    HARDWARE: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    program = programs + 4 * tl.program_id(1)
    first, end = tl.load(program), tl.load(program + 1)
    start, stop = tl.load(program + 2), tl.load(program + 3)
    head = tl.program_id(0)
    lane = tl.arange(0, LANES)
    row = tl.arange(0, TILE)
    key = tl.arange(0, BLOCK)
    there = first + row < end
    mask = _inside(there, lane, HEAD, LANES)
    column_sums += tl.program_id(1).to(tl.int64) * (3 * width) + head * HEAD + lane
    if first == end:
        tl.store(column_sums, tl.zeros([LANES], tl.float32), mask=lane < HEAD)
        return
    place = first.to(tl.int64) * (3 * width) + head * HEAD + row[:, None] * (3 * width) + lane[None, :]
    in_context = first.to(tl.int64) * width + head * HEAD + row[:, None] * width + lane[None, :]
    of_row = head.to(tl.int64) * tokens + first + row
    q = tl.load(qkv + place, mask=mask, other=0.0)
    above = tl.load(grad + in_context, mask=mask, other=0.0)
    made = tl.load(context + in_context, mask=mask, other=0.0)
    level = tl.sum(above.to(tl.float32) * made.to(tl.float32), 1)
    tl.store(levels + of_row, level, mask=there)
    logarithm = tl.load(sums + of_row, mask=there, other=0.0)
    keys = qkv + start.to(tl.int64) * (3 * width) + width + head * HEAD + key[:, None] * (3 * width) + lane[None, :]
    of_q = tl.zeros([TILE, LANES], tl.float32)
    for block in range(0, stop - start, BLOCK):
        inside = _inside(start + block + key < stop, lane, HEAD, LANES)
        at = keys + block * (3 * width)
        k = tl.load(at, mask=inside, other=0.0)
        v = tl.load(at + width, mask=inside, other=0.0)
        # At most 1, also for keys past the end, which are multiplied with 0: infinity would make that no number.
        power = tl.minimum(tl.dot(q, tl.trans(k)) * to_power - logarithm[:, None], 0.0)
        weights = exp2(power, HARDWARE)
        of_weights = tl.dot(above, tl.trans(v))
        if DROPS:
            kept = weights_kept(seed, head, (first + row)[:, None], block, key[None, :], dropped)
            of_weights = tl.where(kept, of_weights * rescale, 0.0)
        of_scores = weights * (of_weights - level[:, None])
        of_q = tl.dot(of_scores.to(k.dtype), k, of_q)
    of_q = tl.where(there[:, None], of_q * to_score, 0.0)
    tl.store(grad_qkv + place, of_q.to(grad_qkv.dtype.element_ty), mask=mask)
    tl.store(column_sums, tl.sum(of_q, 0), mask=lane < HEAD)


@triton.jit(do_not_specialize=["dropped", "tokens"])
def _for_keys_kernel(
    qkv,  # [tokens, 3·N·H]
    grad,  # [tokens, N·H], of the context
    grad_qkv,  # [tokens, 3·N·H]
    column_sums,  # [programs, 3·N·H] fp32: of the rows of a program
    sums,  # [N, tokens]
    levels,  # [N, tokens]
    programs, seed, tokens, width, to_power, to_score, dropped, rescale, HEAD: tl.constexpr, LANES: tl.constexpr,
    TILE: tl.constexpr, BLOCK: tl.constexpr, HARDWARE: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    program = programs + 4 * tl.program_id(1)
    first, end = tl.load(program), tl.load(program + 1)
    start, stop = tl.load(program + 2), tl.load(program + 3)
    head = tl.program_id(0)
    lane = tl.arange(0, LANES)
    key = tl.arange(0, TILE)
    row = tl.arange(0, BLOCK)
    there = first + key < end
    mask = _inside(there, lane, HEAD, LANES)
    column_sums += tl.program_id(1).to(tl.int64) * (3 * width) + head * HEAD + lane
    # Of keys there is nothing to add up: what is added to all of them alike changes no softmax.
    tl.store(column_sums + width, tl.zeros([LANES], tl.float32), mask=lane < HEAD)
    if first == end:
        tl.store(column_sums + 2 * width, tl.zeros([LANES], tl.float32), mask=lane < HEAD)
        return
    place = first.to(tl.int64) * (3 * width) + width + head * HEAD + key[:, None] * (3 * width) + lane[None, :]
    k = tl.load(qkv + place, mask=mask, other=0.0)
    v = tl.load(qkv + place + width, mask=mask, other=0.0)
    queries = qkv + start.to(tl.int64) * (3 * width) + head * HEAD + row[:, None] * (3 * width) + lane[None, :]
    gradients = grad + start.to(tl.int64) * width + head * HEAD + row[:, None] * width + lane[None, :]
    of_row = head.to(tl.int64) * tokens + start + row
    of_k = tl.zeros([TILE, LANES], tl.float32)
    of_v = tl.zeros([TILE, LANES], tl.float32)
    for block in range(0, stop - start, BLOCK):
        present = start + block + row < stop
        inside = _inside(present, lane, HEAD, LANES)
        q = tl.load(queries + block * (3 * width), mask=inside, other=0.0)
        above = tl.load(gradients + block * width, mask=inside, other=0.0)
        logarithm = tl.load(sums + of_row + block, mask=present, other=0.0)
        level = tl.load(levels + of_row + block, mask=present, other=0.0)
        # Here a column is a query.
        weights = exp2(tl.dot(k, tl.trans(q)) * to_power - logarithm[None, :], HARDWARE)
        of_weights = tl.dot(v, tl.trans(above))
        if DROPS:
            kept = weights_kept(seed, head, (start + block + row)[None, :], first - start, key[:, None], dropped)
            of_weights = tl.where(kept, of_weights * rescale, 0.0)
            left = tl.where(kept, weights * rescale, 0.0)
            of_v = tl.dot(left.to(above.dtype), above, of_v)
        else:
            of_v = tl.dot(weights.to(above.dtype), above, of_v)
        of_scores = weights * (of_weights - level[None, :])
        of_k = tl.dot(of_scores.to(q.dtype), q, of_k)
    of_v = tl.where(there[:, None], of_v, 0.0)
    tl.store(grad_qkv + place, (of_k * to_score).to(grad_qkv.dtype.element_ty), mask=mask)
    tl.store(grad_qkv + place + width, of_v.to(grad_qkv.dtype.element_ty), mask=mask)
    tl.store(column_sums + 2 * width, tl.sum(of_v, 0), mask=lane < HEAD)


def long_attention(
    qkv: Tensor, heads: int, plan: Schedule, *, out: Tensor, dropout: float = 0.0, seed: Tensor | None = None
) -> Tensor:
    """Into `out` `[tokens, N·H]` the contexts of the plan's texts. Returns what the way back needs of rows."""
    tokens, width = with_room(len(qkv)), qkv.shape[1] // 3
    sums = torch.empty(heads, tokens, dtype=torch.float32, device=qkv.device)
    head = width // heads
    arguments = (qkv, out, sums, plan.programs, seed, tokens, width, softmax_power(head), *dropout_numbers(dropout))
    _launch(_forward_kernel, arguments, FORWARD, heads, head, plan, dropout)
    return sums


def long_attention_backward(
    qkv: Tensor,
    context: Tensor,
    grad: Tensor,
    sums: Tensor,
    heads: int,
    plan: Schedule,
    *,
    out: Tensor,
    column_sums: Tensor,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> None:
    """Into `out` `[tokens, 3·N·H]` the gradient of the plan's texts, from that of the context.

    Into `column_sums` `[programs, 3·N·H]` goes what a program's rows add up to.
    """
    tokens, width = sums.shape[1], qkv.shape[1] // 3
    head = width // heads
    levels = torch.empty_like(sums)
    factors = (softmax_power(head), head**-0.5, *dropout_numbers(dropout))
    rest = (sums, levels, plan.programs, seed, tokens, width, *factors)
    arguments = (qkv, context, grad, out, column_sums, *rest)
    _launch(_for_queries_kernel, arguments, FOR_QUERIES, heads, head, plan, dropout)
    _launch(_for_keys_kernel, (qkv, grad, out, column_sums, *rest), FOR_KEYS, heads, head, plan, dropout)


def _launch(
    kernel: Kernel, arguments: Arguments, walk: Walk, heads: int, head: int, plan: Schedule, dropout: float
) -> None:
    lanes = max(16, next_power_of_2(head))
    constants = {
        "HEAD": head, "LANES": lanes, "TILE": plan.tile, "BLOCK": walk.block, "HARDWARE": not INTERPRETED,
        "DROPS": dropout > 0,
    }  # fmt: skip
    launch(
        kernel,
        (heads, len(plan.programs)),
        arguments,
        constants,
        num_warps=walk.warps,
        num_stages=walk.stages,
        maxnreg=walk.registers if lanes <= 64 else None,
    )
