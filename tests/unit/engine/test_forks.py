"""Children of a process that has used Bertie answer, with the same bits: forked ones too, whose threads are gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bertie.engine.cpu.library import instruction_set
from bertie.ops import forks

pytestmark = [
    pytest.mark.skipif(instruction_set() is None, reason="the kernels were not built: no C++ compiler"),
    pytest.mark.skipif(not hasattr(os, "fork") or not Path("/proc/self/task").is_dir(), reason="needs Linux"),
]
ROOT = Path(__file__).parents[3]


def run(*jobs: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.unit.engine.forked", *jobs],
        cwd=ROOT,
        # Rust's threads are asked for by name, which is where its library no longer looks after forks by itself.
        env=os.environ | {"OMP_NUM_THREADS": "2", "TOKENIZERS_PARALLELISM": "true"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "well"


def test_every_task_answers_in_a_forked_child() -> None:
    run("tasks")


def test_threads_streams_pools_and_loaders_in_forked_children() -> None:
    run("threads", "stream", "fork")


@pytest.mark.slow
def test_pools_and_loaders_that_start_afresh() -> None:
    run("forkserver", "spawn")


def test_helpers_end_when_they_are_dismissed_and_come_again() -> None:
    code = """
import os, time, torch
from bertie.ops.forks import dismiss_helpers
def threads():
    return len(os.listdir("/proc/self/task"))
x = torch.randn(600, 600)
alone = threads()
wanted = x @ x
with_helpers = threads()
assert with_helpers > alone and dismiss_helpers()
until = time.monotonic() + 30
while threads() > alone and time.monotonic() < until:
    time.sleep(0.01)
assert threads() == alone
assert torch.equal(x @ x, wanted) and threads() == with_helpers
"""
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_an_openmp_that_cannot_let_go_leaves_the_child_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: dict[str, object] = {}
    set_to: list[int] = []
    monkeypatch.setattr(os, "register_at_fork", lambda **hooks: registered.update(hooks))
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    for pause, wanted in ((None, [1]), (lambda _: -1, [1]), (lambda _: 0, [])):
        monkeypatch.setattr(forks, "_omp_pause", lambda pause=pause: pause)
        set_to.clear()
        forks.survive_forks()
        registered["before"]()  # type: ignore[operator]
        registered["after_in_child"]()  # type: ignore[operator]
        assert set_to == wanted
