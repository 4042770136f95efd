"""A model's layers in bfloat16 on a GPU, forward and backward, for training: the reference's mathematics, fused.

    fuse(model)                     # in place; parameters, names, hooks and the optimizer's view stay as they are
    with torch.autocast("cuda", torch.bfloat16):
        loss = …                    # packed batches take the fused layers, everything else the reference's own

PyTorch runs a reference layer in some sixty kernels both ways, most of which only carry values to memory and back. Here
they are about thirty: the products, by cuBLAS, and between them one kernel each (gradients.py). Queries, keys and
values are one product. Weights stay in fp32, where the optimizer changes them; every batch starts with their rounded
copies. Weights' gradients leave the products in fp32, as autocast does not have them.

What is kept for the way back is written down in `_Layer.forward`; dropout keeps nothing but a seed, which comes from
PyTorch's generator on the CPU, so a resumed run drops the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bertie.engine.gpu.attention import attention
from bertie.engine.gpu.epilogues import gelu
from bertie.engine.gpu.gradients import (
    WHOLE,
    RowSums,
    attention_backward,
    column_sums,
    drop_add_norm,
    drop_add_norm_backward,
    gelu_backward,
)
from bertie.engine.gpu.schedule import Schedule, schedule
from bertie.engine.gpu.words import FewRows, PaddedDecoder
from bertie.model.activations import gelu_erf, gelu_tanh
from bertie.model.bert import PLAIN, BertLayer
from bertie.model.cache import LayerCache
from bertie.model.pretrained import BertPreTrainedModel
from bertie.ops.attention import AttentionPlan, Maps
from bertie.ops.packing import Packing

HALF = torch.bfloat16


def why_not(model: BertPreTrainedModel) -> str | None:
    """What stands in the way of fusing this model's layers, or None."""
    config = model.config
    if model.device.type != "cuda":
        return "the model is not on a GPU"
    if torch.cuda.get_device_capability(model.device) < (8, 0):
        return "the GPU has no bfloat16"
    if config.position_embedding_type != "absolute":
        return f"{config.position_embedding_type} positions"
    if config.is_decoder or config.add_cross_attention:
        return "decoders"
    layers = model.base_model.encoder.layer
    if any(layer.intermediate.intermediate_act_fn not in (gelu_erf, gelu_tanh) for layer in layers):
        return f"the activation {config.hidden_act!r}"
    if any(not layer.attention.self.heads for layer in layers):
        return "a layer without heads"
    return None


def in_half() -> bool:
    """Whether this is under bfloat16 autocast."""
    return torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == HALF


def fuse(model: BertPreTrainedModel) -> Callable[[], None]:
    """Give every layer, the table of segments and the decoder of a language model another forward. Ask `why_not` first.

    What comes back undoes it.
    """
    encoder = model.base_model.encoder
    state = _Batches([_Fused(layer, number) for number, layer in enumerate(encoder.layer)])
    for fused in state.layers:
        fused.state = state
        fused.layer.forward = fused.forward  # type: ignore[method-assign]
    hook = encoder.register_forward_pre_hook(state.begin, with_kwargs=True)
    changed: list[nn.Module] = list(encoder.layer)
    decoder = model.get_output_embeddings()
    if isinstance(decoder, nn.Linear):
        decoder.forward = PaddedDecoder(decoder).forward  # type: ignore[method-assign, assignment]
        changed.append(decoder)
    segments = model.base_model.embeddings.token_type_embeddings
    if segments.num_embeddings <= FewRows.MOST:
        segments.forward = FewRows(segments).forward  # type: ignore[method-assign, assignment]
        changed.append(segments)

    def undo() -> None:
        hook.remove()
        for module in changed:
            del module.forward

    return undo


class _Batches:
    """What the layers share: their rounded weights, and the batch that is under way."""

    def __init__(self, layers: list[_Fused]) -> None:
        self.layers = layers
        self.targets = [target for fused in layers for target in fused.half.targets]
        self.sources = [source for fused in layers for source in fused.half.sources]
        self.batch: _Batch | None = None

    def begin(self, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Called before the encoder runs."""
        plan: AttentionPlan = named.get("plan", arguments[1] if len(arguments) > 1 else PLAIN)
        self.batch = None
        if plan.packing is None or not in_half():
            return
        dropout = max(fused.attention_dropout for fused in self.layers)
        seeds: list[list[int]] = []
        if module.training:
            seeds = torch.randint(2**31 - 1, (len(self.layers), 2)).tolist()
        self.batch = _Batch(plan.packing, dropout if module.training else 0.0, seeds)
        with torch.no_grad():
            torch._foreach_copy_(self.targets, self.sources)


class _Batch:
    """One packed batch: how attention goes over it, and the seeds of its dropout."""

    def __init__(self, packing: Packing, dropout: float, seeds: list[list[int]]) -> None:
        self.packing, self.dropout, self.seeds = packing, dropout, seeds
        # Our kernels where every text fits into a tile and nothing is dropped, FlashAttention for the rest.
        self.forward_plan: Schedule | None = None
        self.backward_plan: Schedule | None = None
        if packing.max_length <= WHOLE and dropout == 0.0:
            self.forward_plan = schedule(packing.lengths, packing.device)
            self.backward_plan = self.forward_plan
            if packing.max_length > self.forward_plan.tile:
                self.backward_plan = schedule(packing.lengths, packing.device, WHOLE)

    def attention(self, qkv: Tensor, heads: int) -> tuple[Tensor, tuple[Tensor, ...]]:
        """`[tokens, 3·N·H]` → the context `[tokens, N·H]`, and what the way back needs besides qkv and the context."""
        if self.forward_plan is not None:
            return attention(qkv, heads, self.forward_plan), ()
        q, k, v = _split(qkv, heads)
        ends, longest = self.packing.cu_seqlens, self.packing.max_length
        found = torch.ops.aten._flash_attention_forward(
            q, k, v, ends, ends, longest, longest, self.dropout, False, False
        )
        context, kept = found[0], found[1:4]
        return context.reshape(len(qkv), -1), tuple(kept)

    def attention_backward(
        self, grad: Tensor, qkv: Tensor, context: Tensor, kept: Sequence[Tensor], heads: int
    ) -> Tensor:
        if self.backward_plan is not None:
            return attention_backward(qkv, grad, heads, self.backward_plan)
        q, k, v = _split(qkv, heads)
        ends, longest = self.packing.cu_seqlens, self.packing.max_length
        found = torch.ops.aten._flash_attention_backward(
            grad.view_as(q), q, k, v, context.view_as(q), kept[0], ends, ends, longest, longest, self.dropout, False,
            kept[1], kept[2],
        )  # fmt: skip
        return torch.cat([part.reshape(len(qkv), -1) for part in found[:3]], dim=1)


def _split(qkv: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """`[tokens, 3·N·H]` → three views `[tokens, N, H]`."""
    q, k, v = qkv.view(len(qkv), 3, heads, -1).unbind(1)
    return q, k, v


class _Half:
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


class _Fused:
    """One layer, and the forward that takes the place of its own."""

    state: _Batches

    def __init__(self, layer: BertLayer, number: int) -> None:
        self.layer, self.number, self.half = layer, number, _Half(layer)
        self.heads = len(layer.attention.self.heads)
        self.exact = layer.intermediate.intermediate_act_fn is gelu_erf
        inside, first, second = layer.attention.self, layer.attention.output, layer.output
        self.attention_dropout = inside.dropout.p
        self.dropout = (first.dropout.p, second.dropout.p)
        self.norms = (first.LayerNorm, second.LayerNorm)
        linear = [inside.query, inside.key, inside.value, first.dense, layer.intermediate.dense, second.dense]
        self.parameters = [p for module in (*linear, *self.norms) for p in (module.weight, module.bias)]
        # What the backward pass adds up over tokens: both norms (with the bias before them), the wide bias, qkv's.
        width, wide = layer.intermediate.dense.in_features, layer.intermediate.dense.out_features
        self.sums = [3 * width, wide, 3 * width, len(self.half.qkv)]

    def forward(
        self,
        hidden_states: Tensor,
        plan: AttentionPlan = PLAIN,
        *,
        encoder_hidden_states: Tensor | None = None,
        cross_plan: AttentionPlan = PLAIN,
        cache: LayerCache | None = None,
    ) -> tuple[Tensor, Maps | None, Maps | None]:
        """As the reference layer's; what the kernels have no form for is left to it."""
        batch = self.state.batch
        plain = plan.head_mask is None and plan.maps is False and not plan.causal and plan.bias is None
        if batch is None or batch.packing is not plan.packing or not plain or cache is not None:
            return BertLayer.forward(
                self.layer, hidden_states, plan,
                encoder_hidden_states=encoder_hidden_states, cross_plan=cross_plan, cache=cache,
            )  # fmt: skip
        made: Tensor = _Layer.apply(hidden_states.to(HALF), batch, self, *self.parameters)  # type: ignore[no-untyped-call]
        return made, None, None


class _Layer(torch.autograd.Function):
    """`[tokens, D]` → `[tokens, D]`, and the gradients of both and of the sixteen parameters."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, batch: _Batch, fused: _Fused, *parameters: Tensor) -> Tensor:
        half, training = fused.half, fused.layer.training
        keep = any(ctx.needs_input_grad)
        drop = fused.dropout if training else (0.0, 0.0)
        seeds = batch.seeds[fused.number] if training else (0, 0)
        *_, gamma1, beta1, gamma2, beta2 = parameters
        eps1, eps2 = (norm.eps for norm in fused.norms)
        qkv = torch.addmm(half.qkv_bias, x, half.qkv_turned)
        context, kept = batch.attention(qkv, fused.heads)
        mixed = torch.addmm(half.out_bias, context, half.out_turned)
        y, y_sum = drop_add_norm(mixed, x, gamma1, beta1, eps1, dropout=drop[0], seed=seeds[0], keep=keep)
        wide = torch.addmm(half.up_bias, y, half.up_turned)
        bent = gelu(wide, exact=fused.exact)
        narrow = torch.addmm(half.down_bias, bent, half.down_turned)
        out, out_sum = drop_add_norm(narrow, y, gamma2, beta2, eps2, dropout=drop[1], seed=seeds[1], keep=keep)
        if keep:
            ctx.save_for_backward(x, qkv, context, y_sum, y, wide, bent, out_sum, *kept)
            ctx.batch, ctx.fused, ctx.drop, ctx.seeds = batch, fused, drop, seeds
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, qkv, context, y_sum, y, wide, bent, out_sum, *kept = ctx.saved_tensors
        batch, fused, drop, seeds = ctx.batch, ctx.fused, ctx.drop, ctx.seeds
        half, (norm1, norm2) = fused.half, fused.norms
        sums = RowSums(len(x), fused.sums, x.device)
        of_y, of_narrow = drop_add_norm_backward(
            grad.contiguous(), out_sum, norm2.weight, norm2.eps, dropout=drop[1], seed=seeds[1], sums=sums.part(0)
        )
        of_bent = of_narrow @ half.down
        of_down = _weight_gradient(of_narrow, bent)
        of_wide = gelu_backward(wide, of_bent, exact=fused.exact, sums=sums.part(1))
        of_up = _weight_gradient(of_wide, y)
        of_y.addmm_(of_wide, half.up)  # here of_narrow, which may be the same tensor, is no longer needed
        of_x, of_mixed = drop_add_norm_backward(
            of_y, y_sum, norm1.weight, norm1.eps, dropout=drop[0], seed=seeds[0], sums=sums.part(2)
        )
        of_context = of_mixed @ half.out
        of_out = _weight_gradient(of_mixed, context)
        of_qkv = batch.attention_backward(of_context, qkv, context, kept, fused.heads)
        of_three = _weight_gradient(of_qkv, x)
        column_sums(of_qkv, sums=sums.part(3))
        of_x.addmm_(of_qkv, half.qkv)
        second, of_up_bias, first, of_three_bias = sums.total()
        of_gamma1, of_beta1, of_out_bias = first.chunk(3)
        of_gamma2, of_beta2, of_down_bias = second.chunk(3)
        pairs = [
            *zip(of_three.chunk(3), of_three_bias.chunk(3), strict=True),
            (of_out, of_out_bias), (of_up, of_up_bias), (of_down, of_down_bias),
            (of_gamma1, of_beta1), (of_gamma2, of_beta2),
        ]  # fmt: skip
        return of_x, None, None, *(gradient for pair in pairs for gradient in pair)


def _weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """`[tokens, O]` and `[tokens, I]` → `[O, I]`, added up and kept in fp32."""
    if grad.dtype == torch.float32:
        return grad.t() @ x
    return torch.mm(grad.t(), x, out_dtype=torch.float32)
