"""Every Python block of the README and of docs/ runs, in order, one page in one namespace.

Where a page shows the output of a line below it (`# → output`), it is compared with what was printed.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from system.command_lines import unknown_options

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMANDS = re.compile(r"^```(?:console|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_on_the_page_runs(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = page.read_text(encoding="utf-8")
    names: dict[str, object] = {}
    printed = []
    for block in BLOCK.finditer(text):
        line = text[: block.start()].count("\n") + 2
        code = compile("\n" * (line - 1) + block[1], str(page), "exec")
        exec(code, names)  # the page's own code, checked in with it
        printed += capsys.readouterr().out.splitlines()
    for output in re.findall(r"^# → (.*)$", text, re.MULTILINE):
        assert output in printed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_on_the_page_exist_with_their_options(page: Path) -> None:
    for block in COMMANDS.findall(page.read_text(encoding="utf-8")):
        for line in block.splitlines():
            shown = line.removeprefix("$ ")
            if re.match(r"bertie [a-z]", shown) and not shown.endswith("\\"):
                assert unknown_options(re.split(r"  +[a-z]", shown)[0]) == set(), line
