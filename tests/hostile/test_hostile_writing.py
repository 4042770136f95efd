"""Writing where others may write too: links in the way, folders exchanged meanwhile, no permission, two writers."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bertie import BertConfig, BertModel
from bertie.checkpoint import save
from bertie.data.writing import RowWriter
from bertie.errors import BertieError, CheckpointError, DataError
from bertie.search import files as index_files
from bertie.search.index import Index, build_index
from bertie.training.pretraining import array_folder
from bertie.training.run import checkpoint as run_checkpoint
from bertie.training.run import journal as progress
from tiny_models import saved

TEXTS = [f"The cat sat on mat number {number}." for number in range(40)]
MINE = "what is mine"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(tmp_path_factory.mktemp("writing") / "model", "BertModel")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def exchange(folder: Path, elsewhere: Path) -> None:
    """What a stranger does who may rename the folder: puts a link to another one in its place."""
    folder.rename(folder.with_name("moved away"))
    folder.symlink_to(elsewhere)


# -- links ------------------------------------------------------------------------------------------------------------


def test_a_link_that_waits_in_an_index_is_not_written_through(model: str, tmp_path: Path) -> None:
    index = build_index(TEXTS[:20], tmp_path / "index", model=model)
    (tmp_path / "secret").write_text(MINE)
    number = index.manifest.next_part
    for name in (f".{index_files.MANIFEST}.new", f"part-{number:06d}.jsonl", f"part-{number:06d}.safetensors"):
        (index.folder / name).symlink_to(tmp_path / "secret")
    index.add(TEXTS[20:])
    assert (tmp_path / "secret").read_text() == MINE
    assert len(Index.open(index.folder)) == len(TEXTS)


def test_a_link_that_appears_just_before_a_part_is_written_is_not_written_through(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = build_index(TEXTS[:20], tmp_path / "index", model=model)
    (tmp_path / "secret").write_text(MINE)
    write = index_files._write_part

    def late(folder: Path, name: str, *given: Any) -> Any:
        (folder / f"{name}.jsonl").symlink_to(tmp_path / "secret")
        return write(folder, name, *given)

    monkeypatch.setattr(index_files, "_write_part", late)
    with pytest.raises(DataError, match="cannot be written: File exists"):
        index.add(TEXTS[20:])
    monkeypatch.undo()
    assert (tmp_path / "secret").read_text() == MINE
    assert len(Index.open(index.folder)) == 20
    index.add(TEXTS[20:])
    assert len(Index.open(index.folder)) == len(TEXTS)


def _lock_of_a_run(folder: Path) -> None:
    run_checkpoint._lock(folder)


def _lock_of_arrays(folder: Path) -> None:
    with array_folder.locked(folder / "arrays"):
        raise AssertionError("it was locked")


@pytest.mark.parametrize(
    ("name", "write"),
    [(".lock", _lock_of_a_run), (".arrays.lock", _lock_of_arrays)],
    ids=["run", "arrays"],
)
def test_a_link_is_no_lock(name: str, write: Callable[[Path], None], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (tmp_path / "secret").write_text(MINE)
    (folder / name).symlink_to(tmp_path / "secret")
    with pytest.raises((OSError, BertieError)):
        write(folder)
    assert (tmp_path / "secret").read_text() == MINE


def test_a_link_in_place_of_a_temporary_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(MINE)
    for name in (".metrics.jsonl.new", ".about.json.new"):
        (tmp_path / name).symlink_to(tmp_path / "secret")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    progress._keep_until(tmp_path / "metrics.jsonl", 1)
    array_folder._write(tmp_path / "about.json", {"a": 1})
    assert (tmp_path / "secret").read_text() == MINE
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1}\n'
    assert not (tmp_path / "about.json").is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["about.json", "metrics.jsonl", "secret"], "no other name was written to"


@pytest.mark.skipif(os.open not in os.supports_dir_fd, reason="this system opens files by their path only")
@pytest.mark.parametrize("named", [False, True], ids=["without a name", "with a name"])
def test_rows_go_into_the_folder_in_which_they_were_begun(
    named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if named:  # as on systems that know no files without names
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    folder, victim = tmp_path / "out", tmp_path / "victim"
    for one in (folder, victim):
        one.mkdir()
    (victim / "a.jsonl").write_text(MINE)
    with RowWriter(folder / "a.jsonl") as out:
        out.write({"a": 1})
        exchange(folder, victim)
    assert contents(victim) == {"a.jsonl": MINE.encode()}
    assert contents(tmp_path / "moved away") == {"a.jsonl": b'{"a": 1}\n'}


def test_a_file_that_becomes_a_link_meanwhile_is_replaced_and_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(MINE)
    with RowWriter(tmp_path / "a.jsonl") as out:
        out.write({"a": 1})
        (tmp_path / "a.jsonl").symlink_to(tmp_path / "secret")
    assert (tmp_path / "secret").read_text() == MINE
    assert (tmp_path / "a.jsonl").read_text() == '{"a": 1}\n'


@pytest.mark.parametrize("exists", [False, True], ids=["new folder", "old folder"])
def test_a_save_whose_folder_is_exchanged_for_a_link_overwrites_nothing(
    exists: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each file that it writes, and before any is in its place."""
    parent, victim = tmp_path / "models", tmp_path / "victim"
    tiny = BertModel(BertConfig.preset("tiny", vocab_size=64))
    write = save.write_safetensors
    swapped = parent / "m" if exists else parent

    def late(path: Path, *given: Any, **options: Any) -> Any:
        size = write(path, *given, **options)
        exchange(swapped, victim)
        return size

    for one in (parent, victim / "m") if not exists else (parent / "m", victim):
        one.mkdir(parents=True)
    there = victim if exists else victim / "m"
    for name in ("config.json", "model.safetensors"):
        (there / name).write_text(MINE)
    before = contents(victim)
    monkeypatch.setattr(save, "write_safetensors", late)
    with pytest.raises(CheckpointError, match="could not be saved"):
        tiny.save_pretrained(parent / "m")
    assert contents(victim) == before


# -- no permission ----------------------------------------------------------------------------------------------------

READ_ONLY = """
import ctypes, os, sys
if os.getuid() == 0:  # without its capabilities, root is a user like others
    assert ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()) == 0
import torch
torch.set_num_threads(1)
from bertie import BertModel
from bertie.data.writing import RowWriter
from bertie.errors import BertieError
from bertie.search.index import Index

root = sys.argv[1]
def rows():
    with RowWriter(f"{root}/folder/a.jsonl") as out:
        out.write({"a": 1})

for work in (
    lambda: BertModel.from_pretrained(f"{root}/model").save_pretrained(f"{root}/model"),
    lambda: BertModel.from_pretrained(f"{root}/model").save_pretrained(f"{root}/folder/new"),
    lambda: Index.open(f"{root}/index").add(["one more"]),
    rows,
):
    try:
        work()
        print("it was written")
    except BertieError as error:
        print(type(error).__name__, "|", error.cause, "|", error.remedy)
print(len(Index.open(f"{root}/index").search("cat", k=3)), "found")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="permissions are asked of Linux")
def test_a_folder_that_may_only_be_read_is_left_as_it_is_and_works(model: str, tmp_path: Path) -> None:
    saved(tmp_path / "model", "BertModel")
    build_index(TEXTS, tmp_path / "index", model=str(tmp_path / "model"))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.jsonl").write_text(MINE)
    before = contents(tmp_path)
    folders = [tmp_path, *(path for path in tmp_path.rglob("*") if path.is_dir())]
    try:
        for path in folders:
            path.chmod(0o555)
        command = [sys.executable, "-c", READ_ONLY, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    finally:
        for path in folders:
            path.chmod(0o755)
    said = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split(" | ")[0] for line in said[:4]] == ["CheckpointError"] * 2 + ["DataError"] * 2
    for line in said[:4]:
        assert "ermission denied" in line
        assert len(line.split(" | ")[2]) > 10, "a remedy"
    assert said[4] == "3 found"
    assert contents(tmp_path) == before


@pytest.mark.parametrize("call", ["replace", "rename", "link"])
def test_a_rename_that_fails_leaves_what_was_there(
    call: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = BertModel(BertConfig.preset("tiny", vocab_size=64))
    tiny.save_pretrained(tmp_path / "m")
    index = build_index(TEXTS[:20], tmp_path / "index", model=model)
    (tmp_path / "a.jsonl").write_text(MINE)
    before = contents(tmp_path)

    def refused(*_: Any, **__: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    def rows() -> None:
        with RowWriter(tmp_path / "a.jsonl") as out:
            out.write({"a": 1})

    other = BertModel(BertConfig.preset("tiny", vocab_size=65))
    works: dict[str, list[Callable[[], Any]]] = {
        "replace": [rows, lambda: index.add(TEXTS[20:])],
        "rename": [lambda: other.save_pretrained(tmp_path / "m"), lambda: other.save_pretrained(tmp_path / "new")],
        "link": [rows] if hasattr(os, "O_TMPFILE") else [],
    }
    for work in works[call]:
        with monkeypatch.context() as patch:
            patch.setattr(os, call, refused)
            with pytest.raises(BertieError, match="Input/output error"):
                work()
        assert contents(tmp_path) == before


# -- two writers ----------------------------------------------------------------------------------------------------

WRITER = """
import sys, torch
torch.set_num_threads(1)
from bertie.errors import DataError
from bertie.search.index import Index

folder, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
index = Index.open(folder)
index.embedder.embed(["ready"])
print("ready", flush=True)
sys.stdin.readline()
added = refused = 0
while added < count and refused < 10_000:
    try:
        index.add([f"cat {name} {added}"])
        added += 1
    except DataError as error:
        refused += 1
        assert "is being written by another process" in error.cause, error.cause
print(added, refused, flush=True)
"""


def test_two_processes_that_add_to_an_index_lose_no_row(model: str, tmp_path: Path) -> None:
    index = build_index(TEXTS, tmp_path / "index", model=model)
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(index.folder), name, "4"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for name in "ab"
    ]  # fmt: skip
    try:
        for one in writers:
            assert one.stdout is not None
            assert one.stdout.readline() == "ready\n"
        for one in writers:
            assert one.stdin is not None
            one.stdin.write("go\n")
            one.stdin.flush()
        said = [one.communicate(timeout=240)[0] for one in writers]
    finally:
        for one in writers:
            one.kill()
            one.wait()
    assert [int(text.split()[0]) for text in said] == [4, 4]
    whole = Index.open(index.folder)
    found = {hit.text for hit in whole.search("cat", k=len(whole))}
    assert found == {*TEXTS, *(f"cat {name} {number}" for name in "ab" for number in range(4))}
    assert len(whole) == len(TEXTS) + 8


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="this system does not tell who holds a lock")
def test_the_second_writer_hears_who_the_first_is(model: str, tmp_path: Path) -> None:
    index = build_index(TEXTS[:4], tmp_path / "index", model=model)
    holder = subprocess.Popen(
        [sys.executable, "-c", "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX); "
         "print('locked', flush=True); sys.stdin.read()", str(index.folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(DataError, match=rf"is being written by another process \(number {holder.pid}\)"):
            index.add(["more"])
    finally:
        holder.communicate(timeout=60)
    index.add(["more"])
    assert len(index) == 5
