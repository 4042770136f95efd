"""docs/compatibility.md lists the tests that there are, and none of them failed when it was written."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
AGAIN = "run python tests/scripts/compat_matrix.py"


def test_the_page_lists_exactly_the_tests_there_are() -> None:
    specification = importlib.util.spec_from_file_location(
        "compat_matrix", ROOT / "tests" / "scripts" / "compat_matrix.py"
    )
    assert specification is not None
    assert specification.loader is not None
    matrix = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(matrix)
    written = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    listed = re.findall(r"`(test_\w+)\.py::(test_\w+)`", written)
    there_are = [(stem, name) for stem, names in matrix.tests_there_are().items() for name in names]
    assert len(listed) == len(set(listed))
    assert set(listed) == set(there_are), AGAIN
    assert "failed**" not in written
    assert set(matrix.AREAS) == set(matrix.tests_there_are()), "every file has an area"
