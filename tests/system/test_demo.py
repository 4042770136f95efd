"""`make demo`: sensible answers from the real model, on a screen of 80 columns, with commands that can be copied."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def demo(tmp_path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("demo", EXAMPLES / "demo.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.FOLDER = tmp_path / "index"
    return module


def test_the_demo_finds_what_is_meant(demo: Any, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    demo.main()
    shown = capsys.readouterr().out
    for found in ("Homing pigeons", "Lightning heats the air", "penicillin"):
        assert found in shown
    assert "3 questions answered in" in shown
    commands = [line for line in shown.splitlines() if "bertie" in line.split("-m")[-1] and line.startswith("  ")]
    assert len(commands) == 4
    assert " explore " in commands[-1]


def test_the_facts_are_many_and_different() -> None:
    rows = [json.loads(line) for line in (EXAMPLES / "facts.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(rows) >= 60
    assert len({row["id"] for row in rows}) == len({row["text"] for row in rows}) == len(rows)
