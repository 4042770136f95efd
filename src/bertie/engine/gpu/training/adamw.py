"""AdamW over many tensors in one launch: every number read once, every number that changes written once.

PyTorch's fused kernel also writes back the gradients it has divided by their scale, for nobody to read. Here nothing is
written but the weights, their two averages and, where products read one, a weight's copy in bfloat16.

A table holds where the tensors are, a line each; a program takes one piece of one tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from bertie.engine.gpu.attention_schedule import to_device
from bertie.engine.gpu.triton_launch import launch

_PIECE = 2048
_ALIGNED = 16


@triton.jit
def _at(address):
    return tl.multiple_of(address.to(tl.pointer_type(tl.float32)), 16)


@triton.jit
def _piece(line, place, inside, scale, corrections, rate, decay, share1, beta2, share2, eps, WHOLE: tl.constexpr):
    """One piece of a tensor. Where it is WHOLE, nothing is masked: loads and stores are four numbers wide."""
    weights, grads = _at(tl.load(line)), _at(tl.load(line + 1))
    means, squares = _at(tl.load(line + 2)), _at(tl.load(line + 3))
    rounded = tl.load(line + 4)
    if WHOLE:
        weight, grad = tl.load(weights + place), tl.load(grads + place)
        mean, square = tl.load(means + place), tl.load(squares + place)
    else:
        weight, grad = tl.load(weights + place, mask=inside), tl.load(grads + place, mask=inside)
        mean, square = tl.load(means + place, mask=inside), tl.load(squares + place, mask=inside)
    grad = grad / tl.load(scale)
    mean += (grad - mean) * share1
    square = beta2 * square + share2 * grad * grad
    weight -= rate * decay * weight
    depth = tl.sqrt(square) / tl.sqrt(tl.load(corrections + 1)) + eps
    weight -= rate / tl.load(corrections) * mean / depth
    if WHOLE:
        tl.store(weights + place, weight)
        tl.store(means + place, mean)
        tl.store(squares + place, square)
    else:
        tl.store(weights + place, weight, mask=inside)
        tl.store(means + place, mean, mask=inside)
        tl.store(squares + place, square, mask=inside)
    if rounded != 0:
        copy = tl.multiple_of(rounded.to(tl.pointer_type(tl.bfloat16)), 16)
        if WHOLE:
            tl.store(copy + place, weight.to(tl.bfloat16))
        else:
            tl.store(copy + place, weight.to(tl.bfloat16), mask=inside)


@triton.jit
def _adamw_kernel(
    table,  # [tensors, 6] int64: weight, gradient, mean, mean of squares, copy in bfloat16 (or 0); how many numbers
    pieces,  # [programs, 2] int32: which tensor, which piece of it
    scale,  # [] what gradients are divided by
    skip,  # [] 1: nothing changes
    corrections,  # [2]: 1 − β₁ᵗ, 1 − β₂ᵗ
    rate, decay,
    share1,  # 1 − β₁, subtracted where numbers have more digits
    beta2, share2, eps, PIECE: tl.constexpr,
):  # fmt: skip
    if tl.load(skip) != 0.0:
        return
    line = table + 6 * tl.load(pieces + 2 * tl.program_id(0)).to(tl.int64)
    start = tl.load(pieces + 2 * tl.program_id(0) + 1) * PIECE
    count = tl.load(line + 5)
    place = start + tl.arange(0, PIECE)
    inside = place < count
    if start + PIECE <= count:
        _piece(line, place, inside, scale, corrections, rate, decay, share1, beta2, share2, eps, True)
    else:
        _piece(line, place, inside, scale, corrections, rate, decay, share1, beta2, share2, eps, False)


class AdamW:
    """Updates of one set of tensors after the other, with what stays the same kept on the device."""

    def __init__(self) -> None:
        self._pieces: dict[tuple[int, ...], Tensor] = {}
        self._logs: dict[tuple[float, float], Tensor] = {}

    def step(
        self,
        tensors: Sequence[tuple[Tensor, Tensor, Tensor, Tensor]],  # weight, gradient, mean, mean of squares
        rounded: Sequence[Tensor | None],
        number: Tensor,  # [] fp32: which step this is, from 1
        *,
        rate: float,
        betas: tuple[float, float],
        decay: float,
        eps: float,
        scale: Tensor,
        skip: Tensor,
    ) -> bool:
        """One update; or False, and nothing was done: tensors that are not laid out as the kernel has them."""
        if not all(part.dtype == torch.float32 and part.is_contiguous() for line in tensors for part in line):
            return False
        addresses = np.array(
            [
                [part.data_ptr() for part in line] + [0 if copy is None else copy.data_ptr(), line[0].numel()]
                for line, copy in zip(tensors, rounded, strict=True)
            ],
            dtype=np.int64,
        )
        if (addresses[:, :5] % _ALIGNED).any() or int(addresses[:, 5].max()) >= 2**31 - _PIECE:
            return False
        device = number.device
        table = to_device(addresses.ravel().view(np.int32), device).view(torch.int64)
        pieces = self._cut(tuple(addresses[:, 5].tolist()), device)
        if betas not in self._logs:
            self._logs[betas] = torch.tensor([math.log(beta) for beta in betas], dtype=torch.float64, device=device)
        corrections = -torch.expm1(number.double() * self._logs[betas]).float()
        shares = (1 - betas[0], betas[1], 1 - betas[1])
        arguments = (table, pieces, scale, skip, corrections, rate, decay, *shares, eps)
        launch(_adamw_kernel, (len(pieces) // 2,), arguments, {"PIECE": _PIECE}, num_warps=4)
        return True

    def _cut(self, counts: tuple[int, ...], device: torch.device) -> Tensor:
        if counts not in self._pieces:
            lines = [(row, piece) for row, count in enumerate(counts) for piece in range(-(-count // _PIECE))]
            self._pieces[counts] = torch.tensor(lines, dtype=torch.int32, device=device).flatten()
        return self._pieces[counts]
