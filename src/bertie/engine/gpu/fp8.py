"""fp8: how weights and activations are rounded to eight bits, and which products may be.

e4m3 has three bits of mantissa, so a rounded number is off by 2.5 % on average, whatever its size; what can be done
about it is done before the first answer, with some text at hand (`Options.calibration`):

1. **Scales** are static, one to a tensor: the largest input seen, with a little room, becomes 448.
2. **Weights are rounded one input after the other**, and what each rounding does to the output is made up for by the
   inputs not rounded yet (Frantar et al. 2022, https://arxiv.org/abs/2210.17323). That halves their part of the loss.
3. **The bias** takes up what is left of the rounding's effect on the average input.
4. **Products that cost too much stay in half precision.** Each is tried alone; then the cheapest, by loss for the time
   saved, are taken together, as many as keep the mean cosine to float32 (of the texts' mean vectors) at the budget.
   A third of the calibration texts judge and are not fitted to.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from bertie.engine.calibration import PRODUCTS, Key, Rows, inputs_watched, mean_vectors, packed
from bertie.engine.gpu.attention_schedule import schedule
from bertie.engine.gpu.layers import Encoder, Layer, Product, Rounding
from bertie.model.bert import BertModel
from bertie.ops.packing import Packing

LARGEST = 448.0  # the end of e4m3
_ROOM = 1.05  # inputs a little larger than any seen are still in range
_DAMPING = 0.05  # of the mean of the diagonal: inputs that hardly vary in the calibration text count all the same
_MOMENTS_AT_ONCE = 1 << 26  # numbers in the moments of weights that are rounded together: half a gigabyte
_ENOUGH = 12  # rows from which on a third of them is kept for judging
_BLOCK = 128  # columns rounded before the rest of the matrix hears of it


@dataclass(frozen=True)
class Inputs:
    """What a product's inputs were like on the calibration text."""

    largest: float
    mean: Tensor  # [I]
    moments: Tensor  # [I, I]: the mean of x·xᵀ


@dataclass(frozen=True)
class Choice:
    """The encoder with its roundings, and what that cost."""

    encoder: Encoder
    kept: tuple[Key, ...]  # products that stay in half precision
    cosine: float  # mean over the calibration texts' mean vectors

    def describe(self) -> str:
        """What is in fp8, what stayed, and what it cost."""
        products = (getattr(layer, name) for layer in self.encoder.layers for name in PRODUCTS)
        every = sum(product.weight.numel() > 0 for product in products)
        line = f"{every - len(self.kept)} of {every} products in fp8, cosine to float32 {self.cosine:.5f}"
        if not self.kept:
            return line
        by_name = {name: [str(n) for n, kept in self.kept if kept == name] for name in PRODUCTS}
        stayed = "; ".join(f"{name} of layer {', '.join(found)}" for name, found in by_name.items() if found)
        return f"{line}; not rounded: {stayed}"


@torch.no_grad()
def choose(encoder: Encoder, base: BertModel, rows: Rows, accuracy: float) -> Choice:
    """Round as many products as keep the mean cosine to float32 on `rows` (token ids) at `accuracy` or above."""
    enough = len(rows) >= _ENOUGH
    fitted = [row for number, row in enumerate(rows) if number % 3 or not enough]
    judged = [row for number, row in enumerate(rows) if number % 3 == 0 or not enough]  # not those it was fitted to
    layers = encoder.layers
    device = layers[0].qkv.weight.device
    model = copy.deepcopy(base).float().eval()
    inputs = observe(model, *packed(fitted, device))
    rounded = round_all(layers, inputs)
    ids, packing = packed(judged, device)
    wanted = mean_vectors(model(ids, cu_seqlens=packing.cu_seqlens).last_hidden_state, packing)
    plan, positions = schedule(packing.lengths, device), encoder.embeddings.positions(ids, packing)

    def cosine(keys: Sequence[Key]) -> float:
        tried = with_rounding(layers, {key: rounded[key] for key in keys})
        states = replace(encoder, layers=tried)(ids, None, positions, plan)[-1]
        return float(F.cosine_similarity(mean_vectors(states, packing), wanted).mean())

    found = cosine(list(rounded))
    taken = list(rounded)
    if found < accuracy:
        whole = cosine([])
        # Loss for the time saved, which goes with the weight's size.
        prices = {key: (whole - cosine([key])) / rounded[key].weight.numel() for key in rounded}
        cheapest = sorted(rounded, key=lambda key: prices[key])
        fits, over = 0, len(cheapest)  # bisect for the longest prefix that keeps the budget
        found = whole
        while over - fits > 1:
            middle = (fits + over) // 2
            tried = cosine(cheapest[:middle])
            if tried >= accuracy:
                fits, found = middle, tried
            else:
                over = middle
        taken = cheapest[:fits]
    kept = tuple((n, name) for n in range(len(layers)) for name in PRODUCTS if (n, name) in inputs.keys() - {*taken})
    chosen = with_rounding(layers, {key: rounded[key] for key in taken})
    return Choice(replace(encoder, layers=chosen), kept, found)


@torch.no_grad()
def observe(model: BertModel, ids: Tensor, packing: Packing) -> dict[Key, Inputs]:
    """Every product's inputs, in the model in float32."""
    seen: dict[Key, Inputs] = {}

    def note(key: Key, x: Tensor) -> None:
        seen[key] = Inputs(float(x.abs().max()), x.mean(0), x.t() @ x / len(x))

    with inputs_watched(model, note):
        model(ids, cu_seqlens=packing.cu_seqlens)
    return seen


def with_rounding(layers: Sequence[Layer], rounded: dict[Key, Rounding]) -> tuple[Layer, ...]:
    """The layers with these products in fp8 and the others in half precision."""
    made = []
    for number, layer in enumerate(layers):
        products = {name: replace(getattr(layer, name), rounding=rounded.get((number, name))) for name in PRODUCTS}
        made.append(replace(layer, **products))
    return tuple(made)


def round_all(layers: Sequence[Layer], inputs: dict[Key, Inputs]) -> dict[Key, Rounding]:
    """Every product's rounding, products of one shape together: a weight alone is thousands of small steps."""
    alike: dict[tuple[int, ...], list[Key]] = {}
    for number, layer in enumerate(layers):
        for name in PRODUCTS:
            shape = tuple(getattr(layer, name).weight.shape)
            if (number, name) in inputs and all(side % 16 == 0 for side in shape):  # what cuBLAS takes in fp8
                alike.setdefault(shape, []).append((number, name))
    made: dict[Key, Rounding] = {}
    for (_, width), keys in alike.items():
        at_once = max(1, _MOMENTS_AT_ONCE // width**2)
        for start in range(0, len(keys), at_once):
            some = keys[start : start + at_once]
            products: list[Product] = [getattr(layers[number], name) for number, name in some]
            made |= dict(zip(some, round_products(products, [inputs[key] for key in some]), strict=True))
    return made


def round_products(products: Sequence[Product], inputs: Sequence[Inputs]) -> list[Rounding]:
    """Weights of one shape in e4m3, with the scales and the biases that go with them."""
    weights = torch.stack([product.weight.float() for product in products])  # [W, O, I]
    scales = (weights.abs().amax((1, 2)) / LARGEST).clamp(min=1e-12)  # [W]
    rounded = round_weights(weights, scales, torch.stack([given.moments for given in inputs]))
    off = weights - rounded.float() * scales[:, None, None]
    made = []
    for number, (product, given) in enumerate(zip(products, inputs, strict=True)):
        largest = torch.full((1,), max(given.largest, 1e-6), device=weights.device)
        made.append(
            Rounding(
                weight=rounded[number].t(),
                weight_scale=scales[number].reshape(1).clone(),  # cuBLAS wants it at a multiple of 16 bytes
                input_scale=largest * _ROOM / LARGEST,
                bias=(product.bias.float() + off[number] @ given.mean).to(product.bias.dtype),
            )
        )
    return made


def round_weights(weights: Tensor, scales: Tensor, moments: Tensor) -> Tensor:
    """`[W, O, I]` in e4m3 in units of `scales`, so that the *products* with inputs of these moments change least.

    Inputs are taken in order of how much they carry. With the inverse of their moments factored as UᵀU, rounding
    input i by δ is made up for best by moving the inputs after it by −δ·U[i, i:]/U[i, i].
    """
    width = weights.shape[2]
    strength = moments.diagonal(dim1=1, dim2=2)  # [W, I]
    order = torch.argsort(strength, dim=1, descending=True)
    sorted_moments = torch.stack([m[o][:, o] for m, o in zip(moments, order, strict=True)]).double()
    damping = _DAMPING * strength.mean(1).double() + 1e-12
    sorted_moments.diagonal(dim1=1, dim2=2).add_(damping[:, None])
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(sorted_moments))
    upper = torch.linalg.cholesky(inverse, upper=True).float()
    steps = upper / upper.diagonal(dim1=1, dim2=2)[:, :, None]  # [W, I, I]
    left = torch.stack([(w / s)[:, o].t() for w, s, o in zip(weights, scales, order, strict=True)])  # [W, I, O]
    rounded = torch.empty(left.shape, device=left.device, dtype=torch.float8_e4m3fn)
    for start in range(0, width, _BLOCK):
        end = min(start + _BLOCK, width)
        block = left[:, start:end]
        off = torch.empty_like(block)
        for row in range(end - start):
            rounded[:, start + row] = block[:, row].clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
            torch.sub(block[:, row], rounded[:, start + row].float(), out=off[:, row])
            block[:, row + 1 :].addcmul_(
                steps[:, start + row, start + row + 1 : end, None], off[:, row, None], value=-1.0
            )
        left[:, end:].baddbmm_(steps[:, start:end, end:].transpose(1, 2), off, alpha=-1.0)
    made = torch.empty(weights.shape, device=left.device, dtype=torch.uint8)  # bytes: they are only put in order
    for number, places in enumerate(order):
        made[number][:, places] = rounded[number].view(torch.uint8).t()
    return made.view(torch.float8_e4m3fn)
