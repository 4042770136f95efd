"""Activations, resizing and pruning against transformers 4.57.6."""

from __future__ import annotations

import pytest
import torch
from transformers.activations import ACT2FN

import bertie
from bertie.config import ACTIVATIONS as NAMES
from bertie.model.activations import ACTIVATIONS, activation
from parity.oracle import TINY, check_same, check_same_gradients, difference, ids, pair, scalar


@pytest.mark.parametrize("name", NAMES)
def test_activation_equals_reference_in_value_and_slope(name: str) -> None:
    x = torch.cat([torch.linspace(-30, 30, 601), torch.randn(400)])
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    wanted, got = ACT2FN[name](a), activation(name)(b)
    assert difference(wanted, got) <= 1e-5
    wanted.sum().backward()
    got.sum().backward()
    assert difference(a.grad, b.grad) <= 1e-5


def test_config_and_table_know_the_same_activations() -> None:
    assert sorted(NAMES) == sorted(ACTIVATIONS)


@pytest.mark.parametrize("name", ["gelu", "gelu_new", "quick_gelu", "relu2", "laplace", "mish"])
def test_model_with_activation_equals_reference(name: str) -> None:
    theirs, ours = pair("BertForMaskedLM", hidden_act=name)
    tokens = ids(2, 6)
    wanted, got = theirs(tokens, labels=tokens), ours(tokens, labels=tokens)
    check_same(wanted, got)
    check_same_gradients(theirs, ours, wanted.loss, got.loss)


@pytest.mark.parametrize("name", ["BertModel", "BertForMaskedLM", "BertForPreTraining", "BertForTokenClassification"])
@pytest.mark.parametrize(("size", "multiple"), [(80, None), (70, 16), (40, None), (None, 8)])
@pytest.mark.parametrize("tied", [True, False])
def test_resized_vocabulary_equals_reference(name: str, size: int | None, multiple: int | None, tied: bool) -> None:
    theirs, ours = pair(name, tie_word_embeddings=tied)
    theirs.resize_token_embeddings(size, pad_to_multiple_of=multiple)
    ours.resize_token_embeddings(size, pad_to_multiple_of=multiple)
    assert theirs.config.vocab_size == ours.config.vocab_size
    wanted, got = theirs.state_dict(), ours.state_dict()
    assert {k: v.shape for k, v in wanted.items()} == {k: v.shape for k, v in got.items()}
    for key, value in wanted.items():
        kept = min(len(value), TINY["vocab_size"])
        check_same(value[:kept], got[key][:kept])
        if value.dim() == 2 and len(value) > kept:  # the new rows of both are near the mean of the old
            mean = value[:kept].mean(0)
            assert float((got[key][kept:] - mean).abs().max()) < 1e-2
    ours.load_state_dict(wanted)
    tokens = ids(2, 6, vocab=40)
    check_same(theirs(tokens), ours(tokens))
    if name != "BertModel" and tied:
        assert (ours.get_output_embeddings() is None) or (
            ours.get_output_embeddings().weight is ours.get_input_embeddings().weight
        )
    check_same_gradients(theirs, ours, scalar(theirs(tokens)), scalar(ours(tokens)))


def test_pruned_like_reference_twice() -> None:
    theirs, ours = pair("BertForSequenceClassification", num_hidden_layers=3)
    for heads in ({0: [1], 2: [0, 2]}, {0: [0, 1], 1: [2]}):
        theirs.prune_heads(heads)
        ours.prune_heads(heads)
    assert {k: v.shape for k, v in theirs.state_dict().items()} == {k: v.shape for k, v in ours.state_dict().items()}
    tokens = ids(3, 7)
    check_same(theirs(tokens, output_attentions=True), ours(tokens, output_attentions=True))
    assert {int(k): sorted(v) for k, v in theirs.config.pruned_heads.items()} == ours.config.pruned_heads


def test_parameter_count_equals_reference() -> None:
    for name in ("BertModel", "BertForPreTraining", "BertForMultipleChoice"):
        theirs, ours = pair(name)
        assert theirs.num_parameters() == ours.num_parameters()
        assert theirs.num_parameters(exclude_embeddings=True) == ours.num_parameters(exclude_embeddings=True)


def test_config_json_equals_reference_both_ways(tmp_path: object) -> None:
    import transformers

    ours = bertie.BertConfig(num_labels=3, position_embedding_type="relative_key", is_decoder=True)
    back = transformers.BertConfig.from_dict(ours.to_dict())
    for key, value in ours.to_dict().items():
        assert getattr(back, key) == value, key
    theirs = transformers.BertConfig(num_labels=4, hidden_size=48, pruned_heads={0: [1]}).to_dict()
    ours = bertie.BertConfig.from_dict(theirs)
    assert ours.num_labels == 4
    assert ours.hidden_size == 48
    assert ours.pruned_heads == {0: [1]}
