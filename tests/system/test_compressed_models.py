"""Layers of different sizes, some without heads, some without neurons, are served, explored and trained like any other.

Each is compared with its dense twin, the plain model with zeros in place of what is gone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from serving import settings

import bertie
from bertie.compression.layers import Sizes, dense, keep
from bertie.explore import Switches, open_session
from bertie.serve.run import Running
from explore_sessions import TEXTS, model_of
from tiny_models import SENTENCES, tokenizer

HEADS = [[0, 2, 3], [], [1]]
NEURONS = [torch.tensor([1, 5, 40]), torch.arange(16, 48), torch.arange(0)]
SIZES = Sizes((3, 0, 1), (3, 32, 0))
CLOSE: dict[str, Any] = {"rtol": 0, "atol": 1e-5}


def small(task: str) -> Any:
    return keep(model_of(task), HEADS, NEURONS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], dict[str, str]]:
    """Small models and their twins, by task."""
    place = tmp_path_factory.mktemp("compressed")
    made: tuple[dict[str, str], dict[str, str]] = {}, {}
    for task in ("embed", "classify", "tag", "fill"):
        model = small(task)
        for where, one, name in zip(made, (model, dense(model)), ("small", "dense"), strict=True):
            where[task] = str(place / name / task)
            one.save_pretrained(where[task])
            tokenizer().save_pretrained(where[task])
    return made


def test_the_server_answers_as_the_dense_twin_does(folders: tuple[dict[str, str], dict[str, str]]) -> None:
    ours, twins = folders
    with Running(settings(ours)) as server, bertie.Client(server.url) as asked:
        np.testing.assert_allclose(asked.embed(SENTENCES), bertie.embed(SENTENCES, model=twins["embed"]), **CLOSE)
        wanted = bertie.classify(SENTENCES, model=twins["classify"])
        for found, expected in zip(asked.classify(SENTENCES), wanted, strict=True):
            assert found.label == expected.label
            assert found.score == pytest.approx(expected.score, abs=1e-5)
        spans = [(one.label, one.start, one.end) for one in bertie.tag(SENTENCES[1], model=twins["tag"])]
        assert [(one.label, one.start, one.end) for one in asked.tag(SENTENCES[1])] == spans
        text = "Paris is the [MASK] of France."
        assert asked.fill(text).text == bertie.fill(text, model=twins["fill"]).text


@pytest.mark.parametrize("task", ["fill", "classify", "tag", "answer", "choice", "embed"])
def test_the_explorer_shows_what_the_dense_twin_does(task: str) -> None:
    model = small(task)
    ours, twin = (
        open_session(*TEXTS[task], model=one, task=task, tokenizer=tokenizer()) for one in (model, dense(model))
    )
    assert ours.heads == {0: (0, 2, 3), 1: (), 2: (1,)}
    assert ours.views == twin.views
    assert [label for label, _ in ours.answer().top] == [label for label, _ in twin.answer().top]
    for layer, heads in ours.heads.items():
        for head in heads:
            found, wanted = (session.attention(layer, head).weights for session in (ours, twin))
            np.testing.assert_allclose(found, wanted, **CLOSE)
    assert ours.thumbnails()[1].max() == 0
    for view in ("to_first", "to_last"):
        found, wanted = (getattr(session.drift(), view) for session in (ours, twin))
        np.testing.assert_allclose(found, wanted, **CLOSE)
    np.testing.assert_allclose(ours.rollout().weights.sum(-1), 1, atol=1e-5)
    assert ours.trace().steps()
    off = Switches(heads={(0, 2)}, layers={1})
    for found, wanted in zip(ours.ablate(off).after.top, twin.ablate(off).after.top, strict=True):
        assert found[0] == wanted[0]
        assert found[1] == pytest.approx(wanted[1], abs=1e-5)
    if "attribute" in ours.views:
        # Steps are given: how many are taken by default depends on rounding.
        found, wanted = (session.attribute(steps=8).scores[0] for session in (ours, twin))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4)


def test_it_is_fine_tuned_further_and_keeps_its_sizes(
    folders: tuple[dict[str, str], dict[str, str]], tmp_path: Path
) -> None:
    rows = [{"text": text, "label": number % 3} for number, text in enumerate(SENTENCES)]
    folder = folders[0]["classify"]
    bertie.training.finetune(
        "classify", model=folder, train=rows, output=tmp_path / "more", epochs=1, device="cpu", show=False
    )
    before, after = bertie.load(folder), bertie.load(tmp_path / "more")
    assert Sizes.of(after) == SIZES
    assert not torch.equal(before.classifier.weight, after.classifier.weight)
    wanted = bertie.classify(SENTENCES, model=tmp_path / "more")
    dense(after).save_pretrained(tmp_path / "dense")
    tokenizer().save_pretrained(tmp_path / "dense")
    for found, expected in zip(bertie.classify(SENTENCES, model=tmp_path / "dense"), wanted, strict=True):
        assert found.score == pytest.approx(expected.score, abs=1e-5)
