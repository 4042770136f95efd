"""Where there is a GPU, the kernels' tests run on it, in a child process: tests/conftest.py hides it from this one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the GPU engine's kernels are written in Triton")


@pytest.mark.skipif(bool(os.environ.get("CUDA_VISIBLE_DEVICES")), reason="this process sees the GPU: they run in it")
@pytest.mark.parametrize("name", ["test_gpu_kernels.py", pytest.param("test_gpu_gradients.py", marks=pytest.mark.slow)])
def test_the_kernels_pass_on_the_gpu_that_is_there(name: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(Path(__file__).with_name(name))]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    if " passed" not in done.stdout:
        pytest.skip("there is no GPU")
