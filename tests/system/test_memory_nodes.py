"""Weights, workers and answers of the CPU engine are right on a machine with two memory nodes, which QEMU emulates."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "memory_nodes.py"
KERNELS = [*Path("/boot").glob("vmlinuz-*-cloud-amd64")]


@pytest.mark.slow
@pytest.mark.skipif(
    not all(map(shutil.which, ("g++", "qemu-system-x86_64"))) or not KERNELS,
    reason="needs g++ and Debian's qemu-system-x86 and linux-image-cloud-amd64",
)
def test_every_node_has_its_own_weights_and_workers() -> None:
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith(" checks, 0 findings")
