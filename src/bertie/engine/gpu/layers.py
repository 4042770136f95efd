"""One layer on the GPU: four products by cuBLAS, three kernels of our own between them.

    x ─ qkv ─ attention ─ out ─ add & norm ─ up (GELU on the way out) ─ down ─ add & norm ─ x

In fp8 a product reads both operands in eight bits (e4m3) and writes half precision. The kernel before it writes the
operand rounded, so rounding costs no pass of its own. cuBLAS has GELU for half precision alone, so in fp8 the widening
product of a large batch is our kernel (fp8_up_product.py), and for a small one GELU is a pass. For up to 64 tokens all
products are our kernels (small_batch_product.py). Every product decides for itself: a layer may mix the two.

**GELU.** The fused form is the tanh approximation, also where a checkpoint asks for the exact one. They differ by at
most 5e-4, which is below what bfloat16 keeps of values near 1; for a whole model the cost in cosine is under 1e-5
(tests/unit/engine/test_compile.py, on all-MiniLM-L6-v2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from bertie.engine.gpu.attention import attention, bias_tiles
from bertie.engine.gpu.attention_schedule import Schedule, to_device
from bertie.engine.gpu.embed_norm_gelu import add_norm, count_positions, embed, gelu
from bertie.engine.gpu.fp8_up_product import fp8_linear_gelu
from bertie.engine.gpu.pooling import means_of
from bertie.engine.gpu.small_batch_product import MOST_TOKENS, small_batch_linear
from bertie.engine.runner import embedding_tables
from bertie.model.activations import gelu_erf, gelu_tanh
from bertie.model.bert import BertEmbeddings, BertLayer, BertModel
from bertie.ops.packing import Packing
from bertie.ops.relative import bias_by_distance

Activation = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Rounding:
    """What a product in fp8 needs: the rounded weight and what a 1 in each operand means."""

    weight: Tensor  # [I, O] e4m3, column-major: cuBLAS wants it so
    weight_scale: Tensor  # [1] fp32
    input_scale: Tensor  # [1] fp32
    bias: Tensor  # [O], with what rounding the weight does to the average input taken out


@dataclass(frozen=True)
class Product:
    """x·W + b, in half precision or, where there is a `rounding`, in fp8."""

    weight: Tensor  # [O, I]
    bias: Tensor  # [O]
    rounding: Rounding | None = None

    @property
    def input_scale(self) -> Tensor | None:
        """What the kernel before must divide by, or None: this product reads half precision."""
        return None if self.rounding is None else self.rounding.input_scale

    def __call__(self, x: Tensor) -> Tensor:
        """`[tokens, I]`, already rounded where this product is in fp8 → `[tokens, O]` in half precision."""
        if len(x) <= MOST_TOKENS:
            return self._small_batch(x)
        given = self.rounding
        if given is None:
            return torch.addmm(self.bias, x, self.weight.t())
        made: Tensor = torch._scaled_mm(
            x,
            given.weight,
            scale_a=given.input_scale,
            scale_b=given.weight_scale,
            bias=given.bias,
            out_dtype=self.bias.dtype,
            use_fast_accum=True,
        )
        return made

    def to_be_added(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """What `add_norm` takes: the product, or for a few tokens its parts and the bias."""
        if not x.shape[1]:  # nothing is left to multiply
            return self.bias.expand(len(x), -1).contiguous(), None
        if len(x) > MOST_TOKENS:
            return self(x), None
        return self._small_batch(x, in_parts=True), self.bias if self.rounding is None else self.rounding.bias

    def then(self, activation: Activation, x: Tensor, *, fp8_scale: Tensor | None) -> Tensor:
        """The product and the activation after it; in fp8 where the next product wants it so."""
        given = self.rounding
        if activation not in (gelu_erf, gelu_tanh):
            bent = activation(self(x))
            return bent if fp8_scale is None else _rounded(bent, fp8_scale)
        if len(x) <= MOST_TOKENS:
            return self._small_batch(x, gelu="erf" if activation is gelu_erf else "tanh", fp8_scale=fp8_scale)
        if given is None and fp8_scale is None:
            return torch._addmm_activation(self.bias, x, self.weight.t(), use_gelu=True)
        if given is not None and fp8_scale is not None and _fills_tiles(x):
            return fp8_linear_gelu(x, given.weight.t(), given.bias, given.input_scale, given.weight_scale, fp8_scale)
        return gelu(self(x), fp8_scale=fp8_scale)

    def _small_batch(
        self, x: Tensor, *, gelu: str | None = None, fp8_scale: Tensor | None = None, in_parts: bool = False
    ) -> Tensor:
        given = self.rounding
        if given is None:
            return small_batch_linear(x, self.weight, self.bias, gelu=gelu, fp8_scale=fp8_scale, in_parts=in_parts)
        scales = (given.input_scale, given.weight_scale)
        return small_batch_linear(
            x, given.weight.t(), given.bias, scales=scales, gelu=gelu, fp8_scale=fp8_scale, in_parts=in_parts
        )


@dataclass(frozen=True)
class Norm:
    gamma: Tensor
    beta: Tensor
    eps: float

    @classmethod
    def of(cls, module: nn.LayerNorm) -> Norm:
        return cls(module.weight.detach(), module.bias.detach(), module.eps)

    def __call__(
        self, x: Tensor, bias: Tensor | None, residual: Tensor, *, fp8_scale: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        return add_norm(x, residual, self.gamma, self.beta, self.eps, bias=bias, fp8_scale=fp8_scale)


@dataclass(frozen=True)
class Embeddings:
    """The three tables and their norm, and the product after it where they are narrower than the layers."""

    tables: tuple[Tensor, Tensor, Tensor]  # words, positions, segments
    norm: Norm
    padding: int | None = None  # the position table's row for padding; those after it are of texts
    project: Product | None = None

    @classmethod
    def of(cls, module: BertEmbeddings) -> Embeddings:
        project = None if module.project is None else _product(module.project)
        padding = module.position_embeddings.padding_idx
        return cls(embedding_tables(module), Norm.of(module.LayerNorm), padding, project)

    @property
    def width(self) -> int:
        """D."""
        return (self.norm.gamma if self.project is None else self.project.bias).shape[0]

    @property
    def first_position(self) -> int:
        """The position of a text's first token."""
        return 0 if self.padding is None else self.padding + 1

    def positions(self, ids: Tensor, packing: Packing) -> Tensor | None:
        """`[tokens]`, or None: a token's place in its text, after the first position.

        It is that for texts without padding inside them, which is known of ids in the host's memory without a wait.
        """
        if self.padding is None or (not ids.is_cuda and not bool((ids == self.padding).any())):
            return None
        if not ids.is_cuda:
            return packing.positions(ids, self.padding)
        starts = np.repeat(np.asarray(packing.starts, dtype=np.int32), packing.lengths)
        return count_positions(ids, to_device(starts, ids.device), self.padding)

    def __call__(
        self,
        ids: Tensor,
        type_ids: Tensor | None,
        positions: Tensor | None,
        plan: Schedule,
        *,
        next_scale: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Ids `[tokens]` → `[tokens, D]`, and its fp8 form for a first product that reads that."""
        norm, given = self.norm, (ids, type_ids, positions, plan.starts, self.tables)
        if self.project is None:
            return embed(*given, norm.gamma, norm.beta, norm.eps, first=self.first_position, fp8_scale=next_scale)
        narrow, _ = embed(*given, norm.gamma, norm.beta, norm.eps, first=self.first_position)
        x = self.project(narrow)
        return x, None if next_scale is None else _rounded(x, next_scale)


@dataclass(frozen=True)
class Layer:
    """The weights of one layer in the order they are used; its products have the names of `PRODUCTS`."""

    heads: int
    qkv: Product  # [3·N·H, D]
    out: Product
    attention_norm: Norm
    up: Product
    activation: Activation
    down: Product
    output_norm: Norm
    bias: Tensor | None = None  # of attention, by distance, as it is added before scores are scaled

    @classmethod
    def of(cls, layer: BertLayer, bias: Tensor | None = None) -> Layer:
        """The reference layer's weights; queries, keys and values become one product."""
        inside = layer.attention.self
        three = (inside.query, inside.key, inside.value)
        return cls(
            heads=len(inside.heads),
            qkv=Product(
                torch.cat([part.weight.detach() for part in three]), torch.cat([part.bias.detach() for part in three])
            ),
            out=_product(layer.attention.output.dense),
            attention_norm=Norm.of(layer.attention.output.LayerNorm),
            up=_product(layer.intermediate.dense),
            activation=layer.intermediate.intermediate_act_fn,
            down=_product(layer.output.dense),
            output_norm=Norm.of(layer.output.LayerNorm),
            bias=bias if bias is None or len(inside.heads) == len(bias) else bias[inside.heads],
        )

    def __call__(
        self, x: Tensor, x8: Tensor | None, plan: Schedule, *, next_scale: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """`[tokens, D]` and its fp8 form where `qkv` reads that → the same, for the layer after."""
        context, wide = x[:, :0], x[:, :0]  # what pruning may have left of them
        if self.heads:
            qkv = self.qkv(x if x8 is None else x8)
            context = attention(qkv, self.heads, plan, bias=self.bias, fp8_scale=self.out.input_scale)
        y, y8 = self.attention_norm(*self.out.to_be_added(context), x, fp8_scale=self.up.input_scale)
        if len(self.up.weight):
            wide = self.up.then(self.activation, y if y8 is None else y8, fp8_scale=self.down.input_scale)
        return self.output_norm(*self.down.to_be_added(wide), y, fp8_scale=next_scale)


@dataclass(frozen=True)
class Encoder:
    """All of it."""

    embeddings: Embeddings
    layers: tuple[Layer, ...]

    @classmethod
    def of(cls, base: BertModel) -> Encoder:
        table, bias = base.encoder.relative_attention_bias, None
        if table is not None:
            unscaled = bias_by_distance(table).float() * base.config.attention_head_size**0.5
            bias = bias_tiles(unscaled, table.weight.dtype)
        return cls(Embeddings.of(base.embeddings), tuple(Layer.of(layer, bias) for layer in base.encoder.layer))

    def __call__(
        self,
        ids: Tensor,
        type_ids: Tensor | None,
        positions: Tensor | None,
        plan: Schedule,
        *,
        all_states: bool = False,
    ) -> list[Tensor]:
        """`[tokens]` ids → the last state `[tokens, D]`, or the embeddings and every layer's."""
        scales = [*(layer.qkv.input_scale for layer in self.layers), None]  # what the step before each layer rounds by
        x, x8 = self.embeddings(ids, type_ids, positions, plan, next_scale=scales[0])
        states = [x]
        for layer, next_scale in zip(self.layers, scales[1:], strict=True):
            x, x8 = layer(x, x8, plan, next_scale=next_scale)
            states = [*states, x] if all_states else [x]
        return states

    @staticmethod
    def means(states: Tensor, table: Tensor) -> Tensor:
        """`[tokens, D]` → `[rows, D]` fp32, by a table of rows (pooling.py)."""
        return means_of(states, table)


def _product(linear: nn.Linear) -> Product:
    return Product(linear.weight.detach(), linear.bias.detach())


def _fills_tiles(x: Tensor) -> bool:
    """Whether a batch is large enough, and the GPU new enough (tensor descriptors), for a product of our own."""
    return len(x) >= 1024 and x.is_cuda and torch.cuda.get_device_capability(x.device) >= (9, 0)


def _rounded(x: Tensor, scale: Tensor) -> Tensor:
    return (x / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
