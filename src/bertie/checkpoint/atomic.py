"""Putting a set of files into a folder so that a crash at any moment leaves the old set or the new one, whole.

A folder that does not exist is built beside its place and renamed into being. A folder that exists stays that folder:
programs sit in it (their working directory), watch it, mount it, and keep other files there. It gets new files so:

    1. The new files are written into FOLDER/.saving-… and flushed to the disk.
    2. That folder is renamed to FOLDER/.replacing. The name is free or taken, so one save at a time goes on from here.
    3. .replacing/journal.json says which files go out and which come in. From now on the new set counts.
    4. Old files go out to .replacing/.old, config.json first; new ones come in, config.json last.
    5. .replacing is removed.

Killed before 3, a save has changed nothing. Killed later, whoever comes next, a reader or a save, does the rest. A
program that knows nothing of this finds a folder without config.json meanwhile, and refuses it: it cannot load one
save's configuration with another's weights. Where a single file changes, one rename does it without a journal.

`read_whole` is the other side: what it reads is of one save. A save holds a lock on its own folder, by which others
know that it lives; what dead ones leave is removed by the next save.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from bertie.errors import BertieError, CheckpointError

try:
    import fcntl
except ImportError:  # not on this system: saves cannot be told dead or alive, and their remains stay
    fcntl = None  # type: ignore[assignment]

_SAVING, _REPLACING, _JOURNAL, _OLD = ".saving-", ".replacing", "journal.json", ".old"
_GATE = "config.json"  # the file without which nobody loads the others
_WAIT = 60.0  # seconds for another save to exchange its files, which takes milliseconds
_TRIES = 100
_MAX_JOURNAL = 1 << 20
Result = TypeVar("Result")


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
        f"{folder} was saved anew each of the {_TRIES} times it was read.", "Load it when nobody is saving there."
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
        if lock is None and fcntl is not None:
            raise CheckpointError(f"Another process has been saving in {folder} for {_WAIT:.0f} s.", "Wait for it.")
        try:
            if lock is not None and not _is_at(lock, claimed):
                continue
            if (claimed / _JOURNAL).is_file():
                _exchange(claimed, folder)
            elif not os.access(folder, os.W_OK):
                return  # the dead save had changed nothing, and its remains do not matter to a reader
            _release(claimed)
        except OSError as error:
            raise CheckpointError(
                f"A save into {folder} was cut short and cannot be finished: {error.strerror or error}.",
                "Load it once from where the folder can be written, or save it again.",
            ) from error
        finally:
            if lock is not None:
                os.close(lock)


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


def write_new(path: Path, text: str) -> None:
    """Write and flush a file that gets its final name later. Whatever has its present one goes: where others may write
    into the folder, it may be a link, and writing through that would overwrite a file elsewhere."""
    path.unlink(missing_ok=True)
    with open(path, "x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


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
            _write_journal(claimed, {"out": sorted([*there, *old], key=_gate_last)[::-1], "in": new})
            _exchange(claimed, target)
    except BaseException:
        if (claimed / _JOURNAL).is_file() and os.listdir(claimed / _OLD):
            raise  # neither done nor undone: whoever comes next does the rest
        _release(claimed)
        raise
    with contextlib.suppress(OSError):  # what is left has nothing to do
        _release(claimed)


def _write_journal(claimed: Path, journal: dict[str, list[str]]) -> None:
    (claimed / _OLD).mkdir()
    unfinished = claimed / f"{_JOURNAL}.new"
    unfinished.write_text(json.dumps(journal), encoding="utf-8")
    sync(unfinished)
    os.rename(unfinished, claimed / _JOURNAL)
    sync(claimed)


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
        if (lock is not None and _is_at(lock, place)) or fcntl is None:
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
    if fcntl is None:
        return None
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether an open folder is still the one of that name."""
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    return False
