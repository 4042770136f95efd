"""Models nobody named: where they are, what is said when they are not there, and that the tasks take them."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

import bertie
from bertie import defaults
from bertie.defaults import default_language_model
from bertie.engine.cpu.library import load_library
from bertie.errors import CheckpointNotFound
from bertie.tasks.features import FeatureExtractor
from bertie.tasks.fill import MaskFiller
from bertie.tasks.next_sentence import NextSentencePredictor
from tiny_models import saved, tiny, tokenizer

MASKED = "The quick brown [MASK] jumps over the [MASK] dog."
PAIR = ("She opened the door.", "Nobody expected the film.")
TASKS = (MaskFiller, NextSentencePredictor, FeatureExtractor)


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like bertie-mini's: both heads of pretraining, float16."""
    folder = tmp_path_factory.mktemp("shipped") / "bertie-mini"
    tiny("BertForPreTraining", seed=1).save_pretrained(folder, dtype="float16")
    tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def shipped(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(defaults, "LANGUAGE_MODEL", stand_in)
    return str(stand_in)


@pytest.fixture
def nothing_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(defaults, "LANGUAGE_MODEL", tmp_path / "bertie-mini")
    return tmp_path / "bertie-mini"


def test_the_language_model_lies_in_the_package_and_is_installed_with_it() -> None:
    package = Path(bertie.__file__).parent
    inside = defaults.LANGUAGE_MODEL.relative_to(package)
    assert inside.as_posix() == "shipped/bertie-mini"
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["bertie"]
    assert default_language_model() == str(defaults.LANGUAGE_MODEL)
    for name in ("config.json", "model.safetensors", "vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        assert (defaults.LANGUAGE_MODEL / name).is_file(), name
        assert any(fnmatch((inside / name).as_posix(), pattern) for pattern in patterns), name


def test_a_package_without_the_language_model_says_so(nothing_shipped: Path) -> None:
    for task in (*TASKS, default_language_model):
        with pytest.raises(CheckpointNotFound, match=r"bertie-mini.*not in this installation") as caught:
            task()
        assert "name a model" in (caught.value.remedy or "")
    nothing_shipped.mkdir()  # a configuration alone is no model
    (nothing_shipped / "config.json").write_text("{}")
    with pytest.raises(CheckpointNotFound, match="not in this installation"):
        default_language_model()


def test_a_model_that_is_named_needs_no_default(nothing_shipped: Path, tmp_path: Path) -> None:
    mine = saved(tmp_path / "mine", "BertForPreTraining")
    assert {task(mine).loaded.name for task in TASKS} == {mine}
    assert MaskFiller(tiny("BertForMaskedLM"), tokenizer=tokenizer()).loaded.folder is None


def test_fill_next_sentence_and_features_use_the_language_model(shipped: str, tmp_path: Path) -> None:
    mine = saved(tmp_path / "mine", "BertForPreTraining")
    assert default_language_model() == shipped
    assert {task().loaded.name for task in TASKS} == {shipped}
    filled = bertie.fill(MASKED)
    assert filled == bertie.fill(MASKED, model=shipped)
    assert filled != bertie.fill(MASKED, model=mine)
    following = bertie.next_sentence(*PAIR)
    assert following == bertie.next_sentence(*PAIR, model=shipped)
    assert following != bertie.next_sentence(*PAIR, model=mine)
    ours, same, other = (
        np.stack([token.vector(-1) for token in bertie.features(PAIR[0], **named).tokens])
        for named in ({}, {"model": shipped}, {"model": mine})
    )
    assert ours.shape[1] == tiny("BertModel").config.hidden_size
    np.testing.assert_array_equal(ours, same)
    assert not np.allclose(ours, other)


def test_float16_weights_answer_in_float32_on_the_engine(shipped: str) -> None:
    with safe_open(Path(shipped) / "model.safetensors", framework="np") as weights:
        assert {weights.get_slice(name).get_dtype() for name in weights.keys()} == {"F16"}  # noqa: SIM118
    for task in TASKS:
        loaded = task().loaded
        assert loaded.dtype == "float32"
        assert {str(parameter.dtype) for parameter in loaded.model.parameters()} == {"torch.float32"}
        assert loaded.is_fast == (load_library() is not None)
    rounded = tiny("BertForMaskedLM", seed=1)
    rounded.load_state_dict(tiny("BertForPreTraining", seed=1).half().float().state_dict(), strict=False)
    wanted = bertie.fill(MASKED, model=rounded, tokenizer=tokenizer())
    found = bertie.fill(MASKED)
    assert [one.tokens for one in found.fillings] == [one.tokens for one in wanted.fillings]
    assert [one.score for one in found.fillings] == pytest.approx([one.score for one in wanted.fillings], rel=1e-4)
