"""Many processes under torchrun: the same weights as one, resuming with another number, and a process that dies."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

PROGRAM = Path(__file__).parents[1] / "scripts" / "train_toy.py"


def launch(run: Path, *arguments: str, processes: int = 1, fails: bool = False) -> str:
    command = [sys.executable, str(PROGRAM), str(run), *arguments]
    if processes > 1:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        command = [*torchrun, *command[1:]]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert (result.returncode != 0) == fails, result.stdout + result.stderr
    return result.stdout + result.stderr


def difference(first: Path, second: Path, step: int = 20) -> float:
    """The largest |Δ| of parameters and optimizer state at a step."""
    worst = 0.0
    for name in ("model", "optimizer"):
        one, two = (
            load_file(run / "checkpoints" / f"step-{step:08d}" / f"{name}.safetensors") for run in (first, second)
        )
        assert one.keys() == two.keys()
        worst = max(worst, *(float((one[key] - two[key]).abs().max()) for key in one))
    return worst


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run in one process."""
    run = tmp_path_factory.mktemp("alone") / "run"
    launch(run)
    return run


@pytest.mark.parametrize("way", ["data parallel", pytest.param("sharded", marks=pytest.mark.slow)])
def test_two_processes_train_the_same_weights_as_one(tmp_path: Path, alone: Path, way: str) -> None:
    launch(tmp_path / "two", *(["--shard"] if way == "sharded" else []), processes=2)
    worst = difference(alone, tmp_path / "two")
    print(f"two processes against one, {way}: {worst:.1e}")
    assert worst <= 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adam-weight-decay", "lamb"])
@pytest.mark.parametrize("shard", [[], ["--shard"]], ids=["data parallel", "sharded"])
def test_other_optimizers_and_averages_with_three_processes(tmp_path: Path, optimizer: str, shard: list[str]) -> None:
    arguments = ["--optimizer", optimizer, "--ema", "0.9"]
    launch(tmp_path / "one", *arguments)
    launch(tmp_path / "three", *arguments, *shard, processes=3)
    assert difference(tmp_path / "one", tmp_path / "three") <= 1e-6


def test_a_dead_process_is_named_and_the_run_resumes_with_another_number(tmp_path: Path, alone: Path) -> None:
    started = time.monotonic()
    said = launch(tmp_path / "run", "--shard", "--die", "1:15", processes=2, fails=True)
    assert time.monotonic() - started < 60
    assert "error: rank 1 (process " in said
    assert "start the same command again with resume=True" in said
    launch(tmp_path / "run", "--resume")  # sharded over two before, whole in one now
    assert difference(alone, tmp_path / "run") <= 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("shard", [[], ["--shard"]], ids=["data parallel", "sharded"])
@pytest.mark.parametrize("victim", [0, 1])
def test_whoever_dies_is_named_within_a_minute(tmp_path: Path, alone: Path, shard: list[str], victim: int) -> None:
    started = time.monotonic()
    said = launch(tmp_path / "run", *shard, "--die", f"{victim}:15", processes=2, fails=True)
    assert time.monotonic() - started < 60
    assert f"error: rank {victim} (process " in said
    launch(tmp_path / "run", *shard, "--resume", processes=3)
    assert difference(alone, tmp_path / "run") <= 1e-6
