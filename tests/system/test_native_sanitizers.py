"""The C++ libraries hold under the sanitizers, and kernels give the right answers on ARM, for a short run.

tests/scripts/sanitize_native.py and kernel_answers.py make longer ones.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "sanitize_native.py"
KERNELS = SCRIPT.with_name("kernel_answers.py")
CROSS = ("aarch64-linux-gnu-g++", "qemu-aarch64")  # Debian's g++-aarch64-linux-gnu and qemu-user
has_sanitizers = pytest.mark.skipif(
    shutil.which("g++") is None or sys.platform != "linux", reason="needs g++ and its sanitizers"
)


@pytest.mark.slow
@has_sanitizers
def test_every_kernel_gives_the_answers_of_plain_loops_under_sanitizers() -> None:
    done = subprocess.run(
        [sys.executable, KERNELS, "--sanitize", "--rounds", "25"], capture_output=True, text=True, timeout=3600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *_, last = done.stdout.splitlines()
    assert last.endswith(" 0 findings")
    assert {"tiles", "pairs", "portable"} <= set(last.partition(":")[0].split(", "))


@pytest.mark.slow
@pytest.mark.skipif(
    not all(map(shutil.which, CROSS)), reason=f"needs {' and '.join(CROSS)}, to build for ARM and to run it"
)
def test_kernels_for_arm_give_the_answers_of_plain_loops() -> None:
    done = subprocess.run(
        [sys.executable, KERNELS, "--arm", "--rounds", "25"], capture_output=True, text=True, timeout=3600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("neon-dotprod, neon-i8mm, portable: ")


@pytest.mark.slow
@has_sanitizers
def test_random_calls_give_the_sanitizers_nothing_to_report() -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, "--rounds", "3", "--processes", "2"], capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith(" calls, 0 findings")
