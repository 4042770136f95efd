"""Files that are written whole or not at all: every room that keeps something on a disk keeps it through this one.

    replace_file   one small file, in one step          NewFile     one file that is written piece by piece
    new_files      a set of files in a folder           read_whole  such a set, all of it from one save
    Lock           the right to write somewhere         sha256, sync

A set is put into a folder so that a crash at any moment leaves the old set or the new one. A folder that does not exist
is built beside its place and renamed into being. A folder that exists stays that folder: programs sit in it (their
working directory), watch it, mount it, and keep other files there. It gets new files so:

    1. The new files are written into FOLDER/.saving-… and flushed to the disk.
    2. That folder is renamed to FOLDER/.replacing. The name is free or taken, so one save at a time goes on from here.
    3. .replacing/journal.json says which files go out and which come in. From now on the new set counts.
    4. Old files go out to .replacing/.old, config.json first; new ones come in, config.json last.
    5. .replacing is removed.

Killed before 3, a save has changed nothing. Killed later, whoever comes next, a reader or a save, does the rest. A
program that knows nothing of this finds a folder without config.json meanwhile, and refuses it: it cannot load one
save's configuration with another's weights. Where a single file changes, one rename does it without a journal.

Whoever writes holds a lock on what it writes, by which others know that it lives; what dead ones leave is removed by
the next. Where the system has no locks, nobody can know whether a writer is still alive, and what it left stays.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TypeVar

from bertie.errors import BertieError, CheckpointError

try:
    from fcntl import LOCK_EX, LOCK_NB, flock
except ImportError:
    _HAS_LOCKS = False
else:
    _HAS_LOCKS = True

_SAVING, _REPLACING, _JOURNAL, _OLD = ".saving-", ".replacing", "journal.json", ".old"
_GATE = "config.json"  # the file without which nobody loads the others
_WAIT = 60.0  # seconds for another save to exchange its files, which takes milliseconds
_TRIES = 100
_MAX_JOURNAL = 1 << 20
_OPEN_FILES = "/proc/self/fd"  # by number, as links that a file without a name can be reached by
Result = TypeVar("Result")


def cache_folder(what: str) -> Path:
    """Where things of a kind are kept that can be made again: below BERTIE_CACHE, or the user's own cache."""
    home = os.environ.get("BERTIE_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bertie"
    return Path(home) / what


# -- one file --------------------------------------------------------------------------------------------------------


def sha256(path: str | os.PathLike[str]) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Flush a file or a folder to the disk."""
    if path.is_dir() and os.name == "nt":
        return  # Windows cannot open folders
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that have nothing to flush
            raise
    finally:
        os.close(descriptor)


def replace_file(path: Path, text: str) -> None:
    """Write a small file in one step. One writer at a time: who may write there is for a `Lock` to say.

    Whatever has the name that the file has meanwhile goes: where others may write into the folder, it may be a link,
    and writing through that would overwrite a file elsewhere.
    """
    new = path.with_name(f".{path.name}.new")
    try:
        new.unlink(missing_ok=True)
        with open(new, "x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
        sync(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        raise


class NewFile:
    """A file that is written piece by piece, to its `stream`, and appears at its place when it is kept.

    Until then it has no name at all; where the system has no such files, it is a `.NAME.….part` beside its place. It
    goes into the folder that was there when it was begun: whoever may rename folders above it could put a link there
    meanwhile, and by its path, the file would overwrite one where the link leads.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self._part, self._named = _part_of(place), False
        self._folder: int | None = None
        _remove_stale_parts(place)
        if os.open in os.supports_dir_fd:
            self._folder = os.open(place.parent, getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY)
        try:
            self.stream = self._without_name() or self._locked_part()
        except BaseException:
            self._close_folder()
            raise

    def keep(self) -> None:
        """Put the file in its place, flushed to the disk."""
        self.flush()
        part, place, folder = self._at(self._part), self._at(self.place), self._folder
        if not self._named:
            # Locked, so that no other run takes it for a dead one's part.
            _lock(self.stream.fileno())
            # With a src_dir_fd, which does not matter here, Python uses the one system call that follows the link.
            file = self.stream.fileno()
            os.link(f"{_OPEN_FILES}/{file}", part, src_dir_fd=file, dst_dir_fd=folder)
        if os.name == "nt":  # an open file cannot be renamed there
            self.stream.close()
        os.replace(part, place, src_dir_fd=folder, dst_dir_fd=folder)
        with contextlib.suppress(OSError):
            sync(self.place.parent)
        self.stream.close()
        self._close_folder()

    def flush(self) -> None:
        self.stream.flush()
        os.fsync(self.stream.fileno())

    def discard(self) -> None:
        """Forget what was written; the file that was there before stays."""
        with contextlib.suppress(OSError):  # closing flushes, and the disk may be full
            self.stream.close()
        with contextlib.suppress(OSError):
            os.unlink(self._at(self._part), dir_fd=self._folder)
        self._close_folder()

    def _at(self, path: Path) -> str:
        """A path in the folder, for calls with its descriptor."""
        return str(path) if self._folder is None else path.name

    def _close_folder(self) -> None:
        if self._folder is not None:
            os.close(self._folder)
            self._folder = None

    def _without_name(self) -> IO[bytes] | None:
        if self._folder is not None and hasattr(os, "O_TMPFILE") and os.path.isdir(_OPEN_FILES):
            with contextlib.suppress(OSError):  # this file system has none
                return os.fdopen(os.open(".", os.O_TMPFILE | os.O_RDWR, 0o666, dir_fd=self._folder), "wb")
        return None

    def _locked_part(self) -> IO[bytes]:
        """A new part, locked while its process lives. Before that, another run may take it for a dead one's."""
        self._named = True
        while True:
            file = open(self._at(self._part), "xb", opener=self._open)  # noqa: SIM115  # handed on open
            if not _lock(file.fileno()) or _is_at(file.fileno(), self._at(self._part), self._folder):
                return file
            file.close()
            self._part = _part_of(self.place)

    def _open(self, name: str, flags: int) -> int:
        return os.open(name, flags, 0o666, dir_fd=self._folder)


def _part_of(place: Path) -> Path:
    return place.with_name(f".{place.name[:100]}.{secrets.token_hex(6)}.part")


def _remove_stale_parts(place: Path) -> None:
    """Parts of this file that killed runs left behind."""
    pattern = re.compile(re.escape(f".{place.name[:100]}.") + r"[0-9a-f]{12}\.part")
    with contextlib.suppress(OSError):
        for name in filter(pattern.fullmatch, os.listdir(place.parent)):
            with contextlib.suppress(OSError), open(place.with_name(name), "rb") as file:
                if _lock(file.fileno()):
                    os.unlink(file.name)


# -- locks -----------------------------------------------------------------------------------------------------------


class Busy(Exception):
    """Another process has the lock; `holder` says which, and is empty where that is not known."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


class Lock:
    """The right to write, of one process at a time; it ends with `close`, or with the process.

    It lies on a folder, or on a file of that name made in it, which then says who has it. `wait` waits for whoever has
    it; otherwise that is a `Busy`. A file is never reached through a link, which would overwrite one elsewhere.
    """

    def __init__(self, folder: Path, name: str | None = None, *, wait: bool = False) -> None:
        self._descriptor: int | None = None
        if not _HAS_LOCKS:
            return
        if name is None:
            self._descriptor = os.open(folder, os.O_RDONLY)
        else:
            self._descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            if wait:
                flock(self._descriptor, LOCK_EX)
            elif not _lock(self._descriptor):
                said = "" if name is None else os.read(self._descriptor, 100).decode(errors="replace").strip()
                raise Busy(said or _holder(self._descriptor))
            if name is not None:
                os.ftruncate(self._descriptor, 0)
                os.write(self._descriptor, f"process {os.getpid()} on {os.uname().nodename}\n".encode())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _lock(descriptor: int) -> bool:
    """Whether the file is now locked, until it is closed or this process ends."""
    if not _HAS_LOCKS:
        return False
    try:
        flock(descriptor, LOCK_EX | LOCK_NB)
    except OSError:
        return False
    return True


def _holder(descriptor: int) -> str:
    """The process that has a lock on an open file, where the system tells: one line in /proc/locks for each lock."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            # 3: FLOCK  ADVISORY  WRITE 1234 fe:00:2597507 0 EOF
            words = line.split()
            if len(words) > 5 and words[1] == "FLOCK" and words[5].endswith(f":{os.fstat(descriptor).st_ino}"):
                return f"number {words[4]}"
    return ""


def _is_at(descriptor: int, path: Path | str, folder: int | None = None) -> bool:
    """Whether an open file or folder is still the one of that name, in that open folder."""
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), os.stat(path, dir_fd=folder, follow_symlinks=False))
    return False


# -- a set of files --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def new_files(folder: str | os.PathLike[str], obsolete: Callable[[str], bool]) -> Iterator[Path]:
    """A place to write a new set of files for `folder`; when the block ends well, they are in it.

    `obsolete(name)` says which of the folder's present files belong to the old set. Other files are kept.

        with new_files("model", obsolete=lambda name: name.startswith("model")) as place:
            (place / "model.safetensors").write_bytes(…)
    """
    target = Path(os.path.realpath(folder))
    target.parent.mkdir(parents=True, exist_ok=True)
    parent, prefix = (target, _SAVING) if target.is_dir() else (target.parent, f".{target.name}{_SAVING}")
    for one in (parent, target.parent):
        _remove_leftovers(one, _SAVING if one == target else f".{target.name}{_SAVING}")
    place, lock = _new_place(parent, prefix)
    try:
        yield place
        for path in place.iterdir():
            sync(path)
        sync(place)
        if parent != target:
            if _renamed(place, target):
                sync(target.parent)
                return
            place = place.rename(target / f"{_SAVING}{uuid.uuid4().hex}")  # another save made the folder meanwhile
        _replace(place, target, obsolete)
    finally:
        shutil.rmtree(place, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def read_whole(folder: Path, read: Callable[[], Result]) -> Result:
    """What `read()` reads in the folder, all of it from one save: read again if another save came in between."""
    for _ in range(_TRIES):
        finish(folder)
        before = _state(folder)
        try:
            result = read()
        except (BertieError, OSError):
            if _state(folder) == before:
                raise
            continue
        if _state(folder) == before:
            return result
    raise CheckpointError(
        f"{folder} was saved again during each of {_TRIES} attempts to read it.", "Load it when nobody is saving there."
    )


def finish(folder: Path) -> None:
    """Wait until a running save has exchanged its files; do the rest of one that was killed on the way."""
    claimed = folder / _REPLACING
    end = time.monotonic() + _WAIT
    while claimed.is_dir() and not claimed.is_symlink():
        lock = _locked(claimed)
        if lock is None and time.monotonic() < end:
            time.sleep(0.002)
            continue
        if lock is None and _HAS_LOCKS:
            raise CheckpointError(f"Another process has been saving in {folder} for {_WAIT:.0f} s.", "Wait for it.")
        try:
            if lock is not None and not _is_at(lock, claimed):
                continue
            if (claimed / _JOURNAL).is_file():
                _exchange(claimed, folder)
            elif not os.access(folder, os.W_OK):
                return  # the save that died had changed nothing, and what it left does not matter to a reader
            _release(claimed)
        except OSError as error:
            raise CheckpointError(
                f"A save into {folder} was cut short and cannot be finished: {error.strerror or error}.",
                "Load it once from where the folder can be written, or save it again.",
            ) from error
        finally:
            if lock is not None:
                os.close(lock)


def _replace(place: Path, target: Path, obsolete: Callable[[str], bool]) -> None:
    """Steps 2 to 5."""
    claimed = target / _REPLACING
    end = time.monotonic() + _WAIT
    while not _renamed(place, claimed):
        if time.monotonic() > end:
            raise TimeoutError(errno.ETIMEDOUT, f"another process has been saving there for {_WAIT:.0f} seconds")
        finish(target)
    try:
        new = sorted(path.name for path in claimed.iterdir())
        others = [name for name in os.listdir(target) if name not in new and not name.startswith((_SAVING, _REPLACING))]
        old = [name for name in others if obsolete(name)]
        changed = [name for name in new if not _same_content(claimed / name, target / name)]
        if len(changed) == 1 and not old:
            os.replace(claimed / changed[0], target / changed[0])
            sync(target)
        elif changed or old:
            there = [name for name in new if os.path.lexists(target / name)]
            (claimed / _OLD).mkdir()
            journal = {"out": sorted([*there, *old], key=_gate_last)[::-1], "in": new}
            replace_file(claimed / _JOURNAL, json.dumps(journal))
            _exchange(claimed, target)
    except BaseException:
        if (claimed / _JOURNAL).is_file() and os.listdir(claimed / _OLD):
            raise  # neither done nor undone: whoever comes next does the rest
        _release(claimed)
        raise
    with contextlib.suppress(OSError):  # what is left has nothing to do
        _release(claimed)


def _read_journal(path: Path) -> tuple[list[str], list[str]]:
    """The files that go out and those that come in. The folder may be a stranger's: its journal leads nowhere else."""
    try:
        with open(path, encoding="utf-8") as file:
            journal = json.loads(file.read(_MAX_JOURNAL))
        going, coming = journal["out"], journal["in"]
        sound = all(name == os.path.basename(name) and name.isprintable() for name in [*going, *coming])
    except (ValueError, KeyError, TypeError, RecursionError):
        sound = False
    if not sound:
        raise OSError(errno.EINVAL, f"{path} is not a list of files")
    return going, coming


def _exchange(claimed: Path, target: Path) -> None:
    """Step 4, or what is left of it. If it fails, what this call did is undone."""
    going, coming = _read_journal(claimed / _JOURNAL)
    moved: list[tuple[Path, Path]] = []

    def move(name: str, source: Path, destination: Path) -> None:
        os.rename(source / name, destination / name)
        moved.append((destination / name, source / name))

    try:
        for name in going:
            came_in = name in coming and not os.path.lexists(claimed / name)
            if not came_in and os.path.lexists(target / name):
                move(name, target, claimed / _OLD)
        for name in sorted(coming, key=_gate_last):
            if os.path.lexists(claimed / name):
                move(name, claimed, target)
        sync(target)
    except BaseException:
        for here, before in reversed(moved):
            os.rename(here, before)
        raise


def _gate_last(name: str) -> tuple[bool, bool, str]:
    return name == _GATE, name.endswith(".json"), name


def _release(claimed: Path) -> None:
    """Step 5. The name becomes free in one step; then there is time to remove files."""
    aside = claimed.with_name(f"{_SAVING}{uuid.uuid4().hex}")
    os.rename(claimed, aside)
    shutil.rmtree(aside, ignore_errors=True)


def _renamed(folder: Path, target: Path) -> bool:
    """Give a folder another name; False where a folder has that name already."""
    try:
        os.rename(folder, target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


def _same_content(new: Path, old: Path) -> bool:
    if not old.is_file() or old.is_symlink() or new.stat().st_size != old.stat().st_size:
        return False
    if new.stat().st_size > 1 << 20:  # weights: comparing costs more than renaming
        return False
    return new.read_bytes() == old.read_bytes()


def _state(folder: Path) -> object:
    """Which file each name is: what changes when a save exchanges files."""
    try:
        with os.scandir(folder) as entries:
            return {
                (entry.name, entry.inode(), entry.stat(follow_symlinks=False).st_mtime_ns)
                for entry in entries
                if entry.name == _REPLACING or entry.name.endswith((".json", ".safetensors", ".bin"))
            }
    except OSError as error:
        return error.errno


# -- what dead saves leave -------------------------------------------------------------------------------------------


def _new_place(parent: Path, prefix: str) -> tuple[Path, int | None]:
    """A new folder, locked. Before it is locked, another save may take it for a dead one's and remove it."""
    for _ in range(_TRIES):
        place = parent / f"{prefix}{uuid.uuid4().hex}"
        place.mkdir()
        lock = _locked(place)
        if (lock is not None and _is_at(lock, place)) or not _HAS_LOCKS:
            return place, lock
        if lock is not None:
            os.close(lock)
        shutil.rmtree(place, ignore_errors=True)
    raise OSError(errno.ENOLCK, "a folder cannot be locked there")


def _remove_leftovers(parent: Path, prefix: str) -> None:
    for entry in list(os.scandir(parent)) if os.access(parent, os.R_OK) else []:
        if entry.name.startswith(prefix) and entry.is_dir(follow_symlinks=False):
            lock = _locked(Path(entry.path))
            if lock is not None:
                shutil.rmtree(entry.path, ignore_errors=True)
                os.close(lock)


def _locked(folder: Path) -> int | None:
    """A lock on a folder that ends with this process; None when another process holds it or there are no locks."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    if _lock(descriptor):
        return descriptor
    os.close(descriptor)
    return None
