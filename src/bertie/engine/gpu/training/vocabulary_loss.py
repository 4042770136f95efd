"""Predicting words on a GPU: scores for the whole vocabulary, and their cross-entropy, without a pass too many.

Google's vocabulary has 30,522 words, a number that tensor cores cannot address well; `PaddedDecoder` computes scores in
rows of the next multiple of 64 and shows the first 30,522 of each. `cross_entropy_sum` reads them in bfloat16 twice,
writes the gradient once, and has nothing as large as them in fp32.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor, nn

from bertie.engine.gpu.training.autograd import Context, apply
from bertie.engine.gpu.training.gradients import RowSums, column_sums
from bertie.engine.gpu.triton_launch import launch

_ALIGNED = 64
_BLOCK = 2048


class PaddedDecoder:
    """A decoder's forward with rows of aligned length, under autocast in bfloat16; otherwise the decoder's own."""

    def __init__(self, decoder: nn.Linear) -> None:
        self.decoder = decoder
        rows = -(-decoder.out_features // _ALIGNED) * _ALIGNED
        weight = decoder.weight
        self.weight = torch.zeros(rows, decoder.in_features, device=weight.device, dtype=torch.bfloat16)
        self.bias = torch.zeros(rows, device=weight.device, dtype=torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        """`[words, D]` → `[words, V]`."""
        decoder = self.decoder
        half = torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.bfloat16
        if not half or x.dim() != 2 or not len(x) or decoder.bias is None:
            return F.linear(x, decoder.weight, decoder.bias)
        with torch.no_grad():
            self.weight[: decoder.out_features].copy_(decoder.weight)
            self.bias[: decoder.out_features].copy_(decoder.bias)
        return apply(_Decode, x.to(torch.bfloat16), decoder.weight, decoder.bias, self)


class _DecodeContext(Context, Protocol):
    padded: PaddedDecoder


class _Decode(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _DecodeContext, x: Tensor, weight: Tensor, bias: Tensor, padded: PaddedDecoder) -> Tensor:
        ctx.save_for_backward(x)
        ctx.padded = padded
        return torch.addmm(padded.bias, x, padded.weight.t())[:, : len(weight)]

    @staticmethod
    def backward(ctx: _DecodeContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        width, weight = grad.shape[1], ctx.padded.weight
        grad = _whole_rows(grad, len(weight))
        of_x = grad @ weight[: grad.shape[1]]
        of_weight = torch.mm(grad.t(), x, out_dtype=torch.float32)
        sums = RowSums(len(grad), [grad.shape[1]], grad.device)
        column_sums(grad, sums=sums.part(0))
        return of_x, of_weight[:width], sums.total()[0][:width], None


def _whole_rows(grad: Tensor, room: int) -> Tensor:
    """A gradient that `cross_entropy_sum` made, with the zeros behind each row; any other as it is."""
    base = grad._base
    if base is None or base.shape != (len(grad), room) or grad.data_ptr() != base.data_ptr():
        return grad
    return base


@triton.jit
def _joined(top, total, value):
    """A running maximum and Σ exp(value − maximum), one of each to a lane, with one more row of values."""
    new_top = tl.maximum(top, value)
    return new_top, total * tl.exp(top - new_top) + tl.exp(value - new_top)


@triton.jit
def _cross_entropy_kernel(
    scores,  # [words, V]
    labels,  # [words]; below 0: not counted
    losses,  # [words] fp32
    grad,  # [words, room]: V filled up with zeros
    score_stride, grad_stride,
    width,  # V
    room, BLOCK: tl.constexpr, WITH_GRAD: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(labels + row)
    column = tl.arange(0, BLOCK)
    scores += row * score_stride
    grad += row * grad_stride
    full = width // BLOCK * BLOCK  # as far as blocks are whole, nothing is masked: those loads are wide
    inside = full + column < width
    top = tl.full([BLOCK], -1e30, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, full, BLOCK):
        top, total = _joined(top, total, tl.load(scores + start + column).to(tl.float32))
    rest = tl.load(scores + full + column, mask=inside, other=float("-inf")).to(tl.float32)
    top, total = _joined(top, total, rest)
    highest = tl.max(top, 0)
    level = highest + tl.log(tl.sum(total * tl.exp(top - highest), 0))  # log Σ exp
    counts = label >= 0
    own = tl.load(scores + label, mask=counts, other=0.0).to(tl.float32)
    tl.store(losses + row, tl.where(counts, level - own, 0.0))
    if WITH_GRAD:
        weight = tl.where(counts, 1.0, 0.0)
        for start in range(0, full, BLOCK):
            value = tl.load(scores + start + column).to(tl.float32)
            slope = tl.exp(value - level) - tl.where(start + column == label, 1.0, 0.0)
            tl.store(grad + start + column, (slope * weight).to(grad.dtype.element_ty))
        slope = tl.exp(rest - level) - tl.where(full + column == label, 1.0, 0.0)
        slope = tl.where(inside, slope * weight, 0.0)
        tl.store(grad + full + column, slope.to(grad.dtype.element_ty), mask=full + column < room)


@triton.jit
def _scale_kernel(x, factor, count, BLOCK: tl.constexpr):
    """x ← factor·x, where the factor is not 1, as it mostly is: only the GPU knows."""
    by = tl.load(factor).to(tl.float32)
    if by != 1.0:
        place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = place < count
        value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(x + place, (value * by).to(x.dtype.element_ty), mask=inside)


class _CrossEntropyContext(Context, Protocol):
    grad: Tensor | None
    width: int


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _CrossEntropyContext, scores: Tensor, labels: Tensor) -> Tensor:
        rows, width = scores.shape
        losses = torch.empty(rows, device=scores.device, dtype=torch.float32)
        with_grad = ctx.needs_input_grad[0]
        room = -(-width // _ALIGNED) * _ALIGNED
        grad = torch.empty(rows, room, device=scores.device, dtype=scores.dtype) if with_grad else scores
        launch(
            _cross_entropy_kernel,
            (rows,),
            (scores, labels, losses, grad, scores.stride(0), grad.stride(0), width, room),
            {"BLOCK": _BLOCK, "WITH_GRAD": with_grad},
            num_warps=8,
        )
        ctx.grad, ctx.width = grad if with_grad else None, width
        return losses.sum()

    @staticmethod
    def backward(ctx: _CrossEntropyContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        slopes, ctx.grad = ctx.grad, None
        assert slopes is not None
        count = slopes.numel()
        launch(_scale_kernel, (-(-count // _BLOCK),), (slopes, grad, count), {"BLOCK": _BLOCK}, num_warps=8)
        return slopes[:, : ctx.width], None


def cross_entropy_sum(scores: Tensor, labels: Tensor) -> Tensor:
    """`[words, V]` and `[words]` → the sum of cross-entropies, `[]` in fp32. Labels below 0 are not counted."""
    if not len(scores):
        return scores.float().sum()
    return apply(_CrossEntropy, scores, labels)
