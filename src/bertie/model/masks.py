"""From the masks people pass to what attention adds to its scores.

A mask says 1 (or True) for keep and 0 for drop, in one of three shapes: `[batch, keys]` hides padding from every query;
`[batch, queries, keys]` and `[batch, 1 or heads, queries, keys]` say it for every pair and are taken as given, with no
causality added. Attention wants a *bias*: 0 where a key is seen and a very negative number where it is hidden.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bertie.errors import InputError
from bertie.model import checks
from bertie.ops.backends import hidden_value
from bertie.ops.tracing import records_sizes


def attention_bias(
    mask: Tensor | None,
    *,
    name: str,
    batch: int,
    num_heads: int,
    num_queries: int,
    num_keys: int,
    dtype: torch.dtype,
    check_values: bool = True,
) -> Tensor | None:
    """`[batch, 1|heads, 1|queries, keys]`, or None when nothing is hidden."""
    if mask is None:
        return None
    checks.is_tensor(name, mask)
    keep = _broadcastable(mask, name, batch, num_heads, num_queries, num_keys)
    if check_values:
        _check_keep_or_drop(mask, name)
        if bool((mask != 0).all()):
            return None
    return as_bias(keep, dtype)


def as_bias(keep: Tensor, dtype: torch.dtype, value: float | None = None) -> Tensor:
    """0 where `keep` is non-zero, `value` (very negative) elsewhere."""
    bias = torch.zeros(keep.shape, dtype=dtype, device=keep.device)
    return bias.masked_fill(keep == 0, hidden_value(dtype) if value is None else value)


def sees_all(mask: Tensor | None) -> bool:
    """Whether a mask's shape speaks of every (query, key) pair, so that causality is not added to it."""
    return mask is not None and mask.dim() > 2


def _broadcastable(mask: Tensor, name: str, batch: int, num_heads: int, num_queries: int, num_keys: int) -> Tensor:
    if records_sizes():
        return mask[:, None, None, :] if mask.dim() == 2 else mask[:, None] if mask.dim() == 3 else mask
    shape = list(mask.shape)
    if shape == [batch, num_keys]:
        return mask[:, None, None, :]
    if shape == [batch, num_queries, num_keys]:
        return mask[:, None]
    if (
        len(shape) == 4
        and shape[0] in (1, batch)
        and shape[1] in (1, num_heads)
        and shape[2:] == [num_queries, num_keys]
    ):
        return mask
    raise InputError(
        f"{name} has shape {shape}; with a batch of {batch}, {num_queries} queries and {num_keys} keys it takes "
        f"[{batch}, {num_keys}], [{batch}, {num_queries}, {num_keys}] or "
        f"[{batch}, 1 or {num_heads}, {num_queries}, {num_keys}].",
        "When decoding with a cache, the mask covers the cached positions too.",
    )


def _check_keep_or_drop(mask: Tensor, name: str) -> None:
    """Refuse additive masks (0 keep, −inf drop), which would be read the wrong way round."""
    if not mask.is_floating_point():
        return
    low, high = mask.aminmax()
    if low < 0 or high > 1 or bool(((mask != 0) & (mask != 1)).any()):
        raise InputError(
            f"{name} holds values from {float(low):g} to {float(high):g}; it takes 1 (keep) and 0 (drop).",
            "A mask to be added to the scores (0 and -inf) becomes one of these with: mask == 0.",
        )


def layer_head_masks(head_mask: Tensor | None, *, num_layers: int, num_heads: int) -> Tensor | None:
    """`[heads]` or `[layers, heads]` → `[layers, heads]`. Heads keep their original numbers when some are pruned."""
    if head_mask is None:
        return None
    checks.is_tensor("head_mask", head_mask)
    if list(head_mask.shape) == [num_heads]:
        return head_mask.expand(num_layers, num_heads)
    if list(head_mask.shape) == [num_layers, num_heads]:
        return head_mask
    raise InputError(
        f"head_mask has shape {list(head_mask.shape)}; it takes [{num_heads}] (every layer alike) or "
        f"[{num_layers}, {num_heads}] (layers, heads)."
    )
