"""The model's parts among code written for transformers, in both directions, and names that the hub's parts have.

Inside the model, attention's circumstances travel as one `AttentionPlan`. Code written for transformers calls a
`BertLayer` or a `BertEncoder` by itself, with an additive mask, a head mask and flags, and expects tuples. A forward
under `@takes_hub_arguments(…)` answers both: given a plan it runs as it is written, otherwise the arguments are the
hub's and so is the answer.

The other way round, such code puts modules of its own where a `BertEncoder`, `BertLayer`, `BertAttention` or
`BertSelfAttention` was: a wrapper with an adapter, a subclass with another forward, a forward exchanged on one object.
`run_attention`, `run_layer` and `run_encoder` call them as transformers does, and read their answers as it does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bertie.config import BertConfig
from bertie.errors import InputError
from bertie.model.cache import KeyValueCache, LayerCache
from bertie.model.hub.cache import LayerShare, Past, adopt, layer_of
from bertie.model.outputs import BertEncoderOutput
from bertie.ops.attention import AttentionPlan, Maps, PaddedKernel, as_bias, causal_bias, eager

if TYPE_CHECKING:
    from bertie.model.bert import BertAttention, BertEncoder, BertLayer, BertSelfAttention, BertSelfOutput

Forward = TypeVar("Forward", bound=Callable[..., Any])


# -- other people's parts inside the model -----------------------------------------------------------------------------


def run_attention(
    part: nn.Module,
    hidden_states: Tensor,
    plan: AttentionPlan,
    *,
    encoder_hidden_states: Tensor | None = None,
    cache: LayerCache | None = None,
) -> tuple[Tensor, Maps | None]:
    """States and maps."""
    if _is_given_the_plan(part, plan):
        found = part(hidden_states, plan, encoder_hidden_states=encoder_hidden_states, cache=cache)
    else:
        found = _as_on_the_hub(part, hidden_states, plan, cache, encoder_hidden_states=encoder_hidden_states)
    return found[0], found[1] if len(found) > 1 else None


def run_layer(
    layer: nn.Module,
    hidden_states: Tensor,
    plan: AttentionPlan,
    *,
    encoder_hidden_states: Tensor | None,
    cross_plan: AttentionPlan,
    cache: LayerCache | None,
    checkpointing: Mapping[str, Any] | None = None,
) -> tuple[Tensor, Maps | None, Maps | None]:
    """States, the maps of self-attention and those of cross-attention.

    With `checkpointing`, torch's arguments for it, the layer is computed again on the way back. Its reentrant form
    takes no keywords, and follows gradients into what is given by position alone.
    """

    def run(hidden_states: Tensor, states: Tensor | None) -> Sequence[Any]:
        if _is_given_the_plan(layer, plan):
            found: tuple[Any, ...] = layer(
                hidden_states, plan, encoder_hidden_states=states, cross_plan=cross_plan, cache=cache
            )
            return found
        named = {"encoder_hidden_states": states, "encoder_attention_mask": cross_plan.bias}
        return _as_on_the_hub(layer, hidden_states, plan, cache, **named)

    if checkpointing is None:
        found = run(hidden_states, encoder_hidden_states)
    else:
        found = checkpoint(run, hidden_states, encoder_hidden_states, **checkpointing)
    states, maps, cross_maps = (*found, None, None)[:3]
    return states, maps, cross_maps


def _as_on_the_hub(
    part: nn.Module, hidden_states: Tensor, plan: AttentionPlan, cache: LayerCache | None, **named: Tensor | None
) -> tuple[Any, ...]:
    past = 0 if cache is None or cache.own is None else cache.own[0].shape[-2]
    found = part(
        hidden_states,
        attention_mask=_mask(plan, hidden_states, past),
        head_mask=None if plan.head_mask is None else plan.head_mask[None, :, None, None],
        past_key_values=None if cache is None else LayerShare(cache),
        output_attentions=plan.maps is not False,
        **named,
    )
    states, *maps = (found,) if isinstance(found, Tensor) else found
    if plan.maps is True or plan.maps is False:
        return (states, *maps)
    return (states, *(None if one is None else tuple(one[:, head] for head in plan.maps) for one in maps))


def run_encoder(
    encoder: nn.Module,
    hidden_states: Tensor,
    plan: AttentionPlan,
    *,
    head_masks: Tensor | None,
    encoder_hidden_states: Tensor | None,
    cross_plan: AttentionPlan,
    cache: KeyValueCache | None,
    output_hidden_states: bool,
    output_attentions: bool | Sequence[tuple[int, int]],
) -> BertEncoderOutput:
    """The same for a whole encoder, whose answer may be any output with the hub's names, or a tuple."""
    wanted = {"output_hidden_states": output_hidden_states, "output_attentions": output_attentions}
    if _is_given_the_plan(encoder, plan):
        found = encoder(
            hidden_states,
            plan,
            head_masks=head_masks,
            encoder_hidden_states=encoder_hidden_states,
            cross_plan=cross_plan,
            cache=cache,
            **wanted,
        )
    else:
        num_layers = len(getattr(encoder, "layer", ()))
        found = encoder(
            hidden_states,
            attention_mask=_mask(plan, hidden_states, 0 if cache is None else cache.length),
            head_mask=[None] * num_layers if head_masks is None else head_masks[:, None, :, None, None],
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=cross_plan.bias,
            past_key_values=None if cache is None else cache.given,
            use_cache=cache is not None,
            return_dict=True,
            **wanted,
        )
    if isinstance(found, BertEncoderOutput):
        return found
    if isinstance(found, Tensor | tuple):
        states = found if isinstance(found, Tensor) else found[0]
        return BertEncoderOutput(last_hidden_state=states, past_key_values=None if cache is None else cache.given)
    names = ("last_hidden_state", "past_key_values", "hidden_states", "attentions", "cross_attentions")
    return BertEncoderOutput(**{name: found.get(name) for name in names})


def heads_of(layer: nn.Module, config: BertConfig, attention: str = "attention") -> Sequence[int]:
    """The original numbers of the heads that are left; all of them in a part that does not say."""
    heads: Sequence[int] | None = getattr(getattr(getattr(layer, attention, None), "self", None), "heads", None)
    return list(range(config.num_attention_heads)) if heads is None else heads


def _mask(plan: AttentionPlan, hidden_states: Tensor, past: int) -> Tensor | None:
    """What is added to the scores, causality and the positions that all layers share included."""
    length = hidden_states.shape[1]
    if plan.shared is not None:
        shared = plan.shared.bias[None, :, :length, : past + length].to(hidden_states.dtype)
        plan = replace(plan, bias=shared if plan.bias is None else shared + plan.bias)
    if not plan.causal:
        return plan.bias
    seen = causal_bias(length, past + length, dtype=hidden_states.dtype, device=hidden_states.device)
    return seen[None, None] if plan.bias is None else plan.bias + seen


def _is_given_the_plan(part: nn.Module, plan: AttentionPlan) -> bool:
    """A wrapper of PyTorch (FSDP) passes a packed batch on; others cannot take one in any form."""
    # `takes_hub_arguments` marked ours, and `functools.wraps` keeps the mark.
    if (takes_plan := getattr(part.forward, "takes_plan", False)) or plan.packing is None:
        return takes_plan
    if not any(one.kind is one.VAR_POSITIONAL for one in signature(part.forward).parameters.values()):
        raise InputError(
            f"{type(part).__qualname__} has the hub's forward, which cannot be asked for a packed batch.",
            "Pass a padded batch with an attention_mask.",
        )
    return True


# -- our parts inside other people's code -----------------------------------------------------------------------------


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

        vars(either)["takes_plan"] = True
        return cast("Forward", either)

    return decorate


def read_attention(
    module: Any,  # a BertSelfAttention or a BertAttention around one
    forward: Callable[..., Any],
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    head_mask: Tensor | None = None,
    encoder_hidden_states: Tensor | None = None,
    past_key_values: Past | LayerCache | LayerShare | None = None,
    output_attentions: bool | None = False,
    cache_position: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """States and maps (None unless they were asked for)."""
    part: BertSelfAttention = getattr(module, "self", module)
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
    past_key_values: Past | LayerCache | LayerShare | None = None,
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
) -> BertEncoderOutput | tuple[Any, ...]:
    """A `BertEncoderOutput`, or with `return_dict=False` its values."""
    first = encoder.layer[0].attention.self
    num_layers = len(encoder.layer)
    cache = None if past_key_values is None else adopt(past_key_values, num_layers)
    if cache is None and use_cache and first.is_decoder:
        cache = KeyValueCache(num_layers)
    output: BertEncoderOutput = forward(
        encoder,
        hidden_states,
        _plan(first, hidden_states, attention_mask, None, maps=False),
        head_masks=_head_masks(head_mask, num_layers, first.num_attention_heads),
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
                f"Give one number per head: [{part.num_attention_heads}] or [1, {part.num_attention_heads}, 1, 1].",
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


def _cache_of(part: BertSelfAttention, past: Past | LayerCache | LayerShare | None) -> LayerCache | None:
    """This layer's part of a cache."""
    if past is None or isinstance(past, LayerCache):  # the latter was passed on by a part around this one
        return past
    if part.layer_idx is None:
        raise InputError(
            "past_key_values was given to a layer that does not know its number.", "Make it with layer_idx=…."
        )
    found = layer_of(past, part.layer_idx)
    if found is None:  # nothing that could be added to
        raise InputError(
            f"past_key_values is of type {type(past).__name__}; a layer takes a KeyValueCache, which it adds to.",
            "KeyValueCache.from_legacy(tuples) makes one.",
        )
    return found


# -- the hub's names ---------------------------------------------------------------------------------------------------


class EmbeddingNames(nn.Module):
    position_embedding_type: str

    @property
    def absolute(self) -> bool:
        """Relative positions enter in attention; the position table then exists (checkpoints have it) unused."""
        return self.position_embedding_type == "absolute"


class SelfAttentionNames(nn.Module):
    heads: list[int]
    attention_head_size: int
    dropout: nn.Dropout
    kernel: PaddedKernel

    @property
    def num_attention_heads(self) -> int:
        """How many heads are left."""
        return len(self.heads)

    @property
    def all_head_size(self) -> int:
        """The width of all heads that are left."""
        return len(self.heads) * self.attention_head_size

    def transpose_for_scores(self, x: Tensor) -> Tensor:
        """transformers' name of `split_heads`."""
        return x.view(*x.shape[:-1], len(self.heads), self.attention_head_size).permute(0, 2, 1, 3)

    def dropout_now(self) -> float:
        """The rate of this call. As on the hub, the eager formula asks the Dropout, the fused one the layer."""
        asked = self.dropout if self.kernel is eager else self
        return float(getattr(self.dropout, "p", 0.0)) if asked.training else 0.0  # an Identity has no rate


class AttentionNames(nn.Module):
    self: BertSelfAttention
    output: BertSelfOutput

    @property
    def pruned_heads(self) -> set[int]:
        """The original numbers of the heads that are gone."""
        part = self.self
        return {*range(self.output.dense.out_features // part.attention_head_size)} - {*part.heads}


class LayerNames(nn.Module):
    seq_len_dim = 1
    attention: BertAttention

    @property
    def is_decoder(self) -> bool:
        """Whether tokens see only those before them."""
        return self.attention.self.is_decoder

    @property
    def add_cross_attention(self) -> bool:
        """Whether the layer attends to an encoder, too."""
        return hasattr(self, "crossattention")


class EncoderNames(nn.Module):
    checkpointing: dict[str, Any] | None

    @property
    def gradient_checkpointing(self) -> bool:
        """Whether layers are computed again in the backward pass."""
        return self.checkpointing is not None

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, on: bool) -> None:
        self.checkpointing = (self.checkpointing or {"use_reentrant": False}) if on else None
