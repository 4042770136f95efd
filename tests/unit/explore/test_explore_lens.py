"""What the head says after each layer, how states drift, and one forward pass written down."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import bertie
from bertie.answers import Filled
from bertie.errors import InputError
from bertie.explore import Switches, open_session
from bertie.model import bert
from explore_sessions import TASKS, VARIANTS, ids_of, session_of


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_last_layer_of_the_lens_is_the_models_own_answer(variant: str) -> None:
    session = session_of("fill", **VARIANTS[variant])
    answer = session.answer().value
    assert isinstance(answer, Filled)
    place = session.targets()[0].place
    assert place is not None
    found = session.lens(top_k=5)
    assert found.words[-1][place] == tuple(session.tokenizer.convert_ids_to_tokens([c.id for c in answer.candidates]))
    np.testing.assert_allclose(found.probabilities[-1, place], [c.score for c in answer.candidates], atol=1e-6)


def test_the_lens_is_the_head_on_every_state() -> None:
    session = session_of("fill")
    with torch.no_grad():
        states = session.bert(**ids_of(session), output_hidden_states=True).hidden_states
        expected = [session.model.cls(state)[0].softmax(-1) for state in states]
    found = session.lens(top_k=3, places=[2, 5])
    assert found.tokens == (session.rows[0].names[2], session.rows[0].names[5])
    for layer, probabilities in enumerate(expected):
        best, ids = probabilities[[2, 5]].topk(3)
        np.testing.assert_allclose(found.probabilities[layer], best, atol=1e-5)
        assert list(found.words[layer][1]) == session.tokenizer.convert_ids_to_tokens(ids[1].tolist())


def test_the_lens_of_the_shipped_model() -> None:
    session = open_session("The king sat on his [MASK].")
    found = session.lens()
    assert found.words[-1][found.tokens.index("[MASK]")][0] == session.answer().text
    assert session.name == "bertie-mini"  # and not where it was installed: a saved page may be given away


def test_drift_begins_and_ends_at_itself() -> None:
    session = session_of("embed")
    found = session.drift(1)
    with torch.no_grad():
        states = session.bert(**ids_of(session, 1), output_hidden_states=True).hidden_states
    np.testing.assert_allclose(found.to_first[0], 1, atol=1e-5)
    np.testing.assert_allclose(found.to_last[-1], 1, atol=1e-5)
    np.testing.assert_allclose(found.to_last[1], F.cosine_similarity(states[1], states[-1], dim=-1)[0], atol=1e-5)


def test_bad_settings_of_a_lens_are_refused() -> None:
    session = session_of("fill")
    with pytest.raises(InputError, match="top_k is 0"):
        session.lens(top_k=0)
    with pytest.raises(InputError, match="place is -1; the row has"):
        session.lens(places=[-1])
    assert session.lens(top_k=10**6).probabilities.shape[-1] == session.config.vocab_size


# -- traces ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TASKS)
def test_a_trace_has_every_module_that_ran(task: str) -> None:
    session = session_of(task)
    trace = session.trace(place=1)
    names = [step.name for _, step in trace.steps()]
    ran: list[str] = []
    known = {module: name or "model" for name, module in session.model.named_modules()}
    handles = [m.register_forward_pre_hook(lambda m, given: ran.append(known[m])) for m in known]
    with torch.no_grad():
        session.reading.run_ids(0)
    for handle in handles:
        handle.remove()
    assert names == ran
    assert trace.root.kind == type(session.model).__name__
    layer = trace.find("encoder.layer.2" if task == "embed" else "bert.encoder.layer.2")
    assert layer.shape == (1, len(session.rows[0]), 32)
    assert layer.vector is not None
    np.testing.assert_allclose(layer.vector, session.states()[3][1], atol=1e-5)
    assert layer.norm == pytest.approx(float(np.linalg.norm(layer.vector)), abs=1e-4)
    assert layer.formula


def test_numbers_of_a_trace_are_of_all_tokens_or_of_one() -> None:
    session = session_of("classify")
    step = session.trace().find("bert.encoder.layer.1")
    states = session.states()[2]
    assert step.vector is None
    assert step.mean == pytest.approx(float(states.mean()), abs=1e-5)
    assert step.std == pytest.approx(float(states.std(correction=0)), abs=1e-5)
    assert step.norm == pytest.approx(float(states.norm(dim=-1).mean()), abs=1e-4)
    assert session.trace(place=4).find("bert.encoder.layer.1").mean == pytest.approx(float(states[4].mean()), abs=1e-5)


def test_the_source_of_a_step_is_the_line_that_computed_it() -> None:
    trace = session_of("classify").trace()
    for _, step in trace.steps():
        assert step.source is not None
        lines = (Path(bertie.__file__).parents[1] / step.source.file).read_text(encoding="utf-8").splitlines()
        start = step.source.first - 1
        assert list(step.source.lines) == lines[start : start + len(step.source.lines)]
    query = trace.find("bert.encoder.layer.0.attention.self.query").source
    assert query is not None
    assert query.file.endswith("model/bert.py")
    assert [line.strip() for line in query.lines] == ["q = self.split_heads(self.query(hidden_states))"]
    layer = trace.find("bert.encoder.layer.0").source
    assert layer is not None
    forward: Any = inspect.unwrap(bert.BertLayer.forward)
    assert layer.first == inspect.getsourcelines(forward)[1]


def test_a_trace_shows_what_is_off() -> None:
    session = session_of("classify").switch(Switches(layers={1}))
    trace = session.trace(place=2)
    before, after = (trace.find(f"bert.encoder.layer.{layer}").vector for layer in (0, 1))
    assert before is not None
    assert after is not None
    np.testing.assert_array_equal(before, after)
    assert not session.model._forward_hooks
    with pytest.raises(InputError, match="place is 99"):
        session.trace(place=99)
    with pytest.raises(KeyError, match="nosuch"):
        trace.find("nosuch")
