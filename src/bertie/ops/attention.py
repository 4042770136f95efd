"""The one attention seam: every attention in Bertie goes through `attention(q, k, v, plan, …)`.

    context = softmax((q·kᵀ + relative) / √head + bias) · v × head mask

Padding, causality, relative positions, head masks, packed batches and attention maps are arguments here, not reasons to
take another road: the kernel that computes the context is the same with and without them. Two identities make that
possible. A head mask multiplies a head's probabilities by one number, so it can multiply that head's context instead;
and relative scores are a bias like any other (see relative.py). Maps are computed beside the context, from the same
scores, for the heads that were asked for. Only where gradients are wanted is a head's context computed from its map, so
that gradients of the output with respect to the map exist (attention-gradient attribution).

A padded kernel takes q, k, v `[B, N, length, H]` and either an additive bias or `causal` (as many queries as keys). For
packed batches there is also `varlen`, FlashAttention over cumulative lengths, on CUDA in half precision; every other
packed case runs the padded kernel over groups of texts of similar length. A kernel is chosen when a model is made, and
what it cannot do is said then.

Legend of shapes: B batch, N heads, Q queries, K keys, H head width, T tokens of a packed batch.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertie.errors import ConfigError
from bertie.ops.packing import Packing, records_sizes
from bertie.ops.relative import RelativePositions, SharedBias, chunks_within, num_scores, shared_bias

logger = logging.getLogger("bertie")

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
    shared: SharedBias | None = None  # relative positions that all layers share


# -- kernels ---------------------------------------------------------------------------------------------------------

PaddedKernel = Callable[..., Tensor]
Relative = RelativePositions | SharedBias | None


def hidden_value(dtype: torch.dtype) -> float:
    """What is added to a score to hide it.

    A quarter of the dtype's lowest number: its exponential is 0, and a row in which everything is hidden stays finite
    in every kernel, also in those that multiply scores by log₂e before they exponentiate.
    """
    return torch.finfo(dtype).min / 4


def as_bias(keep: Tensor, dtype: torch.dtype, value: float | None = None) -> Tensor:
    """0 where `keep` is non-zero, `value` (very negative) elsewhere."""
    bias = torch.zeros(keep.shape, dtype=dtype, device=keep.device)
    return bias.masked_fill(keep == 0, hidden_value(dtype) if value is None else value)


def causal_bias(num_queries: int, num_keys: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`[Q, K]`: hides keys that come after the query, when the queries are the last Q of the K positions."""
    seen = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device).tril(num_keys - num_queries)
    return as_bias(seen, dtype)


def dropped(probabilities: Tensor, dropout: float) -> Tensor:
    return F.dropout(probabilities, dropout, training=dropout > 0)


def eager(q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None, causal: bool, dropout: float) -> Tensor:
    """softmax(q·kᵀ/√d + bias)·v, step by step."""
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])  # [B, N, Q, K]
    if causal:
        scores = scores + causal_bias(q.shape[-2], k.shape[-2], dtype=q.dtype, device=q.device)
    if bias is not None:
        scores = scores + bias
    return dropped(torch.softmax(scores, dim=-1), dropout) @ v


def sdpa(q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None, causal: bool, dropout: float) -> Tensor:
    """The same through PyTorch's fused kernel, which never holds the probabilities."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout, is_causal=causal)


BACKENDS: dict[str, PaddedKernel] = {"eager": eager, "sdpa": sdpa}


@cache
def choose_backend(name: str, *, position_embedding_type: str, attention_dropout: float) -> PaddedKernel:
    """The kernel called `name` ("auto" is the fastest); says once what its packed form cannot do for this model."""
    if name == "auto":
        name = "sdpa"
    if name not in BACKENDS:
        raise ConfigError(
            f"No attention backend is called {name!r}.", f"There are: auto, {', '.join(BACKENDS)} (auto is sdpa)."
        )
    if name == "sdpa" and torch.cuda.is_available():
        if position_embedding_type != "absolute":
            _say_once(
                f"packed attention: 'varlen' has no {position_embedding_type} positions; 'sdpa' by groups is used"
            )
        elif attention_dropout > 0:
            _say_once("packed attention: 'varlen' has no dropout; using 'sdpa' by groups while training")
    return BACKENDS[name]


@cache
def _say_once(message: str) -> None:
    logger.info(message)


def packed_kernel(q: Tensor, *, plain: bool, dropout: float) -> bool:
    """Whether the varlen kernel can take this packed call: CUDA, half precision, no bias, no dropout."""
    return (
        plain
        and dropout == 0
        and q.is_cuda
        and q.dtype in (torch.float16, torch.bfloat16)
        and q.shape[-1] % 8 == 0
        and q.shape[-1] <= 256
        and _varlen_attn() is not None
    )


def varlen(q: Tensor, k: Tensor, v: Tensor, *, packing: Packing, causal: bool) -> Tensor:
    """FlashAttention over `[tokens, heads, head]`."""
    function = _varlen_attn()
    assert function is not None  # packed_kernel() was asked first
    ends, longest = packing.cu_seqlens, packing.max_length
    context: Tensor = function(q, k, v, ends, ends, longest, longest, **_causal_argument(causal))
    return context


@cache
def _varlen_attn() -> Callable[..., Any] | None:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn


@cache
def _causal_argument(causal: bool) -> dict[str, bool | tuple[int, int]]:
    # torch 2.11 spells it is_causal, later releases as a window with nothing to the right.
    if not causal:
        return {}
    function = _varlen_attn()
    assert function is not None
    return {"is_causal": True} if "is_causal" in inspect.signature(function).parameters else {"window_size": (-1, 0)}


def with_shared_bias(plan: AttentionPlan, table: nn.Embedding | None, hidden_states: Tensor) -> AttentionPlan:
    """The plan with the relative positions that all layers share, where there are such; once for all layers."""
    if table is None:
        return plan
    length = hidden_states.shape[-2] if plan.packing is None else plan.packing.max_length
    return replace(plan, shared=shared_bias(table, length))


# -- the seam --------------------------------------------------------------------------------------------------------


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: AttentionPlan,
    *,
    relative: Relative = None,
    dropout: float = 0.0,
    kernel: PaddedKernel = sdpa,
) -> tuple[Tensor, Maps | None]:
    """q `[B, N, Q, H]`, k and v `[B, N, K, H]` → context `[B, N, Q, H]` and the maps asked for.

    With `plan.packing` all of them are `[T, N, H]`.
    """
    if plan.maps is False:
        return _context(q, k, v, plan, relative, dropout, kernel), None
    maps = _maps(q, k, plan, relative=relative)
    if not (torch.is_grad_enabled() and (q.requires_grad or k.requires_grad)):
        return _context(q, k, v, plan, relative, dropout, kernel), maps
    # The context is computed from the very tensors that are returned; they carry the head mask already.
    if plan.maps is True:
        return _average(maps, v, plan.packing, dropout=dropout), maps
    heads = {
        head: _average(of_head, v[:, head], plan.packing, dropout=dropout)
        for head, of_head in zip(plan.maps, maps, strict=True)
    }
    others = [head for head in range(q.shape[1]) if head not in heads]
    if others:
        q, k, v = (x[:, others] for x in (q, k, v))
        relative = relative and relative.of_heads(others)
        context = _context(q, k, v, _of_heads(plan, others), relative, dropout, kernel)
        heads |= dict(zip(others, context.unbind(1), strict=True))
    return torch.stack([heads[head] for head in sorted(heads)], dim=1), maps


def _context(
    q: Tensor, k: Tensor, v: Tensor, plan: AttentionPlan, relative: Relative, dropout: float, kernel: PaddedKernel
) -> Tensor:
    """The fused kernel's answer."""
    if plan.packing is None:
        context = _padded(q, k, v, plan, relative, dropout, kernel)
    elif kernel is sdpa and packed_kernel(q, plain=relative is None, dropout=dropout):
        context = varlen(q, k, v, packing=plan.packing, causal=plan.causal)
    else:
        context = _packed_by_groups(q, k, v, plan, relative, dropout, kernel)
    if plan.head_mask is None:
        return context
    by_head = plan.head_mask[:, None, None] if plan.packing is None else plan.head_mask[:, None]
    return context * by_head.to(context.dtype)


def attention_probabilities(q: Tensor, k: Tensor, plan: AttentionPlan, *, relative: Relative = None) -> Tensor:
    """The true probabilities `[B, N', Q, K]` of the heads `plan.maps` names: what the context is the average by.

    They are taken before dropout and carry the head mask.
    """
    if plan.maps is not True and plan.maps is not False:
        heads = list(plan.maps)
        q, k, plan, relative = q[:, heads], k[:, heads], _of_heads(plan, heads), relative and relative.of_heads(heads)
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
    q: Tensor, k: Tensor, v: Tensor, plan: AttentionPlan, relative: Relative, dropout: float, kernel: PaddedKernel
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
    q: Tensor, k: Tensor, v: Tensor, plan: AttentionPlan, relative: Relative, dropout: float, kernel: PaddedKernel
) -> Tensor:
    """Run the padded kernel once per group of texts of similar length."""
    packing = plan.packing
    assert packing is not None
    if q.shape[1] == 0:  # every head of this layer is pruned
        return q
    if packing.is_rectangle:
        q, k, v = (x.view(packing.num_texts, -1, *x.shape[1:]).transpose(1, 2) for x in (q, k, v))
        whole = AttentionPlan(causal=plan.causal)
        context = _padded(q, k, v, whole, relative, dropout, kernel)
        return context.transpose(1, 2).flatten(0, 1)
    rows = []
    for group in packing.groups:
        gq, gk, gv = (_rows(x, group.tokens).transpose(1, 2) for x in (q, k, v))  # [texts, N, length, H]
        bias = None if group.keep is None else as_bias(group.keep, q.dtype)[:, None, None, :]
        group_plan = AttentionPlan(bias=bias, causal=plan.causal)
        context = _padded(gq, gk, gv, group_plan, relative, dropout, kernel).transpose(1, 2)
        flat = context.flatten(0, 1)
        rows.append(flat if group.real is None else _rows(flat, group.real))
    return _rows(torch.cat(rows), packing.ungroup)


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """`x[index]`, whose gradient is added up in place; that of plain indexing is sorted first."""
    return x.index_select(0, index.flatten()).view(*index.shape, *x.shape[1:])


def _maps(q: Tensor, k: Tensor, plan: AttentionPlan, *, relative: Relative) -> Maps:
    if plan.packing is None:
        maps = attention_probabilities(q, k, plan, relative=relative)
        return maps if plan.maps is True else maps.unbind(1)
    alone = replace(plan, packing=None)
    by_text = []
    for start, length in zip(plan.packing.starts, plan.packing.lengths, strict=True):
        text_q, text_k = (x[start : start + length].transpose(0, 1)[None] for x in (q, k))
        by_text.append(attention_probabilities(text_q, text_k, alone, relative=relative)[0])
    if plan.maps is True:
        return tuple(by_text)
    return tuple(zip(*(of_text.unbind(0) for of_text in by_text), strict=True))
