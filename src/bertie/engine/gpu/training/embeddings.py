"""The embeddings of a packed batch for training: three look-ups, LayerNorm and dropout in one pass, and one back.

Nothing is kept for the way back but the ids and a seed: what was normalised is looked up again, which is as quick as
reading it. The gradient of words is PyTorch's own, sorted by id; those of positions and segments are a product. A model
without segments has one of zeros here, and where embeddings are narrower than the layers, PyTorch's product follows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor

from bertie.engine.gpu.attention_schedule import to_device
from bertie.engine.gpu.kernel_functions import dropout_numbers, is_kept, layer_norm
from bertie.engine.gpu.training.autograd import Context, apply
from bertie.engine.gpu.training.gradients import RowSums, block_rows
from bertie.engine.gpu.triton_launch import launch, next_power_of_2, rows_and_warps
from bertie.model.bert import BertEmbeddings


@triton.jit
def _of_table(table, index, row, inside, column, in_row, width):
    number = tl.load(index + row, mask=inside, other=0).to(tl.int64)
    mask = inside[:, None] & in_row[None, :]
    return tl.load(table + number[:, None] * width + column[None, :], mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _looked_up(ids, positions, types, words, places, segments, row, inside, column, in_row, width):
    """Rows `[ROWS, COLUMNS]` of the sum of three tables."""
    total = _of_table(words, ids, row, inside, column, in_row, width)
    total += _of_table(places, positions, row, inside, column, in_row, width)
    return total + _of_table(segments, types, row, inside, column, in_row, width)


@triton.jit(do_not_specialize=["dropped", "tokens"])
def _embed_kernel(
    ids,  # [tokens]
    positions, types,
    words,  # [V, D]
    places,  # [P, D]
    segments,  # [S, D]
    gamma, beta,
    out,  # [tokens, D]
    tokens, width, eps, seed, dropped, rescale, DROPS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    in_row = column < width
    inside = row < tokens
    total = _looked_up(ids, positions, types, words, places, segments, row, inside, column, in_row, width)
    normal = layer_norm(total, in_row, gamma, beta, column, width, eps)
    if DROPS:
        kept = is_kept(tl.load(seed), row[:, None], width, 0, column[None, :], dropped)
        normal = tl.where(kept, normal * rescale, 0.0)
    place = row.to(tl.int64)[:, None] * width + column[None, :]
    tl.store(out + place, normal.to(out.dtype.element_ty), mask=inside[:, None] & in_row[None, :])


@triton.jit(do_not_specialize=["dropped", "tokens"])
def _embed_backward_kernel(
    grad,  # [tokens, D]
    ids, positions, types, words, places, segments, gamma,
    of_sum,  # [tokens, D] fp32: the gradient of what was looked up
    sums,  # [blocks of rows, 2·D] fp32: of gamma, of beta
    tokens, width, sums_stride, eps, seed, dropped, rescale, DROPS: tl.constexpr, ROWS: tl.constexpr,
    STEPS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    column = tl.arange(0, COLUMNS)
    in_row = column < width
    weight = tl.load(gamma + column, mask=in_row, other=0.0).to(tl.float32)
    of_gamma = tl.zeros([COLUMNS], tl.float32)
    of_beta = tl.zeros([COLUMNS], tl.float32)
    for step in range(STEPS):
        row = (program * STEPS + step) * ROWS + tl.arange(0, ROWS)
        inside = row < tokens
        mask = inside[:, None] & in_row[None, :]
        place = row.to(tl.int64)[:, None] * width + column[None, :]
        above = tl.load(grad + place, mask=mask, other=0.0).to(tl.float32)
        if DROPS:
            kept = is_kept(tl.load(seed), row[:, None], width, 0, column[None, :], dropped)
            above = tl.where(kept, above * rescale, 0.0)
        total = _looked_up(ids, positions, types, words, places, segments, row, inside, column, in_row, width)
        mean = tl.sum(total, 1) / width
        centred = tl.where(mask, total - mean[:, None], 0.0)
        steep = tl.rsqrt(tl.sum(centred * centred, 1) / width + eps)
        normal = centred * steep[:, None]
        of_gamma += tl.sum(above * normal, 0)
        of_beta += tl.sum(above, 0)
        weighted = above * weight[None, :]
        level = tl.sum(weighted, 1) / width
        slope = tl.sum(weighted * normal, 1) / width
        below = (weighted - level[:, None] - normal * slope[:, None]) * steep[:, None]
        tl.store(of_sum + place, below, mask=mask)
    place = sums + program.to(tl.int64) * sums_stride + column
    tl.store(place, of_gamma, mask=in_row)
    tl.store(place + width, of_beta, mask=in_row)


class FusedEmbeddings:
    """A forward for a model's embeddings: packed batches in half precision here, everything else as it was."""

    MOST_SEGMENTS = 1024  # their gradient is a product with a row for each

    def __init__(self, module: BertEmbeddings, dtype: torch.dtype, in_half: Callable[[], bool]) -> None:
        self.module, self.dtype, self.in_half = module, dtype, in_half

    @classmethod
    def takes(cls, module: BertEmbeddings) -> bool:
        """Whether there are no more segments than a product can have."""
        segments = module.token_type_embeddings
        return segments is None or segments.num_embeddings <= cls.MOST_SEGMENTS

    def forward(
        self,
        input_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values_length: int = 0,
    ) -> Tensor:
        """As the reference's; `[tokens]` → `[tokens, D]` in half precision."""
        module = self.module
        packed = input_ids is not None and input_ids.dim() == 1 and len(input_ids) > 0
        if input_ids is None or position_ids is None or not packed or not self.in_half():
            return BertEmbeddings.forward(
                module, input_ids, token_type_ids, position_ids, inputs_embeds, past_key_values_length
            )
        drop = module.dropout.p if module.training else 0.0
        seed = None
        if drop:
            seed = to_device(torch.randint(2**31 - 1, (1,), dtype=torch.int32).numpy(), input_ids.device)
        words, places, segments = module.word_embeddings, module.position_embeddings, module.token_type_embeddings
        types = torch.zeros_like(input_ids) if token_type_ids is None or segments is None else token_type_ids
        of_types = words.weight.new_zeros(1, words.embedding_dim) if segments is None else segments.weight
        norm = module.LayerNorm
        normalised = apply(
            _Embed, input_ids, position_ids, types, words.weight, places.weight, of_types, norm.weight, norm.bias,
            norm.eps, drop, seed, self.dtype, (words.padding_idx, places.padding_idx),
        )  # fmt: skip
        return normalised if module.project is None else module.project(normalised)


Padding = tuple[int | None, int | None]  # the word and the position without a gradient


class _EmbedContext(Context, Protocol):
    given: tuple[float, float, Tensor | None, Padding]  # ε, dropout, its seed


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _EmbedContext, ids: Tensor, positions: Tensor, types: Tensor, words: Tensor, places: Tensor,
        segments: Tensor, gamma: Tensor, beta: Tensor, eps: float, drop: float, seed: Tensor | None, half: torch.dtype,
        padding: Padding,
    ) -> Tensor:  # fmt: skip
        tokens, width = len(ids), words.shape[1]
        rows, warps = rows_and_warps(width)
        out = torch.empty(tokens, width, device=ids.device, dtype=half)
        launch(
            _embed_kernel,
            (-(-tokens // rows),),
            (
                ids, positions, types, words, places, segments, gamma, beta, out, tokens, width, eps, seed,
                *dropout_numbers(drop),
            ),
            {"DROPS": drop > 0, "ROWS": rows, "COLUMNS": next_power_of_2(width)},
            num_warps=warps,
        )  # fmt: skip
        ctx.save_for_backward(ids, positions, types, words, places, segments, gamma)
        ctx.given = eps, drop, seed, padding
        return out

    @staticmethod
    def backward(ctx: _EmbedContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        ids, positions, types, words, places, segments, gamma = ctx.saved_tensors
        eps, drop, seed, padding = ctx.given
        tokens, width = grad.shape
        of_sum = torch.empty(tokens, width, device=grad.device, dtype=torch.float32)
        sums = RowSums(tokens, [2 * width], grad.device)
        part = sums.part(0)
        launch(
            _embed_backward_kernel,
            (len(part),),
            (
                grad.contiguous(), ids, positions, types, words, places, segments, gamma, of_sum, part, tokens, width,
                part.stride(0), eps, seed, *dropout_numbers(drop),
            ),
            {"DROPS": drop > 0, "ROWS": 1, "STEPS": block_rows(tokens), "COLUMNS": next_power_of_2(width)},
            num_warps=4 if width <= 1024 else 8,
        )  # fmt: skip
        word, place = (-1 if row is None else row for row in padding)
        of_words = torch.ops.aten.embedding_dense_backward(of_sum, ids, len(words), word, False)
        of_places, of_segments = _small_tables(of_sum, (positions, types), (len(places), len(segments)))
        of_places[place : place + 1] = 0  # no row for -1
        of_gamma, of_beta = sums.total()[0].chunk(2)
        return None, None, None, of_words, of_places, of_segments, of_gamma, of_beta, *[None] * 5


def _small_tables(of_sum: Tensor, indices: tuple[Tensor, Tensor], sizes: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Gradients of the tables of positions and segments: a product with a matrix that has a 1 where a token looked.

    Half a thousand rows are each looked up by many tokens. Sorting them, as PyTorch does, takes longer than this, and
    its sum is in no fixed order for a few rows. A gradient in fp32 is two parts in bfloat16 to 16 bits.
    """
    places, segments = sizes
    columns = torch.arange(-(-(places + segments) // 8) * 8, device=of_sum.device)  # tensor cores want multiples of 8
    looked = (indices[0][:, None] == columns) | (indices[1][:, None] + places == columns)  # [tokens, columns]
    with torch.autocast(of_sum.device.type, enabled=False):
        if of_sum.device.type != "cuda":
            total = looked.t().to(of_sum.dtype) @ of_sum
        else:
            matrix = looked.to(torch.bfloat16).t()
            high = of_sum.to(torch.bfloat16)
            low = (of_sum - high).to(torch.bfloat16)
            total = torch.mm(matrix, high, out_dtype=torch.float32) + torch.mm(matrix, low, out_dtype=torch.float32)
    return total[:places], total[places : places + segments]
