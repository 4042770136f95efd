"""`bertie models`: what is here, what is not a BERT, and a suggestion for each task."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from bertie import BertConfig, BertForTokenClassification
from bertie.cli.commands.checkpoints.models import SUGGESTED, command


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    snapshot = tmp_path / "hub" / "models--someone--my-tagger" / "snapshots" / "0123"
    BertForTokenClassification(BertConfig.preset("tiny", vocab_size=30)).save_pretrained(snapshot)
    other = tmp_path / "hub" / "models--someone--gpt" / "snapshots" / "1"
    shutil.copytree(snapshot, other)
    (other / "config.json").write_text('{"model_type": "gpt2"}')
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path


def listed(*arguments: str) -> dict[str, str]:
    result = CliRunner().invoke(command, [*arguments, "--json"], catch_exceptions=False)
    return {one["model"]: one["for"] for one in json.loads(result.output)["models"]}


def test_the_cache_and_what_came_with_bertie_are_listed(cache: Path) -> None:
    found = listed()
    assert found["someone/my-tagger"] == "tag"
    assert found["bertie-mini"] == "fill, next, embed"
    assert "someone/gpt" not in found


def test_folders_are_searched(cache: Path) -> None:
    run = cache / "runs" / "first"
    shutil.copytree(cache / "hub" / "models--someone--my-tagger" / "snapshots" / "0123", run)
    (cache / "runs" / "broken").mkdir()
    (cache / "runs" / "broken" / "config.json").write_text("{")
    assert listed(str(cache / "runs"))[str(run)] == "tag"


def test_a_suggestion_is_made_for_what_is_not_here(cache: Path) -> None:
    shown = CliRunner().invoke(command, [], catch_exceptions=False, terminal_width=200).output
    assert SUGGESTED["tag"][0] in shown
    assert "someone/my-tagger" in shown
