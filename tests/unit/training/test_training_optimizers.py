"""Optimizers and schedules against PyTorch's own and against their formulas in float64."""

from __future__ import annotations

import math
from typing import Any, get_args

import click
import pytest
import torch
from torch import Tensor

from bertie.cli.commands.training.finetune import command as finetune
from bertie.errors import ConfigError, CorruptCheckpoint
from bertie.training import optim
from bertie.training.optim import Optimizer, Schedule, depth_of, global_norm, has_decay, make_schedule
from bertie.training.settings import ScheduleName, Settings

SHAPES = {
    "bert.embeddings.word_embeddings.weight": (11, 6),
    "bert.encoder.layer.0.attention.self.query.weight": (6, 6),
    "bert.encoder.layer.0.attention.self.query.bias": (6,),
    "bert.encoder.layer.1.output.LayerNorm.weight": (6,),
    "classifier.weight": (2, 6),
}


def parameters(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.nn.Parameter(torch.randn(shape, generator=generator)) for name, shape in SHAPES.items()}


def give_gradients(params: dict[str, Tensor], seed: int, scale: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in params.values():
        parameter.grad = torch.randn(parameter.shape, generator=generator) * scale


def optimizer(params: dict[str, Tensor], **values: Any) -> Optimizer:
    return Optimizer(params, Settings(**({"learning_rate": 1e-2, "weight_decay": 0.1} | values)), num_layers=2)


def step(made: Optimizer, *, lr: float = 1e-2, scale: float = 1.0, skip: bool = False) -> None:
    made.step(learning_rate=lr, grad_scale=torch.tensor(scale), found_inf=torch.tensor(float(skip)))


def test_adamw_equals_pytorchs() -> None:
    ours, theirs = parameters(), parameters()
    made = optimizer(ours)
    decayed = [p for name, p in theirs.items() if has_decay(name)]
    plain = [p for name, p in theirs.items() if not has_decay(name)]
    peer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}], lr=1e-2, fused=False
    )
    for number in range(20):
        give_gradients(ours, number)
        give_gradients(theirs, number)
        step(made)
        peer.step()
    for name in SHAPES:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-5, atol=1e-6)


def test_adam_weight_decay_is_googles_formula() -> None:
    params = parameters()
    made = optimizer(params, optimizer="adam-weight-decay")
    expected = {name: p.detach().double().clone() for name, p in params.items()}
    m = {name: torch.zeros_like(p) for name, p in expected.items()}
    v = {name: torch.zeros_like(p) for name, p in expected.items()}
    for number in range(10):
        give_gradients(params, number)
        for name, value in expected.items():
            grad = params[name].grad
            assert grad is not None
            m[name] = 0.9 * m[name] + 0.1 * grad.double()
            v[name] = 0.999 * v[name] + 0.001 * grad.double() ** 2
            update = m[name] / (v[name].sqrt() + 1e-6) + (0.1 if has_decay(name) else 0.0) * value
            expected[name] = value - 1e-2 * update
        step(made)
    for name, value in expected.items():
        torch.testing.assert_close(params[name].detach().double(), value, rtol=1e-5, atol=1e-6)


def test_lamb_is_its_formula() -> None:
    params = parameters()
    made = optimizer(params, optimizer="lamb")
    expected = {name: p.detach().double().clone() for name, p in params.items()}
    m = {name: torch.zeros_like(p) for name, p in expected.items()}
    v = {name: torch.zeros_like(p) for name, p in expected.items()}
    for number in range(1, 11):
        give_gradients(params, number)
        for name, value in expected.items():
            grad = params[name].grad
            assert grad is not None
            m[name] = 0.9 * m[name] + 0.1 * grad.double()
            v[name] = 0.999 * v[name] + 0.001 * grad.double() ** 2
            direction = (m[name] / (1 - 0.9**number)) / ((v[name] / (1 - 0.999**number)).sqrt() + 1e-6)
            direction = direction + (0.1 if has_decay(name) else 0.0) * value
            expected[name] = value - 1e-2 * direction * value.norm() / direction.norm()
        step(made)
    for name, value in expected.items():
        torch.testing.assert_close(params[name].detach().double(), value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["adamw", "adam-weight-decay", "lamb"])
def test_a_skipped_step_changes_nothing(name: Any) -> None:
    params = parameters()
    made = optimizer(params, optimizer=name)
    give_gradients(params, 1)
    step(made)
    before = {n: p.detach().clone() for n, p in params.items()}
    moments = {(n, kind): t.clone() for n, kind, t in made.tensors()}
    counts = made.steps()
    give_gradients(params, 2, scale=float("nan"))
    step(made, skip=True)
    assert all(torch.equal(params[n], before[n]) for n in params)
    assert all(torch.equal(t, moments[n, kind]) for n, kind, t in made.tensors())
    assert made.steps() == counts


@pytest.mark.parametrize("name", ["adamw", "adam-weight-decay", "lamb"])
def test_grad_scale_divides_the_gradient(name: Any) -> None:
    plain, scaled = parameters(), parameters()
    first, second = optimizer(plain, optimizer=name), optimizer(scaled, optimizer=name)
    for number in range(5):
        give_gradients(plain, number)
        give_gradients(scaled, number, scale=8.0)
        step(first)
        step(second, scale=8.0)
    for parameter in SHAPES:
        torch.testing.assert_close(plain[parameter], scaled[parameter])


def test_biases_and_layer_norm_are_not_decayed() -> None:
    params = parameters()
    made = optimizer(params, learning_rate=1.0)
    decays = {name: group.decay for group in made.groups for name in group.names}
    assert [decays[name] for name in SHAPES] == [0.1, 0.1, 0.0, 0.0, 0.1]


def test_layer_decay_lowers_the_rate_toward_the_embeddings() -> None:
    made = optimizer(parameters(), layer_decay=0.5)
    rates = {name: group.rate for group in made.groups for name in group.names}
    assert [rates[name] for name in SHAPES] == [0.125, 0.25, 0.25, 0.5, 1.0]
    assert depth_of("encoder.layer.11.output.dense.bias", 12) == 12  # a bare BertModel has no "bert."
    assert depth_of("embeddings.LayerNorm.weight", 12) == 0


def test_optimizer_state_round_trips_through_plain_tensors() -> None:
    params = parameters()
    made = optimizer(params)
    for number in range(3):
        give_gradients(params, number)
        step(made)
    twin = {name: torch.nn.Parameter(p.detach().clone()) for name, p in params.items()}
    other = optimizer(twin)
    for (_, _, target), (_, _, source) in zip(other.tensors(), made.tensors(), strict=True):
        target.copy_(source)
    other.load_steps(made.steps())
    for each, values in ((made, params), (other, twin)):
        give_gradients(values, 9)
        step(each)
    assert all(torch.equal(params[name], twin[name]) for name in params)
    with pytest.raises(CorruptCheckpoint, match="no step count"):
        other.load_steps({})


def test_parameters_without_a_gradient_are_left_alone() -> None:
    params = parameters()
    made = optimizer(params)
    params["classifier.weight"].grad = torch.ones(2, 6)
    before = params["bert.embeddings.word_embeddings.weight"].detach().clone()
    step(made)
    assert torch.equal(params["bert.embeddings.word_embeddings.weight"], before)
    assert len(made.grads()) == 1


def test_the_norm_is_that_of_all_gradients_together() -> None:
    grads = [torch.tensor([3.0]), torch.tensor([[4.0]]), torch.zeros(0)]
    assert float(global_norm(grads, lambda x: x, torch.device("cpu"))) == 5.0
    assert float(global_norm([], lambda x: x, torch.device("cpu"))) == 0.0
    assert math.isnan(float(global_norm([torch.tensor([float("nan")])], lambda x: x, torch.device("cpu"))))


# -- schedules -------------------------------------------------------------------------------------------------------


def test_schedules_at_known_steps() -> None:
    linear = Schedule("linear", peak=1.0, num_steps=100, num_warmup=10)
    assert [linear(s) for s in (0, 5, 10, 55, 100)] == [0.0, 0.5, 1.0, 0.5, 0.0]
    cosine = Schedule("cosine", peak=1.0, num_steps=100, num_warmup=0)
    assert [round(cosine(s), 9) for s in (0, 50, 100)] == [1.0, 0.5, 0.0]
    constant = Schedule("constant", peak=2.0, num_steps=10, num_warmup=2)
    assert [constant(s) for s in (0, 1, 2, 9)] == [0.0, 1.0, 2.0, 2.0]
    square = Schedule("polynomial", peak=1.0, num_steps=10, num_warmup=0, final=0.2, power=2.0)
    assert [round(square(s), 9) for s in (0, 5, 10, 50)] == [1.0, 0.4, 0.2, 0.2]


def test_warm_up_is_a_share_or_a_number_of_steps() -> None:
    assert make_schedule(Settings(warmup=0.1), 200).num_warmup == 20
    assert make_schedule(Settings(warmup=50), 200).num_warmup == 50
    assert make_schedule(Settings(warmup=0), 200)(0) == 3e-5
    with pytest.raises(ConfigError, match="no steps"):
        make_schedule(Settings(), 0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"optimizer": "sgd"}, "^optimizer='sgd' is not known"),
        ({"schedule": "step"}, "^schedule='step' is not known"),
        ({"precision": "fp16"}, "^precision='fp16' is not known"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0"),
        ({"beta1": 1.0}, "beta1 is 1.0"),
        ({"layer_decay": 1.5}, "layer_decay is 1.5"),
        ({"max_steps": 0}, "max_steps is 0"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_settings_that_cannot_be_meant_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Settings(**values)


def test_every_schedule_of_the_settings_has_a_shape_and_is_offered_on_the_command_line() -> None:
    names = get_args(ScheduleName)
    assert set(optim.SHAPES) == set(names)
    option = next(one for one in finetune.commands["classify"].params if one.name == "schedule")
    assert isinstance(option.type, click.Choice)
    assert tuple(option.type.choices) == names
