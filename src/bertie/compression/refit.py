"""What is left of a model, fitted again so that its states stay near the original's: no training, least squares alone.

Layer by layer, the original and the smaller model run side by side over the user's rows. Before each LayerNorm the
smaller one has W·x + b + r, and the original has y: W and b are chosen for the least Σ w·|W·x + b + r − y|², each
token's w saying how much the answers depend on it. As x and r are those of the smaller model, what went wrong in
earlier layers is made up for where it can be. (Kwon et al. 2022, https://arxiv.org/abs/2204.09656, re-fit one factor
for each head and neuron; the whole matrix costs the same at run time and loses less.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from bertie.compression.importance import BLOCKS, DAMPING, Moments, on_fastest_device, projection
from bertie.model import BertLayer, BertModel, inputs
from bertie.model.pretrained import BertPreTrainedModel
from bertie.ops.attention import AttentionPlan, with_shared_bias
from bertie.training.contract import Batch

_ALIKE = 0.1  # of its weight each token counts in any case


@torch.no_grad()
def refit(
    original: BertPreTrainedModel,
    smaller: BertPreTrainedModel,
    batches: Sequence[Batch],
    observed: Sequence[dict[str, Moments]],
) -> None:
    """Change the output projections of `smaller`. Both have the same layers; `observed` is of the same batches."""
    with on_fastest_device(original, smaller) as device:
        _refit(original, smaller, [batch.to(device) for batch in batches], observed)


def _refit(
    original: BertPreTrainedModel,
    smaller: BertPreTrainedModel,
    batches: Sequence[Batch],
    observed: Sequence[dict[str, Moments]],
) -> None:
    ours, theirs = smaller.base_model, original.base_model
    started = [_begin(theirs, batch) for batch in batches]
    plans = [plan for _, plan in started]
    wanted = [states for states, _ in started]
    found = list(wanted)
    for small, large, seen in zip(ours.encoder.layer, theirs.encoder.layer, observed, strict=True):
        for block in BLOCKS:
            inside = [_units(small, block, x, plan) for x, plan in zip(found, plans, strict=True)]
            summed = [
                projection(large, block)(_units(large, block, x, plan)) + x
                for x, plan in zip(wanted, plans, strict=True)
            ]
            _fit(small, block, inside, found, summed, seen[block].weights)
            dense = projection(small, block)
            found = [
                _norm(small, block)(dense(units) + x) for units, x in zip(inside, found, strict=True)
            ]  # fmt: skip
            wanted = [_norm(large, block)(y) for y in summed]


def _begin(model: BertModel, batch: Batch) -> tuple[Tensor, AttentionPlan]:
    """The embeddings of a packed batch, and how it is attended to."""
    ids = batch.tensors["input_ids"]
    packing = inputs.read_packing(ids, None, batch.tensors["cu_seqlens"])
    assert packing is not None  # tasks pack their batches
    places = inputs.positions(model.embeddings, ids, packing.max_length, packing=packing)
    states = model.embeddings(ids, batch.tensors["token_type_ids"], places)
    plan = inputs.self_plan(model, states, None, packing, 0)
    return states, with_shared_bias(plan, model.encoder.relative_attention_bias, states)


def _units(layer: BertLayer, block: str, x: Tensor, plan: AttentionPlan) -> Tensor:
    if block == "attention":
        inside = layer.attention.self
        shared = plan.shared and plan.shared.of_heads(inside.heads)
        context: Tensor = inside(x, replace(plan, shared=shared))[0]
        return context
    wide: Tensor = layer.intermediate(x)
    return wide


def _norm(layer: BertLayer, block: str) -> torch.nn.LayerNorm:
    return layer.attention.output.LayerNorm if block == "attention" else layer.output.LayerNorm


def _fit(
    layer: BertLayer,
    block: str,
    inside: Sequence[Tensor],  # [tokens, K] of each batch
    residuals: Sequence[Tensor],  # [tokens, D]
    wanted: Sequence[Tensor],  # [tokens, D]
    weights: Sequence[Tensor],  # [tokens]
) -> None:
    linear = projection(layer, block)
    importance = torch.cat(list(weights)).double()
    importance = importance / importance.mean().clamp(min=1e-30) + _ALIKE
    importance /= importance.sum()
    x = torch.cat(list(inside))
    y = torch.cat([goal - r for goal, r in zip(wanted, residuals, strict=True)])
    w = importance[:, None].to(x)
    mean_x, mean_y = (w * x).sum(0), (w * y).sum(0)
    x, y = x - mean_x, y - mean_y
    if x.shape[1]:
        moments = ((w * x).T @ x).double()  # solved in float64, summed in float32: that is most of the work
        ridge = DAMPING * moments.diagonal().mean().clamp(min=1e-12)
        before = linear.weight.double()
        products = ((w * y).T @ x).double() + ridge * before
        moments += ridge * torch.eye(len(moments), dtype=moments.dtype, device=moments.device)
        linear.weight.copy_(torch.linalg.solve(moments, products.T).T)
    linear.bias.copy_(mean_y - linear.weight @ mean_x)
