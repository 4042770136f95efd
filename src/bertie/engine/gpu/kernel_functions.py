"""What several kernels compute, as functions that they call: powers, GELU, LayerNorm, rounding to fp8, dropout.

Which values dropout drops is not kept, but made again on the way back, from the same seed.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

# Keys that a row may have where weights are dropped: each pair of a row and a key has a number.
MOST_DROPPED = tl.constexpr(32768)


@triton.jit
def exp2(x, HARDWARE: tl.constexpr):
    """2ˣ. Below 2⁻¹²⁶ the hardware's own form gives 0, where tl.exp2 spends three instructions on subnormals."""
    if HARDWARE:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    return tl.exp2(x)


@triton.jit
def normal_tail(x, HARDWARE: tl.constexpr):
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
def gelu_of(x, EXACT: tl.constexpr, HARDWARE: tl.constexpr):
    if EXACT:  # x·Φ(x), on both sides of 0
        tail, _ = normal_tail(x, HARDWARE)
        return tl.maximum(x, 0.0) - tl.abs(x) * tail
    inner = x * (0.7978845608028654 + 0.035677408136300125 * x * x)  # √(2/π)·(x + 0.044715 x³)
    if HARDWARE:  # one instruction, good to 2⁻¹¹, and fp8 keeps 2⁻⁴
        bent = tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [inner], dtype=tl.float32, is_pure=True, pack=1
        )
        return 0.5 * x * (1.0 + bent)
    return x * tl.sigmoid(2.0 * inner)


@triton.jit
def layer_norm(x, in_row, gamma, beta, column, width, eps):
    """LayerNorm of rows `[ROWS, COLUMNS]`, of which the first `width` columns are real."""
    mean = tl.sum(x, 1) / width
    centred = tl.where(in_row[None, :], x - mean[:, None], 0.0)
    variance = tl.sum(centred * centred, 1) / width
    weight = tl.load(gamma + column, mask=in_row, other=0.0).to(tl.float32)
    shift = tl.load(beta + column, mask=in_row, other=0.0).to(tl.float32)
    return centred * tl.rsqrt(variance + eps)[:, None] * weight[None, :] + shift[None, :]


@triton.jit
def to_fp8(x, scale):
    """fp8 e4m3 of x in units of `scale`; what lies beyond its range goes to its end."""
    shrunk = x * (1.0 / tl.load(scale))  # one division for all
    return tl.minimum(tl.maximum(shrunk, -448.0), 448.0).to(tl.float8e4nv)


@triton.jit
def is_kept(seed, row, columns, offset, column, dropped):
    """Whether the value of a row and a column is kept; `dropped` is the chance of being dropped in units of 2⁻¹⁶.

    The column is `offset + column`, and rows have `columns` of them. Two neighbours, of which the first is even, share
    one 32-bit number, of which each has one half. Where a thread has both, the compiler finds out that it is one as
    long as the offset, which must be even, is apart.

    The seed makes a number out of the pair's, and two rounds of multiplying and shifting let every bit have a say in
    every other (constants by C. Wellons, https://nullprogram.com/blog/2018/07/31/). That is a dozen instructions to a
    pair. Philox, which tl.rand has, takes a hundred to each value, longer than all the rest of these kernels.
    """
    pair = (row * ((columns + 1) >> 1) + (offset >> 1) + (column >> 1)).to(tl.uint32)
    number = pair * (seed.to(tl.uint32) | 1) + seed.to(tl.uint32)
    number = (number ^ (number >> 16)) * 0x7FEB352D
    number = (number ^ (number >> 15)) * 0x846CA68B
    number = number ^ (number >> 16)
    half = tl.where((column & 1) == 0, number & 0xFFFF, number >> 16)
    return half.to(tl.int32) >= dropped


@triton.jit
def weights_kept(seed, head, row, offset, key, dropped):
    """Which weights are kept of rows for the keys `offset + key`, counted from where the program's keys begin.

    Rows and keys broadcast, and the offset is even.
    """
    own = tl.load(seed).to(tl.uint32) + head.to(tl.uint32) * 0x61C88647  # every head has a seed of its own
    return is_kept(own, row, MOST_DROPPED, offset, key, dropped)


def softmax_power(head: int) -> float:
    """What a score is multiplied with, so that 2 to its power is e to the power of the score over √H."""
    return math.log2(math.e) / math.sqrt(head)


def dropout_numbers(dropout: float) -> tuple[int, float]:
    """A kernel's two numbers: the chance of being dropped in units of 2⁻¹⁶, and what the others are multiplied with."""
    return round(dropout * 2**16), 1 / (1 - dropout)
