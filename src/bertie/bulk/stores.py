"""Where a job's files are: folders of this machine, and stores (s3://, gs://, hdfs://, …) through pyarrow and fsspec.

A file appears whole or not at all. On a disk it is renamed into place (bertie/files.py), on HDFS likewise; an object
store has no rename, and a put there is one step by itself: what is to be put is complete on a local disk before.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING

from bertie.data.source import reason_of
from bertie.errors import DataError, MissingExtra
from bertie.files import NewFile, replace_file

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs as pafs

_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_PYARROW = ("s3", "gs", "gcs", "hdfs", "viewfs")  # pyarrow reads these itself; fsspec all others
_RENAMING = ("hdfs", "viewfs")


@dataclass(frozen=True)
class Found:
    """A file that is there, by its full name, and its size in bytes."""

    name: str
    size: int


def is_address(name: str) -> bool:
    """Whether a name is that of a store, and not of a file on this machine."""
    return _ADDRESS.match(name) is not None


def full_name(name: str | os.PathLike[str]) -> str:
    """The same name, whatever the working directory is."""
    given = os.fspath(name)
    return given.rstrip("/") if is_address(given) else os.path.abspath(given)


def joined(folder: str, name: str) -> str:
    return f"{folder.rstrip('/')}/{name}"


def files_below(folder: str, *, recursive: bool) -> list[Found]:
    """The files in a folder, by name. None where there is no such folder."""
    import pyarrow.fs as pafs

    system, path = _opened(folder)
    try:
        found = system.get_file_info(pafs.FileSelector(path, recursive=recursive, allow_not_found=True))
    except OSError as error:
        raise _unreachable(folder, error) from error
    address = folder.removesuffix(path) if is_address(folder) else ""
    names = sorted((address + _below(path, one.path), one.size) for one in found if one.is_file)
    return [Found(name, size) for name, size in names]


def look_up(name: str) -> tuple[Found | None, bool]:
    """A file; where there is none, None and whether there is a folder."""
    system, path = _opened(name)
    try:
        (info,) = system.get_file_info([path])
    except OSError as error:
        raise _unreachable(name, error) from error
    if info.is_file:
        return Found(name, info.size), False
    # A store has no folders, only names that have a slash in them.
    return None, info.type.name == "Directory" or bool(files_below(name, recursive=True))


def open_file(name: str) -> pa.NativeFile:
    """A file to read, at any place in it."""
    system, path = _opened(name)
    try:
        return system.open_input_file(path)
    except OSError as error:
        raise DataError(
            f"{name}: cannot be opened: {reason_of(error)}.", "Check the path and who may read it."
        ) from error


def read_small(name: str) -> bytes | None:
    """All of a small file; None where there is none."""
    if look_up(name)[0] is None:
        return None
    with open_file(name) as file:
        content: bytes = file.read()
        return content


def write_small(name: str, text: str) -> None:
    """A small file, in one step."""
    try:
        if not is_address(name):
            replace_file(Path(name), text)
            return
        new = NewObject(name)
        new.stream.write(text.encode())
        new.keep()
    except OSError as error:
        raise unwritable(name, error) from error


def remove(name: str) -> None:
    system, path = _opened(name)
    try:
        system.delete_file(path)
    except OSError as error:
        raise unwritable(name, error) from error


def make_folder(name: str) -> None:
    try:
        if not is_address(name):
            Path(name).mkdir(parents=True, exist_ok=True)
            return
        system, path = _opened(name)
        system.create_dir(path, recursive=True)
    except OSError as error:
        raise unwritable(name, error) from error


def new_file(name: str) -> NewFile | NewObject:
    """A file that is written piece by piece to its `stream`, and is there once it is kept."""
    return NewObject(name) if is_address(name) else NewFile(Path(name))


class NewObject:
    """As `bertie.files.NewFile`, in a store."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stream: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed when it is kept or discarded

    def keep(self) -> None:
        system, path = _opened(self.name)
        renames = self.name.startswith(_RENAMING)
        place = f"{path}.part" if renames else path
        self.stream.seek(0)
        with system.open_output_stream(place) as out:
            shutil.copyfileobj(self.stream, out, 1 << 20)
        if renames:
            system.move(place, path)
        self.stream.close()

    def discard(self) -> None:
        self.stream.close()


def _opened(name: str) -> tuple[pafs.FileSystem, str]:
    """A file system of pyarrow, and the name inside it."""
    address = _ADDRESS.match(name)
    if address is None:
        return _local(), name
    scheme = address[1].lower()
    try:
        if scheme not in _PYARROW:
            return _through_fsspec(name)
        authority, _, path = name[address.end() :].partition("/")
        system = _through_pyarrow(f"{scheme}://{authority}")
        return system, f"/{path}" if scheme in _RENAMING else f"{authority}/{path}"
    except (ImportError, ValueError, OSError, NotImplementedError) as error:
        raise _unreachable(name, error) from error


@lru_cache(maxsize=1)
def _local() -> pafs.FileSystem:
    try:
        import pyarrow.fs as pafs
    except ImportError:
        raise MissingExtra("pyarrow", "data", "A bulk job") from None
    return pafs.LocalFileSystem()


@lru_cache(maxsize=16)
def _through_pyarrow(root: str) -> pafs.FileSystem:
    """Kept, because S3 asks where a bucket is each time."""
    import pyarrow.fs as pafs

    return pafs.FileSystem.from_uri(root)[0]


def _through_fsspec(name: str) -> tuple[pafs.FileSystem, str]:
    import pyarrow.fs as pafs

    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise MissingExtra("fsspec", "ray", f"Reading {name}") from None
    system, path = url_to_fs(name)
    return pafs.PyFileSystem(pafs.FSSpecHandler(system)), path


def _below(folder: str, path: str) -> str:
    """fsspec may answer with names that lack the slash its folders begin with."""
    return path if path.startswith(folder) else f"/{path}"


def unwritable(name: str, error: OSError) -> DataError:
    """A full disk, a folder that nobody may write to: no fault of the job, which goes on once that is mended."""
    return DataError(
        f"{name}: cannot be written: {reason_of(error)}.",
        "Make room, or check the path and who may write there; then run the same job again: it continues.",
    )


def _unreachable(name: str, error: Exception) -> DataError:
    if not is_address(name):
        return DataError(f"{name}: cannot be read: {reason_of(error)}.", "Check the path and who may read it.")
    return DataError(
        f"{name}: the store cannot be reached: {reason_of(error)}.",
        "Check the address and the credentials; s3://, gs:// and hdfs:// are pyarrow's, all others fsspec's.",
    )
