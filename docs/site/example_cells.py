"""The examples of the Python reference: a file per page in examples/, in cells.

A cell begins with `# %%` and the names that it is an example of. The first one, without names, is what the others need.
`# → …` below a line is what that line prints; a test compares it (tests/unit/test_reference.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "examples"
_CELL = re.compile(r"^# %%(.*)\n((?:(?!# %%).*\n?)*)", re.MULTILINE)


@dataclass(frozen=True)
class Example:
    names: tuple[str, ...]
    code: str
    line: int  # of the first line of the code in its file


@cache
def examples(page: str) -> tuple[Example, ...]:
    """Those of a page, in the order in which they run: the first one is the set-up."""
    text = (FOLDER / f"{page}.py").read_text(encoding="utf-8")
    return tuple(
        Example(tuple(re.findall(r"\w+", cell[1])), cell[2].strip() + "\n", text.count("\n", 0, cell.start(2)) + 1)
        for cell in _CELL.finditer(text)
    )
