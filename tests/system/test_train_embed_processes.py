"""Losses that compare the texts of a batch: several processes see each other's, and train what one would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tiny_models import saved

PROGRAM = Path(__file__).parents[1] / "scripts" / "train_embed.py"


def launch(model: str, run: Path, *arguments: str, processes: int = 1) -> dict[str, object]:
    command = [sys.executable, str(PROGRAM), model, str(run), *arguments]
    if processes > 1:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        command = [*torchrun, *command[1:]]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    return load_file(run / "checkpoints" / "step-00000012" / "model.safetensors")


@pytest.mark.parametrize(
    ("loss", "processes", "shard"),
    [
        ("contrastive", 2, []),
        pytest.param("cosent", 2, [], marks=pytest.mark.slow),
        pytest.param("contrastive", 2, ["--shard"], marks=pytest.mark.slow),
        pytest.param("contrastive", 3, [], marks=pytest.mark.slow),
        pytest.param("cosent", 3, ["--shard"], marks=pytest.mark.slow),
    ],
)
def test_several_processes_train_embeddings_as_one_does(
    tmp_path: Path, loss: str, processes: int, shard: list[str]
) -> None:
    model = saved(tmp_path / "model", "BertModel", num_hidden_layers=2)
    one = launch(model, tmp_path / "one", "--loss", loss)
    several = launch(model, tmp_path / "several", "--loss", loss, *shard, processes=processes)
    assert one.keys() == several.keys()
    worst = max(float((one[name] - several[name]).abs().max()) for name in one)  # type: ignore[operator]
    print(f"{loss}, {processes} processes against one: {worst:.1e}")
    assert worst <= 1e-6
    before = load_file(Path(model) / "model.safetensors")
    moved = max(float((one[name] - before[name]).abs().max()) for name in one)  # type: ignore[operator]
    assert moved > 1e-3  # it was trained at all
