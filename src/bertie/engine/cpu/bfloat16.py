"""Fitting bfloat16 to a model on a CPU, so that its mean cosine to float32 is 0.99999 and not 0.99997.

Only what a product multiplies is rounded: embeddings, biases and LayerNorms are added and multiplied in float32 anyway,
and the weights of LayerNorms alone would cost more than everything that products round. Of the products,

- each column of weights is rounded after it was multiplied by a number between 1 and 2, the one of 256 with which
  rounding costs least; the column's sums are divided by it again, which costs nothing;
- a few inputs are much larger than the others and carry much of the error. Where a product reads what a LayerNorm wrote
  (queries, keys and values; feed-forward's first) its eight largest inputs and their weights are two numbers each, an
  upper and a lower part.

Both need to know how large each input is. Rows of random ids say that well enough, and no text is needed. The last
layer's attention is float32 (csrc/walk.h). Figures, and what else was tried: benchmarks/results/cpu-notes.md.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping

import torch
from torch import Tensor

from bertie.config import BertConfig
from bertie.engine.calibration import Rows
from bertie.model import BertModel

_TWO_NUMBERS = ("qkv", "up")  # the products some of whose inputs are two numbers each
_CHANNELS = 8
_ROWS, _LENGTH = 8, 64


def exact_parameters(model: BertModel) -> dict[str, Tensor]:
    """Copies of all that rounding the model would lose, by name."""
    return {
        name: parameter.detach().clone()
        for name, parameter in model.named_parameters()
        if name.startswith(("embeddings.", "encoder."))
    }


def unrounded(model: BertModel, exact: Mapping[str, Tensor]) -> BertModel:
    """The model in float32, as it was before it was rounded; a parameter that has changed since is as it is now."""
    made = copy.deepcopy(model)
    for name, parameter in made.named_parameters():
        known = name in exact and torch.equal(exact[name].to(parameter.dtype), parameter)
        parameter.data = exact[name] if known else parameter.data.float()
    return made


def random_rows(config: BertConfig) -> Rows:
    """Ids from all over the vocabulary, the same for every model of these sizes."""
    chance = random.Random(0)
    length = min(_LENGTH, config.max_input_length)
    return [[chance.randrange(config.vocab_size) for _ in range(length)] for _ in range(_ROWS)]


def exact_inputs(part: str, weight: Tensor, moments: Tensor) -> Tensor | None:
    """Which inputs of a product with this weight `[N, K]` are two numbers each: those that carry most of its answer."""
    if part not in _TWO_NUMBERS:
        return None
    cost = moments.double() * weight.double().square().sum(0)
    return cost.topk(min(_CHANNELS, len(cost))).indices.int()
