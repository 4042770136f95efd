"""Putting a set of files into a folder so that a reader, or a crash at any moment, finds the old set or the new one.

One file is replaced by one rename, which is atomic. Several files are not: between two renames there is a folder with a
new configuration and old weights. So the new set is built in a folder *beside* the target, with hard links to whatever
else the target holds, and the two folders change places in one step (Linux `renameat2` with RENAME_EXCHANGE, macOS
`renamex_np` with RENAME_SWAP). A folder that does not exist yet is simply renamed into being.

Where folders cannot change places (a mount point, a parent that is not ours to write, a file system or an operating
system without the call) the files are renamed one by one, weights first: each is whole, the set is not atomic.

Everything is on the disk (fsync) before it gets its name. A killed save leaves a `.NAME.saving-…` folder, which the
next save to the same place removes; a save that is still running holds a lock on its folder, and is left alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

_RENAME_EXCHANGE = 2  # the same number on Linux and macOS
_AT_FDCWD = -100


@contextlib.contextmanager
def new_files(folder: str | os.PathLike[str], obsolete: Callable[[str], bool]) -> Iterator[Path]:
    """A place to write a new set of files for `folder`; when the block ends well, they are in it.

    `obsolete(name)` says which of the folder's present files belong to the old set. Other files are kept.

        with new_files("model", obsolete=lambda name: name.startswith("model")) as place:
            (place / "model.safetensors").write_bytes(…)
    """
    target = Path(os.path.realpath(folder))
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = _can_swap(target)
    parent, prefix = (target.parent, f".{target.name}.saving-") if beside else (target, ".saving-")
    _remove_leftovers(parent, prefix)
    place = parent / f"{prefix}{uuid.uuid4().hex}"
    place.mkdir()
    lock = _locked(place)
    try:
        yield place
        for path in place.iterdir():
            sync(path)
        sync(place)
        _put_in_place(place, target, obsolete, swap=beside)
    finally:
        shutil.rmtree(place, ignore_errors=True)
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


def _put_in_place(place: Path, target: Path, obsolete: Callable[[str], bool], *, swap: bool) -> None:
    names = sorted(path.name for path in place.iterdir())
    if swap and not (target.is_dir() and os.listdir(target)):
        os.rename(place, target)  # also over an empty folder
        sync(target.parent)
        return
    old = [name for name in os.listdir(target) if obsolete(name) and name not in names]
    changed = [name for name in names if not _same_content(place / name, target / name)]
    if swap and (len(changed) > 1 or old):
        _keep_others(target, place, {*names, *old})
        shutil.copymode(target, place)
        sync(place)
        if exchange(place, target):
            sync(target.parent)
            _rescue_newcomers(place, target, obsolete)
            return
    for name in sorted(changed, key=lambda name: (name.endswith(".json"), name == "config.json")):
        os.replace(place / name, target / name)
    sync(target)
    for name in old:
        _remove(target / name)


def exchange(first: Path, second: Path) -> bool:
    """Let two folders change names in one step; False where that cannot be done."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if sys.platform == "darwin":
            result = libc.renamex_np(os.fsencode(first), os.fsencode(second), _RENAME_EXCHANGE)
        else:
            result = libc.renameat2(
                _AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), ctypes.c_uint(_RENAME_EXCHANGE)
            )
    except (OSError, AttributeError, TypeError):
        return False
    return bool(result == 0)


def _can_swap(target: Path) -> bool:
    """Whether a folder beside the target could take its name: same file system, parent writable, no mount point."""
    if not os.access(target.parent, os.W_OK):
        return False
    if not target.exists():
        return True
    return not os.path.ismount(target) and target.stat().st_dev == target.parent.stat().st_dev


def _same_content(new: Path, old: Path) -> bool:
    if not old.is_file() or old.is_symlink() or new.stat().st_size != old.stat().st_size:
        return False
    if new.stat().st_size > 1 << 20:  # weights: comparing costs more than renaming
        return False
    return new.read_bytes() == old.read_bytes()


def _keep_others(source: Path, destination: Path, left_out: set[str]) -> None:
    """Everything else the folder holds, under the same names: hard links, which cost nothing and share later writes."""
    for entry in os.scandir(source):
        if entry.name in left_out or entry.name.startswith(".saving-"):
            continue
        there = destination / entry.name
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), there)
        elif entry.is_dir():
            there.mkdir()
            _keep_others(Path(entry.path), there, set())
            shutil.copystat(entry.path, there)
        else:
            try:
                os.link(entry.path, there)
            except OSError:
                shutil.copy2(entry.path, there)
                sync(there)


def _rescue_newcomers(old: Path, new: Path, obsolete: Callable[[str], bool]) -> None:
    """Files that others put into the folder while it was being replaced."""
    for name in os.listdir(old):
        if not obsolete(name) and not os.path.lexists(new / name):
            os.rename(old / name, new / name)


def _remove_leftovers(parent: Path, prefix: str) -> None:
    for entry in list(os.scandir(parent)) if parent.is_dir() else []:
        if entry.name.startswith(prefix) and entry.is_dir(follow_symlinks=False):
            lock = _locked(Path(entry.path))
            if lock is not None:
                shutil.rmtree(entry.path, ignore_errors=True)
                os.close(lock)


def _locked(folder: Path) -> int | None:
    """A lock on a folder that ends with this process; None when another process holds it or there are no locks."""
    try:
        import fcntl
    except ImportError:
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


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
