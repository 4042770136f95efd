"""Long work holds the model for one part at a time: whoever asks meanwhile comes in between."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from bertie.explore import importance, open_session
from bertie.explore.switches import held
from explore_sessions import session_of
from tiny_models import SENTENCES, tokenizer


def look_in(model: Any, times: list[int]) -> Callable[[int, int], None]:
    """A function for progress that has another thread use the model."""

    def progress(done: int, total: int) -> None:
        free = threading.Event()

        def use() -> None:
            with held(model):
                free.set()

        threading.Thread(target=use, daemon=True).start()
        assert free.wait(5), "the model is held"
        times.append(done)

    return progress


@pytest.mark.parametrize("method", ["integrated_gradients", "occlusion"])
def test_attribution_lets_others_in(method: Any) -> None:
    session, times = session_of("classify"), list[int]()
    session.attribute(method, progress=look_in(session.model, times))
    assert times


def test_patching_lets_others_in() -> None:
    session, times = session_of("fill"), list[int]()
    other = open_session(session.texts[0], model=session.model, tokenizer=tokenizer())
    session.patch(other, progress=look_in(session.model, times))
    assert len(times) > session.num_layers


@pytest.mark.parametrize("method", ["gradient", "leave_one_out"])
def test_importance_lets_others_in(method: Any) -> None:
    session, times = session_of("fill"), list[int]()
    importance(
        SENTENCES, model=session.model, tokenizer=tokenizer(), of="layers", method=method,
        progress=look_in(session.model, times),
    )  # fmt: skip
    assert times
    if method == "leave_one_out":  # also while the model is evaluated whole, and after every batch
        assert len(times) > 2 * session.num_layers + 1
