"""Shared by all tests: fixed seeds, no network, and where optional real data is."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import hypothesis
import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Tiny models gain nothing from threads, and lose much when the cores are busy with other tests.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# These tests are about answers on a CPU; tests/scripts/gpu_*.py compare a GPU with it.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

# The same examples on every run and machine; a failure is reproduced by running the test again.
hypothesis.settings.register_profile("bertie", derandomize=True, deadline=None, print_blob=True)
hypothesis.settings.load_profile("bertie")


@pytest.fixture(autouse=True)
def _heed_interrupts() -> None:
    """SIGINT is ignored in the background, and after a server has ended in this process. What tests start would ignore
    it, too: Ctrl-C could not be tested."""
    ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    if ignored and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    import torch

    torch.manual_seed(0)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data sets, where a checkout has them beside it."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the real data sets (../shared/data) are not on this machine")
    return folder
