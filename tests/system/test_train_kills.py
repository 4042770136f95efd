"""Runs that are killed: nothing that was saved is lost, and going on gives the same weights (QUALITY 18, 20)."""

from __future__ import annotations

import errno
import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from bertie.errors import CheckpointError
from bertie.training import train
from bertie.training.run import checkpoint as run_checkpoint
from bertie.training.run.checkpoint import RunFolder
from bertie.training.run.distributed import World
from training_toy import Toy, ToyExamples, settings

SCRIPTS = Path(__file__).parents[1] / "scripts"


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kill(kills: int, inside: int, folder: Path, *, steps: int) -> None:
    module = script("kill_training")
    killed, hit, lost = module.kill_and_resume(kills, inside, 0, folder, steps=steps)
    assert killed >= kills
    assert hit >= inside
    assert lost <= module.SAVE_EVERY


def test_kill_9_at_random_moments_loses_at_most_one_save_interval(tmp_path: Path) -> None:
    kill(2, 1, tmp_path, steps=60)


@pytest.mark.slow
def test_a_hundred_kills(tmp_path: Path) -> None:
    kill(100, 25, tmp_path, steps=200)


WRITES = ["model", "optimizer", "state.json", "rng.json", "manifest.json", "rename"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS], ids=["no space", "read-only"])
@pytest.mark.parametrize("where", WRITES)
def test_a_failed_write_leaves_the_previous_checkpoint_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, number: int
) -> None:
    toy = Toy()
    train(toy, ToyExamples(40), None, settings(max_steps=2), tmp_path, world=World(), show=False)
    with RunFolder(tmp_path) as folder:
        before = folder.latest()
    assert before is not None
    weights = {name: value.clone() for name, value in before.tensors("model").items()}
    problem = OSError(number, os.strerror(number))

    def failing(function: Any, fits: Any) -> Any:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            if fits(arguments[0]):
                raise problem
            return function(*arguments, **named)

        return wrapped

    def named(path: Any) -> bool:
        return Path(path).name.startswith(where) and ".saving-" in str(path)

    if where == "rename":
        monkeypatch.setattr(os, "rename", failing(os.rename, lambda path: ".saving-" in str(path)))
    elif where.endswith(".json"):
        monkeypatch.setattr(Path, "write_text", failing(Path.write_text, named))
    else:
        monkeypatch.setattr(run_checkpoint, "write_safetensors", failing(run_checkpoint.write_safetensors, named))
    with RunFolder(tmp_path) as folder:
        with pytest.raises(
            CheckpointError, match=r"step 3 could not be saved[\s\S]*saved before it, at step 2, is whole"
        ):
            folder.save(3, {"model": {"a": torch.ones(2)}, "optimizer": {"b": torch.ones(2)}}, {"step": 3}, [])
        monkeypatch.undo()
        after = folder.latest()
        assert after is not None
        assert after.state == before.state
        assert all(torch.equal(value, weights[name]) for name, value in after.tensors("model").items())
        assert [path.name for path in folder.checkpoints.iterdir()] == ["step-00000002"]


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    train(Toy(), ToyExamples(40), None, settings(max_steps=2, save_every=1), tmp_path, world=World(), show=False)
    newest = tmp_path / "checkpoints" / "step-00000002"
    chance = torch.Generator().manual_seed(0)
    with RunFolder(tmp_path) as folder:
        for path in sorted(newest.iterdir()):
            whole = path.read_bytes()
            places = {0, len(whole) - 2, *torch.randint(0, len(whole) - 1, (8,), generator=chance).tolist()}
            for place in sorted(places):
                damaged = bytearray(whole)
                damaged[place] ^= 1 << (place % 7)
                path.write_bytes(damaged)
                found = folder.latest()
                assert found is not None
                assert found.state["step"] == 1, f"{path.name}, byte {place}"
            path.write_bytes(whole)
        latest = folder.latest()
        assert latest is not None
        assert latest.state["step"] == 2


def test_old_checkpoints_go_and_leftovers_of_kills_are_tidied(tmp_path: Path) -> None:
    values = settings(max_steps=6, save_every=1, keep=3)
    train(Toy(), ToyExamples(40), None, values, tmp_path, world=World(), show=False)
    names = [f"step-0000000{number}" for number in (4, 5, 6)]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == names
    (tmp_path / "checkpoints" / ".step-00000007.saving-abc").mkdir()
    (tmp_path / "checkpoints" / ".old-abc").mkdir()
    with RunFolder(tmp_path):
        assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == names
