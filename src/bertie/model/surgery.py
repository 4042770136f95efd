"""Changing the size of a table of weights while keeping what it knows.

Pure functions on tensors: more or fewer tokens, more or fewer positions, some of a Linear's features. The model's
methods in pretrained.py decide which tables change together.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def resized_rows(weight: Tensor, num_rows: int) -> Tensor:
    """Keep the first rows; new ones start near the mean of the old.

    A new token then begins as an average one: with random rows of another scale its logit could top every other
    (https://nlp.stanford.edu/~johnhew/vocab-expansion.html).
    """
    old = weight.detach()[:num_rows]
    num_new = num_rows - len(old)
    if num_new <= 0:
        return old.clone()
    mean = old.mean(dim=0, keepdim=True)
    spread = old.std(dim=0, keepdim=True, correction=0) * 1e-3
    new = mean + spread * torch.randn(num_new, *old.shape[1:], dtype=old.dtype, device=old.device)
    return torch.cat([old, new.to(old.dtype)])


def resized_positions(weight: Tensor, num_positions: int, *, how: str) -> Tensor:
    """A position table of another length: the first rows when shorter; interpolated or repeated when longer."""
    old = weight.detach()
    if num_positions <= len(old):
        return old[:num_positions].clone()
    if how == "repeat":
        times = -(-num_positions // len(old))
        return old.repeat(times, 1)[:num_positions].clone()
    return _interpolated(old, num_positions)


def resized_distances(weight: Tensor, num_positions: int, *, how: str) -> Tensor:
    """A table of the distances −(n−1) … n−1, with distance 0 in the middle before and after."""
    old = weight.detach()
    old_reach, reach = len(old) // 2, num_positions - 1
    if reach <= old_reach:
        return old[old_reach - reach : old_reach + reach + 1].clone()
    if how == "repeat":  # beyond the farthest distance that was learned, everything is that far
        distance = torch.arange(-reach, reach + 1, device=old.device).clamp(-old_reach, old_reach)
        return old[distance + old_reach]
    return _interpolated(old, 2 * reach + 1)


def _interpolated(table: Tensor, num_rows: int) -> Tensor:
    rows = table.T[None].float()  # [1, width, rows]
    return F.interpolate(rows, size=num_rows, mode="linear", align_corners=True)[0].T.to(table.dtype).contiguous()


def kept_features(linear: nn.Linear, index: Tensor, *, dim: int) -> nn.Linear:
    """A Linear with only some of its outputs (dim 0) or inputs (dim 1)."""
    index = index.to(linear.weight.device)
    weight = linear.weight.detach().index_select(dim, index).contiguous()
    # A stand-in on the meta device: its own initialisation would be thrown away, and none exists for 0 features.
    smaller = nn.Linear(1, 1, bias=linear.bias is not None, device="meta")
    smaller.out_features, smaller.in_features = weight.shape
    smaller.weight = nn.Parameter(weight, requires_grad=linear.weight.requires_grad)
    if linear.bias is not None:
        bias = linear.bias.detach()
        bias = bias.index_select(0, index) if dim == 0 else bias.clone()
        smaller.bias = nn.Parameter(bias, requires_grad=linear.bias.requires_grad)
    return smaller
