"""Relative positions (Shaw et al. 2018, https://arxiv.org/abs/1803.02155; Huang et al. 2020 for the second kind).

Each layer has a table of vectors r, one for every distance `query position − key position`, and adds to the score of
query i and key j the product q_i·r(i−j), and for `relative_key_query` also k_j·r(i−j).

Written down directly that needs a `[queries, keys, head]` tensor. But r depends on the distance alone, so one product
of q with the Q+K−1 distances in play holds every number that is needed, shifted by one column per row:

    q·R   distances →  +2 +1  0 −1 −2          score of (i, j)
          row 0         .  .  a  b  c           a b c
          row 1         .  d  e  f  .     →     d e f
          row 2         g  h  i  .  .           g h i

Reading row i from column Q−1−i on is a view with a row stride one shorter: no copy, no gather. A recorded model
(TorchScript, export), whose sizes are not known yet, has the formula as it stands instead.

MPNet (Song et al. 2020, https://arxiv.org/abs/2004.09297) has T5's relative positions (Raffel et al. 2019,
https://arxiv.org/abs/1910.10683) instead: one number for a head and a distance, the same in all layers. Near distances
have a number each, farther ones share theirs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bertie.ops.packing import records_sizes

_BLOCK = 64  # rows of one product with the table
FARTHEST = 128  # a shared bias is the same for all distances from here on


@dataclass(frozen=True)
class RelativePositions:
    """One layer's distance table, and whether keys look at it too (`relative_key_query`)."""

    table: Tensor  # [2·max_position − 1, head]; the row of distance d is d + max_position − 1
    with_keys: bool

    def scores(self, q: Tensor, k: Tensor, *, scale: float = 1.0) -> Tensor:
        """`[…, Q, head]`, `[…, K, head]` → `[…, Q, K]`, what relative positions add to q·k, times `scale`.

        The queries are the last Q of the K positions, as they are when keys come from a cache.
        """
        if records_sizes():
            return self._written_down(q, k, scale=scale)
        scores = self._by_rows(q, k.shape[-2], first=k.shape[-2] - q.shape[-2], sign=1, scale=scale)
        if self.with_keys:
            # Seen from key j, query i is at distance −(j−i): the same walk through the table, in the other direction.
            by_key = self._by_rows(k, q.shape[-2], first=q.shape[-2] - k.shape[-2], sign=-1, scale=scale)
            scores += by_key.transpose(-1, -2)
        return scores

    def of_heads(self, heads: Sequence[int]) -> RelativePositions:
        """What some of the heads have: all heads have the same."""
        return self

    def _written_down(self, q: Tensor, k: Tensor, *, scale: float) -> Tensor:
        """The same, with every pair's vector in memory and no loop over blocks, which would fix the sizes."""
        num_queries, num_keys = q.shape[-2], k.shape[-2]
        positions = torch.arange(num_keys, device=q.device)
        distances = positions[num_keys - num_queries :, None] - positions  # [Q, K]
        vectors = self.table.to(q.dtype)[distances + len(self.table) // 2]  # [Q, K, head]
        scores = torch.einsum("bnqh,qkh->bnqk", q, vectors)
        if self.with_keys:
            scores = scores + torch.einsum("bnkh,qkh->bnqk", k, vectors)
        return scale * scores

    def _by_rows(self, x: Tensor, width: int, *, first: int, sign: int, scale: float) -> Tensor:
        """`[…, rows, head]` → `[…, rows, width]`: row i times the vectors of the distances sign·(first + i − column).

        Rows go in blocks, since a block of b rows needs only b+width−1 distances: about half the work of all at once.
        """
        zero = len(self.table) // 2
        blocks = []
        for start in range(0, x.shape[-2], _BLOCK):
            rows = x[..., start : start + _BLOCK, :]
            farthest, nearest = first + start + rows.shape[-2] - 1, first + start - (width - 1)
            if sign > 0:
                distances = self.table[zero + nearest : zero + farthest + 1].flip(0)
            else:
                distances = self.table[zero - farthest : zero - nearest + 1]
            blocks.append(_skewed(rows @ (scale * distances).to(x.dtype).T, width))
        return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=-2)


@dataclass(frozen=True)
class SharedBias:
    """A bias that all layers share, computed once for the longest text: `[heads, longest, longest]`."""

    bias: Tensor

    def scores(self, q: Tensor, k: Tensor, *, scale: float = 1.0) -> Tensor:
        """`[1, heads, Q, K]`; it is added to scores that are scaled already, so `scale` does not touch it."""
        return self.bias[None, :, : q.shape[-2], : k.shape[-2]].to(q.dtype)

    def of_heads(self, heads: Sequence[int]) -> SharedBias:
        """What some of the heads have."""
        return self if len(heads) == len(self.bias) else SharedBias(self.bias[list(heads)])


def shared_bias_table(num_buckets: int, num_heads: int) -> nn.Embedding | None:
    """The numbers of a `SharedBias`, a row for each bucket of distances; None where there are no buckets."""
    return nn.Embedding(num_buckets, num_heads) if num_buckets else None


def shared_bias(table: nn.Embedding, length: int) -> SharedBias:
    """The bias of texts of up to `length` tokens."""
    # The sizes of the buckets do not follow the table's in the published code, so they do not here.
    positions = torch.arange(length, device=table.weight.device)
    rows: Tensor = table(distance_buckets(positions[None, :] - positions[:, None]))  # [length, length, heads]
    return SharedBias(rows.permute(2, 0, 1))


def bias_by_distance(table: nn.Embedding, reach: int = FARTHEST) -> Tensor:
    """The bias of a key `d` places after its query: `[heads, 2·reach + 1]`, in column `d + reach`."""
    buckets = distance_buckets(torch.arange(-reach, reach + 1, device=table.weight.device))
    return table.weight.detach()[buckets].T


def distance_buckets(distance: Tensor, *, num_buckets: int = 32, farthest: int = FARTHEST) -> Tensor:
    """T5's buckets: half of them for keys before the query, half for those after it.

    Of each half, half are for single distances; the others grow like the logarithm, up to `farthest`.
    """
    half = num_buckets // 2
    exact = half // 2
    away = distance.abs()
    growth = torch.log(away.float() / exact) / math.log(farthest / exact) * (half - exact)
    far = (exact + growth.long()).clamp(max=half - 1)
    return torch.where(distance > 0, half, 0) + torch.where(away < exact, away, far)


def _skewed(products: Tensor, width: int) -> Tensor:
    """Read `[…, rows, rows+width−1]` so that row i starts at column rows−1−i: a `[…, rows, width]` view."""
    rows, columns = products.shape[-2:]
    if rows == 1:
        return products
    flat = products.flatten(-2)[..., rows - 1 : rows - 1 + rows * (columns - 1)]
    return flat.view(*flat.shape[:-1], rows, columns - 1)[..., :width]


def chunks_within(limit: int, *, batch: int, per_item: int) -> list[slice]:
    """Split a batch so that one chunk of it needs at most `limit` score entries (never less than one item)."""
    if records_sizes():
        return [slice(None)]
    step = max(1, limit // max(1, per_item))
    return [slice(start, min(batch, start + step)) for start in range(0, batch, step)]


def num_scores(q: Tensor, k: Tensor) -> int:
    """How many scores one batch item has."""
    return q.shape[1] * q.shape[2] * k.shape[2]
