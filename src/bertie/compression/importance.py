"""What each head and each neuron contributes to the answers, and in which order they can go.

Heads and neurons reach the rest of the model through one matrix of their block, the output projection W: a block adds
W·x + b to its input. Two things are observed on the user's rows, for every block:

- the moments of x, H = Σ x·xᵀ about their mean, by which what one unit says can be said by others;
- the Fisher information of the block's output, F = Σ g·gᵀ, where g is the gradient of the answers there. With Gaussian
  answers (the squared distance to the original's) that is the curvature of the loss, and the sensitivity of the answers
  to every direction of the block's output. Tokens count in H as much as their gradients do: in a last layer of which
  only [CLS] is read, only [CLS] counts.

Units then go one group after the other, those first that cost the answers least, ΔW·x being made up for by the units
that are left: removing a set S from W costs tr(F·W_S·(H⁻¹_SS)⁻¹·W_Sᵀ), and the others change by −W_S·(H⁻¹_SS)⁻¹·H⁻¹_S.
(Hassibi & Stork 1992, "optimal brain surgeon"; with Kronecker factors Martens & Grosse 2015, https://arxiv.org/abs/1503.05671;
for BERT's structures Kwon et al. 2022, https://arxiv.org/abs/2204.09656, who use the masks' Fisher information alone,
and Kurtic et al. 2023, https://arxiv.org/abs/2302.04089, who use H alone.) The costs of all blocks are in one unit, so
they can be compared and added up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bertie.compression.targets import Target
from bertie.model import BertLayer
from bertie.model.pretrained import BertPreTrainedModel
from bertie.training.contract import Batch

BLOCKS = ("attention", "feed-forward")
DAMPING = 0.01  # of the mean of the diagonal: what hardly varies on these rows may vary on others
_PROBES = 1  # random directions of the answers, for each batch: rows are many, and each has its own
_TILE = 16  # neurons: every engine rounds them up to that
_STEPS = 48  # groups that a feed-forward block's neurons go in


def projection(layer: BertLayer, block: str) -> nn.Linear:
    """The matrix through which a block's units reach the rest of the model."""
    return layer.attention.output.dense if block == "attention" else layer.output.dense


@contextmanager
def on_fastest_device(*models: BertPreTrainedModel) -> Iterator[torch.device]:
    """The models on a GPU if PyTorch finds one, and afterwards where they were."""
    before = [model.device for model in models]
    device = torch.device("cuda") if torch.cuda.is_available() else before[0]
    try:
        for model in models:
            model.to(device)
        yield device
    finally:
        for model, place in zip(models, before, strict=True):
            model.to(place)


@dataclass
class Moments:
    """Of one block's units and of its output's gradients, summed over tokens."""

    weights: list[Tensor]  # [tokens] of each batch: how much the answers depend on them
    total: float
    mean: Tensor  # [K]
    moments: Tensor  # [K, K], about the mean
    fisher: Tensor  # [D, D]


@dataclass(frozen=True)
class Curve:
    """The order in which a block's units go, and what the answers have lost when only so many are left."""

    order: tuple[int, ...]  # units, the first to go first
    left: tuple[int, ...]  # units left at every point, from all to none
    loss: tuple[float, ...]  # at these points

    def kept(self, number: int) -> list[int]:
        return sorted(self.order[len(self.order) - number :])


def observe(target: Target, model: BertPreTrainedModel, *, seed: int = 0) -> list[dict[str, Moments]]:
    """Every layer's blocks, on the rows of `target.fit`."""
    layers = model.base_model.encoder.layer
    found = [{block: _empty(projection(layer, block)) for block in BLOCKS} for layer in layers]
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    with on_fastest_device(model) as device:
        for batch in target.fit:
            _look(target, model, layers, found, batch.to(device), generator)
    model.zero_grad(set_to_none=True)
    for blocks in found:
        for moments in blocks.values():
            total = max(moments.total, 1e-30)
            moments.mean /= total
            moments.moments = moments.moments / total - torch.outer(moments.mean, moments.mean)
    return found


def _empty(linear: nn.Linear) -> Moments:
    inputs, outputs = linear.in_features, linear.out_features
    sums = (torch.zeros(shape, dtype=torch.float64) for shape in ((inputs,), (inputs, inputs), (outputs, outputs)))
    return Moments([], 0.0, *sums)


def _look(
    target: Target,
    model: BertPreTrainedModel,
    layers: Sequence[BertLayer],
    found: list[dict[str, Moments]],
    batch: Batch,
    generator: torch.Generator,
) -> None:
    seen: dict[tuple[int, str], tuple[Tensor, Tensor]] = {}

    def watch(key: tuple[int, str], linear: nn.Linear) -> torch.utils.hooks.RemovableHandle:
        def look(module: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
            seen[key] = given[0].detach(), output

        return linear.register_forward_hook(look)

    keys = [(number, block) for number in range(len(layers)) for block in BLOCKS]
    handles = [watch((number, block), projection(layers[number], block)) for number, block in keys]
    try:
        answers = target.answers(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    outputs = [seen[key][1] for key in keys]
    weights = dict.fromkeys(keys, torch.zeros(()))
    for probe in range(_PROBES):
        noise = torch.randn(answers.shape, generator=generator).to(answers.device)
        gradients = torch.autograd.grad(answers, outputs, noise, retain_graph=probe + 1 < _PROBES)
        for (number, block), gradient in zip(keys, gradients, strict=True):
            g = gradient.detach().flatten(0, -2)
            found[number][block].fisher += (g.T @ g).cpu().double() / _PROBES
            weights[number, block] = weights[number, block].to(g.device) + g.square().sum(-1) / _PROBES
    for key, (x, _) in seen.items():
        moments, w = found[key[0]][key[1]], weights[key]
        x = x.flatten(0, -2)
        weighted = x * w[:, None]
        moments.weights.append(w.cpu())
        moments.total += float(w.sum())
        moments.mean += weighted.sum(0).cpu().double()
        moments.moments += (weighted.T @ x).cpu().double()


def curves(model: BertPreTrainedModel, observed: Sequence[dict[str, Moments]]) -> list[dict[str, Curve]]:
    """For every layer, heads by their slots and neurons by their numbers."""
    made: list[dict[str, Curve]] = []
    for layer, blocks in zip(model.base_model.encoder.layer, observed, strict=True):
        width = layer.attention.self.attention_head_size
        neurons = layer.intermediate.dense.out_features
        made.append({
            "attention": _curve(projection(layer, "attention"), blocks["attention"], unit=width, at_once=1),
            "feed-forward": _curve(
                projection(layer, "feed-forward"), blocks["feed-forward"], unit=1, at_once=_group(neurons)
            ),
        })  # fmt: skip
    return made


def _group(neurons: int) -> int:
    """Neurons that go in a step: whole tiles of the kernels, unless there are few."""
    return _TILE * -(-neurons // (_TILE * _STEPS)) if neurons >= 4 * _TILE else max(1, -(-neurons // _STEPS))


def damped(moments: Tensor) -> Tensor:
    """Moments with a little added to the diagonal, so that they can be inverted."""
    extra = DAMPING * moments.diagonal().mean().clamp(min=1e-12) if len(moments) else 0.0
    return moments + extra * torch.eye(len(moments), dtype=moments.dtype)


@torch.no_grad()
def _curve(linear: nn.Linear, seen: Moments, *, unit: int, at_once: int) -> Curve:
    """`unit` inputs are one unit (a head's width); `at_once` units go in a step."""
    # float32 from here: a step reads and writes all of the inverse
    weight, fisher = linear.weight.detach().cpu().float().clone(), seen.fisher.float()  # [D, K], [D, D]
    units = weight.shape[1] // unit
    alive = torch.arange(units)
    order: list[int] = []
    left, loss, lost = [units], [0.0], 0.0
    inverse = torch.linalg.inv(damped(seen.moments)).float() if units else seen.moments.float()
    while len(alive):
        number = len(alive) % at_once or at_once  # from the first step on whole groups are left
        prices = _prices(weight, inverse, fisher, unit)
        going = prices.argsort()[:number]
        places = (going[:, None] * unit + torch.arange(unit)).flatten()
        between = torch.linalg.inv(inverse[places][:, places])
        out = weight[:, places]
        lost += float(((fisher @ out) * (out @ between)).sum())
        weight -= out @ between @ inverse[places]
        inverse -= inverse[:, places] @ between @ inverse[places]
        order += alive[going].tolist()
        stay = torch.ones(len(alive), dtype=torch.bool)
        stay[going] = False
        columns = stay.repeat_interleave(unit)
        alive, weight, inverse = alive[stay], weight[:, columns], inverse[columns][:, columns]
        left.append(len(alive))
        loss.append(max(lost, loss[-1]))
    return Curve(tuple(order), tuple(left), tuple(loss))


def _prices(weight: Tensor, inverse: Tensor, fisher: Tensor, unit: int) -> Tensor:
    """What each unit would cost, alone, `[units]`."""
    if unit == 1:
        return ((fisher @ weight) * weight).sum(0) / inverse.diagonal()
    prices = []
    for start in range(0, weight.shape[1], unit):
        out, within = weight[:, start : start + unit], inverse[start : start + unit, start : start + unit]
        prices.append(((fisher @ out) * (out @ torch.linalg.inv(within))).sum())
    return torch.stack(prices)
