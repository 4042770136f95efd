"""Calling parts of the model the way transformers does.

Inside the model, attention's circumstances travel as one `AttentionPlan`. Code written for transformers calls a
`BertLayer` or a `BertEncoder` by itself, with an additive mask, a head mask and flags, and expects tuples. A forward
under `@takes_hub_arguments(…)` answers both: given a plan it runs as it is written, otherwise the arguments are the
hub's and so is the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from bertie.errors import InputError
from bertie.model.cache import KeyValueCache, LayerCache
from bertie.model.hub.cache import adopt, layer_of
from bertie.model.masks import as_bias
from bertie.ops.attention import AttentionPlan

if TYPE_CHECKING:
    from bertie.model.bert import BertAttention, BertEncoder, BertLayer, BertSelfAttention

Past = KeyValueCache | LayerCache | Sequence[Sequence[Tensor | None]]
Forward = TypeVar("Forward", bound=Callable[..., Any])


def takes_hub_arguments(reader: Callable[..., Any]) -> Callable[[Forward], Forward]:
    """Let a forward that takes a plan take the hub's arguments too; `reader` turns one call into the other."""

    def decorate(forward: Forward) -> Forward:
        @wraps(forward)
        def either(self: Any, hidden_states: Tensor, plan: Any = None, *args: Any, **named: Any) -> Any:
            if isinstance(plan, AttentionPlan):
                return forward(self, hidden_states, plan, *args, **named)
            if args or plan is not None:
                args = (plan, *args)
            return reader(self, forward, hidden_states, *args, **named)

        either.takes_plan = True  # type: ignore[attr-defined]
        return either  # type: ignore[return-value]

    return decorate


def read_attention(
    module: BertSelfAttention | BertAttention,
    forward: Callable[..., Any],
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    head_mask: Tensor | None = None,
    encoder_hidden_states: Tensor | None = None,
    past_key_values: Past | None = None,
    output_attentions: bool | None = False,
    cache_position: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """States and maps (None unless they were asked for)."""
    part: BertSelfAttention = getattr(module, "self", module)  # type: ignore[arg-type]
    cross = encoder_hidden_states is not None
    plan = _plan(part, hidden_states, attention_mask, head_mask, bool(output_attentions), cross=cross)
    found: tuple[Tensor, Tensor | None] = forward(
        module, hidden_states, plan, encoder_hidden_states=encoder_hidden_states, cache=_cache_of(part, past_key_values)
    )
    return found


def read_layer(
    layer: BertLayer,
    forward: Callable[..., Any],
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    head_mask: Tensor | None = None,
    encoder_hidden_states: Tensor | None = None,
    encoder_attention_mask: Tensor | None = None,
    past_key_values: Past | None = None,
    output_attentions: bool | None = False,
    cache_position: Tensor | None = None,
) -> tuple[Tensor | None, ...]:
    """States and self-attention maps; cross-attention maps after them where the encoder's states were given."""
    own, maps = layer.attention.self, bool(output_attentions)
    cross_plan = AttentionPlan()
    if encoder_hidden_states is not None:
        if not hasattr(layer, "crossattention"):
            raise InputError(
                "encoder_hidden_states was given, but this layer has no cross-attention.",
                "Make it with BertConfig(is_decoder=True, add_cross_attention=True).",
            )
        other = layer.crossattention.self
        cross_plan = _plan(other, hidden_states, encoder_attention_mask, head_mask, maps, cross=True)
    found: tuple[Tensor | None, ...] = forward(
        layer,
        hidden_states,
        _plan(own, hidden_states, attention_mask, head_mask, maps),
        encoder_hidden_states=encoder_hidden_states,
        cross_plan=cross_plan,
        cache=_cache_of(own, past_key_values),
    )
    return found[:2] if encoder_hidden_states is None else found


def read_encoder(
    encoder: BertEncoder,
    forward: Callable[..., Any],
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    head_mask: Tensor | Sequence[Tensor | None] | None = None,
    encoder_hidden_states: Tensor | None = None,
    encoder_attention_mask: Tensor | None = None,
    past_key_values: Past | None = None,
    use_cache: bool | None = None,
    output_attentions: bool | None = False,
    output_hidden_states: bool | None = False,
    return_dict: bool | None = True,
    cache_position: Tensor | None = None,
) -> Any:
    """A `BertEncoderOutput`, or with `return_dict=False` its values."""
    first = encoder.layer[0].attention.self
    cache = past_key_values
    if cache is None and use_cache and first.is_decoder:
        cache = KeyValueCache(len(encoder.layer))
    if cache is not None:
        cache = adopt(cache, len(encoder.layer))
    output = forward(
        encoder,
        hidden_states,
        _plan(first, hidden_states, attention_mask, None, maps=False),
        head_masks=_head_masks(head_mask, len(encoder.layer), first.num_attention_heads),
        encoder_hidden_states=encoder_hidden_states,
        cross_plan=_plan(first, hidden_states, encoder_attention_mask, None, maps=False, cross=True),
        cache=cache,
        output_hidden_states=bool(output_hidden_states),
        output_attentions=output_attentions or False,
    )
    return output if return_dict or return_dict is None else output.to_tuple()


def _plan(
    part: BertSelfAttention,
    hidden_states: Tensor,
    mask: Tensor | None,
    head_mask: Tensor | None,
    maps: bool,
    *,
    cross: bool = False,
) -> AttentionPlan:
    if head_mask is not None:
        if head_mask.numel() != part.num_attention_heads:
            raise InputError(
                f"head_mask has shape {list(head_mask.shape)}; this layer has {part.num_attention_heads} heads.",
                f"Give one number to a head: [{part.num_attention_heads}] or [1, {part.num_attention_heads}, 1, 1].",
            )
        head_mask = head_mask.flatten()
    if mask is None:
        # As PyTorch's attention does in transformers: a decoder without a mask sees no later token.
        return AttentionPlan(causal=part.is_decoder and not cross, head_mask=head_mask, maps=maps)
    if mask.dim() != 4 or not (mask.is_floating_point() or mask.dtype == torch.bool):
        raise InputError(
            f"attention_mask has shape {list(mask.shape)} and dtype {mask.dtype}; this part of the model takes a "
            "mask to be added to the scores, [batch, 1 or heads, 1 or queries, keys], or True for keep.",
            "model.get_extended_attention_mask(mask, input_ids.shape) makes one from 1 and 0.",
        )
    bias = as_bias(mask, hidden_states.dtype) if mask.dtype == torch.bool else mask
    return AttentionPlan(bias=bias, head_mask=head_mask, maps=maps)


def _head_masks(given: Tensor | Sequence[Tensor | None] | None, num_layers: int, num_heads: int) -> Tensor | None:
    """One mask per layer, None for some, or a tensor `[layers, …]` → `[layers, heads]`."""
    if given is None or all(mask is None for mask in given):
        return None
    ones = torch.ones(num_heads, device=next(mask.device for mask in given if mask is not None))
    rows = [ones if mask is None else mask.flatten() for mask in given]
    if len(rows) != num_layers or any(len(row) != num_heads for row in rows):
        raise InputError(
            f"head_mask holds {len(rows)} masks of {sorted({len(row) for row in rows})} numbers; the encoder has "
            f"{num_layers} layers of {num_heads} heads."
        )
    return torch.stack(rows)


def _cache_of(part: BertSelfAttention, past: Past | None) -> LayerCache | None:
    """This layer's part of a cache."""
    if past is None or isinstance(past, LayerCache):  # the latter was passed on by a part around this one
        return past
    if part.layer_idx is None:
        raise InputError(
            "past_key_values was given to a layer that does not know its number.", "Make it with layer_idx=…."
        )
    if isinstance(past, tuple | list):  # nothing that could be added to
        raise InputError(
            f"past_key_values is of type {type(past).__name__}; a layer takes a KeyValueCache, which it adds to.",
            "KeyValueCache.from_legacy(tuples) makes one.",
        )
    found: LayerCache = layer_of(past, part.layer_idx)
    return found
