"""The files of a search index, and how they change without ever being half changed.

    manifest.json        what the index is and which parts it consists of; replaced by one rename
    part-000007.safetensors   "vectors" [rows, dimension] and "offsets" [rows + 1], where each row begins in the texts
    part-000007.jsonl         {"id": …, "text": …} to a line

A part is written whole and flushed before the manifest names it, and never changed after, so a process killed at any
moment leaves the index of the last manifest, and perhaps a part that nobody names, which the next writer removes. Two
neighbouring parts of about one size are joined, up to a limit, so that many small additions do not become many files
(like the digits of a binary counter: each row is rewritten a few times at most).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import BinaryIO, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertie.checkpoint.hostile.paths import inside
from bertie.checkpoint.safetensors import SafeFile, write_safetensors
from bertie.config import read_json_object
from bertie.data import Row, RowReader, choose_text, text_of
from bertie.errors import CheckpointError, ConfigError, DataError
from bertie.files import Busy, Lock, replace_file, sha256

MANIFEST = "manifest.json"
FORMAT = "bertie-index"
VERSION = 1
MAX_PART_ROWS = 1 << 16
STORED = {"float32": torch.float32, "float16": torch.float16}
_ID_COLUMNS = ("id", "_id", "doc_id", "docid", "document_id", "pid", "guid")
DAMAGED = "Build the index again, or restore the folder from a copy."


class IndexSettings(TypedDict, total=False):
    """How an index was embedded, and how its queries are."""

    pooling: str | Sequence[str] | None
    normalize: bool | None
    truncate_dim: int | None
    max_length: int | None
    default_model: bool
    prompt_name: str
    query_prompt_name: str
    long: str


@dataclass(frozen=True)
class PartFile:
    """One part as the manifest knows it: its rows, and the size and hash of both files."""

    name: str
    count: int
    vector_bytes: int
    vector_sha256: str
    text_bytes: int
    text_sha256: str


@dataclass(frozen=True)
class Manifest:
    """An index. `rows_hash` is a chain over all its rows; `begun_at` is where an addition began that has not ended."""

    model: str | None
    dimension: int
    function: str
    dtype: str
    settings: IndexSettings
    probe: Sequence[Sequence[float]]
    text_column: str | None = None
    id_column: str | None = None
    count: int = 0
    rows_hash: str = ""
    begun_at: int | None = None
    begun_hash: str = ""
    next_part: int = 0
    parts: tuple[PartFile, ...] = field(default=())

    @property
    def is_unfinished(self) -> bool:
        """Whether an addition stopped on its way. One that added nothing to an index left it as it was."""
        return self.begun_at is not None and (self.count > self.begun_at or self.count == 0)

    @property
    def num_finished(self) -> int:
        """The rows of all additions that ended. Those of one that has not come after them, and do not count yet."""
        return self.begun_at if self.is_unfinished and self.begun_at is not None else self.count


def read_manifest(folder: Path) -> Manifest:
    """The manifest, checked against the sizes of the files it names."""
    path = folder / MANIFEST
    while True:
        seen = path.stat().st_mtime_ns if path.is_file() else None
        try:
            return _read_manifest(folder, path)
        except DataError:
            # Another process may have joined parts in between; then there is a newer manifest, which names the new one.
            if seen is None or not path.is_file() or path.stat().st_mtime_ns == seen:
                raise


def _read_manifest(folder: Path, path: Path) -> Manifest:
    if not path.is_file():
        missing = f"{folder} is not a folder." if folder.exists() else f"There is no folder {folder}."
        raise DataError(
            f"{folder} holds no index (no manifest.json)." if folder.is_dir() else missing,
            "Build an index first: build_index(rows, folder), or `bertie index CORPUS -o FOLDER`.",
        )
    try:
        values = read_json_object(path)
    except ConfigError as error:
        raise DataError(error.cause, DAMAGED) from None
    if values.get("format") != FORMAT or values.get("version") != VERSION:
        raise DataError(
            f"{path} is of format {values.get('format')!r:.40}, version {values.get('version')!r:.20}; "
            f"this reads {FORMAT!r}, version {VERSION}.",
            "Build the index again with this version.",
        )
    try:
        parts = tuple(PartFile(**part) for part in values.pop("parts"))
        known = {name: value for name, value in values.items() if name not in ("format", "version")}
        manifest = Manifest(**known, parts=parts)
        numbers = [one for part in parts for one in (part.count, part.vector_bytes, part.text_bytes)]
        whole = all(type(one) is int for one in (*numbers, manifest.dimension, manifest.next_part))
        whole = whole and manifest.count == sum(part.count for part in parts) and manifest.dtype in STORED
        whole = whole and (manifest.begun_at is None or 0 <= int(manifest.begun_at) <= manifest.count)
    except (TypeError, ValueError, KeyError, AttributeError):
        whole = False
    if not whole:
        raise DataError(f"{path} does not describe an index as it should.", DAMAGED)
    for part in manifest.parts:
        for file, size in ((vector_file(folder, part), part.vector_bytes), (text_file(folder, part), part.text_bytes)):
            found = file.stat().st_size if file.is_file() else None
            if found != size:
                state = "is missing" if found is None else f"holds {found} bytes"
                raise DataError(f"{file} {state}; the index wrote {size} bytes.", DAMAGED)
    return manifest


def write_manifest(folder: Path, manifest: Manifest) -> None:
    values = {"format": FORMAT, "version": VERSION, **asdict(manifest)}
    try:
        replace_file(folder / MANIFEST, json.dumps(values, ensure_ascii=False, indent=1))
    except OSError as error:
        raise _cannot_write(folder, error) from error


def _cannot_write(folder: Path, error: OSError) -> DataError:
    return DataError(
        f"{folder} cannot be written: {error.strerror or error}.",
        "Check the space left and the permissions, then run the same again: it continues where it stopped.",
    )


def vector_file(folder: Path, part: PartFile) -> Path:
    return inside(folder, f"{part.name}.safetensors", named_by=folder / MANIFEST)


def text_file(folder: Path, part: PartFile) -> Path:
    return inside(folder, f"{part.name}.jsonl", named_by=folder / MANIFEST)


class OpenPart:
    """A part to be read: its vectors mapped, its texts by offset. Its files' hashes are checked when first used."""

    def __init__(self, folder: Path, part: PartFile, *, dimension: int, verify: bool) -> None:
        self.part = part
        self._path = vector_file(folder, part)
        self._texts = text_file(folder, part)
        self._unchecked_texts = verify
        if verify:
            _check_hash(self._path, part.vector_sha256)
        try:
            with _opened(self._path):
                self._file = SafeFile(self._path)
        except CheckpointError as error:
            raise DataError(error.cause, DAMAGED) from None
        shapes = {name: entry.shape for name, entry in self._file.entries.items()}
        if shapes != {"vectors": (part.count, dimension), "offsets": (part.count + 1,)}:
            raise DataError(f"{self._path} holds {shapes}; the index says {part.count} rows of {dimension}.", DAMAGED)

    @property
    def vectors(self) -> Tensor:
        return self._file.tensor("vectors")

    @property
    def offsets(self) -> Tensor:
        return self._file.tensor("offsets")

    def check_texts(self) -> None:
        if self._unchecked_texts:
            _check_hash(self._texts, self.part.text_sha256)
            self._unchecked_texts = False

    def copy_texts(self, target: BinaryIO) -> None:
        self.check_texts()
        with _opened(self._texts) as file:
            shutil.copyfileobj(file, target, 1 << 20)

    def release(self) -> None:
        """Release the vectors' memory until they are used again."""
        self._file.release("vectors")

    def lines(self, rows: Sequence[int]) -> list[dict[str, str]]:
        """The stored objects of some rows."""
        self.check_texts()
        offsets, found = self.offsets, []
        with _opened(self._texts) as file:
            for row in rows:
                begin, end = int(offsets[row]), int(offsets[row + 1])
                file.seek(begin)
                try:
                    found.append(json.loads(file.read(end - begin)))
                except ValueError:
                    raise DataError(f"{self._texts}: row {row} is not JSON.", DAMAGED) from None
        return found


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BufferedReader]:
    try:
        with open(path, "rb") as file:
            yield file
    except FileNotFoundError:
        raise DataError(f"{path} is gone: the index was changed since it was opened.", "Open it again.") from None


def _check_hash(path: Path, wanted: str) -> None:
    with _opened(path):
        found = sha256(path)
    if found != wanted:
        raise DataError(f"{path} is damaged: its SHA-256 is not the one the index recorded.", DAMAGED)


def commit(folder: Path, manifest: Manifest, vectors: Tensor, lines: Sequence[bytes], rows_hash: str) -> Manifest:
    """Add rows: a new part, joined with its neighbours where they are no larger; then the manifest that names it."""
    kept = list(manifest.parts)
    count = len(lines)
    while kept and kept[-1].count <= count and kept[-1].count + count <= MAX_PART_ROWS:
        count += kept.pop().count
    joined = manifest.parts[len(kept) :]
    old = [OpenPart(folder, part, dimension=manifest.dimension, verify=True) for part in joined]
    name = f"part-{manifest.next_part:06d}"
    try:
        part = _write_part(folder, name, old, vectors.to(STORED[manifest.dtype]), lines)
    except OSError as error:
        with contextlib.suppress(OSError):  # on a full disk, half a part is in the way
            _remove(folder, name)
        raise _cannot_write(folder, error) from error
    new = replace(
        manifest,
        count=manifest.count + len(lines),
        rows_hash=rows_hash,
        next_part=manifest.next_part + 1,
        parts=(*kept, part),
    )
    write_manifest(folder, new)
    for gone in joined:
        _remove(folder, gone.name)
    return new


def _write_part(folder: Path, name: str, old: Sequence[OpenPart], vectors: Tensor, lines: Sequence[bytes]) -> PartFile:
    path = folder / f"{name}.jsonl"
    ends = [0]
    with open(path, "xb") as file:
        for one in old:
            one.copy_texts(file)
            ends += (one.offsets[1:] + ends[-1]).tolist()
        for line in lines:
            file.write(line)
            ends.append(ends[-1] + len(line))
        file.flush()
        os.fsync(file.fileno())
    stored = torch.cat([*(one.vectors for one in old), vectors])
    place = folder / f"{name}.safetensors"
    size = write_safetensors(place, {"vectors": stored, "offsets": torch.tensor(ends)}, metadata={"format": FORMAT})
    return PartFile(name, len(ends) - 1, size, sha256(place), path.stat().st_size, sha256(path))


def _remove(folder: Path, name: str) -> None:
    for suffix in (".safetensors", ".jsonl"):
        (folder / f"{name}{suffix}").unlink(missing_ok=True)


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """The right to write: one process at a time, given up when the block or the process ends."""
    try:
        lock = Lock(folder)
    except Busy as busy:
        who = f"another process ({busy.holder})" if busy.holder else "another process"
        raise DataError(
            f"{folder} is being written by {who}.", "Wait until it has finished, or use another folder."
        ) from None
    with lock:
        yield


def remove_strays(folder: Path, manifest: Manifest) -> None:
    """Parts that a killed writer left and no manifest names."""
    named = {part.name for part in manifest.parts}
    for path in folder.glob("part-*"):
        if path.suffix in (".safetensors", ".jsonl") and path.stem not in named:
            path.unlink(missing_ok=True)


def remove_empty(folder: Path) -> None:
    """Take the manifest of an index without rows away; one with rows, or that another process writes, stays."""
    with writing(folder):
        manifest = read_manifest(folder)
        if not manifest.count:
            remove_strays(folder, manifest)
            (folder / MANIFEST).unlink()


# -- the rows of a corpus, as they are stored --------------------------------------------------------------------------


class IndexRows:
    """Iterates over (text, line). The columns are settled by the first row: those given, else the index's usual ones.

    Without an id column rows are numbered, from `first_number` on. Where rows bring vectors, in `vector_column`, the
    last one's is in `vector`.
    """

    vector: NDArray[np.float32]

    def __init__(
        self,
        reader: RowReader,
        *,
        text_column: str | None,
        id_column: str | None,
        usual: tuple[str | None, str | None],
        first_number: int,
        vector_column: str | None = None,
        dimension: int = 0,
    ) -> None:
        self._reader = reader
        self._vector_column, self._dimension = vector_column, dimension
        self._given = text_column, id_column
        self._usual = usual
        self._number = first_number
        self._rows = iter(reader)
        self._first = next(self._rows, None)
        self.text_column, self.id_column = usual
        if self._first is not None:
            self.text_column, self.id_column = self._choose(list(self._first.values))

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        if self._first is None or self.text_column is None:
            return
        for row in chain((self._first,), self._rows):
            try:
                text, identity = text_of(row, self.text_column), self._id_of(row)
                if self._vector_column is not None:
                    self.vector = self._vector_of(row, self._vector_column)
            except DataError as error:
                self._reader.bad.report(error)
                continue
            yield text, line_of(identity, text)
            self._number += 1

    def _choose(self, columns: Sequence[str]) -> tuple[str, str | None]:
        (text, identity), (usual_text, usual_id) = self._given, self._usual
        chosen = choose_text(
            columns, given=text or (usual_text if usual_text in columns else None), source=self._reader.name
        )
        if identity is not None and identity not in columns:
            raise DataError(
                f"{self._reader.name}: there is no column {identity!r} for the ids; there are: {', '.join(columns)}.",
                "Name one of these with {id_column=}, or leave it out to number the rows.",
            )
        if identity is None and usual_id in columns:
            identity = usual_id
        return chosen, identity or next((name for name in _ID_COLUMNS if name in columns), None)

    def _id_of(self, row: Row) -> str:
        if self.id_column is None:
            return str(self._number)
        value = row.values.get(self.id_column)
        if value is None or isinstance(value, list | dict):
            raise DataError(
                f"{row.where}: the id in column {self.id_column!r} is {value!r:.40}.", "Give every row an id."
            )
        return str(value)

    def _vector_of(self, row: Row, column: str) -> NDArray[np.float32]:
        value = row.values.get(column)
        try:
            vector = np.asarray(value, dtype=np.float32)
        except (TypeError, ValueError):
            vector = np.empty(0, dtype=np.float32)
        if vector.shape != (self._dimension,) or not np.isfinite(vector).all():
            raise DataError(
                f"{row.where}: the column {column!r} should hold {self._dimension} numbers, as the model's vectors "
                f"have, and holds {'nothing' if value is None else f'{value!r:.40}'}.",
                "Give the vectors of this model, or skip such rows with {skip_bad=True}.",
            )
        return vector


def line_of(identity: str, text: str) -> bytes:
    """One line of JSON."""
    values = {"id": identity, "text": text}
    try:
        return json.dumps(values, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can spell and UTF-8 cannot
        return json.dumps(values).encode() + b"\n"


def linked(rows_hash: str, line: bytes) -> str:
    """The hash of all rows so far, given that of those before and the next one."""
    return hashlib.blake2b(rows_hash.encode() + line, digest_size=16).hexdigest()
