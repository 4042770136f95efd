"""LayerNorm in the C++ kernels against float64 at every size: neither padding nor a large mean costs accuracy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.tiny_models import tiny

import bertie
from bertie.engine.cpu.library import instruction_set

pytestmark = pytest.mark.skipif(instruction_set() is None, reason="the kernels were not built: no C++ compiler")

TOKENS = 13


def first_and_last_state(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    ids, ends = torch.arange(TOKENS), torch.tensor([0, TOKENS])
    states = bertie.compile(model)(ids, cu_seqlens=ends, output_hidden_states=True).hidden_states
    return states[0], states[-1]


def exact(model: Any) -> torch.Tensor:
    """LayerNorm in float64 of the embeddings' sum, which is float32's own."""
    tables = model.embeddings
    words, types, positions = (
        tables.word_embeddings.weight[:TOKENS],
        tables.token_type_embeddings.weight[0],
        tables.position_embeddings.weight[:TOKENS],
    )
    norm = tables.LayerNorm
    together = (words + types + positions).double()
    return F.layer_norm(together, together.shape[-1:], norm.weight.double(), norm.bias.double(), norm.eps)


@torch.no_grad()
def test_every_size_up_to_400_equals_float64() -> None:
    worst = {}
    for size in range(1, 401):
        model = tiny("BertModel", hidden_size=size, num_attention_heads=1, num_hidden_layers=1, intermediate_size=16)
        tables = model.embeddings
        words = tables.word_embeddings.weight
        for rows in ("random", "shifted", "constant"):
            if rows == "shifted":
                words += 100
            elif rows == "constant":
                words.copy_(0.37 * torch.arange(len(words))[:, None].expand_as(words))
                tables.position_embeddings.weight.zero_()
                tables.token_type_embeddings.weight.fill_(-0.1)
            embedded, answer = first_and_last_state(model)
            assert embedded.isfinite().all(), (size, rows)
            assert answer.isfinite().all(), (size, rows)
            worst[size, rows] = float((embedded - exact(model)).abs().max())
    where = max(worst, key=worst.__getitem__)
    assert worst[where] <= 3e-6, (where, worst[where])
