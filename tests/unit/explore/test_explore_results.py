"""Every result pickles, and becomes a table, a plot and a picture; without the packages it says what to install."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from dataclasses import fields
from importlib import util
from typing import Any

import numpy as np
import pytest

import bertie
from bertie.errors import MissingExtra
from bertie.explore import Result, Session, Switches, importance
from explore_sessions import session_of
from tiny_models import SENTENCES

MAKE: dict[str, Callable[[], Result]] = {
    "attention": lambda: session_of("fill").attention(1, 2),
    "head_statistics": lambda: session_of("fill").head_statistics(),
    "neuron_view": lambda: session_of("fill").neuron_view(1, 2, 3, 4),
    "rollout": lambda: session_of("fill").rollout(),
    "flow": lambda: session_of("fill", text="the [MASK]").flow(),
    "answer": lambda: session_of("answer").answer(),
    "ablate": lambda: session_of("classify").ablate(Switches(heads={(0, 1)})),
    "attribute": lambda: session_of("embed").attribute(),
    "match": lambda: session_of("embed").match(),
    "lens": lambda: session_of("fill").lens(),
    "drift": lambda: session_of("fill").drift(),
    "patch": lambda: (lambda session: session.patch(session))(session_of("classify")),
    "trace": lambda: session_of("choice").trace(),
    "importance": lambda: importance(SENTENCES, model=session_of("fill").model, tokenizer=session_of("fill").tokenizer),
}


def same(a: object, b: object) -> None:
    if isinstance(a, np.ndarray):
        np.testing.assert_array_equal(a, b)
    elif isinstance(a, tuple) and isinstance(b, tuple):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            same(one, other)
    elif hasattr(a, "__dataclass_fields__"):
        assert type(a) is type(b)
        for field in fields(a):  # type: ignore[arg-type]
            same(getattr(a, field.name), getattr(b, field.name))
    else:
        assert a == b or (a != a and b != b)


@pytest.mark.parametrize("view", MAKE)
def test_a_result_pickles_and_shows_itself(view: str) -> None:
    found = MAKE[view]()
    same(pickle.loads(pickle.dumps(found)), found)
    columns = found.columns()
    sizes = {len(values) for values in columns.values()}
    assert len(sizes) == 1
    assert sizes.pop() > 0
    frame = found.to_frame()
    assert list(frame.columns) == list(columns)
    assert len(frame) == len(next(iter(columns.values())))
    axes = found.plot()
    assert axes.has_data()
    assert found.plot(axes) is axes
    html = found._repr_html_()
    assert html.startswith("<div")
    assert html.count("<") == html.count(">")
    assert repr(found).startswith(f"{type(found).__name__}(")
    assert len(repr(found)) < 800
    assert "\n" not in repr(found)


def test_long_work_tells_a_function_and_stops_when_it_raises() -> None:
    session = session_of("classify")
    for work in (
        lambda tell: session.attribute("occlusion", progress=tell),
        lambda tell: session.attribute(steps=9, progress=tell),
        lambda tell: session.patch(session, progress=tell),
    ):
        seen: list[tuple[int, int]] = []
        work(lambda done, total, seen=seen: seen.append((done, total)))
        assert seen == [(done, seen[-1][1]) for done in range(seen[-1][1] + 1)]

        def stop(done: int, total: int) -> None:
            if done == 1:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            work(stop)
        assert not any(module._forward_hooks for module in session.model.modules())
        assert len(session.bert.encoder.layer) == 3


def test_tokens_are_escaped_in_pictures() -> None:
    session = session_of("classify", text="a <script> & b")
    for found in (session.attention(0, 0), session.attribute("occlusion"), session.drift(), session.rollout()):
        assert "<script" not in found._repr_html_()


@pytest.mark.parametrize(("package", "method"), [("pandas", "to_frame"), ("matplotlib", "plot"), ("scipy", "flow")])
def test_a_missing_package_is_named_with_its_extra(package: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_of("fill")
    drift, real = session.drift(), util.find_spec

    def find(name: str, *given: Any) -> Any:
        return None if name == package else real(name, *given)

    for module in ("bertie.explore.result", "bertie.explore.flow"):
        monkeypatch.setattr(sys.modules[module], "find_spec", find)
    with pytest.raises(MissingExtra, match=rf"needs the package '{package}'(?s:.*)bertie\[explore\]"):
        getattr(session if method == "flow" else drift, method)()


def test_the_room_is_called_and_has_its_names() -> None:
    assert "explore" in bertie.__all__
    found = bertie.explore("The capital of France is [MASK].")  # type: ignore[operator]
    assert isinstance(found, Session)
    assert found.task == "fill"
    for name in bertie.explore.__all__:
        assert getattr(bertie.explore, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nosuch'"):
        _ = bertie.explore.nosuch
    assert repr(found).startswith("Session('The capital of France is [MASK].', task='fill'")


def test_a_session_keeps_states_and_no_maps() -> None:
    """What a session holds does not grow with the maps that are looked at."""
    session = session_of("classify", text="the dog and the fox " * 8)
    session.head_statistics()
    for layer in range(3):
        for head in range(4):
            session.map_bytes(layer, head)
    held = [value for value in vars(session).values() if isinstance(value, dict)]
    tensors = [x for values in held for x in values.values() if hasattr(x, "numel")]
    assert [tuple(x.shape) for x in tensors] == [(4, len(session.rows[0]), 32)]
