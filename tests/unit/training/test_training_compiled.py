"""Compiled layers: one graph for all layers and all batches, and the numbers of the layers as they are."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

import bertie
from bertie.training.run.faster_layers import compile_layers


def uniform(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, packing: Any, causal: bool) -> torch.Tensor:
    """Stands for the packed kernel of GPUs, with the same shapes and arguments: every token sees its text's mean."""
    ends = packing.cu_seqlens.long()
    sums = torch.cat([v.new_zeros(1, *v.shape[1:]), v.cumsum(0)])
    means = (sums[ends[1:]] - sums[ends[:-1]]) / ends.diff()[:, None, None]
    text = torch.bucketize(torch.arange(v.shape[0]), ends[1:], right=True)
    return means[text] + 0.1 * q + 0.1 * k + packing.max_length * 1e-3


@pytest.mark.filterwarnings("ignore")  # the tracer looks at gradients of tensors that have none, and warns of itself
def test_all_layers_and_lengths_share_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    seam = sys.modules["bertie.ops.attention"]
    monkeypatch.setattr(seam, "varlen", uniform)
    monkeypatch.setattr(seam, "packed_kernel", lambda q, *, plain, dropout: plain and dropout == 0)
    config = bertie.BertConfig.preset("tiny", vocab_size=100, num_hidden_layers=10, attention_probs_dropout_prob=0.0)
    torch.manual_seed(0)
    plain = bertie.BertForMaskedLM(config)
    compiled = bertie.BertForMaskedLM(config)
    compiled.load_state_dict(plain.state_dict())
    names = list(compiled.state_dict())
    torch.compiler.reset()
    counters.clear()
    compile_layers(compiled, backend="aot_eager")
    for lengths in ([5, 9, 3], [30, 2, 8, 8, 17], [11]):
        ids = torch.randint(5, 100, (sum(lengths),))
        given = {"cu_seqlens": torch.tensor([0, *lengths]).cumsum(0), "token_type_ids": torch.zeros_like(ids)}
        outputs = []
        for model in (plain, compiled):
            model.train()
            for module in model.modules():  # the same numbers; and yet with dropout in the graph
                if isinstance(module, torch.nn.Dropout):
                    module.p = 0.0
            model.check_inputs = False
            model.zero_grad()
            logits = model(ids, **given).logits
            logits.square().mean().backward()
            outputs.append((logits.detach(), [p.grad for p in model.parameters()]))
        torch.testing.assert_close(outputs[0][0], outputs[1][0], rtol=1e-4, atol=1e-5)
        for one, two in zip(outputs[0][1], outputs[1][1], strict=True):
            torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-5)
    assert counters["graph_break"] == {}
    assert counters["stats"]["unique_graphs"] <= 2  # one text alone may be a case of its own
    assert list(compiled.state_dict()) == names
    torch.compiler.reset()
