"""Writing TensorFlow tensor bundles that TensorFlow itself reads back bit for bit.

The same tensors give the same bytes: keys are sorted, blocks are not compressed, nothing holds a time or a host. With
one shard, and tensors added in name order, the files equal those TensorFlow writes.

Files get their names when all are written, the data first and the index last: a bundle without its index is not a
bundle, so a reader sees a whole one or none. Replacing a bundle of the same name cannot be one step (it
is two files or more): it has to be asked for, and takes the old index away before anything else moves. Write to a new
folder, and rename that, where the old bundle must survive a crash.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING

from bertie.checkpoint.dtypes import TENSORFLOW_STRING, tensorflow_types
from bertie.checkpoint.tensorflow import wire
from bertie.checkpoint.tensorflow.crc32c import crc32c, crc32c_of_lengths, mask
from bertie.checkpoint.tensorflow.sstable import write_table
from bertie.errors import CheckpointError, CheckpointNotFound, InputError
from bertie.files import NewFile

if TYPE_CHECKING:
    import torch

_MAX_SHARDS = 99999  # five digits in a data file's name


class BundleWriter:
    """Writes a bundle one tensor at a time. Nothing is at `prefix` until `finish`, which leaving the `with` calls.

    with BundleWriter("bert_model.ckpt") as bundle:
        bundle.add("global_step", torch.tensor(20))
    """

    def __init__(self, prefix: str | os.PathLike[str], *, num_shards: int = 1, overwrite: bool = False) -> None:
        if not 1 <= num_shards <= _MAX_SHARDS:
            raise InputError(f"num_shards is {num_shards}.", f"It must be between 1 and {_MAX_SHARDS}.")
        self.prefix = os.fspath(prefix)
        self.num_shards = num_shards
        self._folder = os.path.dirname(self.prefix) or "."
        if not os.path.isdir(self._folder):
            raise CheckpointNotFound(f"{self.prefix}: there is no folder {self._folder}.", "Create it first.")
        if not overwrite and os.path.exists(self.prefix + ".index"):
            raise CheckpointError(
                f"{self.prefix}.index exists.", "Choose another name, or pass overwrite=True to replace it."
            )
        self._entries: dict[str, wire.Entry] = {}
        self._shards: dict[int, IO[bytes]] = {}
        self._files: list[NewFile] = []  # in order of creation: the index comes last
        self._done = False

    def add(self, name: str, tensor: torch.Tensor, *, shard: int = 0) -> None:
        """Append a tensor of any shape and any of TensorFlow's element types."""
        import torch

        dtype = tensorflow_types().get(tensor.dtype)
        if dtype is None or tensor.layout != torch.strided:
            raise InputError(
                f"{name} is a tensor of {tensor.dtype} and layout {tensor.layout}, which TensorFlow does not have.",
                "Convert it to a dense tensor of another dtype.",
            )
        plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        # Flat by as_strided: a single element may be contiguous with any stride, and view() minds that.
        flat = plain.as_strided((plain.numel(),), (1,))
        data = flat.view(torch.uint8).numpy().data if plain.numel() else b""
        self._append(name, dtype.number, tuple(tensor.shape), shard, [data], mask(crc32c(data)))

    def add_strings(self, name: str, values: Sequence[bytes], *, shape: tuple[int, ...] = (), shard: int = 0) -> None:
        """Append a string tensor; `values` are its elements in row-major order."""
        if len(values) != math.prod(shape):
            raise InputError(f"{name}: {len(values)} strings do not fill the shape {list(shape)}.")
        lengths = [len(value) for value in values]
        crc = crc32c_of_lengths(lengths)
        stored = mask(crc).to_bytes(4, "little")
        crc = crc32c(stored, crc)
        for value in values:
            crc = crc32c(value, crc)
        pieces = [b"".join(map(wire.write_varint, lengths)), stored, *values]
        self._append(name, TENSORFLOW_STRING.number, shape, shard, pieces, mask(crc))

    def finish(self) -> None:
        """Put the bundle in place: data files first, then the index that makes them a bundle."""
        if self._done:
            return
        try:
            for shard in range(self.num_shards):
                self._shard(shard)  # a shard that got no tensor is an empty file
            index = self._create(".index")
            ordered = sorted((name.encode(), entry.encode()) for name, entry in self._entries.items())
            index.write(write_table([(b"", wire.Header(self.num_shards).encode()), *ordered]))
            for file in self._files:
                file.flush()
            self._remove_old()
            for file in self._files:
                file.keep()
        except OSError as error:
            self.abort()
            raise self._write_error(error) from error
        except BaseException:
            self.abort()
            raise
        self._done = True

    def abort(self) -> None:
        """Remove what was written so far."""
        for file in self._files:
            file.discard()
        self._done = True

    def __enter__(self) -> BundleWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
        else:
            self.abort()

    def _append(
        self, name: str, dtype: int, shape: tuple[int, ...], shard: int, pieces: Sequence[bytes | memoryview], crc: int
    ) -> None:
        if self._done:
            raise InputError(f"{name}: the bundle {self.prefix} is finished.", "Add every tensor before finish().")
        if not name or name.startswith("\x00"):
            raise InputError(f"{name!r} is no name for a variable.", "Give it at least one character.")
        if name in self._entries:
            raise InputError(f"{name} was added twice.", "Each variable has one tensor.")
        if not 0 <= shard < self.num_shards:
            raise InputError(f"{name}: shard {shard} of {self.num_shards}.", "Shards are counted from 0.")
        try:
            file = self._shard(shard)
            offset = file.tell()
            for piece in pieces:
                file.write(piece)
            size = file.tell() - offset
        except OSError as error:
            self.abort()
            raise self._write_error(error) from error
        self._entries[name] = wire.Entry(dtype, shape, shard, offset, size, crc)

    def _shard(self, shard: int) -> IO[bytes]:
        if shard not in self._shards:
            self._shards[shard] = self._create(f".data-{shard:05d}-of-{self.num_shards:05d}")
        return self._shards[shard]

    def _create(self, ending: str) -> IO[bytes]:
        self._files.append(NewFile(Path(self.prefix + ending)))
        return self._files[-1].stream

    def _remove_old(self) -> None:
        """Take away the bundle that is replaced: its index first, so that what is left is not taken for one."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.prefix + ".index")
        name = re.escape(os.path.basename(self.prefix))
        for other in os.listdir(self._folder):
            if re.fullmatch(name + r"\.data-\d{5}-of-\d{5}", other):
                os.unlink(os.path.join(self._folder, other))

    def _write_error(self, error: OSError) -> CheckpointError:
        return CheckpointError(
            f"{self.prefix} could not be written: {error.strerror or error}.", "Free some space, or write elsewhere."
        )


def write_bundle(
    prefix: str | os.PathLike[str],
    tensors: Mapping[str, torch.Tensor],
    *,
    num_shards: int = 1,
    overwrite: bool = False,
) -> None:
    """Write all `tensors` in name order; with more than one shard, each gets about the same number of bytes."""
    total = sum(tensor.nbytes for tensor in tensors.values())
    before = 0
    with BundleWriter(prefix, num_shards=num_shards, overwrite=overwrite) as writer:
        for name in sorted(tensors, key=str.encode):
            writer.add(name, tensors[name], shard=min(before * num_shards // max(total, 1), num_shards - 1))
            before += tensors[name].nbytes
