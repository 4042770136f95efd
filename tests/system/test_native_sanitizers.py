"""The C++ libraries hold under the sanitizers for a short run; tests/scripts/sanitize_native.py makes longer ones."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "sanitize_native.py"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None or sys.platform != "linux", reason="needs g++ and its sanitizers")
def test_random_calls_give_the_sanitizers_nothing_to_report() -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, "--rounds", "5", "--processes", "1"], capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith(" calls, 0 findings")
