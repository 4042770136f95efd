"""States of one text in another: everything is the other's answer, nothing is one's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from bertie.errors import InputError
from bertie.explore import Answer, Embedded, Session, Switches, open_session
from explore_sessions import TASKS, VARIANTS, model_of, session_of
from tiny_models import tokenizer

# The words of explore_sessions' texts in another order: as many tokens, whatever the vocabulary.
OTHERS: dict[str, tuple[str, Any]] = {
    "fill": ("France is the [MASK] of Paris; the dog sleeps.", None),
    "next": ("The opened door she.", "The dog sleeps on."),
    "classify": ("Nobody expected to be the good film.", None),
    "tag": ("France is the capital of Paris.", None),
    "answer": ("What the is capital?", "Paris is the capital of France."),
    "embed": ("The dog jumps over the fox.", "The dog sleeps."),
}


def both(task: str, **config: Any) -> tuple[Session, Session]:
    """A text and another one, which differs in its first row."""
    model = model_of(task, **config)
    if task == "choice":
        corrupted, clean = ([one, "quick brown fox"] for one in ("dog", "fox"))
        question = "She opened the"
        return session_of(task, model, text=question, second=corrupted), session_of(
            task, model, text=question, second=clean
        )
    return session_of(task, model), session_of(task, model, text=OTHERS[task][0], second=OTHERS[task][1])


def values(answer: Answer) -> list[float]:
    """Its numbers, to the last bit; quotations are of different texts."""
    return answer.value.vector.tolist() if isinstance(answer.value, Embedded) else [score for _, score in answer.top]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("task", TASKS)
def test_patching_everything_is_the_other_texts_answer_exactly(task: str, variant: str) -> None:
    corrupted, clean = both(task, **VARIANTS[variant])
    for layer in range(corrupted.num_layers + 1):
        assert values(corrupted.patched_answer(clean, layer)) == values(clean.answer())
        assert values(corrupted.patched_answer(corrupted, layer)) == values(corrupted.answer())
    assert values(clean.answer()) != values(corrupted.answer())
    assert values(corrupted.switch(Switches()).answer()) == values(corrupted.answer())  # and no hook is left


@pytest.mark.parametrize("part", ["state", "attention", "feed_forward"])
@pytest.mark.parametrize("task", TASKS)
def test_a_cell_is_the_run_with_that_state(task: str, part: Any) -> None:
    """Each cell against a run by hand: a hook on the module, and the whole model from the ids."""
    corrupted, clean = both(task)
    found = corrupted.patch(clean, part=part, measure="logit")
    assert found.scores.shape == (4 if part == "state" else 3, len(corrupted.rows[0]))
    layer, place = 2, 3
    module = corrupted.bert.encoder.layer[layer - 1]
    if part != "state":
        module = module.attention.output.dense if part == "attention" else module.output.dense
    kept: list[torch.Tensor] = []

    def first(output: Any) -> torch.Tensor:
        return output if isinstance(output, torch.Tensor) else output[0]

    def replace(module: Any, given: Any, output: Any) -> Any:
        states = first(output).clone()
        states[:, place] = kept[0][:, place]
        return states if isinstance(output, torch.Tensor) else (states, *output[1:])

    def run(session: Session) -> float:
        reading = session.reading
        readouts = []
        for row in range(len(session.rows)):
            hooked = row == 0
            handle = module.register_forward_hook(replace) if hooked and kept else None
            readouts.append(reading.readout(row, reading.embeds(row)[None]))
            if handle is not None:
                handle.remove()
        return float(reading.score(readouts, found.target, "logit")[0])

    with torch.no_grad():
        keep = module.register_forward_hook(lambda m, given, output: kept.append(first(output)))
        clean.reading.readout(0, clean.reading.embeds(0)[None])
        keep.remove()
        expected = run(corrupted)
    row = found.layers.index(layer)
    assert found.scores[row, place] == pytest.approx(expected, abs=1e-4)
    gap = found.clean - found.corrupted
    assert found.effect[row, place] == pytest.approx((expected - found.corrupted) / gap, abs=1e-3 + 1e-4 / abs(gap))


def test_only_what_differs_has_an_effect_at_the_embeddings() -> None:
    model = model_of("classify")
    corrupted = session_of("classify", model, text="the dog and the fox")
    clean = session_of("classify", model, text="the fox and the fox")
    assert len(corrupted.rows[0]) == len(clean.rows[0])
    found = corrupted.patch(clean)
    differing = [a != b for a, b in zip(corrupted.rows[0].ids, clean.rows[0].ids, strict=True)]
    np.testing.assert_allclose(found.effect[0][~np.array(differing)], 0, atol=1e-4)
    if sum(differing) == 1:
        np.testing.assert_allclose(found.effect[0][differing], 1, atol=1e-3)
    assert found.effect[-1][0] == pytest.approx(1, abs=1e-3)  # at the last layer [CLS] alone decides


def test_layers_and_places_can_be_chosen() -> None:
    corrupted, clean = both("fill")
    whole = corrupted.patch(clean)
    part = corrupted.patch(clean, layers=[2, 3], places=[4, 1])
    np.testing.assert_allclose(part.scores, whole.scores[2:][:, [4, 1]], atol=1e-5)
    assert part.places == (4, 1)


def test_texts_of_different_lengths_need_places() -> None:
    model = model_of("classify")
    corrupted, clean = (session_of("classify", model, text=text) for text in ("the dog", "the dog and the fox"))
    with pytest.raises(InputError, match="so their tokens cannot be paired"):
        corrupted.patch(clean)
    assert corrupted.patch(clean, places=[0]).effect[-1, 0] == pytest.approx(1, abs=1e-3)


def test_an_answer_that_does_not_change_has_no_effect_to_measure() -> None:
    session = session_of("classify")
    assert np.isnan(session.patch(session).effect).all()


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"part": "heads"}, "part='heads' is not known"),
        ({"measure": "rank"}, "measure='rank' is not known"),
        ({"layers": [9]}, "no layer 9 to patch"),
        ({"layers": [0], "part": "attention"}, "no layer 0 to patch"),
        ({"places": [99]}, "place is 99"),
        ({"row": 3}, "row is 3"),
    ],
)
def test_bad_settings_of_a_patch_are_refused(settings: dict[str, Any], cause: str) -> None:
    session = session_of("classify")
    with pytest.raises(InputError, match=cause):
        session.patch(session, **settings)


def test_another_model_is_refused() -> None:
    with pytest.raises(InputError, match="different models or tasks"):
        session_of("classify").patch(session_of("classify"))
    with pytest.raises(InputError, match=r"no \[MASK\]"):
        open_session("No mask.", model=model_of("fill"), tokenizer=tokenizer()).patch(session_of("fill"))
