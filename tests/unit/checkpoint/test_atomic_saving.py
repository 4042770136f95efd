"""A save that dies at any moment leaves the old folder or the new one, whole; other files in the folder stay."""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import bertie
from bertie import BertConfig
from bertie.errors import CheckpointError, ConfigError
from bertie.files import new_files, read_whole
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
models[0].save_pretrained(folder)  # what saving imports is there before the first fork: kills meet the writing
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
    seen = {0}
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
        # A machine may be so busy that every saver dies before its first save is done: then kills go on until one is.
        for number in itertools.count(1):
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
            assert (folder / "vocab.txt").read_text() == "[PAD]\n"
            assert (folder / "1_Pooling" / "config.json").read_text() == "{}"
            if len(seen) > 1 and number >= kills:
                break
            if len(seen) == 1 and number > 3:
                longest *= 2
            assert longest < 120, "no save got done in a minute"
        saver.stdin.close()
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
    with new_files(folder, obsolete=is_model) as place:
        for name, text in files.items():
            (place / name).write_text(text)


def contents(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_new_set_replaces_the_old_one_and_the_rest_stays(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    put(folder, {"config.json": "1", "model-1": "x", "model-2": "y"})
    (folder / "sub").mkdir()
    (folder / "sub" / "file").write_text("kept")
    (folder / "link").symlink_to("sub/file")
    folder.chmod(0o750)
    before = folder.stat()
    put(folder, {"config.json": "2", "model": "z"})
    assert contents(folder) == {"config.json": "2", "link": "kept", "model": "z", "sub/file": "kept"}
    assert (folder / "link").is_symlink()
    put(folder, {"config.json": "2", "model": "w"})
    assert contents(folder)["model"] == "w"
    assert (folder.stat().st_ino, folder.stat().st_mode) == (before.st_ino, before.st_mode), "another folder"
    assert os.listdir(folder.parent) == ["b"]
    assert sorted(os.listdir(folder)) == ["config.json", "link", "model", "sub"]


def test_saving_where_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory, this process's or another's, stays: what is written there by a relative name is kept."""
    folder = tmp_path / "model"
    model_of(0).save_pretrained(folder)
    code = "import sys; print('there', flush=True); sys.stdin.readline(); open('theirs', 'w').write('kept')"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "there\n"
        monkeypatch.chdir(folder)
        model_of(3).save_pretrained(".", max_shard_size="300KB")
        Path("ours").write_text("kept")
        assert Path.cwd() == folder
        other.communicate("go\n", timeout=60)
    assert (folder / "ours").read_text() == (folder / "theirs").read_text() == "kept"
    assert load(".").config.hidden_dropout_prob == 0.03
    assert not (folder / "model.safetensors").exists()


OLD = {"config.json": "1", "model-1": "1", "model-2": "1", "vocab.txt": "kept"}
NEW = {"config.json": "2", "model-2": "2", "model-3": "2", "vocab.txt": "kept"}


def at_each_step(monkeypatch: pytest.MonkeyPatch, fail: Callable[[], object]) -> Callable[[int | None], list[str]]:
    """Lets the nth call that changes a file or folder call `fail` instead; returns the calls so far."""
    state: dict[str, Any] = {"at": None, "calls": []}

    def wrapped(name: str, real: Any) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Any:
            state["calls"].append(name)
            if len(state["calls"]) - 1 == state["at"]:
                fail()
            return real(*arguments, **keywords)

        return call

    for name in ("rename", "replace", "mkdir", "unlink", "rmdir", "fsync"):
        monkeypatch.setattr(os, name, wrapped(name, getattr(os, name)))

    def reset(at: int | None) -> list[str]:
        calls = state["calls"]
        state.update(at=at, calls=[])
        return list(calls)

    return reset


def seen_whole(folder: Path) -> dict[str, str]:
    found = read_whole(folder, lambda: contents(folder))
    return {name: text for name, text in found.items() if not name.startswith(".")}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_each_step_a_save_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reset = at_each_step(monkeypatch, lambda: os._exit(9))
    outcomes = []
    new = {name: text for name, text in NEW.items() if name != "vocab.txt"}
    for number in range(200):
        reset(None)
        folder = tmp_path / str(number) / "m"
        put(folder, {name: text for name, text in OLD.items() if name != "vocab.txt"})
        (folder / "vocab.txt").write_text("kept")
        child = os.fork()
        if child == 0:
            reset(number)
            put(folder, new)
            os._exit(0)
        finished = os.waitpid(child, 0)[1] == 0
        plainly = {name: text for name, text in contents(folder).items() if not name.startswith(".")}
        assert plainly in (OLD, NEW) or "config.json" not in plainly, "a mixture that other programs would load"
        found = seen_whole(folder)
        assert found in (OLD, NEW), f"step {number}"
        outcomes.append(found == NEW)
        put(folder, {"config.json": "3", "model": "3"})
        assert contents(folder.parent) == {"m/config.json": "3", "m/model": "3", "m/vocab.txt": "kept"}
        if finished:
            break
    assert finished
    assert outcomes == sorted(outcomes), "old, old, …, new, new"
    assert outcomes.count(False) >= 5
    assert outcomes.count(True) >= 5


def test_a_save_that_fails_at_any_step_leaves_the_old_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    reset = at_each_step(monkeypatch, fail)
    failures = 0
    for number in range(200):
        reset(None)
        folder = tmp_path / str(number) / "m"
        put(folder, {name: text for name, text in OLD.items() if name != "vocab.txt"})
        (folder / "vocab.txt").write_text("kept")
        reset(number)
        try:
            put(folder, {name: text for name, text in NEW.items() if name != "vocab.txt"})
        except OSError:
            failures += 1
            assert seen_whole(folder) == OLD, f"step {number}"
        else:
            assert seen_whole(folder) == NEW, f"step {number}"
        if len(reset(None)) <= number:
            break
    assert failures >= 10


def test_a_killed_save_that_cannot_be_finished_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = cut_short(tmp_path)

    def refused(*_: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "rename", refused)
    with pytest.raises(CheckpointError, match=r"was cut short and cannot be finished: Read-only file system"):
        seen_whole(folder)
    monkeypatch.undo()
    assert seen_whole(folder) == NEW


def cut_short(tmp_path: Path) -> Path:
    """A folder whose save was killed when the first old file had gone out."""
    folder = tmp_path / "m"
    claimed = folder / ".replacing"
    (claimed / ".old").mkdir(parents=True)
    for place, files in ((folder, OLD), (claimed, NEW)):
        for name, text in files.items():
            if not (place == claimed and name == "vocab.txt"):
                (place / name).write_text(text)
    journal = {"out": ["config.json", "model-2", "model-1"], "in": ["config.json", "model-2", "model-3"]}
    (claimed / "journal.json").write_text(json.dumps(journal))
    os.rename(folder / "config.json", claimed / ".old" / "config.json")
    return folder


@pytest.mark.parametrize("names", [["../secret"], ["/etc/passwd"], ["a\x00b"], [1], "x/y", [["a"]], {"a/b": 1}, None])
def test_a_strangers_journal_leads_nowhere(tmp_path: Path, names: Any) -> None:
    (tmp_path / "secret").write_text("mine")
    folder = cut_short(tmp_path)
    for key in ("in", "out"):
        journal = {"in": [], "out": []} | {key: names}
        (folder / ".replacing" / "journal.json").write_text(json.dumps(journal))
        before = contents(tmp_path)
        with pytest.raises(CheckpointError, match="cannot be finished"):
            seen_whole(folder)
        assert contents(tmp_path) == before


def test_a_link_is_no_journal(tmp_path: Path) -> None:
    other = cut_short(tmp_path)
    (tmp_path / "n").mkdir()
    (tmp_path / "n" / ".replacing").symlink_to(other / ".replacing")
    before = contents(other)
    assert "model-1" not in seen_whole(tmp_path / "n")
    assert contents(other) == before


SAVERS = """
import os, sys
from pathlib import Path
from bertie.files import new_files, read_whole
folder, number = Path(sys.argv[1]), sys.argv[2]
for turn in range(int(sys.argv[3])):
    with new_files(folder, obsolete=lambda name: name.startswith(("model", "config"))) as place:
        for name in ("config.json", "model-a.safetensors", f"model-{number}.safetensors"):
            (place / name).write_text(f"{number} {turn}")
"""


def test_three_savers_and_a_reader_see_one_save_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    savers = [
        subprocess.Popen([sys.executable, "-c", SAVERS, str(folder), str(number), "60"], stderr=subprocess.PIPE)
        for number in range(3)
    ]
    seen = set()

    def read() -> dict[str, str]:
        if not (folder / "config.json").exists():
            return {}
        found = {"config.json": (folder / "config.json").read_text()}
        return found | {path.name: path.read_text() for path in sorted(folder.glob("model-*"))}

    while any(saver.poll() is None for saver in savers):
        found = read_whole(folder, read)
        if found:
            assert len(set(found.values())) == 1, f"parts of several saves: {found}"
            assert len(found) == 3, f"not a whole set: {found}"
            seen.add(found["config.json"])
        time.sleep(0.001)
    errors = [saver.communicate()[1].decode() for saver in savers]
    assert [saver.returncode for saver in savers] == [0, 0, 0], errors
    assert len(seen) > 1
    assert len(read_whole(folder, read)) == 3
    assert sorted(path.name for path in tmp_path.rglob(".*")) == []


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
    with new_files(tmp_path / "m", obsolete=is_model) as running:
        put(tmp_path / "m", {"model": "second"})  # a second save while the first is at work
        assert running.is_dir()
        assert not dead.exists()
        (running / "model").write_text("first")
    assert contents(tmp_path / "m") == {"model": "first"}
    assert other.exists()


def test_one_changed_file_keeps_the_folder_itself(tmp_path: Path) -> None:
    """People sit in it, watch it, hold it open."""
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
