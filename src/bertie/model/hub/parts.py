"""Other people's parts inside the model, and names that the hub's parts have.

Code written for transformers puts modules of its own where a `BertEncoder`, `BertLayer`, `BertAttention` or
`BertSelfAttention` was: a wrapper with an adapter, a subclass with another forward, a forward exchanged on one object.
Such a part knows nothing of an `AttentionPlan`. `run` and `run_encoder` call it as transformers does, and read its
answer as transformers does; hub_calls.py is the other direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any

from torch import Tensor, nn

from bertie.config import BertConfig
from bertie.errors import InputError
from bertie.model.cache import KeyValueCache, LayerCache
from bertie.model.hub.cache import LayerShare
from bertie.model.outputs import BertEncoderOutput
from bertie.ops.attention import AttentionPlan
from bertie.ops.backends import causal_bias, eager


def takes_plan(part: Any) -> bool:
    """Whether the forward is one that `takes_hub_arguments` marked; `functools.wraps` keeps the mark."""
    return getattr(part.forward, "takes_plan", False)


def _is_given_the_plan(part: nn.Module, plan: AttentionPlan) -> bool:
    """A wrapper of PyTorch (FSDP) passes a packed batch on; others cannot take one in any form."""
    if takes_plan(part) or plan.packing is None:
        return takes_plan(part)
    if not any(one.kind is one.VAR_POSITIONAL for one in signature(part.forward).parameters.values()):
        raise InputError(
            f"{type(part).__qualname__} has the hub's forward, which cannot be asked for a packed batch.",
            "Pass a padded batch with an attention_mask.",
        )
    return True


def run(
    part: nn.Module,
    hidden_states: Tensor,
    plan: AttentionPlan,
    *,
    encoder_hidden_states: Tensor | None = None,
    cross_plan: AttentionPlan | None = None,
    cache: LayerCache | None = None,
) -> tuple[Any, ...]:
    """States and maps from an attention; from a layer, which has a `cross_plan`, cross-attention's maps as well."""
    of_layer: dict[str, Any] = {} if cross_plan is None else {"cross_plan": cross_plan}
    if _is_given_the_plan(part, plan):
        found = part(hidden_states, plan, encoder_hidden_states=encoder_hidden_states, cache=cache, **of_layer)
    else:
        past = 0 if cache is None or cache.own is None else cache.own[0].shape[-2]
        if cross_plan is not None:
            of_layer = {"encoder_attention_mask": cross_plan.bias}
        found = part(
            hidden_states,
            attention_mask=_mask(plan, hidden_states, past),
            head_mask=None if plan.head_mask is None else plan.head_mask[None, :, None, None],
            encoder_hidden_states=encoder_hidden_states,
            past_key_values=None if cache is None else LayerShare(cache),
            output_attentions=plan.maps is not False,
            **of_layer,
        )
        found = (found,) if isinstance(found, Tensor) else tuple(found)
        found = (found[0], *(_wanted(maps, plan) for maps in found[1:]))
    width = 2 if cross_plan is None else 3
    return (*found, None, None)[:width]


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
    output_attentions: Any,
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
    if isinstance(found, Tensor):
        found = (found,)
    if isinstance(found, tuple):
        return BertEncoderOutput(last_hidden_state=found[0], past_key_values=None if cache is None else cache.given)
    names = ("last_hidden_state", "past_key_values", "hidden_states", "attentions", "cross_attentions")
    return BertEncoderOutput(**{name: found.get(name) for name in names})


def heads_of(layer: Any, config: BertConfig, attention: str = "attention") -> Sequence[int]:
    """The original numbers of the heads that are left; all of them in a part that does not say."""
    heads: Sequence[int] | None = getattr(getattr(getattr(layer, attention, None), "self", None), "heads", None)
    return list(range(config.num_attention_heads)) if heads is None else heads


def _mask(plan: AttentionPlan, hidden_states: Tensor, past: int) -> Tensor | None:
    """What is added to the scores, causality included."""
    if not plan.causal:
        return plan.bias
    length = hidden_states.shape[1]
    seen = causal_bias(length, past + length, dtype=hidden_states.dtype, device=hidden_states.device)
    return seen[None, None] if plan.bias is None else plan.bias + seen


def _wanted(maps: Any, plan: AttentionPlan) -> Any:
    if maps is None or isinstance(plan.maps, bool):
        return maps
    return tuple(maps[:, head] for head in plan.maps)


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

    @property
    def num_attention_heads(self) -> int:
        return len(self.heads)

    @property
    def all_head_size(self) -> int:
        return len(self.heads) * self.attention_head_size

    def transpose_for_scores(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], len(self.heads), self.attention_head_size).permute(0, 2, 1, 3)

    def dropout_now(self) -> float:
        """The rate of this call. As on the hub, the eager formula asks the Dropout, the fused one the layer."""
        asked = self.dropout if self.kernel is eager else self
        return float(getattr(self.dropout, "p", 0.0)) if asked.training else 0.0  # an Identity has no rate


class AttentionNames(nn.Module):
    @property
    def pruned_heads(self) -> set[int]:
        """The original numbers of the heads that are gone."""
        part: Any = self.self
        output: Any = self.output
        return {*range(output.dense.out_features // part.attention_head_size)} - {*part.heads}


class LayerNames(nn.Module):
    seq_len_dim = 1

    @property
    def is_decoder(self) -> bool:
        return self.attention.self.is_decoder  # type: ignore

    @property
    def add_cross_attention(self) -> bool:
        return hasattr(self, "crossattention")


class EncoderNames(nn.Module):
    checkpointing: dict[str, Any] | None

    @property
    def gradient_checkpointing(self) -> bool:
        return self.checkpointing is not None

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, on: bool) -> None:
        self.checkpointing = (self.checkpointing or {"use_reentrant": False}) if on else None
