"""What bfloat16 on a CPU does not round, so that a mean cosine to float32 is 0.99999 and not 0.99997.

Embeddings, biases and LayerNorms are added and multiplied in float32 anyway: rounding them saves nothing, and the
weights of LayerNorms alone cost more than everything that products round. Errors of the last layers go straight into
the answer, so each of their weights is the sum of two bfloat16 numbers (figures: benchmarks/results/cpu-notes.md).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor

from bertie.model import BertModel

_LAST = 2  # layers


def has_two_parts(number: int, num_layers: int) -> bool:
    """Whether the weights of a layer are sums of two numbers."""
    return number >= num_layers - _LAST


def exact_parameters(model: BertModel) -> dict[str, Tensor]:
    """Copies of all that would be lost if the model were rounded, by name."""
    count = len(model.encoder.layer)
    layers = tuple(f"encoder.layer.{number}." for number in range(count) if has_two_parts(number, count))
    return {
        name: parameter.detach().clone()
        for name, parameter in model.named_parameters()
        if parameter.ndim == 1 or name.startswith(("embeddings.", *layers))
    }


def with_exact(model: BertModel, exact: Mapping[str, Tensor]) -> BertModel:
    """A model that shares its parameters with `model`, except those that are exact ones rounded: they are exact."""
    if not exact:
        return model
    shared = {id(parameter): parameter for name, parameter in model.named_parameters() if name not in exact}
    made = copy.deepcopy(model, shared)
    for name, parameter in made.named_parameters():
        if name in exact and torch.equal(exact[name].to(parameter.dtype), parameter):
            parameter.data = exact[name]
    return made
