"""The widening product of a layer in fp8, with bias, GELU and rounding to fp8 on its way out.

cuBLAS multiplies a little faster, but has to write `[tokens, I]` in half precision for a second kernel to read: three
times the bytes, and 70 µs of a layer's 650 at 32,768 tokens. Here a program keeps its tile of the product in registers
until it is eight bits wide.

Programs are as many as the GPU runs at once, two to a multiprocessor: while one is bending its tile, the other has the
matrix units. Each takes every so manieth tile; tiles go down a few rows of tiles before they go right, so that the
weights of a column of tiles are read from the cache. Operands come through the tensor memory accelerator.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor


class Tiling(NamedTuple):
    """The sizes of a tile and how programs walk over tiles."""

    rows: int = 128
    columns: int = 128
    depth: int = 128
    together: int = 8  # rows of tiles that are gone down before going right
    share: int = 2  # programs to a multiprocessor
    warps: int = 4
    stages: int = 3


@triton.jit
def _fp8_linear_gelu_kernel(
    x,  # [tokens, I] fp8, a tensor descriptor, as are the next two
    weight,  # [O, I] fp8
    out,  # [tokens, O] fp8
    bias,  # [O]
    x_scale,  # [1] fp32: what a 1 means in x
    weight_scale, out_scale, tokens,
    width,  # O
    depth,  # I
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, TOGETHER: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    down, right = tl.cdiv(tokens, ROWS), tl.cdiv(width, COLUMNS)
    unit = tl.load(x_scale) * tl.load(weight_scale)
    half = 0.5 / tl.load(out_scale)
    for tile in range(tl.program_id(0), down * right, PROGRAMS):
        group = tile // (TOGETHER * right)
        high = min(down - group * TOGETHER, TOGETHER)
        inside = tile - group * TOGETHER * right
        row = (group * TOGETHER + inside % high) * ROWS
        column = (inside // high) * COLUMNS
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        for step in range(tl.cdiv(depth, DEPTH)):
            total = tl.dot(x.load([row, step * DEPTH]), weight.load([column, step * DEPTH]).T, total)
        columns = column + tl.arange(0, COLUMNS)
        y = total * unit + tl.load(bias + columns, mask=columns < width, other=0.0).to(tl.float32)[None, :]
        # GELU by tanh, as in kernel_functions.py, in units of out_scale.
        inner = y * (0.7978845608028654 + 0.035677408136300125 * y * y)
        bent = tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [inner], dtype=tl.float32, is_pure=True, pack=1
        )
        y = y * half
        # The conversion saturates: what is beyond e4m3 goes to its end.
        out.store([row, column], (y * bent + y).to(tl.float8e4nv))


def fp8_linear_gelu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    x_scale: Tensor,
    weight_scale: Tensor,
    out_scale: Tensor,
    tiling: Tiling | None = None,
) -> Tensor:
    """GELU(x·Wᵀ + b), x `[tokens, I]` and W `[O, I]` in fp8 → `[tokens, O]` in fp8 in units of `out_scale`."""
    tiles = tiling or Tiling()
    tokens, depth = x.shape
    width = weight.shape[0]
    out = torch.empty(tokens, width, device=x.device, dtype=x.dtype)
    programs = tiles.share * _multiprocessors(x.device.index or 0)
    _fp8_linear_gelu_kernel[(programs,)](
        TensorDescriptor.from_tensor(x, [tiles.rows, tiles.depth]),
        TensorDescriptor.from_tensor(weight, [tiles.columns, tiles.depth]),
        TensorDescriptor.from_tensor(out, [tiles.rows, tiles.columns]),
        bias, x_scale, weight_scale, out_scale, tokens, width, depth,
        ROWS=tiles.rows, COLUMNS=tiles.columns, DEPTH=tiles.depth, TOGETHER=tiles.together, PROGRAMS=programs,
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return out


@cache
def _multiprocessors(device: int) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
