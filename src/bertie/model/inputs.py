"""Reading what callers pass to `BertModel`: packing, caches, masks, wanted maps; refusing what cannot be meant."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from torch import Tensor, nn

from bertie.config import BertConfig
from bertie.errors import InputError
from bertie.model import checks
from bertie.model.cache import KeyValueCache
from bertie.model.hub.cache import adopt, contents
from bertie.model.hub.parts import heads_of
from bertie.model.masks import attention_bias, sees_all
from bertie.ops.attention import AttentionPlan
from bertie.ops.packing import Packing
from bertie.ops.tracing import records_sizes

if TYPE_CHECKING:
    from bertie.model.bert import BertModel

# output_attentions: no, all of them, or some (layer, head) pairs only
WantedMaps: TypeAlias = bool | Sequence[tuple[int, int]]


def read_packing(input_ids: Tensor | None, inputs_embeds: Tensor | None, cu_seqlens: Tensor | None) -> Packing | None:
    """None for a padded batch."""
    given = checks.one_of_ids_or_embeds(input_ids, inputs_embeds)
    dims = given.dim() if input_ids is not None else given.dim() - 1
    if cu_seqlens is not None:
        if dims != 1:
            raise InputError(f"cu_seqlens was given, but the input has shape {list(given.shape)}, not [tokens].")
        if records_sizes():
            raise InputError(
                "A packed batch cannot be traced or exported: its lengths would become part of the program.",
                "Give a padded batch with an attention_mask.",
            )
        return Packing.from_cu_seqlens(cu_seqlens, num_tokens=given.shape[0], device=given.device)
    if dims != 2 or (not records_sizes() and 0 in given.shape[:2]):
        raise InputError(
            f"The input has shape {list(given.shape)}; it takes [batch, length"
            f"{'' if input_ids is not None else ', hidden'}], none of them 0.",
            "For one text use input_ids[None]; for texts packed end to end also give cu_seqlens."
            if dims == 1
            else None,
        )
    return None


def wants_dict(config: BertConfig, return_dict: bool | None) -> bool:
    """Whether an output object is wanted, or the plain tuple: as the call says, or the config."""
    if return_dict is not None:
        return return_dict
    return config.return_dict and not getattr(config, "torchscript", False)  # TorchScript knows tuples


def read_cache(
    model: BertModel,
    past: KeyValueCache | Sequence[Sequence[Tensor | None]] | None,
    use_cache: bool | None,
    packing: Packing | None,
    batch: int,
) -> KeyValueCache | None:
    """The cache to fill: the one given, a new one, or none.

    An encoder fills none. What it is given stands before every text, as prefix tuning wants it, and stays as it is.
    """
    config = model.config
    if packing is not None and (past is not None or use_cache):
        raise InputError("A packed batch cannot use a cache.", "Pad the batch to decode step by step.")
    if use_cache is None:
        use_cache = config.use_cache
    if past is None and (not use_cache or not config.is_decoder or packing is not None):
        return None
    if model.is_gradient_checkpointing and model.training:
        if not config.is_decoder:
            raise InputError(
                "past_key_values was given to an encoder that recomputes its layers.",
                "Turn gradient checkpointing off: model.gradient_checkpointing_disable().",
            )
        if not model._said_no_cache:
            warnings.warn("Gradient checkpointing recomputes layers, so use_cache is off.", stacklevel=4)
            model._said_no_cache = True
        return None
    num_layers = config.num_hidden_layers
    if past is None:
        cache = KeyValueCache(num_layers)
    else:
        cache = adopt(past, num_layers) if config.is_decoder else contents(past)
    if len(cache) != num_layers:
        raise InputError(f"past_key_values holds {len(cache)} layers; the model has {num_layers}.")
    cache.check(batch, [len(heads_of(layer, config)) for layer in model.encoder.layer])
    return cache


def check(
    model: BertModel,
    input_ids: Tensor | None,
    token_type_ids: Tensor | None,
    position_ids: Tensor | None,
    inputs_embeds: Tensor | None,
    packing: Packing | None,
    past: int,
) -> None:
    """Shapes always; values when `model.check_inputs` is on."""
    config, embeddings = model.config, model.embeddings
    if inputs_embeds is not None and inputs_embeds.shape[-1] != config.hidden_size:
        raise InputError(
            f"inputs_embeds has shape {list(inputs_embeds.shape)}; its last size must be "
            f"config.hidden_size ({config.hidden_size})."
        )
    given = checks.one_of_ids_or_embeds(input_ids, inputs_embeds)
    if not isinstance(given, Tensor):  # torch.fx's proxy has no sizes yet
        return
    shape = tuple(given.shape if inputs_embeds is None else given.shape[:-1])
    if inputs_embeds is not None:
        checks.same_dtype("inputs_embeds", inputs_embeds, model.dtype)
    for name, ids in (("token_type_ids", token_type_ids), ("position_ids", position_ids)):
        if ids is not None:
            checks.are_ids(name, ids)
    checks.shape_like("token_type_ids", token_type_ids, shape, batch_may_be_one=packing is None)
    checks.shape_like("position_ids", position_ids, shape, batch_may_be_one=packing is None)
    absolute = config.position_embedding_type == "absolute"
    num_positions = _num_rows(embeddings, "position_embeddings") if absolute else config.max_position_embeddings
    if (position_ids is None or not absolute) and num_positions is not None:
        length = shape[-1] if packing is None else packing.max_length
        checks.fits_positions(length, past, num_positions)
    if not model.check_inputs:
        return
    for name, ids, table, size in (
        ("input_ids", input_ids, "word_embeddings", "vocab_size"),
        ("token_type_ids", token_type_ids, "token_type_embeddings", "type_vocab_size"),
        ("position_ids", position_ids if absolute else None, "position_embeddings", "max_position_embeddings"),
    ):
        limit = _num_rows(embeddings, table)
        if ids is not None and limit is not None:
            checks.ids_below(name, ids, limit, size)


def _num_rows(embeddings: nn.Module, table: str) -> int | None:
    """The size of a table, which may have been exchanged; None where a module of another kind has taken its place."""
    found: int | None = getattr(getattr(embeddings, table, None), "num_embeddings", None)
    return found


def self_plan(
    model: BertModel, hidden_states: Tensor, mask: Tensor | None, packing: Packing | None, past: int
) -> AttentionPlan:
    """What self-attention has to respect."""
    causal = model.config.is_decoder and not sees_all(mask)
    if packing is None:
        num_keys = past + hidden_states.shape[1]
        return AttentionPlan(bias=_bias(model, "attention_mask", mask, hidden_states, num_keys), causal=causal)
    _refuse_with_packing("attention_mask", mask)
    return AttentionPlan(causal=causal, packing=packing)


def cross_plan(
    model: BertModel, hidden_states: Tensor, states: Tensor | None, mask: Tensor | None, packing: Packing | None
) -> AttentionPlan:
    """What cross-attention has to respect; the encoder's states are checked here."""
    if states is None:
        return AttentionPlan()
    hidden_size = model.config.hidden_size
    if not model.config.add_cross_attention:
        raise InputError(
            "encoder_hidden_states was given, but this model has no cross-attention.",
            "Make it with BertConfig(is_decoder=True, add_cross_attention=True).",
        )
    if packing is not None:
        _refuse_with_packing("encoder_hidden_states", states)
    if states.dim() != 3 or states.shape[0] != hidden_states.shape[0] or states.shape[2] != hidden_size:
        raise InputError(
            f"encoder_hidden_states has shape {list(states.shape)}; it takes "
            f"[{hidden_states.shape[0]}, length, {hidden_size}]."
        )
    checks.same_dtype("encoder_hidden_states", states, hidden_states.dtype)
    return AttentionPlan(bias=_bias(model, "encoder_attention_mask", mask, hidden_states, states.shape[1]))


def wanted_maps(model: BertModel, wanted: WantedMaps | None) -> WantedMaps:
    """The pairs that were asked for, once each, refused where there is no such head."""
    config = model.config
    if wanted is None:
        return config.output_attentions
    if isinstance(wanted, bool):
        return wanted
    try:
        pairs = list(dict.fromkeys((int(layer), int(head)) for layer, head in wanted))
    except (TypeError, ValueError):
        raise InputError(f"output_attentions is {wanted!r}; it takes True, False or pairs (layer, head).") from None
    for layer, head in pairs:
        if not 0 <= layer < config.num_hidden_layers or head not in heads_of(model.encoder.layer[layer], config):
            gone = head in config.pruned_heads.get(layer, [])
            raise InputError(
                f"output_attentions asks for layer {layer}, head {head}, "
                f"{'which is pruned' if gone else 'which is not there'}.",
                f"Layers are 0 to {config.num_hidden_layers - 1}, heads 0 to {config.num_attention_heads - 1}.",
            )
    return pairs


def _bias(model: BertModel, name: str, mask: Tensor | None, hidden_states: Tensor, num_keys: int) -> Tensor | None:
    return attention_bias(
        mask,
        name=name,
        batch=hidden_states.shape[0],
        num_heads=model.config.num_attention_heads,
        num_queries=hidden_states.shape[1],
        num_keys=num_keys,
        dtype=hidden_states.dtype,
        check_values=model.check_inputs,
    )


def _refuse_with_packing(name: str, value: Tensor | None) -> None:
    if value is not None:
        raise InputError(f"{name} was given with a packed batch.", f"Pad the batch, or leave {name} out.")
