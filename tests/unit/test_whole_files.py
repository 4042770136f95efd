"""One file that appears whole, and the right to write; sets of files are in checkpoint/test_atomic_saving.py."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bertie.files import Busy, Lock, NewFile, replace_file, sha256
from bertie.json_values import fields, items, text, texts, whole


def test_a_replaced_file_is_the_new_one_or_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "manifest.json"
    replace_file(path, "one")
    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:

            def full(*arguments: Any) -> None:
                raise OSError(errno.ENOSPC, "No space left on device")

            patch.setattr(os, name, full)
            with pytest.raises(OSError, match="No space"):
                replace_file(path, "two")
        assert (path.read_text(), os.listdir(tmp_path)) == ("one", ["manifest.json"])
    replace_file(path, "two")
    assert path.read_text() == "two"
    assert sha256(path) == hashlib.sha256(b"two").hexdigest()


@pytest.mark.parametrize("nameless", [True, False])
def test_a_new_file_has_no_place_until_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nameless: bool
) -> None:
    if not nameless:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    path = tmp_path / "a.txt"
    path.write_text("old")
    given_up = NewFile(path)
    given_up.stream.write(b"half")
    given_up.discard()
    assert (path.read_text(), os.listdir(tmp_path)) == ("old", ["a.txt"])
    kept, other = NewFile(path), NewFile(path)  # neither takes the other for a dead one's remains
    kept.stream.write(b"new")
    other.stream.write(b"newer")
    assert path.read_text() == "old"
    kept.keep()
    other.keep()
    assert (path.read_text(), os.listdir(tmp_path)) == ("newer", ["a.txt"])


KILLED = """
import os, signal, sys
from pathlib import Path
if sys.argv[2] == "named" and hasattr(os, "O_TMPFILE"):
    del os.O_TMPFILE
from bertie.files import NewFile
new = NewFile(Path(sys.argv[1]))
new.stream.write(b"half")
new.stream.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="files without a name are Linux's")
@pytest.mark.parametrize("kind", ["nameless", "named"])
def test_a_killed_writer_leaves_nothing_that_stays(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    done = subprocess.run([sys.executable, "-c", KILLED, str(path), kind], timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert path.read_text() == "old"
    assert len(os.listdir(tmp_path)) == (1 if kind == "nameless" else 2)
    NewFile(path).keep()  # the next run removes what the dead one left
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.skipif(sys.platform == "win32", reason="has no such locks")
def test_a_lock_is_one_process_at_a_time_and_says_whose(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from bertie.files import Lock"
    code += "; lock = Lock(Path(sys.argv[1]), *sys.argv[2:]); print('held', flush=True); sys.stdin.read()"
    told = "number {}" if Path("/proc/locks").exists() else ""
    for name, holder in (((".lock",), "process {} on"), ((), told)):
        with subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path), *name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            with pytest.raises(Busy) as caught:
                Lock(tmp_path, *name)
            assert caught.value.holder.startswith(holder.format(other.pid))
            other.kill()  # the lock ends with the process
        with Lock(tmp_path, *name):
            pass
        Lock(tmp_path, *name, wait=True).close()


@pytest.mark.skipif(sys.platform == "win32", reason="has no such locks")
def test_a_lock_is_not_reached_through_a_link_to_a_file_or_a_folder(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "mine").write_text("mine")
    for name in ("elsewhere", "mine"):
        (tmp_path / f".{name}.lock").symlink_to(tmp_path / name)
        with pytest.raises(OSError, match="symbolic links"):
            Lock(tmp_path, f".{name}.lock")
    assert (tmp_path / "mine").read_text() == "mine"


def test_values_are_narrowed_by_kind() -> None:
    assert (fields({"a": 1}), fields([1]), fields(None)) == ({"a": 1}, {}, {})
    assert (items([1]), items((1,)), items("a"), items({})) == ([1], [1], None, None)
    assert (text("a"), text(b"a"), text(1)) == ("a", None, None)
    assert (texts(["a"]), texts([]), texts(["a", 1]), texts("a")) == (["a"], [], None, None)
    assert (whole(3), whole(True), whole(3.0)) == (3, None, None)
