"""Reading what callers pass to `BertModel`: packing, caches, masks, wanted maps; refusing what cannot be meant.

What a kernel would crash on, or quietly make nonsense of, is refused first, with the numbers in it. Checking values
costs a look at the data (on a GPU, a wait for it); `model.check_inputs = False` turns those off. Shapes are always
checked. While a model is traced, exported or compiled, nothing may depend on the example's values: they are not those
of later calls.

A mask says 1 (or True) for keep and 0 for drop, in one of three shapes: `[batch, keys]` hides padding from every query;
`[batch, queries, keys]` and `[batch, 1 or heads, queries, keys]` say it for every pair and are taken as given, with no
causality added. Attention wants a *bias*: 0 where a key is seen and a very negative number where it is hidden.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor, nn
from torch.fx import Proxy

from bertie.config import BertConfig
from bertie.errors import IdOutOfRange, InputError
from bertie.model.cache import KeyValueCache
from bertie.model.hub.cache import adopt, contents
from bertie.model.hub.parts import heads_of
from bertie.ops.attention import AttentionPlan, as_bias
from bertie.ops.packing import Packing, records_sizes, values_are_known

if TYPE_CHECKING:
    from bertie.model.bert import BertEmbeddings, BertModel

# output_attentions: no, all of them, or some (layer, head) pairs only
WantedMaps: TypeAlias = bool | Sequence[tuple[int, int]]


def read_packing(input_ids: Tensor | None, inputs_embeds: Tensor | None, cu_seqlens: Tensor | None) -> Packing | None:
    """None for a padded batch."""
    given = one_of_ids_or_embeds(input_ids, inputs_embeds)
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
            f"The input has shape {list(given.shape)}; it must be [batch, length"
            f"{'' if input_ids is not None else ', hidden'}], none of them 0.",
            "For one text use input_ids[None]; for texts packed end to end also give cu_seqlens."
            if dims == 1
            else None,
        )
    return None


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
    if inputs_embeds is not None and inputs_embeds.shape[-1] != config.embedding_width:
        name = "hidden_size" if config.embedding_width == config.hidden_size else "embedding_size"
        raise InputError(
            f"inputs_embeds has shape {list(inputs_embeds.shape)}; its last size must be "
            f"config.{name} ({config.embedding_width})."
        )
    given = one_of_ids_or_embeds(input_ids, inputs_embeds)
    if not isinstance(given, Tensor):  # torch.fx's proxy has no sizes yet
        return
    shape = tuple(given.shape if inputs_embeds is None else given.shape[:-1])
    if inputs_embeds is not None:
        same_dtype("inputs_embeds", inputs_embeds, model.dtype)
    for name, ids in (("token_type_ids", token_type_ids), ("position_ids", position_ids)):
        if ids is not None:
            are_ids(name, ids)
    shape_like("token_type_ids", token_type_ids, shape, batch_may_be_one=packing is None)
    shape_like("position_ids", position_ids, shape, batch_may_be_one=packing is None)
    absolute = config.position_embedding_type == "absolute"
    num_positions = _num_rows(embeddings, "position_embeddings") if absolute else config.max_position_embeddings
    if (position_ids is None or not absolute) and num_positions is not None:
        padding = getattr(embeddings.position_embeddings, "padding_idx", None) if absolute else None
        num_positions -= 0 if padding is None else padding + 1  # rows that no token of a text has
        length = shape[-1] if packing is None else packing.max_length
        fits_positions(length, past, num_positions)
    if not checks_values(model):
        return
    if token_type_ids is not None and not config.has_segments and (high := int(token_type_ids.max())) > 1:
        raise InputError(  # the hub's order of a relative without them has other arguments in this place
            f"token_type_ids holds {high}, and a {config.model_type!r} model has no segments.",
            "Name the arguments after attention_mask: by position they are in BERT's order, with token_type_ids third.",
        )
    for name, ids, table, size in (
        ("input_ids", input_ids, "word_embeddings", "vocab_size"),
        ("token_type_ids", token_type_ids, "token_type_embeddings", "type_vocab_size"),
        ("position_ids", position_ids if absolute else None, "position_embeddings", "max_position_embeddings"),
    ):
        limit = _num_rows(embeddings, table)
        if ids is not None and limit is not None:
            ids_below(name, ids, limit, size)


def positions(
    embeddings: BertEmbeddings, input_ids: Tensor | None, length: int, past: int = 0, packing: Packing | None = None
) -> Tensor:
    """Where tokens stand: 0, 1, 2, … in every text.

    Where the position table has a row for padding, as RoBERTa's has, the first token stands after that row, padding on
    it, and only what is no padding is counted.
    """
    padding: int | None = getattr(embeddings.position_embeddings, "padding_idx", None)
    if packing is not None:
        return packing.positions(input_ids, padding)
    if padding is None:
        return embeddings.position_ids[:, past : past + length]
    if input_ids is None:
        return embeddings.position_ids[:, padding + 1 : padding + 1 + length]
    real = (input_ids != padding).long()
    return (real.cumsum(-1) + past) * real + padding


def checks_values(model: BertModel) -> bool:
    """Whether values are to be looked at; never while they stand for those of calls to come."""
    return getattr(model, "_check_inputs", True) and values_are_known()


def _num_rows(embeddings: nn.Module, table: str) -> int | None:
    """The size of a table, which may have been exchanged; None where a module of another kind has taken its place."""
    found: int | None = getattr(getattr(embeddings, table, None), "num_embeddings", None)
    return found


def self_plan(
    model: BertModel, hidden_states: Tensor, mask: Tensor | None, packing: Packing | None, past: int
) -> AttentionPlan:
    """What self-attention has to respect."""
    # A mask that speaks of every (query, key) pair is taken as it is.
    causal = model.config.is_decoder and (mask is None or mask.dim() <= 2)
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
            f"encoder_hidden_states has shape {list(states.shape)}; it must be "
            f"[{hidden_states.shape[0]}, length, {hidden_size}]."
        )
    same_dtype("encoder_hidden_states", states, hidden_states.dtype)
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
        raise InputError(
            "{output_attentions:is} it must be True, False or pairs (layer, head).", output_attentions=wanted
        ) from None
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
    """`[batch, 1|heads, 1|queries, keys]`, or None when nothing is hidden."""
    if mask is None:
        return None
    is_tensor(name, mask)
    batch, num_queries = hidden_states.shape[:2]
    keep = _broadcastable(mask, name, batch, model.config.num_attention_heads, num_queries, num_keys)
    if checks_values(model):
        _check_keep_or_drop(mask, name)
        if bool((mask != 0).all()):
            return None
    return as_bias(keep, hidden_states.dtype)


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
        f"{name} has shape {shape}; with a batch of {batch}, {num_queries} queries and {num_keys} keys it must be "
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
            f"{name} holds values from {float(low):g} to {float(high):g}; its values must be 1 (keep) or 0 (drop).",
            "A mask to be added to the scores (0 and -inf) becomes one of these with: mask == 0.",
        )


def layer_head_masks(config: BertConfig, head_mask: Tensor | None) -> Tensor | None:
    """`[heads]` or `[layers, heads]` → `[layers, heads]`. Heads keep their original numbers when some are pruned."""
    if head_mask is None:
        return None
    is_tensor("head_mask", head_mask)
    num_layers, num_heads = config.num_hidden_layers, config.num_attention_heads
    if list(head_mask.shape) == [num_heads]:
        return head_mask.expand(num_layers, num_heads)
    if list(head_mask.shape) == [num_layers, num_heads]:
        return head_mask
    raise InputError(
        f"head_mask has shape {list(head_mask.shape)}; it must be [{num_heads}] (the same in every layer) or "
        f"[{num_layers}, {num_heads}] (layers, heads)."
    )


def _refuse_with_packing(name: str, value: Tensor | None) -> None:
    if value is not None:
        raise InputError(f"{name} was given with a packed batch.", f"Pad the batch, or leave {name} out.")


# -- checks of single arguments --------------------------------------------------------------------------------------


def one_of_ids_or_embeds(input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
    """Exactly one of the two; gives it back."""
    if input_ids is not None and inputs_embeds is not None:
        raise InputError("Both input_ids and inputs_embeds were given.", "Give exactly one of them.")
    if input_ids is not None:
        are_ids("input_ids", input_ids)
        return input_ids
    if inputs_embeds is not None:
        is_tensor("inputs_embeds", inputs_embeds)
        return inputs_embeds
    raise InputError("Neither input_ids nor inputs_embeds was given.", "Give exactly one of them.")


def is_tensor(name: str, given: object) -> None:
    if not isinstance(given, Tensor | Proxy):  # torch.fx has proxies in the place of tensors
        raise InputError(f"{name} is of type {type(given).__name__}; it must be a tensor: torch.tensor({name}).")


def are_ids(name: str, given: Tensor) -> None:
    """A tensor of whole numbers that embeddings can look up."""
    is_tensor(name, given)
    if isinstance(given, Tensor) and given.dtype not in (torch.long, torch.int):
        raise InputError(f"{name} has dtype {given.dtype}; it must hold whole numbers, torch.long: {name}.long().")


def same_dtype(name: str, given: Tensor, wanted: torch.dtype) -> None:
    """States in the model's own precision; under autocast they need not be."""
    is_tensor(name, given)
    if given.dtype != wanted and not torch.is_autocast_enabled(given.device.type):
        raise InputError(f"{name} has dtype {given.dtype}; the model is in {wanted}: {name}.to({wanted}).")


def nothing_more(model: object, given: Mapping[str, object]) -> None:
    """Refuse what a forward with open keywords was given and has no use for, as Python would."""
    if not isinstance(given, Proxy) and given:
        raise TypeError(f"{type(model).__name__}.forward() got an unexpected keyword argument {next(iter(given))!r}")


def ids_below(name: str, ids: Tensor, limit: int, limit_name: str) -> None:
    """Every id in 0 … limit−1."""
    if ids.numel() == 0:
        return
    low, high = (int(x) for x in ids.aminmax())
    if low < 0 or high >= limit:
        wrong = low if low < 0 else high
        where = (ids == wrong).nonzero()[0].tolist()
        raise IdOutOfRange(
            f"{name} holds {wrong} at {where}; it must be 0 to {limit - 1} ({limit_name} is {limit}).",
            "Ids come from the tokenizer of the same checkpoint; a vocabulary of another size gives ids like this."
            if name == "input_ids"
            else None,
        )


def shape_like(name: str, tensor: Tensor | None, wanted: tuple[int, ...], *, batch_may_be_one: bool = False) -> None:
    if tensor is None or tuple(tensor.shape) == wanted:
        return
    if batch_may_be_one and tuple(tensor.shape) in ((1, *wanted[1:]), wanted[1:]):
        return
    raise InputError(f"{name} has shape {list(tensor.shape)}; it must be {list(wanted)}, like the input.")


def fits_positions(length: int, past: int, max_positions: int) -> None:
    if not records_sizes() and length + past > max_positions:
        cached = f" after {past} cached ones" if past else ""
        raise InputError(
            f"The input is {length} tokens long{cached}; the model has {max_positions} positions "
            "(config.max_position_embeddings).",
            f"Truncate or window the text, or give the model more positions: "
            f"model.resize_position_embeddings({length + past}).",
        )
