"""Going on with a job of ten million rows takes little memory and little time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "bulk_memory.py"


@pytest.mark.slow
def test_ten_million_rows_are_gone_on_with_in_200_mb_and_10_s(tmp_path: Path) -> None:
    # In two processes: what building took must not be there already when going on is measured.
    subprocess.run([sys.executable, str(SCRIPT), str(tmp_path), "--build"], check=True, timeout=600)
    measured = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path)], capture_output=True, text=True, timeout=1200
    )
    assert measured.returncode == 0, measured.stderr[-2000:]
    found = json.loads(measured.stdout.splitlines()[-1])
    print(found)
    assert found["pieces"] >= 100
    assert found["megabytes"] <= 200
    assert found["seconds"] <= 10
