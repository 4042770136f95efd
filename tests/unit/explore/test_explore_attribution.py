"""Scores of tokens: what they add up to, what they are compared with, for every task and both texts of a pair."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertie.errors import InputError
from bertie.explore import Switches, Target, open_session
from explore_sessions import TASKS, VARIANTS, session_of
from sentence_models import tiny_sentence_model
from tiny_models import tokenizer


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("task", TASKS)
def test_integrated_gradients_add_up(task: str, variant: str) -> None:
    session = session_of(task, **VARIANTS[variant])
    found = session.attribute()
    assert found.error is not None
    assert found.error < 0.01
    assert found.baseline_score is not None
    total = sum(float(scores.sum()) for scores in found.scores)
    assert total == pytest.approx(found.score - found.baseline_score, abs=0.01 * abs(found.score) + 1e-4)
    assert found.score == pytest.approx(session.score(measure="logit"), abs=1e-5)
    assert [len(scores) for scores in found.scores] == [len(row) for row in session.rows]
    assert all(float(scores[0]) == 0 for scores in found.scores)  # [CLS] is in the baseline too
    assert max(float(np.abs(scores).max()) for scores in found.scores) > 1e-4


@pytest.mark.parametrize("method", ["gradient_x_input", "occlusion", "rollout", "integrated_gradients"])
@pytest.mark.parametrize("task", TASKS)
def test_every_method_scores_every_token(task: str, method: Any) -> None:
    session = session_of(task)
    found = session.attribute(method)
    assert found.method == method
    for row, scores in zip(session.rows, found.scores, strict=True):
        assert scores.shape == (len(row),)
        assert np.isfinite(scores).all()
    assert found.target == session.targets()[0]


def test_gradient_x_input_is_what_it_says() -> None:
    session = session_of("classify")
    ids = torch.tensor([session.rows[0].ids])
    embeds = session.model.get_input_embeddings()(ids).detach().requires_grad_()
    target = session.targets()[1]
    session.model(inputs_embeds=embeds).logits[0, target.index].backward()
    expected = (embeds.grad * embeds).sum(-1)[0].detach()
    np.testing.assert_allclose(session.attribute("gradient_x_input", target).scores[0], expected, atol=1e-5)


def test_occlusion_is_what_is_lost_under_a_mask() -> None:
    session = session_of("classify")
    found = session.attribute("occlusion")
    ids = session.rows[0].ids
    hidden = [*ids]
    hidden[3] = tokenizer().mask_token_id
    with torch.no_grad():
        logits = [session.model(torch.tensor([one])).logits[0, found.target.index] for one in (ids, hidden)]
    assert found.scores[0][3] == pytest.approx(float(logits[0] - logits[1]), abs=1e-5)
    assert found.scores[0][0] == found.scores[0][-1] == 0


def test_rollout_scores_are_the_rows_of_what_the_head_reads() -> None:
    words = session_of("fill")
    found = words.attribute("rollout")
    np.testing.assert_array_equal(found.scores[0], words.rollout().weights[found.target.place])
    span = session_of("answer")
    target = span.targets()[0]
    expected = span.rollout().weights[[target.place, target.end]].mean(0)
    np.testing.assert_allclose(span.attribute("rollout").scores[0], expected, atol=1e-6)
    pair = session_of("embed")
    np.testing.assert_allclose(pair.attribute("rollout").scores[1], pair.rollout(1).weights.mean(0), atol=1e-6)


def test_scores_of_a_model_with_parts_off_are_its_own() -> None:
    session = session_of("classify").switch(Switches(layers={0, 1, 2}))
    found = session.attribute(target=session_of("classify").targets()[0])
    np.testing.assert_allclose(found.scores[0], 0, atol=1e-6)  # without layers nothing reaches [CLS]


def test_steps_and_baselines_can_be_chosen() -> None:
    session = session_of("classify")
    few = session.attribute(steps=3)
    assert few.steps == 3
    assert few.error is not None
    assert session.attribute(baseline="mask").baseline_score != session.attribute(baseline="zero").baseline_score
    assert session.attribute(baseline="zero").baseline_score == few.baseline_score  # a fresh [PAD] is 0
    assert session.attribute().steps in (50, 100, 200, 400, 800)


def test_targets_of_every_task_begin_with_the_answer() -> None:
    words = session_of("fill")
    assert words.targets()[0].label == words.answer().text
    assert words.score() == pytest.approx(words.answer().top[0][1], abs=1e-6)
    span = session_of("answer")
    first = span.targets()[0]
    assert first.label == span.answer().text
    tags = session_of("tag")
    assert tags.targets()[0].place is not None
    for task in ("classify", "choice", "next"):
        session = session_of(task)
        assert session.targets()[0].label == session.answer().text
        assert session.score() == pytest.approx(session.answer().top[0][1], abs=1e-6)
    pair = session_of("embed")
    assert pair.score() == pytest.approx(pair.answer().top[0][1], abs=1e-5)


@pytest.mark.parametrize("dense", [(), (16,)])
@pytest.mark.parametrize("mode", ["mean_tokens", "cls_token", "max_tokens", "weightedmean_tokens", "lasttoken"])
def test_every_pooling_has_a_gradient_and_the_embedders_score(tmp_path: Path, mode: str, dense: Any) -> None:
    folder = tiny_sentence_model(tmp_path / "model", pooling={f"pooling_mode_{mode}": True}, dense=dense)
    session = open_session("The fox jumps over the dog.", "The dog sleeps.", model=folder, task="embed")
    assert session.score() == pytest.approx(session.answer().top[0][1], abs=1e-5)
    found = session.attribute()
    assert found.error is not None
    assert found.error < 0.01
    matched = session.match()
    assert matched.kind == ("contribution" if (mode, dense) == ("mean_tokens", ()) else "cosine")
    if matched.kind == "contribution":
        assert float(matched.weights.sum()) == pytest.approx(session.score(), abs=1e-5)
    assert matched.weights.shape == (len(session.rows[0]), len(session.rows[1]))


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"method": "guess"}, "method='guess' is not known"),
        ({"baseline": "noise"}, "baseline='noise' is not known"),
        ({"steps": 0}, "steps is 0"),
        ({"target": Target("x", 0, 99, 1)}, "place is 99; the row has"),
        ({"target": Target("x", 4)}, "row is 4"),
        ({"target": Target("x", 0, 1, 1)}, r"Token 1 is no \[MASK\]"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], cause: str) -> None:
    with pytest.raises(InputError, match=cause):
        session_of("fill").attribute(**settings)
