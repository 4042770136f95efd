"""A save that dies at any moment leaves the old folder or the new one, whole; other files in the folder stay."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import bertie
from bertie import BertConfig
from bertie.checkpoint import atomic
from bertie.errors import CheckpointError, ConfigError
from bertie.loading import load

# Three models of different shapes and layouts: any mixture of two of them does not load, or loads as none of them.
SAVER = """
import os, sys, torch, bertie
folder, *seeds = sys.argv[1:]

def model(seed):
    torch.manual_seed(seed)
    config = bertie.BertConfig.preset("tiny", vocab_size=500 + seed // 2, hidden_dropout_prob=seed / 100)
    return (bertie.BertModel if seed % 2 else bertie.BertForMaskedLM)(config)

models = [model(seed) for seed in range(4)]
print("ready", flush=True)
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        number = int(line)
        while True:
            seed = number % 4
            models[seed].save_pretrained(folder, max_shard_size=("5GB", "300KB")[seed == 3])
            number += 1
    print(pid, flush=True)
    os.waitpid(pid, 0)
    print("dead", flush=True)
"""


def model_of(seed: int) -> Any:
    torch.manual_seed(seed)
    config = BertConfig.preset("tiny", vocab_size=500 + seed // 2, hidden_dropout_prob=seed / 100)
    return (bertie.BertModel if seed % 2 else bertie.BertForMaskedLM)(config)


def killed_saves(folder: Path, kills: int) -> None:
    expected = [model_of(seed).state_dict() for seed in range(4)]
    model_of(0).save_pretrained(folder)
    (folder / "vocab.txt").write_text("[PAD]\n")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("{}")
    rng = random.Random(7)
    seen = set()
    longest = 0.12  # seconds; more on a machine so busy that no save gets done in it
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", SAVER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as saver:
        assert saver.stdin is not None
        assert saver.stdout is not None
        assert saver.stdout.readline() == "ready\n"
        for number in range(kills):
            saver.stdin.write(f"{number}\n")
            saver.stdin.flush()
            child = int(saver.stdout.readline())
            time.sleep(rng.uniform(0, longest))
            os.kill(child, signal.SIGKILL)
            assert saver.stdout.readline() == "dead\n"
            found = load(folder)
            matches = [
                seed
                for seed, weights in enumerate(expected)
                if weights.keys() == found.state_dict().keys()
                and all(torch.equal(tensor, found.state_dict()[name]) for name, tensor in weights.items())
            ]
            assert len(matches) == 1, f"after kill {number} the folder holds a mixture"
            assert found.config.hidden_dropout_prob == matches[0] / 100
            seen.add(matches[0])
            if len(seen) == 1 and number > 3:
                longest *= 2
            assert (folder / "vocab.txt").read_text() == "[PAD]\n"
            assert (folder / "1_Pooling" / "config.json").read_text() == "{}"
        saver.stdin.close()
    assert len(seen) > 1  # the saver did get on
    model_of(1).save_pretrained(folder)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name], "leftovers of killed saves"
    print(f"{kills} saves killed, {kills} folders whole")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
def test_ten_killed_saves_leave_whole_folders(tmp_path: Path) -> None:
    killed_saves(tmp_path / "model", 10)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
def test_hundred_killed_saves_leave_whole_folders(tmp_path: Path) -> None:
    killed_saves(tmp_path / "model", 100)


def is_model(name: str) -> bool:
    return name.startswith("model") or name == "config.json"


def put(folder: Path, files: dict[str, str]) -> None:
    with atomic.new_files(folder, obsolete=is_model) as place:
        for name, text in files.items():
            (place / name).write_text(text)


def contents(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("way", ["swap", "no exchange", "mount point"])
def test_every_way_replaces_the_set_and_keeps_the_rest(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "no exchange":
        monkeypatch.setattr(atomic, "exchange", lambda first, second: False)
    if way == "mount point":
        monkeypatch.setattr(atomic, "_can_swap", lambda target: not target.exists())
    folder = tmp_path / "a" / "b"
    put(folder, {"config.json": "1", "model-1": "x", "model-2": "y"})
    (folder / "sub").mkdir()
    (folder / "sub" / "file").write_text("kept")
    (folder / "link").symlink_to("sub/file")
    put(folder, {"config.json": "2", "model": "z"})
    assert contents(folder) == {"config.json": "2", "link": "kept", "model": "z", "sub/file": "kept"}
    assert (folder / "link").is_symlink()
    put(folder, {"config.json": "2", "model": "w"})
    assert contents(folder)["model"] == "w"
    assert os.listdir(folder.parent) == ["b"]
    assert not [name for name in os.listdir(folder) if "saving" in name]


def test_a_failed_save_changes_nothing(tmp_path: Path) -> None:
    put(tmp_path / "m", {"config.json": "1", "model": "x"})
    with pytest.raises(TypeError):
        put(tmp_path / "m", {"config.json": "2", "model": None})  # type: ignore[dict-item]  # the second cannot be written
    assert contents(tmp_path) == {"m/config.json": "1", "m/model": "x"}


def test_leftovers_go_and_running_saves_stay(tmp_path: Path) -> None:
    dead = tmp_path / ".m.saving-dead"
    dead.mkdir()
    (dead / "model").write_text("half")
    other = tmp_path / ".n.saving-other"  # of another folder: not ours to judge
    other.mkdir()
    with atomic.new_files(tmp_path / "m", obsolete=is_model) as running:
        put(tmp_path / "m", {"model": "second"})  # a second save while the first is at work
        assert running.is_dir()
        assert not dead.exists()
        (running / "model").write_text("first")
    assert contents(tmp_path / "m") == {"model": "first"}
    assert other.exists()


def test_one_changed_file_keeps_the_folder_itself(tmp_path: Path) -> None:
    """People sit in it, watch it, hold it open: it is only exchanged when that is the one atomic way."""
    put(tmp_path / "m", {"config.json": "1", "model": "x"})
    before = (tmp_path / "m").stat().st_ino
    put(tmp_path / "m", {"config.json": "1", "model": "y"})
    assert (tmp_path / "m").stat().st_ino == before
    assert contents(tmp_path / "m") == {"config.json": "1", "model": "y"}


def test_saving_through_a_link_saves_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    put(tmp_path / "link", {"config.json": "1", "model": "x"})
    put(tmp_path / "link", {"config.json": "2", "model": "y"})
    assert (tmp_path / "link").is_symlink()
    assert contents(tmp_path / "real") == {"config.json": "2", "model": "y"}


def test_saving_where_a_file_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CheckpointError, match="could not be saved"):
        model_of(1).save_pretrained(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("size", ["5 parsecs", 0, -1, "", None, "0GB"])
def test_shard_sizes_are_checked(tmp_path: Path, size: Any) -> None:
    with pytest.raises(ConfigError, match="max_shard_size is"):
        model_of(1).save_pretrained(tmp_path / "m", max_shard_size=size)


def test_variant_becomes_no_path(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="variant is"):
        model_of(1).save_pretrained(tmp_path / "m", variant="../x")


def test_a_function_as_activation_cannot_be_saved(tmp_path: Path) -> None:
    model = bertie.BertModel(BertConfig.preset("tiny", vocab_size=9, hidden_act=torch.tanh))
    with pytest.raises(ConfigError, match="which a file cannot hold"):
        model.save_pretrained(tmp_path / "m")
    assert not (tmp_path / "m").exists()
