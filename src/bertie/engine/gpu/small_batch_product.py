"""Products for a handful of tokens: one text of a search box, not a batch.

Up to 64 tokens a product is over when its weights have been read, and the only question is how many multiprocessors
read at once. A program here takes 32 columns of the weight and all tokens; the products back to the model's width have
few columns, so their depth is cut in parts as well. The parts are not added up here: they leave in fp32, and the kernel
that adds the residual and normalises adds them too, which saves a launch. In BERT-base at 32 tokens these two take 2.6
and 4.7 µs, with cuBLAS 3.7 and 7.2; the other two are equal to cuBLAS, and have GELU and rounding to fp8 inside.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from bertie.engine.gpu.kernel_functions import gelu_of
from bertie.engine.gpu.triton_launch import INTERPRETED, next_power_of_2

MOST_TOKENS = 64
COLUMNS = 32
DEPTH = 128
_PROGRAMS = 96  # that keep a GPU busy


@triton.jit
def _small_batch_linear_kernel(
    x,  # [tokens, I]
    weight,  # [O, I]
    bias,  # [O]; not read where there are parts
    out,  # [tokens, O], or [parts, tokens, O] fp32
    x_scale,  # [1] fp32 each, for fp8 alone: what a 1 means in x, in the weight, in what is written
    weight_scale, out_scale, tokens,
    width,  # O
    depth,  # I
    part_depth,  # a multiple of STEP
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, PARTS: tl.constexpr, FROM_FP8: tl.constexpr,
    TO_FP8: tl.constexpr, GELU: tl.constexpr, EXACT: tl.constexpr, HARDWARE: tl.constexpr,
):  # fmt: skip
    row = tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    first = tl.program_id(1) * part_depth
    end = tl.minimum(first + part_depth, depth)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(first, end, STEP):
        inside = start + tl.arange(0, STEP)
        a_mask = (row < tokens)[:, None] & (inside < end)[None, :]
        b_mask = (column < width)[:, None] & (inside < end)[None, :]
        a = tl.load(x + row[:, None] * depth + inside[None, :], mask=a_mask, other=0.0)
        b = tl.load(weight + column[:, None] * depth + inside[None, :], mask=b_mask, other=0.0)
        total = tl.dot(a, tl.trans(b), total)
    if FROM_FP8:
        total = total * (tl.load(x_scale) * tl.load(weight_scale))
    if PARTS == 1:
        total += tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    if GELU:
        total = gelu_of(total, EXACT, HARDWARE)
    if TO_FP8:
        total = total * (1.0 / tl.load(out_scale))
        total = tl.minimum(tl.maximum(total, -448.0), 448.0)
    place = tl.program_id(1) * tokens * width + row[:, None] * width + column[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=(row < tokens)[:, None] & (column < width)[None, :])


def small_batch_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    scales: tuple[Tensor, Tensor] | None = None,
    gelu: str | None = None,
    fp8_scale: Tensor | None = None,
    in_parts: bool = False,
) -> Tensor:
    """x·Wᵀ + b for at most 64 tokens: `[tokens, O]` in the bias's dtype, or in fp8 in units of `fp8_scale`.

    With `in_parts` the answer is `[parts, tokens, O]` in fp32, to be added up, and the bias too. `scales` are those of
    x and W where both are in fp8. `gelu` is "erf" or "tanh"; in fp8 the two are the same.
    """
    tokens, depth = x.shape
    width = weight.shape[0]
    columns = triton.cdiv(width, COLUMNS)
    steps = triton.cdiv(depth, DEPTH)
    parts = max(1, min(steps, _PROGRAMS // columns)) if in_parts else 1
    part_depth = triton.cdiv(steps, parts) * DEPTH
    parts = triton.cdiv(depth, part_depth)
    if in_parts:
        out = torch.empty(parts, tokens, width, device=x.device, dtype=torch.float32)
    else:
        dtype = bias.dtype if fp8_scale is None else torch.float8_e4m3fn
        out = torch.empty(tokens, width, device=x.device, dtype=dtype)
    _small_batch_linear_kernel[(columns, parts)](
        x, weight, bias, out, *(scales or (None, None)), fp8_scale, tokens, width, depth, part_depth,
        ROWS=max(16, next_power_of_2(tokens)), COLUMNS=COLUMNS, STEP=DEPTH, PARTS=0 if in_parts else 1,
        FROM_FP8=scales is not None, TO_FP8=fp8_scale is not None, GELU=gelu is not None,
        EXACT=gelu == "erf" and fp8_scale is None, HARDWARE=fp8_scale is not None and not INTERPRETED,
        num_warps=4, num_stages=5,
    )  # fmt: skip
    return out
