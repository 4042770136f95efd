"""What the page asks of a session is what the session says, and the walk ends where the model does."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertie
from bertie.checkpoint.open_checkpoint import open_checkpoint
from bertie.defaults import default_embedding_model, default_language_model
from bertie.errors import InputError
from bertie.explore import open_session
from bertie.explore.opening import tasks_of
from bertie.explore.page.queries import QUERIES, patching
from bertie.explore.page.steps import STEPS
from bertie.explore.page.walk import walk
from bertie.explore.session import Session
from bertie.explore.switches import encoder_of
from bertie.loading import model_class
from bertie.serve.failures import Refusal
from bertie.serve.jobs import Jobs
from bertie.serve.metrics import MULTIPROCESS
from tiny_models import tiny, tokenizer

TEXT = "the quick brown [MASK] jumps over the dog"
SECOND = "the dog sleeps on"
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "fill": ("BertForMaskedLM", {}),
    "next": ("BertForNextSentencePrediction", {}),
    "classify": ("BertForSequenceClassification", {"id2label": {0: "bad", 1: "good"}}),
    "tag": ("BertForTokenClassification", {"id2label": {0: "O", 1: "B-PER"}}),
    "answer": ("BertForQuestionAnswering", {}),
    "choice": ("BertForMultipleChoice", {}),
    "embed": ("BertModel", {}),
}


def opened(task: str, **config: Any) -> Session:
    architecture, own = MODELS[task]
    second = {"next": SECOND, "answer": SECOND, "choice": [SECOND, "nothing at all"]}.get(task)
    return open_session(TEXT, second, model=tiny(architecture, **(own | config)), tokenizer=tokenizer())


def assert_packed(step: dict[str, Any], state: torch.Tensor) -> None:
    """A letter to a number, which is ±(code / 28)² times the largest."""
    codes = np.frombuffer(step["vector"]["codes"].encode("ascii"), np.uint8).astype(np.float32) - 63
    scaled = state.numpy() / step["vector"]["scale"]
    assert np.abs(codes).max() == 28
    assert np.abs(np.sign(scaled) * np.sqrt(np.abs(scaled)) - codes / 28).max() <= 0.5 / 28 + 1e-3


def ask_everything(session: Session) -> None:
    options: dict[str, dict[str, Any]] = {
        "map": {"layer": 1, "head": 2}, "neurons": {"layer": 1, "head": 2, "query": 1, "key": 2},
        "switch": {"off": {"heads": [[0, 1]], "layers": [2]}}, "walk": {"place": 2},
    }  # fmt: skip
    alone = session.task == "embed" and len(session.rows) == 1  # a vector has nothing to explain
    missing = {"lens": session.task != "fill", "match": session.task != "embed" or alone, "targets": alone}
    for name, query in QUERIES.items():
        if missing.get(name):
            continue
        found = query(session, **options.get(name, {}))
        assert isinstance(found, bytes) or json.loads(json.dumps(found, allow_nan=False)) is not None


@pytest.mark.parametrize("task", MODELS)
def test_every_query_is_plain_json_or_bytes(task: str) -> None:
    ask_everything(opened(task))


@pytest.mark.parametrize("default", [default_language_model, default_embedding_model], ids=["mini", "minilm"])
@pytest.mark.parametrize("task", MODELS)
def test_every_head_can_be_explored_on_the_models_that_are_there_at_once(task: str, default: Callable[[], str]) -> None:
    """Heads that the checkpoint has as they are; the others new, on its encoder."""
    folder = default()
    words = bertie.BertTokenizer.from_pretrained(folder)
    second = {"fill": None, "classify": None, "tag": None, "choice": [SECOND, "nothing at all"]}.get(task, SECOND)
    given: dict[str, Any] = {"model": folder}
    if task not in tasks_of(model_class(open_checkpoint(folder))):
        architecture, own = MODELS[task]
        encoder = bertie.BertModel.from_pretrained(folder, add_pooling_layer=False)
        model = getattr(bertie, architecture)(bertie.BertConfig.from_dict(encoder.config.to_dict() | own)).eval()
        encoder_of(model).load_state_dict(encoder.state_dict(), strict=False)
        given = {"model": model, "tokenizer": words}
    session = open_session(TEXT, second, task=task, **given)
    ask_everything(session)
    assert session.answer().top
    scores = session.attribute("gradient_x_input").scores
    assert [len(one) for one in scores] == [len(row) for row in session.rows]


def test_a_map_is_a_byte_to_a_weight() -> None:
    session = opened("fill")
    size = len(session.rows[0])
    found = np.frombuffer(QUERIES["map"](session, layer=1, head=2), np.uint8).reshape(size, size)  # type: ignore[arg-type]
    weights = session.attention(1, 2).weights
    assert np.abs(np.sqrt(weights) - found / 255).max() <= 0.5 / 255 + 1e-6


@pytest.mark.parametrize("task", MODELS)
@pytest.mark.parametrize(
    "config", [{}, {"position_embedding_type": "relative_key_query"}], ids=["absolute", "relative"]
)
def test_the_walk_passes_through_the_states_of_the_model(task: str, config: dict[str, Any]) -> None:
    session = opened(task, **config)
    place = 3
    steps = walk(session, place=place)["steps"]
    states = session.states(0)
    first = [step for step in steps if step["key"] == "embedding_norm"]
    last = [step for step in steps if step["key"] == "feed_norm"]
    assert len(last) == session.num_layers
    for state, step in zip(states, [*first, *last], strict=True):
        assert_packed(step, state[place])
        assert step["vector"]["first"] == pytest.approx(state[place][:6].tolist(), abs=2e-4)
    assert any(step["key"] == "position" for step in steps) == (not config)


def test_the_walk_ends_with_the_model_s_own_words() -> None:
    session = opened("fill")
    place = session.rows[0].names.index("[MASK]")
    words = walk(session, place=place)["steps"][-1]["words"]
    assert [name for name, _ in words[:3]] == [name for name, _ in session.answer().top[:3]]
    assert words[0][1] == pytest.approx(session.answer().top[0][1], abs=1e-3)


def test_the_walk_goes_on_where_heads_are_pruned_or_a_layer_has_none() -> None:
    model = tiny("BertForMaskedLM")
    model.prune_heads({0: [1], 1: [0, 1, 2, 3]})
    session = open_session(TEXT, model=model, tokenizer=tokenizer())
    steps = walk(session, place=2)["steps"]
    assert set(next(step for step in steps if step["key"] == "weights")["by_head"]) == {0, 2, 3}
    assert not any(step["key"] == "weights" and step["layer"] == 1 for step in steps)
    last = [step for step in steps if step["key"] == "feed_norm"][-1]
    assert_packed(last, session.states(0)[-1][2])


@pytest.mark.parametrize("key", STEPS)
def test_every_step_of_the_walk_marks_lines_of_its_source(key: str) -> None:
    from bertie.explore.page.walk import source_of

    source, marked = source_of(STEPS[key])
    assert source["file"].startswith("bertie/")
    assert marked
    assert all(source["first"] <= line < source["first"] + len(source["lines"]) for line in marked)
    for mark in STEPS[key].marks:
        assert any(mark in line for line in source["lines"])


def test_switches_give_the_answer_of_an_ablation() -> None:
    from bertie.explore import Switches

    session = opened("fill")
    found = QUERIES["switch"](session, off={"heads": [[0, 1], [2, 3]], "feed_forward": [1]})
    whole = session.ablate(Switches(heads={(0, 1), (2, 3)}, feed_forward={1}))
    assert isinstance(found, dict)
    assert [name for name, _ in found["after"]["top"]] == [name for name, _ in whole.after.top]
    assert found["before"]["text"] == whole.before.text


def test_patching_shows_what_there_is_so_far_and_ends_whole() -> None:
    session = opened("fill")
    other = open_session(TEXT.replace("quick", "lazy"), model=session.model, tokenizer=tokenizer())
    if len(other.rows[0]) != len(session.rows[0]):
        other = open_session(TEXT.replace("the dog", "the fox"), model=session.model, tokenizer=tokenizer())
    seen: list[int] = []
    found = patching(session, lambda done, total, partial: seen.append(len(partial["effect"])), other=other)  # type: ignore[index]
    assert seen == sorted(seen)  # several times for each layer
    assert set(seen) == set(range(session.num_layers + 1))
    whole = session.patch(other, progress=False).effect
    assert np.allclose(np.array(found["effect"], np.float32), whole, atol=1e-4)


def test_long_work_is_reported_stopped_and_limited() -> None:
    jobs = Jobs()

    def endless(report: Any) -> None:
        while True:
            report(1, 2, "so far")
            time.sleep(0.01)

    started = [jobs.start(endless) for _ in range(4)]
    with pytest.raises(Exception, match="under way"):
        jobs.start(endless)
    until = time.monotonic() + 20
    while started[0].partial is None and time.monotonic() < until:
        time.sleep(0.01)
    assert (started[0].done, started[0].total, started[0].partial) == (1, 2, "so far")
    for job in started:
        job.stopped = True
    done = jobs.start(lambda report: torch.tensor(3.0).item())
    failed = jobs.start(lambda report: 1 / 0)
    while (done.result is None or failed.error is None) and time.monotonic() < until:
        time.sleep(0.01)
    assert done.result == 3.0
    assert isinstance(failed.error, ZeroDivisionError)
    assert jobs.find(done.name) is done
    assert jobs.find("nobody's") is None


def test_a_job_is_known_to_every_worker_of_a_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(MULTIPROCESS, str(tmp_path))
    here, there = Jobs(), Jobs()

    def asked(name: str, ready: Any) -> Any:
        until = time.monotonic() + 30
        while time.monotonic() < until:
            found = there.find(name)
            if found is not None and ready(found):
                return found
            time.sleep(0.01)
        raise AssertionError("the other worker never learnt of it")

    def endless(report: Any) -> None:
        while True:
            report(1, 2, ["so far"])
            time.sleep(0.01)

    def refused(report: Any) -> None:
        raise InputError("Line 3 is not JSON.", "Mend it.")

    running = here.start(endless)
    seen = asked(running.name, lambda job: job.partial is not None)
    assert (seen.done, seen.total, seen.partial, seen.is_over) == (1, 2, ["so far"], False)
    there.stop(seen)
    assert asked(running.name, lambda job: job.stopped).result is None
    done = here.start(lambda report: {"effect": [0.5, None]})
    assert asked(done.name, lambda job: job.is_over).result == {"effect": [0.5, None]}
    failed = asked(here.start(refused).name, lambda job: job.is_over)
    assert isinstance(failed.error, Refusal)
    assert (failed.error.status, failed.error.message, failed.error.remedy) == (422, "Line 3 is not JSON.", "Mend it.")
    assert there.find("../../etc/passwd") is None
    assert there.find("0" * 16) is None
