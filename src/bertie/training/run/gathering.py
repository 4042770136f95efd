"""Rows of all processes in one tensor, with gradients: for losses that compare the examples of a whole batch.

Every process computes its own part of the loss from everybody's rows, and the parts are added up. So the gradient of a
row is the sum of what all processes say about it, which is what `backward` gathers: the same gradient as one process
on the whole batch.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def several_processes() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def counts_of_all(number: int, device: torch.device) -> list[int]:
    """How many rows each process has."""
    counts = torch.zeros(dist.get_world_size(), dtype=torch.int64, device=device)
    counts[dist.get_rank()] = number
    dist.all_reduce(counts)
    return [int(count) for count in counts]


def rows_of_all(rows: Tensor, counts: list[int]) -> Tensor:
    """`[n, …]` of this process → `[Σ n, …]` of all, in the order of the processes. All must call it."""
    gathered: Tensor = _Gathered.apply(rows, counts)  # type: ignore[no-untyped-call]
    return gathered


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: list[int]) -> Tensor:
        rank = dist.get_rank()
        ctx.place = sum(counts[:rank]), counts[rank]
        # Each puts its rows where they belong, among zeros; the sum has them all, whatever their numbers are.
        whole = rows.new_zeros(sum(counts), *rows.shape[1:])
        whole[ctx.place[0] : sum(ctx.place)] = rows
        dist.all_reduce(whole)
        return whole

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        whole = grads[0].contiguous().clone()
        dist.all_reduce(whole)
        return whole[ctx.place[0] : sum(ctx.place)], None
