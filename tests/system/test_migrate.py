"""docs/migrate.md keeps its word: what it writes for Bertie runs, its commands exist, and so do the tests it names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import bertie
import bertie.text
import bertie.training
from system.command_lines import unknown_options
from system.explore_browser import SENTENCES, saved

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "migrate.md").read_text(encoding="utf-8")
GOOGLE = ROOT / "tests" / "assets" / "tf" / "google_tiny"
HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "classify": ("BertForSequenceClassification", {"id2label": {0: "bad", 1: "good"}}),
    "zero_shot": ("BertForSequenceClassification", {"id2label": {0: "contradiction", 1: "entailment"}}),
    "rerank": ("BertForSequenceClassification", {"num_labels": 1}),
    "tag": ("BertForTokenClassification", {"id2label": {0: "O", 1: "B-PER"}}),
    "answer": ("BertForQuestionAnswering", {}),
    "represent": ("BertForMaskedLM", {}),
}


def written_for_bertie() -> Iterator[str]:
    """The code in the right-hand cells of the tables, but for the last one, which lists tests."""
    for line in PAGE.partition("## What works around")[0].splitlines():
        cells = re.split(r"(?<!\\) \| ", line.strip("| "))
        if line.startswith("|") and len(cells) == 2:
            yield from re.findall(r"`([^`]+)`", cells[1])


LINES = [code for code in written_for_bertie() if re.match(r"bertie\.\w[\w.]*\(", code) and "…" not in code]
COMMANDS = [code for code in written_for_bertie() if re.match(r"bertie [a-z]", code)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    return {task: saved(folder / task, head, **config) for task, (head, config) in HEADS.items()}


@pytest.mark.parametrize("code", LINES)
def test_a_line_of_the_tables_runs(code: str, models: dict[str, str], tmp_path: Path) -> None:
    function = re.match(r"bertie\.(\w+)", code)
    assert function is not None
    task = function[1]
    default = "all-MiniLM-L6-v2" if task in ("embed", "Embedder") else "bertie-mini"
    names: dict[str, Any] = {
        "bertie": bertie,
        "name": models.get(task, default),
        "folder": GOOGLE if "Bert" in code else tmp_path / "index",
        "file": GOOGLE / "bert_config.json",
        "prefix": GOOGLE / "bert_model.ckpt",
        "text": "the quick [MASK] fox" if task == "fill" else SENTENCES[0],
        "texts": SENTENCES,
        "corpus": SENTENCES,
        "documents": SENTENCES,
        "labels": ["a dog", "a door"],
        "question": "who sleeps",
        "context": SENTENCES[0],
        "query": "a dog",
        "pairs": [("a fox", "a dog")],
        "input_ids": torch.tensor([[2, 5, 3]]),
        "input_mask": torch.ones(1, 3),
    }
    assert eval(code, names) is not None


def test_the_tables_have_such_lines() -> None:
    assert len(LINES) >= 20
    assert len(COMMANDS) >= 6


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_tables_exists_with_its_options(line: str) -> None:
    assert unknown_options(line) == set()


def test_the_tests_that_the_page_names_exist() -> None:
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", PAGE)
    assert len(named) >= 18
    for file, name in named:
        assert f"def {name}(" in (ROOT / "tests" / "compat" / file).read_text(encoding="utf-8"), name
