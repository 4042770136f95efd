# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# mypy: disable-error-code="import-not-found,import-untyped"
"""Dropout inside kernels: which values are dropped is not kept, but made again on the way back, from the same seed."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _kept(seed, row, columns, offset, column, dropped):
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


def dropped(dropout: float) -> tuple[int, float]:
    """A kernel's two numbers: the chance of being dropped in units of 2⁻¹⁶, and what the others are multiplied with."""
    return round(dropout * 2**16), 1 / (1 - dropout)
