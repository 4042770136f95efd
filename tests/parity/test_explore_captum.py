"""Attributions are captum's: the same integrated gradients, gradient × input and occlusion, on real and tiny models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bertie.explore import Session, open_session
from explore_sessions import TASKS, session_of

attr = pytest.importorskip("captum.attr", reason="captum (extra 'compat') is not installed")


def function(session: Session) -> Any:
    """The target's logit out of the word vectors of all rows, as captum calls a model."""
    target, reading = session.target(), session.reading

    def forward(*embeds: Tensor) -> Tensor:
        return reading.score([reading.readout(row, x) for row, x in enumerate(embeds)], target, "logit")

    return forward


def inputs(session: Session) -> tuple[Tensor, ...]:
    return tuple(session.reading.embeds(row)[None] for row in range(len(session.rows)))


def baselines(session: Session) -> tuple[Tensor, ...]:
    """[PAD] in the place of everything but [CLS] and [SEP]."""
    tokenizer = session.tokenizer
    kept = (tokenizer.cls_token_id, tokenizer.sep_token_id)
    table = session.model.get_input_embeddings()
    rows = [[id_ if id_ in kept else tokenizer.pad_token_id for id_ in row.ids] for row in session.rows]
    return tuple(table(torch.tensor([row])).detach() for row in rows)


def sessions() -> dict[str, Any]:
    found: dict[str, Any] = {task: lambda task=task: session_of(task) for task in TASKS}
    found["bertie-mini"] = lambda: open_session("The capital of France is [MASK].")
    found["all-MiniLM-L6-v2"] = lambda: open_session("A man eats food.", "Someone is eating.", task="embed")
    return found


@pytest.mark.parametrize("name", sessions())
def test_integrated_gradients_are_captums(name: str) -> None:
    session = sessions()[name]()
    theirs = attr.IntegratedGradients(function(session)).attribute(
        inputs(session), baselines(session), n_steps=40, method="gausslegendre"
    )
    found = session.attribute(steps=40)
    for ours, expected in zip(found.scores, theirs, strict=True):
        np.testing.assert_allclose(ours, expected[0].sum(-1).detach(), atol=1e-4)
    assert session.attribute().error < 0.01


@pytest.mark.parametrize("name", ["fill", "answer", "embed"])
def test_gradient_x_input_is_captums(name: str) -> None:
    session = session_of(name)
    theirs = attr.InputXGradient(function(session)).attribute(tuple(x.requires_grad_() for x in inputs(session)))
    for ours, expected in zip(session.attribute("gradient_x_input").scores, theirs, strict=True):
        np.testing.assert_allclose(ours, expected[0].sum(-1).detach(), atol=1e-4)


def test_occlusion_is_captums_feature_ablation() -> None:
    session = session_of("classify")
    (embeds,) = inputs(session)
    masked = session.word_vector(session.tokenizer.mask_token_id or 0).expand_as(embeds)
    tokens = torch.arange(embeds.shape[1])[None, :, None].expand_as(embeds)
    with torch.no_grad():
        theirs = attr.FeatureAblation(function(session)).attribute(embeds, baselines=masked, feature_mask=tokens)
    np.testing.assert_allclose(session.attribute("occlusion").scores[0][1:-1], theirs[0, 1:-1, 0], atol=1e-4)
