"""Heads, neurons and layers taken out of a model, and put back as zeros.

What is left of a layer is in its configuration, under two keys:

    pruned_heads         {layer: [heads]}, the hub's: heads that are gone, by their original numbers
    intermediate_sizes   [neurons, …], our own: the size of every layer's feed-forward network

A layer may lose all heads, or all neurons. Its block then adds nothing but its bias, and normalises: exactly what the
block would compute with zeros for weights. So every such model has a twin with plain sizes and the same answers, which
other programs load (`dense`).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from bertie.model import BertLayer, BertModel
from bertie.model.pretrained import BertPreTrainedModel
from bertie.training.distillation import make_student

Model = TypeVar("Model", bound=BertPreTrainedModel)


@dataclass(frozen=True)
class Sizes:
    """How many heads and feed-forward neurons each layer has."""

    heads: tuple[int, ...]
    neurons: tuple[int, ...]

    @classmethod
    def of(cls, model: BertPreTrainedModel) -> Sizes:
        layers = model.base_model.encoder.layer
        return cls(
            tuple(len(layer.attention.self.heads) for layer in layers),
            tuple(layer.intermediate.dense.out_features for layer in layers),
        )

    def __len__(self) -> int:
        return len(self.heads)

    def describe(self) -> str:
        return f"{sum(self.heads)} heads and {sum(self.neurons):,} neurons in {len(self)} layers"


def keep(model: Model, heads: Sequence[Sequence[int]], neurons: Sequence[Tensor]) -> Model:
    """A copy with only these heads (original numbers) and neurons (of those it has now) in each layer."""
    smaller = copy.deepcopy(model)
    config = smaller.config
    gone = {
        number: [head for head in layer.attention.self.heads if head not in set(heads[number])]
        for number, layer in enumerate(smaller.base_model.encoder.layer)
    }
    smaller.prune_heads({number: lost for number, lost in gone.items() if lost})
    for layer, kept in zip(smaller.base_model.encoder.layer, neurons, strict=True):
        layer.keep_neurons(kept)
    sizes = [len(kept) for kept in neurons]
    config.intermediate_sizes = None if all(size == config.intermediate_size for size in sizes) else sizes
    return smaller


def keep_layers(model: Model, layers: Sequence[int]) -> Model:
    """A copy with only these layers, by their numbers from 0."""
    return make_student(model, layers=[number + 1 for number in layers])


def construction_of(model: BertPreTrainedModel) -> dict[str, Any]:
    """What its class is given beside a configuration to make a model of the same parts."""
    return {"add_pooling_layer": model.pooler is not None} if isinstance(model, BertModel) else {}


def dense(model: Model) -> Model:
    """The twin with plain sizes: zeros where heads and neurons were. A layer's remaining neurons come first."""
    config = model.config.replace(pruned_heads={})
    config.intermediate_sizes = None
    whole = (
        type(model)(config, **construction_of(model)).to(device=model.device, dtype=model.dtype).train(model.training)
    )
    ours, theirs = model.base_model.encoder.layer, whole.base_model.encoder.layer
    skipped = {id(p) for layer in theirs for p in layer.parameters()}
    weights = model.state_dict()
    with torch.no_grad():
        for name, parameter in whole.named_parameters():
            if id(parameter) not in skipped:
                parameter.copy_(weights[name])
        for small, large in zip(ours, theirs, strict=True):
            _fill(small, large)
    return whole


def _fill(small: BertLayer, large: BertLayer) -> None:
    inside, width = small.attention.self, small.attention.self.attention_head_size
    places = torch.cat([torch.arange(head * width, (head + 1) * width) for head in inside.heads] or [torch.arange(0)])
    neurons = torch.arange(small.intermediate.dense.out_features)
    for name in ("query", "key", "value"):
        _put(getattr(inside, name), getattr(large.attention.self, name), places, dim=0)
    _put(small.attention.output.dense, large.attention.output.dense, places, dim=1)
    _put(small.intermediate.dense, large.intermediate.dense, neurons, dim=0)
    _put(small.output.dense, large.output.dense, neurons, dim=1)
    large.attention.output.LayerNorm.load_state_dict(small.attention.output.LayerNorm.state_dict())
    large.output.LayerNorm.load_state_dict(small.output.LayerNorm.state_dict())


def _put(small: nn.Linear, large: nn.Linear, places: Tensor, *, dim: int) -> None:
    places = places.to(large.weight.device)
    large.weight.zero_().index_copy_(dim, places, small.weight)
    if dim == 0:
        large.bias.zero_().index_copy_(0, places, small.bias)
    else:
        large.bias.copy_(small.bias)
