"""Vectors of texts out of the last state: each text's tokens added up, divided, and brought to unit length.

One launch does what `bertie.running.pooling` does in ten, so that a small batch can be one recorded graph from ids to
vectors. A text has a program. Its tokens are added in an order that depends on nothing but their number, so a text has
the same bits in every batch that gives it the same states.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from bertie.engine.gpu.triton_launch import launch, next_power_of_2

_AT_ONCE = 4096  # numbers that a program holds
_LEAST = 1e-12  # what a length is divided by at least, as in torch.nn.functional.normalize


@triton.jit
def _means_kernel(
    states,  # [tokens, D]
    table,  # [rows, 4] int32: the first token that counts, how many do, -, 1: to unit length
    divisors,  # the same memory as fp32, whose third column divides the sum; 0: the row is nobody's
    out,  # [rows, D] fp32
    width,  # D
    least,
    TOKENS: tl.constexpr,
    WIDTH: tl.constexpr,  # D filled up to a power of two
):  # fmt: skip
    row = tl.program_id(0)
    first = tl.load(table + 4 * row).to(tl.int64)
    count = tl.load(table + 4 * row + 1)
    divisor = tl.load(divisors + 4 * row + 2)
    if divisor != 0.0:
        column = tl.arange(0, WIDTH)
        in_row = column < width
        total = tl.zeros([TOKENS, WIDTH], tl.float32)
        for begin in range(0, count, TOKENS):
            token = begin + tl.arange(0, TOKENS)
            place = (first + token)[:, None] * width + column[None, :]
            total += tl.load(states + place, mask=(token < count)[:, None] & in_row[None, :], other=0.0).to(tl.float32)
        mean = tl.div_rn(tl.sum(total, 0), divisor)
        if tl.load(table + 4 * row + 3) != 0:
            mean = tl.div_rn(mean, tl.maximum(tl.sqrt_rn(tl.sum(mean * mean, 0)), least))
        tl.store(out + row * width + column, mean, mask=in_row)


def means_of(states: Tensor, table: Tensor) -> Tensor:
    """`[tokens, D]` and a table of rows on the same device → `[rows, D]` fp32; nobody's rows are not written."""
    width = states.shape[1]
    columns = next_power_of_2(width)
    out = torch.empty(len(table), width, device=states.device, dtype=torch.float32)
    arguments = (states, table, table.view(torch.float32), out, width, _LEAST)
    constants = {"TOKENS": max(1, _AT_ONCE // columns), "WIDTH": columns}
    launch(_means_kernel, (len(table),), arguments, constants, num_warps=4)
    return out
