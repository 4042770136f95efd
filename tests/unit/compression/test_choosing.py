"""Importance, search and fit against brute force, and every task that can be fine-tuned."""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.tiny_models import SENTENCES, saved, tiny, tokenizer
from torch import Tensor

from bertie.compression import cost
from bertie.compression.cost import rows_like
from bertie.compression.importance import Curve, Moments, curves, observe
from bertie.compression.layers import Sizes, keep
from bertie.compression.refit import refit
from bertie.compression.search import cheapest_loss
from bertie.compression.targets import open_target
from bertie.compression.work import Work
from bertie.engine.runner import ReferenceRunner
from bertie.ops.packing import Packing

LOSSES = st.lists(st.floats(0, 10), min_size=3, max_size=3).map(sorted)


@given(st.lists(LOSSES, min_size=4, max_size=4), st.integers(0, 24))
def test_the_search_finds_what_trying_everything_finds(losses: list[list[float]], budget: int) -> None:
    # two layers, two blocks each, of 3, 2, 1 or no units; a head costs 4, a neuron 2
    made = [Curve((0, 1, 2), (3, 2, 1, 0), (0.0, *loss)) for loss in losses]
    blocks = [{"attention": made[0], "feed-forward": made[1]}, {"attention": made[2], "feed-forward": made[3]}]
    prices = {"attention": 4, "feed-forward": 2}

    def of(sizes: tuple[int, ...]) -> tuple[float, float]:
        lost = sum(curve.loss[3 - size] for curve, size in zip(made, sizes, strict=True))
        return lost, 4 * (sizes[0] + sizes[2]) + 2 * (sizes[1] + sizes[3])

    possible = [sizes for sizes in product(range(4), repeat=4) if of(sizes)[1] <= budget]
    # The budget is counted in steps, and prices are rounded up to them: a little more makes room for that.
    found = cheapest_loss(blocks, lambda block, units: prices[block] * units, budget * 1.002 + 1e-6)
    assert found is not None
    chosen = (found.heads[0], found.neurons[0], found.heads[1], found.neurons[1])
    assert of(chosen)[1] <= budget
    assert of(chosen)[0] == pytest.approx(min(of(sizes)[0] for sizes in possible))


def test_a_budget_below_nothing_has_no_sizes() -> None:
    assert cheapest_loss([], lambda block, units: 1.0, -1.0) is None


def test_the_batch_that_is_timed_is_like_the_rows_and_keeps_all_threads_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    ids, packing = rows_like([10] * 50 + [40] * 50, "cpu", 1000)
    assert 1024 - 40 < len(ids) <= 1024
    assert len(ids) / len(packing.lengths) == pytest.approx(25, abs=2)
    assert list(rows_like([5000], "cpu", 1000)[1].lengths) == [5000] * 4
    assert 32768 - 40 < len(rows_like([10, 40], "cuda", 1000)[0]) <= 32768


def test_rounds_that_were_disturbed_do_not_change_a_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = [[4.0, 2.0]] * 5 + [[40.0, 2.0], [4.0, 90.0], [8.0, 4.0], [1.0, 1.0]]
    monkeypatch.setattr(cost, "timed", lambda *given, found=rounds, **named: found)
    runner: Any = None
    assert cost.speedup(runner, runner, torch.arange(2), Packing.of([2])) == 2


def test_a_speed_is_measured_until_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(0)

    class Noisy(ReferenceRunner):
        """One that takes a second, or half of one, give or take."""

        def __init__(self, seconds: float, noise: float) -> None:
            self.device, self.seconds, self.noise = torch.device("cpu"), seconds, noise

        def __call__(self, *given: Any, **named: Any) -> list[Tensor]:
            clock[0] += self.seconds * (1 + chance.uniform(-self.noise, self.noise))
            calls[0] += 1
            return []

    monkeypatch.setattr(cost.time, "perf_counter", lambda: clock[0])
    spent = []
    for noise in (0.001, 0.04):
        clock, calls = [0.0], [0]
        seconds = 0.02
        found = cost.speedup(Noisy(seconds, noise), Noisy(seconds / 2, noise), torch.arange(2), Packing.of([2]))
        assert found == pytest.approx(2, rel=0.02)
        spent.append(calls[0])
    assert spent[0] == 2 * 10  # nine rounds, and one to warm up
    assert spent[1] > 2 * spent[0]


def quadratic(weight: Tensor, kept: list[int], moments: Tensor, fisher: Tensor) -> float:
    """What is lost with these inputs alone, the best weights for them given: solved directly."""
    inside = moments[kept][:, kept]
    best = torch.zeros_like(weight)
    if kept:
        best[:, kept] = weight @ moments[:, kept] @ torch.linalg.inv(inside)
    off = weight - best
    return float(((fisher @ off) * (off @ moments)).sum())


def test_the_loss_of_a_curve_is_that_of_the_best_weights_without_the_units() -> None:
    model = tiny("BertModel", num_hidden_layers=1)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(400, 48, generator=generator, dtype=torch.float64) @ torch.randn(
        48, 48, generator=generator, dtype=torch.float64
    )
    g = torch.randn(100, 32, generator=generator, dtype=torch.float64)
    heads = torch.randn(200, 32, generator=generator, dtype=torch.float64)
    seen = {
        "attention": Moments([], 1.0, heads.mean(0), heads.T @ heads / 200, g.T @ g),
        "feed-forward": Moments([], 1.0, x.mean(0), x.T @ x / 400, g.T @ g),
    }
    for block, curve in curves(model, [seen])[0].items():
        layer = model.encoder.layer[0]
        linear = layer.attention.output.dense if block == "attention" else layer.output.dense
        weight, unit = linear.weight.detach().double(), 8 if block == "attention" else 1
        moments = seen[block].moments
        moments = moments + 0.01 * moments.diagonal().mean() * torch.eye(len(moments), dtype=torch.float64)
        assert curve.left[0] == len(curve.order)
        assert curve.left[-1] == 0
        for left, loss in zip(curve.left, curve.loss, strict=True):
            places = [unit * one + i for one in curve.kept(left) for i in range(unit)]
            assert loss == pytest.approx(quadratic(weight, places, moments, seen[block].fisher), rel=1e-3, abs=1e-3)


def test_a_unit_that_nothing_depends_on_goes_first_and_costs_nothing(tmp_path: Path) -> None:
    folder = saved(tmp_path, "BertModel")
    target = open_target("embed", folder, SENTENCES * 2, None, tokenizer(), None)
    with torch.no_grad():
        target.model.encoder.layer[1].output.dense.weight[:, 7] = 0
        target.model.encoder.layer[0].attention.output.dense.weight[:, 16:24] = 0
    found = curves(target.model, observe(target, target.model))
    assert found[1]["feed-forward"].order[0] == 7
    assert found[0]["attention"].order[0] == 2
    assert found[1]["feed-forward"].loss[1] == pytest.approx(0, abs=1e-6)


def test_a_fit_with_everything_left_changes_nothing(tmp_path: Path) -> None:
    folder = saved(tmp_path, "BertModel")
    target = open_target("embed", folder, SENTENCES * 2, None, tokenizer(), None)
    observed = observe(target, target.model)
    same = keep(target.model, [range(4)] * 3, [torch.arange(48)] * 3)
    refit(target.model, same, target.fit, observed)
    for before, after in zip(target.model.parameters(), same.parameters(), strict=True):
        torch.testing.assert_close(after, before, atol=2e-4, rtol=1e-3)


PLACE = SENTENCES[1].index("Paris")
ROWS: dict[str, tuple[str, dict[str, Any], list[dict[str, Any]]]] = {
    "classify": (
        "BertForSequenceClassification",
        {"id2label": {0: "a", 1: "b"}},
        [{"text": text, "label": "ab"[i % 2]} for i, text in enumerate(SENTENCES * 2)],
    ),
    "pairs": (
        "BertForSequenceClassification",
        {"id2label": {0: "a", 1: "b"}},
        [{"sentence1": t, "sentence2": SENTENCES[0], "label": "ab"[i % 2]} for i, t in enumerate(SENTENCES * 2)],
    ),
    "regress": (
        "BertForSequenceClassification",
        {"num_labels": 1, "problem_type": "regression"},
        [{"text": text, "label": i * 0.5} for i, text in enumerate(SENTENCES * 2)],
    ),
    "tag": (
        "BertForTokenClassification",
        {"id2label": {0: "O", 1: "B-LOC"}},
        [{"tokens": ["Paris", "is", "good"], "tags": ["B-LOC", "O", "O"]}] * 6,
    ),
    "answer": (
        "BertForQuestionAnswering",
        {},
        [
            {
                "id": str(i), "question": "What is the capital?", "context": SENTENCES[1],
                "answers": {"text": ["Paris"], "answer_start": [PLACE]},
            }
            for i in range(6)
        ],
    ),
    "choice": (
        "BertForMultipleChoice",
        {},
        [{"question": "the dog", "choices": ["sleeps", "is good"], "label": i % 2} for i in range(6)],
    ),
    "embed": (
        "BertModel",
        {},
        [{"sentence1": t, "sentence2": SENTENCES[0], "score": i * 0.1} for i, t in enumerate(SENTENCES)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("task", ROWS)
def test_every_task_that_can_be_fine_tuned_can_be_compressed(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, config, rows = ROWS[task]
    folder = saved(tmp_path, name, **config)
    target = open_target(task, folder, rows, None, tokenizer(), None)
    monkeypatch.setattr(Work, "speed", lambda self, model: 1.0)
    made = Work(target, "cpu", lambda line: None).of_size(0.8)
    assert made.point.parameters <= 0.8 * target.model.num_parameters()
    assert Sizes.of(made.model) == made.point.sizes
    assert made.point.score == made.point.score  # a number


def test_a_layer_with_nothing_left_goes_where_the_answers_do_not_miss_it(tmp_path: Path) -> None:
    model = tiny("BertModel")
    layer = model.encoder.layer[1]
    with torch.no_grad():  # its norms do nothing, and neither does anything else of it
        for norm in (model.encoder.layer[0].output.LayerNorm, layer.attention.output.LayerNorm, layer.output.LayerNorm):
            norm.weight.fill_(1.0)
            norm.bias.zero_()
        for dense in (layer.attention.output.dense, layer.output.dense):
            dense.weight.zero_()
            dense.bias.zero_()
    model.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    target = open_target("embed", str(tmp_path), SENTENCES * 2, None, tokenizer(), None)
    work = Work(target, "cpu", lambda line: None)
    made = work.of_size(0.75)
    assert len(made.point.sizes) == 2
    assert made.point.score >= 0.99
