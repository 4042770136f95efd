"""Parts of the model that somebody replaced by a subclass with the hub's forward.

    class Sparse(BertSelfAttention):
        def forward(self, hidden_states, attention_mask=None, head_mask=None, output_attentions=False, **other): …

    model.encoder.layer[0].attention.self = Sparse(model.config)

Inside the model a part is called with an `AttentionPlan` (see hub_calls.py, which answers the opposite case: our part,
called with the hub's arguments). A subclass whose forward takes no plan is called with what the plan says under the
hub's names. What those names cannot say, or its forward does not take, is refused and never left out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from bertie.errors import InputError
from bertie.model.hub_cache import LayerShare
from bertie.model.outputs import BertEncoderOutput
from bertie.ops.attention import AttentionPlan
from bertie.ops.backends import causal_bias


class HubPart(nn.Module):
    """Base of the parts that are called with a plan."""

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        forward = cls.__dict__.get("forward")
        if forward is None:
            return
        takes = inspect.signature(forward).parameters
        passes_on = any(one.kind is one.VAR_POSITIONAL for one in takes.values()) and "attention_mask" not in takes
        if "plan" not in takes and not passes_on:
            cls.forward = _called_by_the_hubs_names(forward, takes)


class HubAttention(HubPart):
    """The same for attention itself, with attributes of the hub's class that forwards written for it use."""

    heads: list[int]
    attention_head_size: int

    @property
    def all_head_size(self) -> int:
        return len(self.heads) * self.attention_head_size

    def transpose_for_scores(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], len(self.heads), self.attention_head_size).permute(0, 2, 1, 3)


def heads_of(layer: nn.Module, name: str) -> list[int]:
    """The heads that a layer's attention has; a module that does not say is none of ours."""
    part = getattr(layer, name, None)
    found: list[int] | None = getattr(getattr(part, "self", None), "heads", None)
    if found is None:
        foreign = next(one for one in (layer, part, getattr(part, "self", None)) if not isinstance(one, HubPart))
        raise InputError(
            f"A part of the encoder was replaced by a {type(foreign).__qualname__}, which is no part of Bertie's.",
            "Let it inherit from bertie.BertLayer, BertAttention or BertSelfAttention; its forward may stay the hub's.",
        )
    return found


def _called_by_the_hubs_names(forward: Callable[..., Any], takes: Any) -> Callable[..., Any]:
    takes_any = any(one.kind is one.VAR_KEYWORD for one in takes.values())

    @wraps(forward)
    def either(self: Any, hidden_states: Tensor, plan: Any = None, *args: Any, **named: Any) -> Any:
        if not isinstance(plan, AttentionPlan):  # called as the hub does, by somebody's own layer
            before = () if plan is None and not args else (plan,)
            return forward(self, hidden_states, *before, *args, **named)
        wanted = _hub_arguments(self, hidden_states, plan, **named)
        if "past_key_value" in takes:  # its name until transformers 4.55
            wanted["past_key_value"] = wanted.pop("past_key_values")
        known = wanted if takes_any else {name: value for name, value in wanted.items() if name in takes}
        lost = [name for name in wanted.keys() - known if wanted[name] is not None and wanted[name] is not False]
        if lost:
            raise InputError(
                f"{type(self).__qualname__}.forward does not take {', '.join(sorted(lost))}, which this call needs.",
                "Add the argument to it, or call the model without what it stands for.",
            )
        return _as_ours(self, forward(self, hidden_states, **known), plan, named)

    return either


def _hub_arguments(
    part: Any,
    hidden_states: Tensor,
    plan: AttentionPlan,
    *,
    encoder_hidden_states: Tensor | None = None,
    cross_plan: AttentionPlan | None = None,
    head_masks: Tensor | None = None,
    cache: Any = None,
    output_hidden_states: bool | None = None,
    output_attentions: Any = None,
) -> dict[str, Any]:
    maps = plan.maps if output_attentions is None else output_attentions
    if plan.packing is not None or not isinstance(maps, bool):
        what = "the maps of single heads" if plan.packing is None else "a packed batch"
        raise InputError(
            f"{type(part).__qualname__} has the hub's forward, which cannot be asked for {what}.",
            "Pass a padded batch with an attention_mask, and output_attentions=True or False.",
        )
    whole = output_hidden_states is not None  # the encoder, not a layer
    own = cache.layers[0] if whole and cache is not None else cache
    past = 0 if own is None or own.own is None else own.own[0].shape[-2]
    is_cross = encoder_hidden_states is not None and cross_plan is None  # attention by itself, to the encoder's states
    arguments: dict[str, Any] = {
        "attention_mask": _mask(plan, hidden_states, past),
        "head_mask": None if plan.head_mask is None else plan.head_mask[None, :, None, None],
        "encoder_hidden_states": encoder_hidden_states,
        "past_key_values": None if cache is None or is_cross else LayerShare(cache),
        "output_attentions": maps,
    }
    if cross_plan is not None:
        arguments["encoder_attention_mask"] = cross_plan.bias
    if whole:
        arguments["head_mask"] = None if head_masks is None else head_masks[:, None, :, None, None]
        arguments["past_key_values"] = None if cache is None else cache.given
        arguments |= {"use_cache": cache is not None, "output_hidden_states": output_hidden_states, "return_dict": True}
    return arguments


def _mask(plan: AttentionPlan, hidden_states: Tensor, past: int) -> Tensor | None:
    """To be added to the scores; causality is part of it."""
    length = hidden_states.shape[1]
    if not plan.causal or length == 1:
        return plan.bias
    causal = causal_bias(length, past + length, dtype=hidden_states.dtype, device=hidden_states.device)
    return causal[None, None] if plan.bias is None else torch.minimum(plan.bias, causal)


def _as_ours(part: Any, answer: Any, plan: AttentionPlan, named: dict[str, Any]) -> Any:
    if "output_hidden_states" in named:
        if not isinstance(answer, tuple):
            others = ("past_key_values", "hidden_states", "attentions", "cross_attentions")
            return BertEncoderOutput(answer.last_hidden_state, **{name: getattr(answer, name, None) for name in others})
        raise InputError(
            f"{type(part).__qualname__}.forward returned a tuple though return_dict=True was given.",
            "Let it return an output with last_hidden_state, as the hub's BertEncoder does.",
        )
    found = answer if isinstance(answer, tuple) else (answer,)
    size = 3 if "cross_plan" in named or _is_layer(part) else 2
    if not plan.maps:
        return (found[0],) + (None,) * (size - 1)
    if len(found) < 2:
        raise InputError(
            f"{type(part).__qualname__}.forward was given output_attentions=True and returned no attention maps.",
            "Let it return (states, maps) then.",
        )
    return (*found, None)[:size]


def _is_layer(part: Any) -> bool:
    return hasattr(part, "intermediate")
