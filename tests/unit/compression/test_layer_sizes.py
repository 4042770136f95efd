"""Models whose layers have different sizes: the reference, files, engines, training and the twin with zeros agree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.tiny_models import tiny, tokenizer

import bertie
from bertie.certificate import certify
from bertie.checkpoint.inspect import summarise
from bertie.compression.layers import Sizes, dense, keep, keep_layers
from bertie.convert import convert
from bertie.errors import CheckpointError, ConfigError
from bertie.training.distillation import make_student

IDS = torch.tensor([[2, 45, 17, 99, 3], [2, 7, 3, 0, 0]])
MASK = (IDS != 0).long()
HEADS = [[0, 2, 3], [], [1]]
NEURONS = [torch.tensor([1, 5, 40]), torch.arange(16, 48), torch.arange(0)]


def states(model: bertie.BertPreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        return model.base_model(IDS, MASK).last_hidden_state[MASK.bool()]


def small(name: str = "BertForSequenceClassification") -> bertie.BertPreTrainedModel:
    return keep(tiny(name), HEADS, NEURONS)


def masked(model: bertie.BertPreTrainedModel) -> bertie.BertPreTrainedModel:
    """The same by the plain definition: the weights that read what is gone are zero."""
    with torch.no_grad():
        for number, layer in enumerate(model.base_model.encoder.layer):
            for head in {0, 1, 2, 3} - {*HEADS[number]}:
                layer.attention.output.dense.weight[:, 8 * head : 8 * head + 8] = 0
            gone = [neuron for neuron in range(48) if neuron not in NEURONS[number].tolist()]
            layer.output.dense.weight[:, gone] = 0
    return model


def test_a_smaller_model_answers_as_with_zeros_in_the_weights() -> None:
    model = small()
    assert Sizes.of(model) == Sizes((3, 0, 1), (3, 32, 0))
    torch.testing.assert_close(states(model), states(masked(tiny("BertForSequenceClassification"))), atol=1e-5, rtol=0)


def test_sizes_are_in_the_configuration_and_survive_a_save(tmp_path: Path) -> None:
    model = small()
    model.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["intermediate_sizes"] == [3, 32, 0]
    assert written["pruned_heads"] == {"0": [1], "1": [0, 1, 2, 3], "2": [0, 2, 3]}
    loaded = bertie.load(tmp_path)
    assert type(loaded) is type(model)
    assert torch.equal(states(loaded), states(model))
    assert sum(p.numel() for p in loaded.parameters()) < sum(
        p.numel() for p in tiny("BertForSequenceClassification").parameters()
    )


def test_a_smaller_model_can_be_made_smaller_again() -> None:
    twice = keep(small(), [[2], [], []], [torch.tensor([0, 2]), torch.arange(4), torch.arange(0)])
    assert twice.config.intermediate_sizes == [2, 4, 0]
    assert twice.config.pruned_heads == {0: [0, 1, 3], 1: [0, 1, 2, 3], 2: [0, 1, 2, 3]}
    once = keep(
        tiny("BertForSequenceClassification"), [[2], [], []], [torch.tensor([1, 40]), NEURONS[1][:4], torch.arange(0)]
    )
    assert torch.equal(states(twice), states(once))


def test_the_engine_answers_like_the_reference() -> None:
    model = small()
    torch.testing.assert_close(states(bertie.compile(model)), states(model), atol=1e-5, rtol=0)


def test_dropped_layers_keep_the_sizes_of_the_others() -> None:
    fewer = keep_layers(small(), [0, 2])
    assert Sizes.of(fewer) == Sizes((3, 1), (3, 0))
    assert fewer.config.intermediate_sizes == [3, 0]
    assert Sizes.of(make_student(small(), num_layers=1)) == Sizes((1,), (0,))


@pytest.mark.parametrize("name", ["BertForSequenceClassification", "BertModel", "BertForMaskedLM"])
def test_the_dense_twin_gives_the_same_answers_in_transformers(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = small(name)
    twin = dense(model)
    assert Sizes.of(twin) == Sizes((4, 4, 4), (48, 48, 48))
    torch.testing.assert_close(states(twin), states(model), atol=1e-5, rtol=0)
    twin.save_pretrained(tmp_path)
    assert "intermediate_sizes" not in json.loads((tmp_path / "config.json").read_text())
    theirs = getattr(transformers, name).from_pretrained(tmp_path).eval()
    with torch.no_grad():
        ours, got = model(IDS, MASK)[0], theirs(IDS, MASK)[0]
    if ours.shape[:2] == IDS.shape:
        ours, got = ours[MASK.bool()], got[MASK.bool()]
    torch.testing.assert_close(ours, got, atol=1e-5, rtol=0)


def test_gradients_reach_every_part_that_is_left() -> None:
    model = small().train()
    model(IDS, MASK, labels=torch.tensor([0, 1])).loss.backward()
    missing = [name for name, p in model.named_parameters() if p.grad is None and p.numel()]
    assert not missing
    torch.optim.AdamW(model.parameters()).step()


def test_inspect_and_verify_say_the_sizes(tmp_path: Path) -> None:
    small().save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    rows = dict(summarise(tmp_path).rows())
    assert rows["neurons by layer"] == "3, 32, 0"
    assert rows["pruned heads"] == "layer 0: 1; layer 1: 0, 1, 2, 3; layer 2: 0, 2, 3"
    certificate = certify(tmp_path)
    assert certificate.passed
    assert "feed-forward neurons by layer: 3, 32, 0" in certificate.numerics


def test_the_tensorflow_format_has_no_place_for_sizes_by_layer(tmp_path: Path) -> None:
    keep(tiny("BertModel"), [[0, 1, 2, 3]] * 3, NEURONS).save_pretrained(tmp_path / "small")
    tokenizer().save_pretrained(tmp_path / "small")
    with pytest.raises(
        CheckpointError, match="one feed-forward size for all layers; this model has 3, 32, 0"
    ) as raised:
        convert(tmp_path / "small", tmp_path / "tf", target="tf")
    assert "bertie compress --dense" in str(raised.value)
    bertie.compress(tmp_path / "small", dense=True, output=tmp_path / "plain")
    convert(tmp_path / "plain", tmp_path / "tf", target="tf")


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ([1, 2], "has 2 numbers; config.num_hidden_layers is 3"),
        ([1, 2, 49], r"whole numbers from 0 to config.intermediate_size \(48\)"),
        ([1, 2, -1], "whole numbers from 0"),
        ([1, 2, True], "whole numbers from 0"),
        ("48", "it must be a list"),
    ],
)
def test_sizes_that_cannot_be_are_refused(sizes: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        tiny("BertModel", intermediate_sizes=sizes)
