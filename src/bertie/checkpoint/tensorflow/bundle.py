"""Reading TensorFlow tensor bundles: `PREFIX.index` and `PREFIX.data-00000-of-00001`, without TensorFlow.

The index is a sorted string table (sstable.py). Its empty key holds the header; every other key is a variable's name
and holds where its bytes lie: shard, offset, size, crc32c (wire.py). Data files are the tensors' little-endian bytes
and nothing else. A partitioned variable has an entry with its full shape and one hidden entry for each slice.

Nothing in an index is believed: hostile/tensorflow_index.py checks its entries when a bundle is opened; here they are
checked against the data files' true sizes when one is read, and the bytes against their crc32c. Data is read with plain
reads instead of a memory map: a file that shrinks under a map kills the process, where a short read is an error.
"""

from __future__ import annotations

import os
from io import FileIO
from typing import TYPE_CHECKING

import numpy as np

from bertie.checkpoint.dtypes import tensorflow_type
from bertie.checkpoint.hostile.tensorflow_index import check_entries
from bertie.checkpoint.tensorflow import wire
from bertie.checkpoint.tensorflow.crc32c import crc32c, crc32c_of_lengths, mask
from bertie.checkpoint.tensorflow.sstable import read_table
from bertie.checkpoint.tensorflow.wire import BundleEntry
from bertie.checkpoint.tensorflow_files import bundles_in, find_bundle
from bertie.errors import CheckpointError, CheckpointNotFound, CorruptCheckpoint

if TYPE_CHECKING:
    import torch

_MAX_INDEX_BYTES = 64 << 20  # a million variables
_CONSUMER_VERSION = 1

REMEDY = "The file is damaged or was not fully copied: fetch it again."


class BundleReader:
    """A TensorFlow checkpoint, opened by its prefix, its `.index` file, or the folder it is alone in.

    >>> with BundleReader("tests/assets/tf/google_tiny/bert_model.ckpt") as bundle:
    ...     bundle.read("bert/pooler/dense/kernel").shape
    torch.Size([4, 4])

    Opening reads the index alone. `entries` maps each variable's name to its BundleEntry, in the index's order.
    """

    def __init__(self, prefix: str | os.PathLike[str]) -> None:
        self.prefix = find_bundle(prefix)
        self._index_path = self.prefix + ".index"
        self._files: dict[int, tuple[FileIO, int]] = {}
        try:
            self._open_index()
        except wire.MalformedError as error:
            raise CorruptCheckpoint(f"{self._index_path}: {error}.", REMEDY) from error

    def names(self) -> list[str]:
        return list(self.entries)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: entry.shape for name, entry in self.entries.items()}

    def read(self, name: str) -> torch.Tensor:
        """The tensor, on the CPU, in its own memory, with its crc32c checked."""
        entry = self._entry(name)
        kind = entry.dtype.torch
        if kind is None:
            hint = "Read it with read_strings()." if entry.dtype.is_string else "It can be listed, but not read."
            raise CheckpointError(f"{self.prefix}: {name} holds elements of type {entry.dtype.name}.", hint)
        if entry.slices:
            return self._read_slices(entry, kind)
        return self._read_whole(entry, kind)

    def read_strings(self, name: str) -> list[bytes]:
        """The elements of a string tensor in row-major order, with their crc32c checked."""
        entry = self._entry(name)
        if not entry.dtype.is_string:
            raise CheckpointError(f"{self.prefix}: {name} holds {entry.dtype.name}.", "Read it with read().")
        if entry.slices:
            raise CheckpointError(f"{self.prefix}: {name} is a partitioned tensor of strings.", "It cannot be read.")
        try:
            return _decode_strings(self._read_bytes(entry).numpy().tobytes(), entry)
        except wire.MalformedError as error:
            raise self._corrupt(entry, str(error)) from error

    def close(self) -> None:
        for file, _ in self._files.values():
            file.close()
        self._files.clear()

    def __enter__(self) -> BundleReader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_files"):
            self.close()

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    def __len__(self) -> int:
        return len(self.entries)

    # --- the index

    def _open_index(self) -> None:
        pairs = read_table(_read_file(self._index_path))
        if not pairs or pairs[0][0] != b"":
            raise wire.MalformedError("the table has no header: it is not a checkpoint's index")
        header = wire.Header.decode(pairs[0][1])
        if header.big_endian:
            raise CheckpointError(
                f"{self._index_path}: the checkpoint was written on a big-endian machine.",
                "Only little-endian checkpoints can be read: load it with TensorFlow there, and save it on this kind.",
            )
        if header.min_consumer > _CONSUMER_VERSION:
            raise CheckpointError(
                f"{self._index_path}: the checkpoint asks for readers of version {header.min_consumer} or later.",
                f"This one reads version {_CONSUMER_VERSION}, which is all that TensorFlow has written so far.",
            )
        if header.num_shards < 1:
            raise wire.MalformedError(f"the header says there are {header.num_shards} data files")
        self.num_shards = header.num_shards
        self.entries: dict[str, BundleEntry] = {}
        self._slice_entries: dict[bytes, BundleEntry] = {}
        for key, value in pairs[1:]:
            self._add_entry(key, value)
        check_entries(self.entries, self._slice_entries, self.num_shards)

    def _add_entry(self, key: bytes, value: bytes) -> None:
        is_slice = key.startswith(b"\x00")
        try:
            name = repr(key) if is_slice else key.decode()
        except UnicodeDecodeError:
            raise wire.MalformedError(f"the name {key!r} is not UTF-8") from None
        try:
            raw = wire.Entry.decode(value)
        except wire.MalformedError as error:
            raise wire.MalformedError(f"{name}: {error}") from error
        entry = BundleEntry(
            name, tensorflow_type(raw.dtype), raw.shape, raw.shard, raw.offset, raw.size, raw.crc, raw.slices
        )
        if is_slice:
            self._slice_entries[key] = entry
        else:
            self.entries[name] = entry

    # --- the data files

    def _entry(self, name: str) -> BundleEntry:
        entry = self.entries.get(name)
        if entry is None:
            raise CheckpointNotFound(
                f"{self.prefix} has no variable {name!r}.", f"It has {len(self.entries)}: names() lists them."
            )
        return entry

    def _data_path(self, shard: int) -> str:
        return f"{self.prefix}.data-{shard:05d}-of-{self.num_shards:05d}"

    def _corrupt(self, entry: BundleEntry, what: str) -> CorruptCheckpoint:
        return CorruptCheckpoint(f"{self._data_path(entry.shard)}: {entry.name} {what}.", REMEDY)

    def _shard(self, shard: int) -> tuple[FileIO, int]:
        if shard not in self._files:
            path = self._data_path(shard)
            try:
                file = open(path, "rb", buffering=0)  # noqa: SIM115 - kept open until close()
            except FileNotFoundError:
                folder, name = os.path.split(self.prefix)
                there = sorted(one for one in os.listdir(folder or ".") if one.startswith(f"{name}.data-"))
                raise CheckpointNotFound(
                    f"{path} does not exist: the index counts {self.num_shards} data file(s).",
                    f"Beside the index lie: {', '.join(there[:8]) or 'none'}. Copy the missing one there.",
                ) from None
            except OSError as error:
                raise CheckpointError(f"{path} could not be opened: {error.strerror}.") from error
            self._files[shard] = file, os.fstat(file.fileno()).st_size
        return self._files[shard]

    def _read_bytes(self, entry: BundleEntry) -> torch.Tensor:
        """The entry's bytes [size] as uint8, not yet checked against its crc32c."""
        file, file_size = self._shard(entry.shard)
        if entry.offset + entry.size > file_size:
            raise self._corrupt(entry, f"ends at byte {entry.offset + entry.size}, the file has {file_size}")
        import torch  # here and below: the index, which is all that listing needs, is read without it

        data = torch.empty(entry.size, dtype=torch.uint8)
        view = data.numpy().data
        file.seek(entry.offset)
        done = 0
        while done < entry.size:  # one read returns at most 2 GiB
            count = file.readinto(view[done:])
            if not count:
                raise self._corrupt(entry, f"ends after {done} of {entry.size} bytes")
            done += count
        return data

    def _read_whole(self, entry: BundleEntry, kind: torch.dtype) -> torch.Tensor:
        data = self._read_bytes(entry)
        actual = mask(crc32c(data.numpy()))
        if actual != entry.crc:
            raise self._corrupt(entry, f"has crc32c {actual:#010x}, the index says {entry.crc:#010x}")
        if entry.dtype.name == "bool" and entry.size and int(data.max()) > 1:
            raise self._corrupt(entry, "is of type bool, and holds bytes other than 0 and 1")
        return data.view(kind).reshape(entry.shape)

    def _read_slices(self, entry: BundleEntry, kind: torch.dtype) -> torch.Tensor:
        parts = [(extents, self._slice_entries[wire.slice_key(entry.name, extents)]) for extents in entry.slices]
        stored = sum(part.num_elements for _, part in parts)
        # Bytes are used once each (no overlaps), so what follows never needs more memory than the files have bytes.
        if stored != entry.num_elements:
            raise CorruptCheckpoint(
                f"{self._index_path}: {entry.name} has {entry.num_elements} elements, its slices have {stored}.", REMEDY
            )
        import torch

        whole = torch.empty(entry.shape, dtype=kind)
        covered = np.zeros(entry.shape, dtype=bool)
        for extents, part in parts:
            place = tuple(slice(start, None if length == -1 else start + length) for start, length in extents)
            whole[place] = self._read_whole(part, kind)
            covered[place] = True
        if not covered.all():
            raise CorruptCheckpoint(f"{self._index_path}: the slices of {entry.name} do not cover it.", REMEDY)
        return whole


def list_variables(prefix: str | os.PathLike[str]) -> list[tuple[str, tuple[int, ...]]]:
    """Name and shape of every variable of the checkpoint at `prefix`, sorted by name. Reads the index alone."""
    with BundleReader(prefix) as reader:
        return [(name, entry.shape) for name, entry in reader.entries.items()]


def load_variable(prefix: str | os.PathLike[str], name: str) -> torch.Tensor:
    """The variable `name` of the checkpoint at `prefix`."""
    with BundleReader(prefix) as reader:
        return reader.read(name)


def _read_file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > _MAX_INDEX_BYTES:
                raise wire.MalformedError(f"the file has {size} bytes; no checkpoint's index is that large")
            return file.read(_MAX_INDEX_BYTES + 1)
    except FileNotFoundError:
        folder = os.path.dirname(path)
        raise CheckpointNotFound(f"{path} does not exist.", f"There are: {', '.join(bundles_in(folder))}.") from None
    except OSError as error:
        raise CheckpointError(f"{path} could not be read: {error.strerror}.") from error


def _decode_strings(data: bytes, entry: BundleEntry) -> list[bytes]:
    """String tensors: a varint length each, the masked crc32c of the lengths, the strings one after the other.

    The entry's checksum goes over the same three.
    """
    lengths: list[int] = []
    position = 0
    for _ in range(entry.num_elements):
        length, position = wire.read_varint(data, position)
        lengths.append(length)
    crc = crc32c_of_lengths(lengths)
    stored = data[position : position + 4]
    position += 4
    if sum(lengths) != len(data) - position:
        raise wire.MalformedError(f"has strings of {sum(lengths)} bytes in all where {len(data) - position} are left")
    if mask(crc).to_bytes(4, "little") != stored:
        raise wire.MalformedError("has string lengths that do not match their crc32c")
    crc = mask(crc32c(data[position:], crc32c(stored, crc)))
    if crc != entry.crc:
        raise wire.MalformedError(f"has crc32c {crc:#010x}, the index says {entry.crc:#010x}")
    out: list[bytes] = []
    for length in lengths:
        out.append(data[position : position + length])
        position += length
    return out
