"""Gradient checkpointing: the same gradients to the bit, dropout included, for less memory."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from unit.model.plain import some_ids, tiny


def gradients(model: Any, **inputs: Any) -> dict[str, torch.Tensor]:
    model.zero_grad()
    torch.manual_seed(3)
    model(**inputs).last_hidden_state.pow(2).mean().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("positions", ["absolute", "relative_key_query"])
@pytest.mark.parametrize("packed", [False, True])
def test_gradients_are_bit_equal_with_dropout_on(positions: str, packed: bool) -> None:
    dropout = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2}
    model = tiny(position_embedding_type=positions, **dropout).train()
    inputs: dict[str, Any] = {"input_ids": some_ids(3, 8)}
    if packed:
        inputs = {"input_ids": some_ids(14), "cu_seqlens": torch.tensor([0, 5, 6, 14])}
    plain = gradients(model, **inputs)
    model.gradient_checkpointing_enable()
    assert model.is_gradient_checkpointing
    checkpointed = gradients(model, **inputs)
    model.gradient_checkpointing_disable()
    assert plain.keys() == checkpointed.keys()
    assert all(torch.equal(plain[name], checkpointed[name]) for name in plain)
    assert any(p.abs().max() > 1e-6 for p in plain.values())


class Saved:
    """Counts the bytes autograd keeps for the backward pass."""

    def __init__(self) -> None:
        self.storages: dict[int, int] = {}

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        self.storages[storage.data_ptr()] = storage.nbytes()
        return tensor


def test_activations_kept_for_the_backward_pass_shrink(capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny(num_hidden_layers=6, hidden_size=48, intermediate_size=192).train()
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}
    for on in (False, True):
        model.gradient_checkpointing_enable() if on else model.gradient_checkpointing_disable()
        saved = Saved()
        with torch.autograd.graph.saved_tensors_hooks(saved, lambda t: t):
            output = model(some_ids(4, 20)).last_hidden_state.sum()
        kept[on] = sum(size for pointer, size in saved.storages.items() if pointer not in weights)
        del output
    with capsys.disabled():
        print(f"\nactivations kept: {kept[False]:,} bytes plain, {kept[True]:,} with checkpointing")
    assert kept[True] < kept[False] / 4


def test_the_cache_is_turned_off_with_one_warning() -> None:
    model = tiny("BertLMHeadModel", is_decoder=True).train()
    model.gradient_checkpointing_enable()
    ids = some_ids(2, 5)
    with pytest.warns(UserWarning, match="use_cache is off"):
        assert model(ids).past_key_values is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model(ids, use_cache=True).past_key_values is None
    assert model.eval()(ids).past_key_values is not None


def test_checkpoint_arguments_are_passed_on() -> None:
    model = tiny().train()
    model.gradient_checkpointing_enable({"preserve_rng_state": False, "use_reentrant": False})
    assert model.encoder.checkpointing == {"preserve_rng_state": False, "use_reentrant": False}
    assert gradients(model, input_ids=some_ids(2, 4))


def test_the_reentrant_form_gives_the_same_gradients_to_the_encoder_too() -> None:
    grads = []
    for options in (None, {"use_reentrant": True}, {"use_reentrant": False}):
        torch.manual_seed(0)
        model = tiny(is_decoder=True, add_cross_attention=True).train()
        if options is not None:
            model.gradient_checkpointing_enable(options)
        states = torch.randn(2, 4, 24, generator=torch.Generator().manual_seed(1)).requires_grad_()
        ids = torch.arange(1, 11).view(2, 5)
        model(ids, encoder_hidden_states=states, use_cache=False).last_hidden_state.square().sum().backward()
        grads.append([states.grad, *(p.grad for p in model.parameters())])
    for other in grads[1:]:
        for a, b in zip(grads[0], other, strict=True):  # layers add up in another order
            assert (a is None) == (b is None)
            assert a is None or float((a - b).abs().max()) <= 1e-5 * float(a.abs().max())
