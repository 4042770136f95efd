"""A model's layers in bfloat16 on a GPU, forward and backward, for training: the reference's mathematics, fused.

    fuse(model)                     # in place; parameters, names, hooks and the optimizer's view stay as they are
    with torch.autocast("cuda", torch.bfloat16):
        loss = …                    # packed batches take the fused layers, everything else the reference's own

PyTorch runs a reference layer in some sixty kernels both ways, most of which only carry values to memory and back. Here
they are about thirty (layer.py), and for all layers together two launches (cuda_graphs.py). Every batch starts
with rounded copies of the weights. Dropout keeps nothing for the way back but a seed, which comes from PyTorch's
generator on the CPU, so a resumed run drops the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from bertie.engine.gpu.training.autograd import Context, apply
from bertie.engine.gpu.training.batch import SEEDS, Passage, TrainingBatch, rows_for
from bertie.engine.gpu.training.cuda_graphs import Graphs, Record, Stack
from bertie.engine.gpu.training.embeddings import FusedEmbeddings
from bertie.engine.gpu.training.layer import HALF, LayerGradients, TrainingLayer
from bertie.engine.gpu.training.vocabulary_loss import PaddedDecoder
from bertie.model.activations import gelu_erf, gelu_tanh
from bertie.model.bert import PLAIN, BertEncoder, BertLayer
from bertie.model.cache import LayerCache
from bertie.model.outputs import BertEncoderOutput
from bertie.model.pretrained import BertPreTrainedModel
from bertie.ops.attention import AttentionPlan, Maps

# Bytes of a multiprocessor's memory that attention's way back takes, for heads of up to so many values.
_SHARED = ((64, 98304), (128, 163840))


def why_not(model: BertPreTrainedModel) -> str | None:
    """What stands in the way of fusing this model's layers, or None."""
    config = model.config
    if model.device.type != "cuda":
        return "the model is not on a GPU"
    if torch.cuda.get_device_capability(model.device) < (8, 0):
        return "the GPU has no bfloat16"
    if config.position_embedding_type != "absolute":
        return f"{config.position_embedding_type} positions"
    if model.base_model.encoder.relative_attention_bias is not None:
        return "a position bias that all layers share"
    if config.is_decoder or config.add_cross_attention:
        return "decoders"
    layers = model.base_model.encoder.layer
    if any(layer.intermediate.intermediate_act_fn not in (gelu_erf, gelu_tanh) for layer in layers):
        return f"the activation {config.hidden_act!r}"
    if any(not layer.attention.self.heads for layer in layers):
        return "a layer without heads"
    if any(not layer.intermediate.dense.out_features for layer in layers):
        return "a layer without feed-forward neurons"
    needed = next((room for most, room in _SHARED if config.attention_head_size <= most), None)
    there = getattr(torch.cuda.get_device_properties(model.device), "shared_memory_per_block_optin", 2**31)
    if needed is None or there < needed:
        return f"heads of {config.attention_head_size}, for which a multiprocessor has too little memory"
    return None


def in_half() -> bool:
    """Whether this is under bfloat16 autocast."""
    return torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == HALF


class Fusion:
    """A fused model, until `undo`."""

    def __init__(self, encoder: FusedEncoder, changed: list[nn.Module]) -> None:
        self._encoder, self._changed = encoder, changed
        self.rounded = encoder.rounded  # by id of a parameter: its copy in bfloat16, for an optimizer to write

    def copies_are_current(self, current: bool) -> None:
        """Say that the copies are what the weights are now: the next batch need not make them. False takes it back."""
        self._encoder.current = current

    def undo(self) -> None:
        for module in self._changed:
            del module.forward


def fuse(model: BertPreTrainedModel, *, record: bool = True) -> Fusion:
    """Give the embeddings, the encoder, its layers and the decoder of a language model another forward.

    Ask `why_not` first. Without `record`, layers run one by one, and gradients are there
    layer by layer: what several processes want, which exchange them meanwhile.
    """
    encoder = model.base_model.encoder
    fused = FusedEncoder(encoder, Graphs() if record else None)
    changed: list[nn.Module] = []

    def exchange(module: nn.Module, forward: Callable[..., object]) -> None:
        module.forward = forward
        changed.append(module)

    exchange(encoder, fused.forward)
    for layer in fused.layers:
        exchange(layer.layer, FusedLayer(fused, layer).forward)
    decoder = model.get_output_embeddings()
    if isinstance(decoder, nn.Linear):
        exchange(decoder, PaddedDecoder(decoder).forward)
    embeddings = model.base_model.embeddings
    if FusedEmbeddings.takes(embeddings):
        exchange(embeddings, FusedEmbeddings(embeddings, HALF, in_half).forward)
    return Fusion(fused, changed)


Forward = TypeVar("Forward", bound=Callable[..., object])


def takes_plan(forward: Forward) -> Forward:
    """A mark for the model, which passes a packed batch on to no other forward (model/hub/parts.py)."""
    vars(forward)["takes_plan"] = True
    return forward


class FusedEncoder:
    """The forward that takes the place of an encoder's own: all layers at once where it can be, else one by one."""

    def __init__(self, encoder: BertEncoder, record: Record | None) -> None:
        self.encoder = encoder
        self.layers = [TrainingLayer(layer, number) for number, layer in enumerate(encoder.layer)]
        self.stack = None if record is None else Stack(self.layers, record)
        self._copies = [target for layer in self.layers for target in layer.half.targets]
        self._weights = [source for layer in self.layers for source in layer.half.sources]
        self._num_weights = sum(weight.numel() for weight in self._weights)
        self.rounded = {id(weight): copy for weight, copy in zip(self._weights, self._copies, strict=True)}
        self.current = False  # whether somebody has made the copies for the next batch
        self.attention_dropout = max(layer.attention_dropout for layer in self.layers)
        self.batch: TrainingBatch | None = None  # what the layers are in, one by one
        self.passage: Passage | None = None

    @takes_plan
    def forward(self, hidden_states: Tensor, plan: AttentionPlan = PLAIN, **named: Any) -> BertEncoderOutput:
        """As the reference encoder's."""
        self.batch = self.passage = None
        if plan.packing is None or not in_half():
            return BertEncoder.forward(self.encoder, hidden_states, plan, **named)
        training, number = self.encoder.training, len(self.layers)
        together = self.stack is not None and self._all_at_once(plan, named)
        seeds = torch.randint(2**31 - 1, (SEEDS * number,)).tolist() if training else None
        dropout = self.attention_dropout if training else 0.0
        rows = rows_for(plan.packing.num_tokens, self._num_weights) if together else None
        batch = TrainingBatch(plan.packing, number, dropout=dropout, seeds=seeds, rows=rows)
        if not self.current:
            with torch.no_grad():
                torch._foreach_copy_(self._copies, self._weights)
        self.current = False
        if together and self.stack is not None:
            return BertEncoderOutput(last_hidden_state=self.stack(hidden_states.to(HALF), batch))
        self.batch, self.passage = batch, Passage(batch.form, batch.to(hidden_states.device))
        return BertEncoder.forward(self.encoder, hidden_states, plan, **named)

    def _all_at_once(self, plan: AttentionPlan, named: Mapping[str, object]) -> bool:
        """Whether nobody wants to see anything between layers."""
        return (
            self.encoder.training
            and torch.is_grad_enabled()
            and self.encoder.checkpointing is None
            and is_plain(plan)
            and all(wanted is None or wanted is False for name, wanted in named.items() if name != "cross_plan")
            and all(
                layer.layer.training and not layer.layer._forward_hooks and not layer.layer._forward_pre_hooks
                for layer in self.layers
            )
            and all(parameter.requires_grad for layer in self.layers for parameter in layer.parameters)
        )


def is_plain(plan: AttentionPlan) -> bool:
    """Whether attention is what the kernels have a form for."""
    return plan.head_mask is None and plan.maps is False and not plan.causal and plan.bias is None


class FusedLayer:
    """The forward that takes the place of a layer's own."""

    def __init__(self, encoder: FusedEncoder, layer: TrainingLayer) -> None:
        self.encoder, self.layer = encoder, layer

    @takes_plan
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
        batch, passage = self.encoder.batch, self.encoder.passage
        if batch is None or batch.packing is not plan.packing or not is_plain(plan) or cache is not None:
            return BertLayer.forward(
                self.layer.layer, hidden_states, plan,
                encoder_hidden_states=encoder_hidden_states, cross_plan=cross_plan, cache=cache,
            )  # fmt: skip
        made = apply(_Layer, hidden_states.to(HALF), passage, self.layer, *self.layer.parameters)
        return made, None, None


class _LayerContext(Context, Protocol):
    passage: Passage
    layer: TrainingLayer
    training: bool


class _Layer(torch.autograd.Function):
    """`[tokens, D]` → `[tokens, D]`, and the gradients of both and of the sixteen parameters."""

    @staticmethod
    def forward(ctx: _LayerContext, x: Tensor, passage: Passage, layer: TrainingLayer, *parameters: Tensor) -> Tensor:
        training = layer.layer.training
        out, saved = layer.forward(x, passage, training=training, keep=any(ctx.needs_input_grad))
        ctx.save_for_backward(*saved)
        ctx.passage, ctx.layer, ctx.training = passage, layer, training
        return out

    @staticmethod
    def backward(ctx: _LayerContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        into = LayerGradients(ctx.layer)
        of_x = ctx.layer.backward(grad.contiguous(), ctx.passage, ctx.saved_tensors, into, training=ctx.training)
        return of_x, None, None, *into.in_order()
