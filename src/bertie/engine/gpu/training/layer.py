"""One layer in bfloat16, forward and backward: products by cuBLAS, and one kernel between them each (gradients.py).

Queries, keys and values are one product. Weights stay in fp32, where the optimizer changes them; products read their
rounded copies. Weights' gradients leave the products in fp32, as autocast does not have them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bertie.engine.gpu.embed_norm_gelu import gelu
from bertie.engine.gpu.training.batch import Passage
from bertie.engine.gpu.training.gradients import (
    Kept,
    RowSums,
    drop_add_norm,
    drop_add_norm_backward,
    gelu_backward,
    totals,
)
from bertie.engine.gpu.triton_launch import rows_like, rows_of
from bertie.model.activations import gelu_erf
from bertie.model.bert import BertLayer

HALF = torch.bfloat16

Saved = tuple[Tensor, ...]


class RoundedWeights:
    """The rounded copies of a layer's weights and biases; queries, keys and values are one."""

    def __init__(self, layer: BertLayer) -> None:
        inside = layer.attention.self
        self.targets: list[Tensor] = []
        self.sources: list[Tensor] = []
        self.qkv, self.qkv_bias = self._room([inside.query, inside.key, inside.value])
        self.out, self.out_bias = self._room([layer.attention.output.dense])
        self.up, self.up_bias = self._room([layer.intermediate.dense])
        self.down, self.down_bias = self._room([layer.output.dense])
        self.qkv_turned, self.out_turned = self.qkv.t(), self.out.t()
        self.up_turned, self.down_turned = self.up.t(), self.down.t()

    def _room(self, modules: list[nn.Linear]) -> tuple[Tensor, Tensor]:
        rows = [module.out_features for module in modules]
        first = modules[0].weight
        weight = torch.empty(sum(rows), first.shape[1], device=first.device, dtype=HALF)
        bias = torch.empty(sum(rows), device=first.device, dtype=HALF)
        self.targets += [*torch.split(weight, rows), *torch.split(bias, rows)]
        self.sources += [module.weight for module in modules] + [module.bias for module in modules]
        return weight, bias


class TrainingLayer:
    """A reference layer's parameters and what its fused passes need to know."""

    def __init__(self, layer: BertLayer, number: int) -> None:
        self.layer, self.number, self.half = layer, number, RoundedWeights(layer)
        self.heads = len(layer.attention.self.heads)
        self.exact = layer.intermediate.intermediate_act_fn is gelu_erf
        inside, first, second = layer.attention.self, layer.attention.output, layer.output
        self.attention_dropout = inside.dropout.p
        self.dropout = (first.dropout.p, second.dropout.p)
        self.norms = (first.LayerNorm, second.LayerNorm)
        linear = [inside.query, inside.key, inside.value, first.dense, layer.intermediate.dense, second.dense]
        self.parameters = [p for dense in linear for p in (dense.weight, dense.bias)]
        self.parameters += [p for norm in self.norms for p in (norm.weight, norm.bias)]

    def forward(self, x: Tensor, passage: Passage, *, training: bool, keep: bool) -> tuple[Tensor, Saved]:
        """`[tokens, D]` → `[tokens, D]`, and (with `keep`) what the way back reads."""
        half = self.half
        drop = self.dropout if training else (0.0, 0.0)
        _, *seeds = passage.seeds(self.number)
        norm1, norm2 = self.norms
        qkv = _linear(x, half.qkv_turned, half.qkv_bias)
        context, kept = passage.attention(qkv, self.heads, self.number)
        mixed = _linear(context, half.out_turned, half.out_bias)
        y, y_kept = drop_add_norm(
            mixed, x, norm1.weight, norm1.bias, norm1.eps, dropout=drop[0], seed=seeds[0], keep=keep
        )
        wide = _linear(y, half.up_turned, half.up_bias)
        bent = gelu(wide, exact=self.exact, out=rows_like(wide))
        narrow = _linear(bent, half.down_turned, half.down_bias)
        out, out_kept = drop_add_norm(
            narrow, y, norm2.weight, norm2.bias, norm2.eps, dropout=drop[1], seed=seeds[1], keep=keep
        )
        return out, (x, qkv, context, *y_kept, y, wide, bent, *out_kept, *kept) if keep else ()

    def backward(self, grad: Tensor, passage: Passage, saved: Saved, into: LayerGradients, *, training: bool) -> Tensor:
        """The gradient of the output `[tokens, D]` → that of the input; those of parameters go into `into`."""
        x, qkv, context, y_normal, y_steep, y, wide, bent, out_normal, out_steep, *kept = saved
        half, (norm1, norm2) = self.half, self.norms
        drop = self.dropout if training else (0.0, 0.0)
        _, *seeds = passage.seeds(self.number)
        of_norms = RowSums(len(x), [3 * x.shape[1]] * 2, x.device, norms=True)
        of_up_bias = RowSums(len(x), [wide.shape[1]], x.device)
        of_y, of_narrow = drop_add_norm_backward(
            grad, Kept(out_normal, out_steep), norm2.weight, dropout=drop[1], seed=seeds[1], sums=of_norms.part(0)
        )
        of_bent = _product(of_narrow, half.down)
        _weight_gradient(of_narrow, bent, into.down)
        of_wide = gelu_backward(wide, of_bent, exact=self.exact, sums=of_up_bias.part(0))
        _weight_gradient(of_wide, y, into.up)
        # Added in the norm's own pass: a product that adds to what is there already reads it slowly.
        of_x, of_mixed = drop_add_norm_backward(
            of_y, Kept(y_normal, y_steep), norm1.weight, dropout=drop[0], seed=seeds[0], sums=of_norms.part(1),
            more=_product(of_wide, half.up),
        )  # fmt: skip
        of_context = _product(of_mixed, half.out)
        _weight_gradient(of_mixed, context, into.out)
        of_qkv, of_qkv_bias = passage.attention_backward(of_context, qkv, context, kept, self.heads, self.number)
        _weight_gradient(of_qkv, x, into.qkv)
        of_x.addmm_(of_qkv, half.qkv)
        totals([of_norms.buffer, of_up_bias.buffer, of_qkv_bias], out=into.sums)
        return of_x


class LayerGradients:
    """Where the gradients of a layer's parameters are written, in fp32."""

    def __init__(self, layer: TrainingLayer) -> None:
        half = layer.half
        self.qkv, self.out, self.up, self.down = (
            torch.empty(weight.shape, device=weight.device, dtype=torch.float32)
            for weight in (half.qkv, half.out, half.up, half.down)
        )
        # Of what is added up over tokens: both norms (gamma, beta and the bias before them), the wide bias, qkv's.
        self.widths = [len(half.out)] * 6 + [len(half.up)] + [len(half.qkv) // 3] * 3
        self.sums = torch.empty(sum(self.widths), device=half.qkv.device, dtype=torch.float32)

    def in_order(self) -> list[Tensor]:
        """As `TrainingLayer.parameters` has them; new tensors over the same memory, which autograd may keep."""
        of_gamma2, of_beta2, of_down, of_gamma1, of_beta1, of_out, of_up, *of_qkv = torch.split(self.sums, self.widths)
        pairs = [
            *zip(self.qkv.chunk(3), of_qkv, strict=True),
            (self.out[:], of_out), (self.up[:], of_up), (self.down[:], of_down),
            (of_gamma1, of_beta1), (of_gamma2, of_beta2),
        ]  # fmt: skip
        return [gradient for pair in pairs for gradient in pair]


def _linear(x: Tensor, turned: Tensor, bias: Tensor) -> Tensor:
    return torch.addmm(bias, x, turned, out=rows_of(len(x), turned.shape[1], x.dtype, x.device))


def _product(x: Tensor, y: Tensor) -> Tensor:
    return torch.mm(x, y, out=rows_of(len(x), y.shape[1], x.dtype, x.device))


def _weight_gradient(grad: Tensor, x: Tensor, out: Tensor) -> None:
    """`[tokens, O]` and `[tokens, I]` → `[O, I]`, added up and kept in fp32."""
    if grad.dtype == torch.float32:
        torch.mm(grad.t(), x, out=out)
    else:
        torch.mm(grad.t(), x, out_dtype=torch.float32, out=out)
