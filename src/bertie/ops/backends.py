"""The kernels behind the attention seam, and how one is chosen.

A padded kernel takes q, k, v `[batch, heads, length, head]` and either an additive bias or `causal` (as many queries as
keys). `eager` is the formula as a textbook
writes it; `sdpa` is PyTorch's fused one. For packed batches there is also `varlen`, FlashAttention over cumulative
lengths, on CUDA in half precision; every other packed case runs the padded kernel over groups of texts of similar
length. A kernel is chosen when a model is made, and what it cannot do is said then.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bertie.errors import ConfigError
from bertie.ops.packing import Packing

logger = logging.getLogger("bertie")

PaddedKernel = Callable[..., Tensor]


def hidden_value(dtype: torch.dtype) -> float:
    """What is added to a score to hide it.

    A quarter of the dtype's lowest number: its exponential is 0, and a row in which everything is hidden stays finite
    in every kernel, also in those that multiply scores by log₂e before they exponentiate.
    """
    return torch.finfo(dtype).min / 4


def causal_bias(num_queries: int, num_keys: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`[Q, K]`: hides keys that come after the query, when the queries are the last Q of the K positions."""
    hidden = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device).triu(num_keys - num_queries + 1)
    return torch.zeros(num_queries, num_keys, dtype=dtype, device=device).masked_fill(hidden, hidden_value(dtype))


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
def _causal_argument(causal: bool) -> dict[str, Any]:
    # torch 2.11 spells it is_causal, later releases as a window with nothing to the right.
    if not causal:
        return {}
    function = _varlen_attn()
    assert function is not None
    return {"is_causal": True} if "is_causal" in inspect.signature(function).parameters else {"window_size": (-1, 0)}
