"""Where gradients are on, attention maps are part of the graph, and have transformers' eager gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.parity.oracle import TOLERANCE, difference, pair
from torch import Tensor

LENGTHS = [9, 4, 1]
PAIRS = [(1, 2), (0, 1)]


def batch() -> tuple[Tensor, Tensor]:
    ids = torch.randint(1, 61, (3, 9), generator=torch.Generator().manual_seed(0))
    return ids, (torch.arange(9) < torch.tensor(LENGTHS)[:, None]).long()


def gradients(output: Any, maps: list[Tensor], mask: Tensor | None = None) -> list[Tensor]:
    states = output[0] if mask is None else output[0] * mask[:, :, None]
    weights = torch.linspace(-1, 1, states.shape[-1])
    found = torch.autograd.grad((states * weights).square().sum(), maps)
    assert all(float(gradient.abs().max()) > 1e-4 for gradient in found)
    return list(found)


@pytest.mark.parametrize("positions", ["absolute", "relative_key", "relative_key_query"])
@pytest.mark.parametrize("head_mask", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_gradients_of_maps(positions: str, head_mask: bool, training: bool) -> None:
    theirs, ours = pair("BertModel", position_embedding_type=positions)
    theirs.train(training)
    ours.train(training)
    ids, mask = batch()
    more = {"head_mask": torch.tensor([[1.0, 0.5, 0.0], [0.3, 1.0, 2.0]])} if head_mask else {}
    found = [m(ids, attention_mask=mask, output_attentions=True, **more) for m in (theirs, ours)]
    assert difference(*(output.attentions for output in found)) <= TOLERANCE
    assert difference(*(gradients(output, list(output.attentions), mask) for output in found)) <= TOLERANCE


def test_gradients_of_some_heads_maps() -> None:
    theirs, ours = pair("BertModel")
    ids, mask = batch()
    head_mask = torch.tensor([1.0, 0.5, 0.25])
    output = theirs(ids, attention_mask=mask, head_mask=head_mask, output_attentions=True)
    wanted = gradients(output, list(output.attentions), mask)
    output = ours(ids, attention_mask=mask, head_mask=head_mask, output_attentions=PAIRS)
    found = gradients(output, [output.attentions[pair] for pair in PAIRS], mask)
    for (layer, head), gradient in zip(PAIRS, found, strict=True):
        assert difference(wanted[layer][:, head], gradient) <= TOLERANCE


def test_a_mask_of_its_own_for_every_head() -> None:
    _, ours = pair("BertModel")
    ids, _ = batch()
    mask = torch.ones(3, 3, 9, 9)
    mask[:, 1, :, 5:] = 0
    mask[:, 2, :, :2] = 0
    wanted = ours(ids, attention_mask=mask, output_attentions=True)
    found = ours(ids, attention_mask=mask, output_attentions=PAIRS)
    assert difference(wanted[0], found[0]) <= 1e-6
    with torch.no_grad():
        assert difference(ours(ids, attention_mask=mask)[0], found[0]) <= 1e-5


@pytest.mark.parametrize("some", [False, True])
@pytest.mark.parametrize("lengths", [LENGTHS, [5, 5]])
def test_packed_batches_have_the_same_gradients(some: bool, lengths: list[int]) -> None:
    _, ours = pair("BertModel")
    head_mask = torch.tensor([1.0, 0.5, 0.25])
    ids = torch.randint(1, 61, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    output = ours(ids, attention_mask=mask, head_mask=head_mask, output_attentions=True)
    wanted = gradients(output, list(output.attentions), mask)
    ends = torch.tensor([0, *lengths]).cumsum(0)
    output = ours(ids[mask.bool()], cu_seqlens=ends, head_mask=head_mask, output_attentions=PAIRS if some else True)
    if some:
        named = [((layer, head), t) for layer, head in PAIRS for t in range(len(lengths))]
        found = gradients(output, [output.attentions[pair][t] for pair, t in named])
        for ((layer, head), t), gradient in zip(named, found, strict=True):
            assert difference(wanted[layer][t, head, : lengths[t], : lengths[t]], gradient) <= TOLERANCE
        return
    places = [(layer, t) for layer in range(2) for t in range(len(lengths))]
    found = gradients(output, [output.attentions[layer][t] for layer, t in places])
    for (layer, t), gradient in zip(places, found, strict=True):
        assert difference(wanted[layer][t, :, : lengths[t], : lengths[t]], gradient) <= TOLERANCE


def test_cross_attention_and_causal_masks() -> None:
    theirs, ours = pair("BertModel", is_decoder=True, add_cross_attention=True)
    ids, mask = batch()
    inputs = {
        "attention_mask": mask,
        "encoder_hidden_states": torch.randn(3, 5, 24, generator=torch.Generator().manual_seed(1)),
        "encoder_attention_mask": torch.tensor([[1, 1, 1, 1, 0]] * 3),
        "use_cache": False,
        "output_attentions": True,
    }
    found = []
    for model in (theirs, ours):
        output = model(ids, **inputs)
        found.append(gradients(output, [*output.attentions, *output.cross_attentions], mask))
    assert difference(*found) <= TOLERANCE


def test_gradient_checkpointing_keeps_them() -> None:
    _, ours = pair("BertModel")
    ours.train()
    ids, mask = batch()
    found = []
    for on in (False, True):
        if on:
            ours.gradient_checkpointing_enable()
        for wanted in (True, PAIRS):
            output = ours(ids, attention_mask=mask, output_attentions=wanted)
            maps = output.attentions if wanted is True else output.attentions.values()
            found.append(gradients(output, list(maps), mask))
    assert difference(found[0], found[2]) <= TOLERANCE
    assert difference(found[1], found[3]) <= TOLERANCE


@pytest.mark.parametrize("wanted", [True, PAIRS])
def test_with_dropout_the_gradient_is_that_of_the_map_before_it(wanted: Any) -> None:
    _, ours = pair("BertModel", attention_probs_dropout_prob=0.5)
    ours.train()
    ids, mask = batch()
    torch.manual_seed(0)
    output = ours(ids, attention_mask=mask, output_attentions=wanted)
    maps = list(output.attentions if wanted is True else output.attentions.values())
    assert difference(maps[-1].sum(-1), torch.ones(maps[-1].shape[:-1])) <= 1e-5  # what is given back is not dropped
    found = gradients(output, maps, mask)
    for gradient in found:
        zero = (gradient == 0).float().mean()
        assert 0.3 < float(zero) < 0.95  # half of it was dropped (and padding is not in the loss)


@pytest.mark.parametrize("wanted", [True, PAIRS])
def test_parameters_get_the_same_gradients_with_and_without_maps(wanted: Any) -> None:
    _, ours = pair("BertModel")
    ids, mask = batch()
    found = []
    for maps in (False, wanted):
        ours.zero_grad()
        (ours(ids, attention_mask=mask, output_attentions=maps)[0] * mask[:, :, None]).square().sum().backward()
        found.append([parameter.grad.clone() for parameter in ours.parameters() if parameter.grad is not None])
    assert len(found[0]) == len(found[1])
    for a, b in zip(*found, strict=True):
        assert float((a - b).abs().max()) <= 1e-5 * max(1.0, float(a.abs().max()))


@pytest.mark.parametrize("wanted", [True, PAIRS])
def test_without_gradients_looking_does_not_change_a_bit(wanted: Any) -> None:
    _, ours = pair("BertModel", hidden_size=96, intermediate_size=200)
    ids, mask = batch()
    ends = torch.tensor([0, *LENGTHS]).cumsum(0)
    with torch.no_grad():
        assert torch.equal(ours(ids, mask)[0], ours(ids, mask, output_attentions=wanted)[0])
        packed = ids[mask.bool()]
        looked = ours(packed, cu_seqlens=ends, output_attentions=wanted)[0]
        assert torch.equal(ours(packed, cu_seqlens=ends)[0], looked)
    frozen = ours.requires_grad_(False)
    assert torch.equal(frozen(ids, mask)[0], frozen(ids, mask, output_attentions=wanted)[0])
