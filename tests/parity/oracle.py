"""The oracle: transformers 4.57.6's BERT with the same weights, and comparison of outputs and gradients with it."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor

import bertie

TOLERANCE = 1e-5

TINY: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 36,
    "max_position_embeddings": 20,
    "type_vocab_size": 3,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    # large enough that attention prefers some tokens to others
    "initializer_range": 0.2,
}


def pair(name: str, *, attention: str = "eager", **config: Any) -> tuple[Any, Any]:
    """(theirs, ours) of the class called `name`, in eval mode, with the same weights."""
    values = TINY | config
    their_config = transformers.BertConfig(**values)
    their_config._attn_implementation = attention
    theirs = getattr(transformers, name)(their_config).eval()
    for parameter in theirs.parameters():  # biases and LayerNorms too, so that they matter
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=float(parameter.detach().mean()), std=0.1)
    ours = getattr(bertie, name)(bertie.BertConfig.from_dict(values)).eval()
    assert sorted(ours.state_dict()) == sorted(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def difference(theirs: Any, ours: Any) -> float:
    """The largest |Δ| over everything in two outputs of the same structure."""
    if isinstance(theirs, Tensor):
        assert isinstance(ours, Tensor), type(ours)
        assert theirs.shape == ours.shape, (theirs.shape, ours.shape)
        if theirs.numel() == 0:
            return 0.0
        assert torch.isfinite(ours).all()
        return float((theirs.detach().double() - ours.detach().double()).abs().max())
    if theirs is None or ours is None:
        assert theirs is None, theirs
        assert ours is None, ours
        return 0.0
    if hasattr(theirs, "self_attention_cache"):
        legacy = tuple(tuple(x for x in layer if x is not None) for layer in theirs.to_legacy_cache())
        return difference(legacy, ours.to_legacy())
    if isinstance(theirs, transformers.utils.ModelOutput):
        assert list(theirs.keys()) == list(ours.keys()), (list(theirs.keys()), list(ours.keys()))
        theirs, ours = theirs.to_tuple(), ours.to_tuple()
    assert len(theirs) == len(ours), (len(theirs), len(ours))
    return max((difference(a, b) for a, b in zip(theirs, ours, strict=True)), default=0.0)


def check_same(theirs: Any, ours: Any) -> None:
    assert difference(theirs, ours) <= TOLERANCE


def scalar(output: Any) -> Tensor:
    """Some loss of an output: its own, or a weighted sum of every tensor in it."""
    if getattr(output, "loss", None) is not None:
        return output.loss
    tensors = [x for x in output.to_tuple() if isinstance(x, Tensor)]
    tensors += [y for x in output.to_tuple() if isinstance(x, tuple) for y in x if isinstance(y, Tensor)]
    total = torch.zeros(())
    for tensor in tensors:
        weights = torch.linspace(-1, 1, tensor.numel()).view(tensor.shape)
        total = total + (tensor * weights).mean()
    return total


def check_same_gradients(theirs: Any, ours: Any, their_loss: Tensor, our_loss: Tensor) -> None:
    """Backward through both; every parameter's gradient agrees, and none is missing on one side."""
    theirs.zero_grad()
    ours.zero_grad()
    their_loss.backward()
    our_loss.backward()
    gradients = {name: p.grad for name, p in theirs.named_parameters()}
    found = {name: p.grad for name, p in ours.named_parameters()}
    assert gradients.keys() == found.keys()
    assert any(g is not None and g.abs().max() > 1e-4 for g in gradients.values())
    for name, wanted in gradients.items():
        got = found[name]
        if wanted is None:
            assert got is None or got.abs().max() == 0, name
        else:
            assert got is not None, name
            assert difference(wanted, got) <= TOLERANCE, (name, difference(wanted, got))


def ids(batch: int, length: int, *, seed: int = 0, vocab: int = TINY["vocab_size"]) -> Tensor:
    return torch.randint(1, vocab, (batch, length), generator=torch.Generator().manual_seed(seed))
