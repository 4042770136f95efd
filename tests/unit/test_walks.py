"""The path of one text stays short: the files that a call really enters, as tests/scripts/walk.py counts them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

import bertie
from bertie.engine.cpu.library import load_library

SCRIPT = Path(__file__).parents[1] / "scripts" / "walk.py"


@pytest.fixture(scope="module")
def walk() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("walk", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["walk"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["walk"]


def classify_walk(walk: ModuleType, folder: Path) -> object:
    return walk.traced(lambda: bertie.classify("a fine film", model=folder))


@pytest.mark.skipif(load_library() is None or torch.cuda.is_available(), reason="walks through the CPU kernels")
@pytest.mark.parametrize(
    ("name", "kind", "take", "through"),
    [
        ("ids to logits", bertie.BertForSequenceClassification, lambda walk, f: walk.model_walk(f), "model/bert.py"),
        ("bertie.classify", bertie.BertForSequenceClassification, classify_walk, "engine/cpu/runner.py"),
        ("bertie embed (command)", bertie.BertModel, lambda walk, f: walk.command_walk(f), "engine/cpu/runner.py"),
        ("one POST /v1/embeddings", bertie.BertModel, lambda walk, f: walk.post_walk(f), "engine/cpu/runner.py"),
        ("one training step", bertie.BertModel, lambda walk, f: walk.training_walk(f), "model/bert.py"),
    ],
)
def test_a_text_enters_few_files(
    walk: ModuleType,
    tmp_path: Path,
    name: str,
    kind: type[bertie.BertPreTrainedModel],
    take: Callable[[ModuleType, Path], object],
    through: str,
) -> None:
    found = take(walk, walk.make_model(kind, tmp_path / "model"))
    files = found.files()  # type: ignore[attr-defined]
    assert through in files, "the walk was really taken"
    assert len(files) <= walk.GOALS[name], "\n".join(files)
