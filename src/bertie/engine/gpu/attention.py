"""Attention over packed texts: one Triton kernel that reads q, k and v where the projection wrote them.

The projection's output is `[tokens, 3·N·H]`: all queries, all keys, all values, head by head. A program takes a tile of
rows (attention_schedule.py) and one head. Where all keys of the tile fit in a tile too, which is so for whole short
texts, that is one softmax; over the keys of longer texts it walks with a running one (Milakov & Gimelshein 2018,
https://arxiv.org/abs/1805.02867; in tiles: Dao et al. 2022, https://arxiv.org/abs/2205.14135). The context can leave
rounded to fp8, scaled for the product that reads it.

The matrix arithmetic is small (at 60 tokens a text, 2 % of a layer's). What counts is that q, k and v are read once
and the context is written once, and how many instructions a score costs: scores stay as the dot product gives them,
and scaling, shifting and going from e to 2 are one multiply-add before an exponential that is one instruction. 96
registers to a thread let five programs share a multiprocessor and hide each other's loads.

A bias by distance (MPNet's) is laid out beforehand as tiles have it (`bias_tiles`): a program reads its tile of it as
any other, from a cache, with no arithmetic for the single score.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from bertie.engine.gpu.attention_schedule import TILE, Schedule
from bertie.engine.gpu.kernel_functions import dropout_numbers, exp2, softmax_power, weights_kept
from bertie.engine.gpu.triton_launch import INTERPRETED, launch, next_power_of_2

_TILE = tl.constexpr(TILE)
_REGISTERS, _BIASED = 96, 128  # of a thread


def bias_tiles(bias: Tensor, dtype: torch.dtype) -> Tensor:
    """A bias by distance `[N, 2·far + 1]`, in column `d + far` for keys `d` places after their query, as tiles have it.

    The rows `[N, TILE, columns]` hold the same numbers, each a place further on; the last tile stands for all after it.
    """
    far = bias.shape[1] // 2
    edge = -(-far // TILE) * TILE + TILE
    row, column = torch.arange(TILE, device=bias.device), torch.arange(2 * edge + TILE, device=bias.device)
    away = (column[None, :] - edge - row[:, None]).clamp(-far, far)
    return bias.float().clamp(-6e4, 6e4)[:, away + far].to(dtype if dtype == torch.float32 else torch.float16)


@triton.jit
def _bias_of(bias, head, away, row, key, EDGE: tl.constexpr):
    """The tile of the bias whose first key is so many places after its first query: a multiple of the tile's size."""
    column = EDGE + tl.multiple_of(tl.minimum(tl.maximum(away, -EDGE), EDGE), 16)
    place = (head * _TILE + row)[:, None] * (2 * EDGE + _TILE) + (column + key)[None, :]
    return tl.load(bias + place).to(tl.float32)


@triton.jit(do_not_specialize=["dropped"])
def attention_kernel(
    qkv,  # [tokens, 3·N·H]
    out,  # [tokens, N·H]
    programs,  # [programs, 4] int32
    starts,  # [tokens] int32
    bias,  # [N, TILE, 2·EDGE + TILE], as `bias_tiles` makes it; read where EDGE is not 0
    out_scale,  # [1] fp32: what a stored 1 means; read for fp8 alone
    seed,  # [1] int32; read where something is dropped
    width,  # N·H
    scale,  # log₂e / √H
    dropped,  # the chance of being dropped, in units of 2⁻¹⁶
    rescale,  # 1 / (1 − that chance)
    HEAD: tl.constexpr,  # H
    LANES: tl.constexpr,  # H filled up to a power of two
    ROWS: tl.constexpr, KEYS: tl.constexpr, TO_FP8: tl.constexpr, HARDWARE: tl.constexpr, DROPS: tl.constexpr,
    EDGE: tl.constexpr,  # tiles so far away have one bias; 0: there is none
):  # fmt: skip
    program = programs + 4 * tl.program_id(1)
    first, end = tl.load(program), tl.load(program + 1)
    first_key, end_key = tl.load(program + 2), tl.load(program + 3)
    if first == end:
        return  # a spare program of a recorded graph
    num_keys = end_key - first_key
    head = tl.program_id(0)
    lane = tl.arange(0, LANES)
    row = tl.arange(0, ROWS)
    key = tl.arange(0, KEYS)
    in_head = lane[None, :] < HEAD
    in_tile = (first + row < end)[:, None] & in_head
    # Where the tile lies. Offsets inside a text are 32 bits wide, the text's own is 64.
    queries = qkv + first.to(tl.int64) * (3 * width) + head * HEAD + row[:, None] * (3 * width) + lane[None, :]
    keys = qkv + first_key.to(tl.int64) * (3 * width) + width + head * HEAD
    keys = keys + key[:, None] * (3 * width) + lane[None, :]
    places = out + first.to(tl.int64) * width + head * HEAD + row[:, None] * width + lane[None, :]
    unit = 1.0
    if TO_FP8:
        unit = 1.0 / tl.load(out_scale)

    q = tl.load(queries, mask=in_tile, other=0.0)
    if num_keys <= KEYS:  # whole texts: a row sees the keys whose text starts where its own does
        there = key < num_keys
        k = tl.load(keys, mask=there[:, None] & in_head, other=0.0)
        v = tl.load(keys + width, mask=there[:, None] & in_head, other=0.0)
        mine = tl.load(starts + first + row, mask=first + row < end, other=-1)
        theirs = tl.load(starts + first_key + key, mask=there, other=-2)
        scores = tl.dot(q, tl.trans(k))
        if EDGE > 0:
            scores += _bias_of(bias, head, first_key - first, row, key, EDGE)
        scores = tl.where(mine[:, None] == theirs[None, :], scores, -1e30)  # finite: so are rows past the end
        top = tl.max(scores, 1) * scale
        weights = exp2(scores * scale - top[:, None], HARDWARE)
        total = tl.sum(weights, 1)
        if DROPS:
            kept = weights_kept(seed, head, (first + row)[:, None], 0, key[None, :], dropped)
            weights = tl.where(kept, weights * rescale, 0.0)
        context = tl.dot(weights.to(v.dtype), v)
    else:  # a piece of one long text: a row sees all keys there are
        top = tl.full([ROWS], -1e30, tl.float32)  # the largest score so far, scaled
        total = tl.zeros([ROWS], tl.float32)
        context = tl.zeros([ROWS, LANES], tl.float32)
        for block in range(0, num_keys, KEYS):
            there = block + key < num_keys
            at = keys + block * (3 * width)
            k = tl.load(at, mask=there[:, None] & in_head, other=0.0)
            v = tl.load(at + width, mask=there[:, None] & in_head, other=0.0)
            scores = tl.dot(q, tl.trans(k)) + tl.where(there, 0.0, -1e30)[None, :]
            if EDGE > 0:
                scores += _bias_of(bias, head, first_key - first + block, row, key, EDGE)
            new_top = tl.maximum(top, tl.max(scores, 1) * scale)
            weights = exp2(scores * scale - new_top[:, None], HARDWARE)
            shrink = exp2(top - new_top, HARDWARE)
            total = total * shrink + tl.sum(weights, 1)
            if DROPS:
                kept = weights_kept(seed, head, (first + row)[:, None], block, key[None, :], dropped)
                weights = tl.where(kept, weights * rescale, 0.0)
            context = context * shrink[:, None] + tl.dot(weights.to(v.dtype), v)
            top = new_top
    context = context * (unit / total)[:, None]
    if TO_FP8:
        context = tl.minimum(tl.maximum(context, -448.0), 448.0)  # the ends of e4m3
    tl.store(places, context.to(out.dtype.element_ty), mask=in_tile)


def attention(
    qkv: Tensor,
    heads: int,
    plan: Schedule,
    *,
    bias: Tensor | None = None,
    fp8_scale: Tensor | None = None,
    out: Tensor | None = None,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> Tensor:
    """`[tokens, 3·N·H]` → `[tokens, N·H]`, in qkv's dtype, or in fp8 in units of `fp8_scale`.

    A `bias` (of `bias_tiles`) is added to scores before they are scaled. With `dropout` weights are dropped by the
    `seed`, one int32 on the device; of texts of at most 32,768 tokens.
    """
    tokens, width = qkv.shape[0], qkv.shape[1] // 3
    head = width // heads
    lanes = max(16, next_power_of_2(head))
    if out is None:
        dtype = qkv.dtype if fp8_scale is None else torch.float8_e4m3fn
        out = torch.empty(tokens, width, device=qkv.device, dtype=dtype)
    launch(
        attention_kernel,
        (heads, len(plan.programs)),
        (
            qkv, out, plan.programs, plan.starts, bias, fp8_scale, seed, width, softmax_power(head),
            *dropout_numbers(dropout),
        ),
        {
            "HEAD": head, "LANES": lanes, "ROWS": plan.tile, "KEYS": plan.tile, "TO_FP8": fp8_scale is not None,
            "HARDWARE": not INTERPRETED, "DROPS": dropout > 0,
            "EDGE": 0 if bias is None else (bias.shape[2] - TILE) // 2,
        },
        num_warps=4,
        num_stages=1,
        maxnreg=(_REGISTERS if bias is None else _BIASED) if lanes <= 64 and dropout == 0 else None,
    )  # fmt: skip
    return out
