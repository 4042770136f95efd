"""BERT's encoder written from the paper as plainly as possible, in float64: the judge where 4.57.6 cannot be one."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

import bertie

TINY: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 36,
    "max_position_embeddings": 20,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.2,
}


def tiny(name: str = "BertModel", **config: Any) -> Any:
    """A small random model in eval mode."""
    return getattr(bertie, name)(bertie.BertConfig.from_dict(TINY | config)).eval()


def some_ids(*shape: int, vocab: int = TINY["vocab_size"]) -> Tensor:
    return torch.randint(1, vocab, shape)


def plain_hidden_states(model: Any, ids: Tensor, keep: Tensor, head_mask: Tensor | None = None) -> Tensor:
    """The last hidden states, `keep` `[B, N|1, Q, K]` saying which pairs may look at each other."""
    config = model.config
    w = {name: tensor.double() for name, tensor in model.state_dict().items()}
    positions = torch.arange(ids.shape[1])
    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][0]
    if config.position_embedding_type == "absolute":
        x = x + w["embeddings.position_embeddings.weight"][positions]
    x = _norm(x, w, "embeddings.LayerNorm", config.layer_norm_eps)
    heads, size = config.num_attention_heads, config.attention_head_size
    for layer in range(config.num_hidden_layers):
        p = f"encoder.layer.{layer}."
        q, k, v = (
            _linear(x, w, f"{p}attention.self.{part}").view(*ids.shape, heads, size).transpose(1, 2)
            for part in ("query", "key", "value")
        )
        scores = torch.einsum("bnqh,bnkh->bnqk", q, k)
        if config.position_embedding_type != "absolute":
            distance = positions[:, None] - positions[None, :] + config.max_position_embeddings - 1
            r = w[f"{p}attention.self.distance_embedding.weight"][distance]  # [Q, K, H]
            scores = scores + torch.einsum("bnqh,qkh->bnqk", q, r)
            if config.position_embedding_type == "relative_key_query":
                scores = scores + torch.einsum("bnkh,qkh->bnqk", k, r)
        scores = (scores / math.sqrt(size)).masked_fill(~keep.bool(), -1e300)
        probabilities = torch.softmax(scores, dim=-1)
        if head_mask is not None:
            probabilities = probabilities * head_mask[layer][:, None, None]
        context = (probabilities @ v).transpose(1, 2).flatten(2)
        attended = _linear(context, w, f"{p}attention.output.dense") + x
        x = _norm(attended, w, f"{p}attention.output.LayerNorm", config.layer_norm_eps)
        wide = torch.nn.functional.gelu(_linear(x, w, f"{p}intermediate.dense"))
        x = _norm(_linear(wide, w, f"{p}output.dense") + x, w, f"{p}output.LayerNorm", config.layer_norm_eps)
    return x


def _linear(x: Tensor, w: dict[str, Tensor], name: str) -> Tensor:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def _norm(x: Tensor, w: dict[str, Tensor], name: str, eps: float) -> Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], eps)
