"""The one attention seam: every attention in Bertie goes through `attention(q, k, v, plan, …)`.

    context = softmax((q·kᵀ + relative) / √head + bias) · v × head mask

Padding, causality, relative positions, head masks, packed batches and attention maps are arguments here, not reasons to
take another road: the kernel that computes the context is the same with and without them. Two identities make that
possible. A head mask multiplies a head's probabilities by one number, so it can multiply that head's context instead;
and relative scores are a bias like any other (see relative.py). Maps are computed beside the context, from the same
scores, for the heads that were asked for. Only where gradients are wanted is a head's context computed from its map, so
that gradients of the output with respect to the map exist (attention-gradient attribution).

Legend of shapes: B batch, N heads, Q queries, K keys, H head width, T tokens of a packed batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bertie.ops.backends import PaddedKernel, causal_bias, dropped, eager, hidden_value, packed_kernel, sdpa, varlen
from bertie.ops.packing import Group, Packing
from bertie.ops.relative import RelativePositions, chunks_within, num_scores
from bertie.ops.tracing import records_sizes

# Relative scores are made for as many batch items at a time as have this many of them.
_RELATIVE_ENTRIES = 2**22

# Maps of one layer: [B, N, Q, K], or one [N, length, length] per text of a packed batch. Of chosen heads: for each of
# them [B, Q, K], or one [length, length] per text.
Maps = Tensor | tuple[Tensor, ...] | tuple[tuple[Tensor, ...], ...]


@dataclass(frozen=True)
class AttentionPlan:
    """What one attention has to respect besides q, k and v. The default is plain attention over everything."""

    bias: Tensor | None = None  # [B|1, N|1, Q|1, K], added to the scores; very negative where a key is hidden
    causal: bool = False  # query i sees keys up to its own position; the queries are the last Q of the K positions
    packing: Packing | None = None  # q, k, v are [T, N, H] and a text sees itself only
    head_mask: Tensor | None = None  # [N], multiplies each head
    maps: bool | tuple[int, ...] = False  # which heads' probabilities to give back: none, all, or these


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: AttentionPlan,
    *,
    relative: RelativePositions | None = None,
    dropout: float = 0.0,
    kernel: PaddedKernel = sdpa,
) -> tuple[Tensor, Maps | None]:
    """q `[B, N, Q, H]`, k and v `[B, N, K, H]` → context `[B, N, Q, H]` and the maps asked for.

    With `plan.packing` all of them are `[T, N, H]`.
    """
    if plan.maps is False:
        return _context(q, k, v, plan, relative=relative, dropout=dropout, kernel=kernel), None
    maps = _maps(q, k, plan, relative=relative)
    if not (torch.is_grad_enabled() and (q.requires_grad or k.requires_grad)):
        return _context(q, k, v, plan, relative=relative, dropout=dropout, kernel=kernel), maps
    # The context hangs on the very tensors that are given back; they carry the head mask already.
    if isinstance(plan.maps, bool):
        return _average(maps, v, plan.packing, dropout=dropout), maps
    heads = {
        head: _average(of_head, v[:, head], plan.packing, dropout=dropout)
        for head, of_head in zip(plan.maps, maps, strict=True)
    }
    others = [head for head in range(q.shape[1]) if head not in heads]
    if others:
        q, k, v = (x[:, others] for x in (q, k, v))
        context = _context(q, k, v, _of_heads(plan, others), relative=relative, dropout=dropout, kernel=kernel)
        heads |= dict(zip(others, context.unbind(1), strict=True))
    return torch.stack([heads[head] for head in sorted(heads)], dim=1), maps


def _context(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: AttentionPlan,
    *,
    relative: RelativePositions | None,
    dropout: float,
    kernel: PaddedKernel,
) -> Tensor:
    """The fused kernel's answer."""
    if plan.packing is None:
        context = _padded(q, k, v, plan, relative=relative, dropout=dropout, kernel=kernel)
    elif kernel is sdpa and packed_kernel(q, plain=relative is None, dropout=dropout):
        context = varlen(q, k, v, packing=plan.packing, causal=plan.causal)
    else:
        context = _packed_by_groups(q, k, v, plan, plan.packing, relative=relative, dropout=dropout, kernel=kernel)
    if plan.head_mask is None:
        return context
    by_head = plan.head_mask[:, None, None] if plan.packing is None else plan.head_mask[:, None]
    return context * by_head.to(context.dtype)


def attention_probabilities(
    q: Tensor, k: Tensor, plan: AttentionPlan, *, relative: RelativePositions | None = None
) -> Tensor:
    """The true probabilities `[B, N', Q, K]` of the heads `plan.maps` names: what the context is the average by.

    They are taken before dropout and carry the head mask.
    """
    if not isinstance(plan.maps, bool):
        heads = list(plan.maps)
        q, k, plan = q[:, heads], k[:, heads], _of_heads(plan, heads)
    scale = 1 / math.sqrt(q.shape[-1])
    scores = scale * q @ k.transpose(-1, -2)
    if relative is not None:
        scores = scores + relative.scores(q, k, scale=scale)
    hidden = _hidden(plan.bias, _causal(q, k, plan))
    scores = scores if hidden is None else scores + hidden
    probabilities = torch.softmax(scores, dim=-1)
    return probabilities if plan.head_mask is None else probabilities * plan.head_mask[:, None, None].to(q.dtype)


def _of_heads(plan: AttentionPlan, heads: list[int]) -> AttentionPlan:
    """The plan for some of the heads."""
    bias, head_mask = plan.bias, plan.head_mask
    return replace(
        plan,
        bias=bias[:, heads] if bias is not None and bias.shape[1] > 1 else bias,
        head_mask=None if head_mask is None else head_mask[heads],
    )


def _average(maps: Any, v: Tensor, packing: Packing | None, *, dropout: float) -> Tensor:
    """Values averaged by maps, as a textbook writes it: of all heads `[B, N, K, H]`, or of one `[B, K, H]`.

    Packed, values are `[T, N, H]` or `[T, H]` and there is a map for each text.
    """
    if packing is None:
        return dropped(maps, dropout) @ v
    texts = torch.split(v, list(packing.lengths))
    if v.dim() == 2:
        return torch.cat([dropped(of_text, dropout) @ text for of_text, text in zip(maps, texts, strict=True)])
    found = [dropped(of_text, dropout) @ text.transpose(0, 1) for of_text, text in zip(maps, texts, strict=True)]
    return torch.cat(found, dim=1).transpose(0, 1)


def _causal(q: Tensor, k: Tensor, plan: AttentionPlan) -> Tensor | None:
    if not plan.causal or q.shape[-2] == 1:  # the last position sees everything
        return None
    return causal_bias(q.shape[-2], k.shape[-2], dtype=q.dtype, device=q.device)


def _hidden(bias: Tensor | None, causal: Tensor | None) -> Tensor | None:
    """What either hides. Not their sum, which would tell keys that are hidden twice from those that are hidden once."""
    if bias is None or causal is None:
        return bias if causal is None else causal
    return torch.minimum(bias, causal)


def _padded(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: AttentionPlan,
    *,
    relative: RelativePositions | None,
    dropout: float,
    kernel: PaddedKernel,
) -> Tensor:
    if q.shape[1] == 0:  # every head of this layer is pruned
        return q
    if plan.causal and plan.bias is None and relative is None and q.shape[2] == k.shape[2]:
        return kernel(q, k, v, bias=None, causal=True, dropout=dropout)
    bias = _hidden(plan.bias, _causal(q, k, plan))
    if relative is None:
        return kernel(q, k, v, bias=bias, causal=False, dropout=dropout)

    if records_sizes():  # torch.onnx gives the fused call's answer another layout when its bias has a gradient
        kernel = eager
    # Relative scores are as large as the probabilities a fused kernel avoids; they live a few batch items at a time.
    scale = 1 / math.sqrt(q.shape[-1])
    contexts = []
    for items in chunks_within(_RELATIVE_ENTRIES, batch=q.shape[0], per_item=num_scores(q, k)):
        scores = relative.scores(q[items], k[items], scale=scale)
        if bias is not None:
            scores = scores + (bias[items] if bias.dim() == 4 and bias.shape[0] > 1 else bias)
        contexts.append(kernel(q[items], k[items], v[items], bias=scores, causal=False, dropout=dropout))
        del scores
    return contexts[0] if len(contexts) == 1 else torch.cat(contexts)


def _packed_by_groups(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: AttentionPlan,
    packing: Packing,
    *,
    relative: RelativePositions | None,
    dropout: float,
    kernel: PaddedKernel,
) -> Tensor:
    """Run the padded kernel once per group of texts of similar length."""
    if q.shape[1] == 0:  # every head of this layer is pruned
        return q
    if packing.is_rectangle:
        q, k, v = (x.view(packing.num_texts, -1, *x.shape[1:]).transpose(1, 2) for x in (q, k, v))
        whole = AttentionPlan(causal=plan.causal)
        context = _padded(q, k, v, whole, relative=relative, dropout=dropout, kernel=kernel)
        return context.transpose(1, 2).flatten(0, 1)
    rows = []
    for group in packing.groups:
        gq, gk, gv = (_rows(x, group.tokens).transpose(1, 2) for x in (q, k, v))  # [texts, N, length, H]
        group_plan = AttentionPlan(bias=_padding_bias(group, q.dtype), causal=plan.causal)
        context = _padded(gq, gk, gv, group_plan, relative=relative, dropout=dropout, kernel=kernel).transpose(1, 2)
        flat = context.flatten(0, 1)
        rows.append(flat if group.real is None else _rows(flat, group.real))
    return _rows(torch.cat(rows), packing.ungroup)


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """`x[index]`, whose gradient is added up in place; that of plain indexing is sorted first."""
    return x.index_select(0, index.flatten()).view(*index.shape, *x.shape[1:])


def _padding_bias(group: Group, dtype: torch.dtype) -> Tensor | None:
    if group.keep is None:
        return None
    bias = torch.zeros(group.keep.shape, dtype=dtype, device=group.keep.device)
    return bias.masked_fill(~group.keep, hidden_value(dtype))[:, None, None, :]


def _maps(q: Tensor, k: Tensor, plan: AttentionPlan, *, relative: RelativePositions | None) -> Maps:
    if plan.packing is None:
        maps = attention_probabilities(q, k, plan, relative=relative)
        return maps if isinstance(plan.maps, bool) else maps.unbind(1)
    alone = replace(plan, packing=None)
    by_text = []
    for start, length in zip(plan.packing.starts, plan.packing.lengths, strict=True):
        text_q, text_k = (x[start : start + length].transpose(0, 1)[None] for x in (q, k))
        by_text.append(attention_probabilities(text_q, text_k, alone, relative=relative)[0])
    if isinstance(plan.maps, bool):
        return tuple(by_text)
    return tuple(zip(*(of_text.unbind(0) for of_text in by_text), strict=True))
