"""Arrays that are made once, in order, and kept on the disk: a folder of flat files with a manifest.

    NAME.bin         numbers, little-endian, nothing else
    manifest.json    what made them (the key), and every file's type, size and SHA-256

A folder is built beside its place (`.NAME.building`), piece by piece: what is appended is on the disk before
progress.json says so, and a build that was killed goes on after the last piece it had finished. When all is there, the
folder gets its name in one step. The same key makes the same bytes. One process builds; others wait for it, then find
it done. Reading is by memory map, so memory does not grow with the data.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from bertie.errors import BertieError, DataError
from bertie.files import Lock, replace_file, sha256, sync
from bertie.json_values import members, parsed
from bertie.training.contract import Json
from bertie.training.metrics import Array

_MANIFEST, _PROGRESS = "manifest.json", "progress.json"


class ArrayBuilder:
    """Appends to the arrays of a folder. `done` counts what has been committed, and is where a resumed build goes on.

    `columns` maps names to numpy types, e.g. `{"ids": "<u2"}`.
    """

    def __init__(self, folder: Path, key: Json, columns: Mapping[str, str]) -> None:
        self.folder = folder
        self.key = dict(key)
        self.columns = dict(columns)
        self.place = folder.with_name(f".{folder.name}.building")
        progress = read_object(self.place / _PROGRESS)
        if progress is None or progress.get("key") != self.key or progress.get("columns") != self.columns:
            shutil.rmtree(self.place, ignore_errors=True)
            self.place.mkdir(parents=True)
            progress = {"done": 0, "counts": dict.fromkeys(columns, 0), "notes": {}}
        self.done: int = progress["done"]
        self.counts: dict[str, int] = progress["counts"]
        self.notes: dict[str, Any] = progress["notes"]
        self._files: dict[str, IO[bytes]] = {}
        for name, kind in columns.items():
            file = open(self.place / f"{name}.bin", "ab")  # noqa: SIM115  (closed in close)
            file.truncate(self.counts[name] * np.dtype(kind).itemsize)  # what was written and not committed
            self._files[name] = file

    def append(self, **arrays: Array) -> None:
        for name, array in arrays.items():
            self._files[name].write(np.ascontiguousarray(array, dtype=self.columns[name]).data)
            self.counts[name] += len(array)

    def commit(self, done: int) -> None:
        """Everything appended so far is safe, and is the work up to `done`."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        self.done = done
        progress = {"key": self.key, "columns": self.columns, "done": done, "counts": self.counts, "notes": self.notes}
        _write(self.place / _PROGRESS, progress)

    def finish(self) -> None:
        """Give the folder its name."""
        self.commit(self.done)
        self.close()
        files = {
            name: {"dtype": kind, "count": self.counts[name], "sha256": sha256(self.place / f"{name}.bin")}
            for name, kind in self.columns.items()
        }
        _write(self.place / _MANIFEST, {"key": self.key, "files": files, "notes": self.notes})
        (self.place / _PROGRESS).unlink()
        sync(self.place)
        shutil.rmtree(self.folder, ignore_errors=True)
        os.rename(self.place, self.folder)
        sync(self.folder.parent)

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def __enter__(self) -> ArrayBuilder:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def open_arrays(folder: Path, key: Json) -> tuple[dict[str, Array], dict[str, Any]] | None:
    """The arrays of a finished folder and its notes; None where there is none, another key, or damage."""
    manifest = read_object(folder / _MANIFEST)
    if manifest is None or manifest.get("key") != dict(key):
        return None
    arrays: dict[str, Array] = {}
    for name, about in manifest["files"].items():
        path = folder / f"{name}.bin"
        size = about["count"] * np.dtype(about["dtype"]).itemsize
        if not path.is_file() or path.stat().st_size != size or sha256(path) != about["sha256"]:
            return None
        # As a plain array over the map: slicing a np.memmap itself costs ten times as much.
        mapped = np.memmap(path, dtype=about["dtype"], mode="r") if about["count"] else np.zeros(0, about["dtype"])
        arrays[name] = np.asarray(mapped)
    return arrays, manifest["notes"]


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """While one process builds a folder, others that want it wait. A disk that refuses is a `DataError`."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with Lock(folder.parent, f".{folder.name}.lock", wait=True):
            yield
    except BertieError:
        raise
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be written: {error.strerror or error}.",
            "Free some space or name another folder; what is finished is kept, and the next call continues from there.",
        ) from error


def read_object(path: Path) -> dict[str, Any] | None:
    """A JSON object; None where there is none, or something else."""
    try:
        return members(parsed(path.read_bytes()))
    except (OSError, ValueError):
        return None


def _write(path: Path, value: object) -> None:
    replace_file(path, json.dumps(value, indent=1, sort_keys=True))
