"""Where Bertie goes beyond transformers 4.57.6 (wrong there, or refusing): checked against the plain formula."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from unit.model.plain import plain_hidden_states, some_ids, tiny

POSITIONS = ["absolute", "relative_key", "relative_key_query"]
BACKENDS = ["eager", "sdpa"]


def difference(a: Tensor, b: Tensor) -> float:
    return float((a.detach().double() - b.detach().double()).abs().max())


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("heads", [1, 3])
def test_four_dimensional_masks_are_taken_as_given(positions: str, backend: str, heads: int) -> None:
    model = tiny(position_embedding_type=positions)
    model.set_attention_backend(backend)
    ids = some_ids(2, 7)
    mask = torch.randint(0, 2, (2, heads, 7, 7))
    mask[..., 0] = 1
    head_mask = torch.rand(2, 3)
    got = model(ids, mask, head_mask=head_mask).last_hidden_state
    assert difference(got, plain_hidden_states(model, ids, mask, head_mask)) <= 1e-5


def test_a_decoder_adds_no_causality_to_masks_of_pairs() -> None:
    model = tiny(is_decoder=True)
    ids, mask = some_ids(2, 7), torch.ones(2, 7, 7)
    causal = torch.ones(1, 1, 7, 7).tril()
    assert difference(model(ids).last_hidden_state, plain_hidden_states(model, ids, causal)) <= 1e-5
    assert difference(model(ids, mask).last_hidden_state, plain_hidden_states(model, ids, mask[:, None])) <= 1e-5


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("decoder", [False, True])
def test_rows_masked_whole_stay_finite(positions: str, backend: str, dtype: torch.dtype, decoder: bool) -> None:
    model = tiny(position_embedding_type=positions, is_decoder=decoder).to(dtype)
    model.set_attention_backend(backend)
    # Scores far from 0, where 4.57's mask overflows to -inf in half precision and the row becomes NaN.
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.attention.self.query.weight.mul_(20)
    ids = some_ids(3, 9)
    everything = torch.zeros(3, 9)
    everything[0] = 1
    pairs = torch.ones(3, 9, 9)
    pairs[1, 4] = 0
    for mask in (everything, pairs, torch.zeros(3, 3, 9, 9)):
        output = model(ids, mask, output_attentions=True)
        assert torch.isfinite(output.last_hidden_state).all()
        assert all(torch.isfinite(maps).all() for maps in output.attentions)
    loss = model(ids, everything).last_hidden_state.float().square().mean()
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("length", [1, 20])
@pytest.mark.parametrize("name", ["BertModel", "BertForMaskedLM", "BertForQuestionAnswering"])
def test_half_precision_is_finite(dtype: torch.dtype, length: int, name: str) -> None:
    model = tiny(name).to(dtype)
    for batch in (1, 3):
        output = model(some_ids(batch, length))
        assert all(torch.isfinite(x).all() for x in output.values())


@pytest.mark.parametrize("chunk", [1, 3, 5, 7, 100])
def test_feed_forward_chunks_need_not_divide_the_length(chunk: int) -> None:
    ids = some_ids(2, 7)
    whole = tiny()
    chunked = tiny(chunk_size_feed_forward=chunk)
    chunked.load_state_dict(whole.state_dict())
    assert difference(whole(ids).last_hidden_state, chunked(ids).last_hidden_state) <= 1e-6
    packed = chunked(ids.flatten(), cu_seqlens=torch.tensor([0, 7, 14])).last_hidden_state
    assert difference(whole(ids).last_hidden_state.flatten(0, 1), packed) <= 1e-6


@pytest.mark.parametrize("positions", POSITIONS)
def test_single_maps_can_be_asked_for(positions: str) -> None:
    model = tiny(position_embedding_type=positions)
    model.prune_heads({1: [0]})
    ids, mask, head_mask = some_ids(2, 6), torch.tensor([[1] * 6, [1] * 4 + [0] * 2]), torch.rand(2, 3)
    inputs: dict[str, Any] = {"attention_mask": mask, "head_mask": head_mask}
    all_maps = model(ids, **inputs, output_attentions=True).attentions
    some = model(ids, **inputs, output_attentions=[(1, 2), (0, 1), (1, 1)]).attentions
    assert sorted(some) == [(0, 1), (1, 1), (1, 2)]
    assert difference(some[0, 1], all_maps[0][:, 1]) <= 1e-6
    assert difference(some[1, 1], all_maps[1][:, 0]) <= 1e-6  # head 0 of layer 1 is pruned
    assert difference(some[1, 2], all_maps[1][:, 1]) <= 1e-6


@pytest.mark.parametrize("positions", POSITIONS)
@torch.no_grad()
def test_asking_to_see_maps_does_not_change_the_answer(positions: str) -> None:
    """In 4.57 it changes the kernel; here the bits of the output stay."""
    model = tiny(position_embedding_type=positions)
    ids = some_ids(2, 15)
    plain = model(ids).last_hidden_state
    assert torch.equal(plain, model(ids, output_attentions=True).last_hidden_state)
    assert torch.equal(plain, model(ids, output_attentions=[(0, 0)]).last_hidden_state)
    assert torch.equal(plain, model(ids, head_mask=torch.ones(3)).last_hidden_state)


def test_maps_are_the_probabilities_the_context_is_made_of() -> None:
    model = tiny(num_hidden_layers=1)
    layer = model.encoder.layer[0].attention.self
    ids = some_ids(2, 8)
    maps = model(ids, output_attentions=True).attentions[0]
    assert difference(maps.sum(-1), torch.ones(2, 3, 8)) <= 1e-6
    x = model.embeddings(ids)
    v = layer.split_heads(layer.value(x))
    assert difference(layer(x)[0], layer.join_heads(maps @ v)) <= 1e-5


def test_maps_of_rows_that_see_nothing_are_what_their_context_is_made_of() -> None:
    model = tiny(is_decoder=True, num_hidden_layers=1)
    inside = model.encoder.layer[0].attention.self
    ids, mask = some_ids(1, 6), torch.tensor([[0, 0, 0, 1, 1, 1]])
    contexts: list[torch.Tensor] = []
    inside.register_forward_hook(lambda module, given, out: contexts.append(out[0]))
    maps = model(ids, mask, output_attentions=True).attentions[0]
    v = inside.split_heads(inside.value(model.embeddings(ids)))
    assert difference(contexts[0], inside.join_heads(maps @ v)) <= 1e-5


def test_dropout_acts_and_its_average_is_the_plain_answer() -> None:
    model = tiny(attention_probs_dropout_prob=0.3, num_hidden_layers=1).train()
    layer, x = model.encoder.layer[0].attention.self, torch.randn(1, 6, 24)
    with torch.no_grad():
        plain = layer.eval()(x)[0]
        layer.train()
        samples = torch.stack([layer(x)[0] for _ in range(600)])
    assert difference(samples[0], samples[1]) > 1e-3
    assert difference(samples.mean(0), plain) < 0.2


def test_head_importance_can_be_read_from_the_gradient_of_a_head_mask() -> None:
    """Michel et al. 2019: |∂loss/∂mask|. The fused kernel must carry that gradient like the plain formula."""
    gradients = []
    model = tiny()
    ids = some_ids(3, 7)
    for backend in BACKENDS:
        model.set_attention_backend(backend)
        mask = torch.ones(2, 3, requires_grad=True)
        model(ids, head_mask=mask).last_hidden_state.pow(3).mean().backward()
        assert mask.grad is not None
        gradients.append(mask.grad)
    assert gradients[0].abs().max() > 1e-6
    assert all(difference(gradients[0], other) <= 1e-5 for other in gradients[1:])
