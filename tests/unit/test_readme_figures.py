"""README's table and chart of speed are those of the result file that README names."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from benchmarks.readme import CHART, chart_of, table_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_the_figures_are_those_of_the_saved_result(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    command = re.search(r"python -m benchmarks\.readme (\S+\.json)", text)
    assert command is not None
    result = json.loads((ROOT / command[1]).read_text(encoding="utf-8"))
    rows = table_of(result).split("\n", 2)[2]  # the headings are translated
    assert rows in text, f"paste the output of: {command[0]}"
    assert CHART.read_text(encoding="utf-8") == chart_of(result), f"run: {command[0]}"


def test_the_pictures_of_the_readme_are_small() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert len(pictures) == 2
    assert sum((ROOT / picture).stat().st_size for picture in pictures) <= 150_000
