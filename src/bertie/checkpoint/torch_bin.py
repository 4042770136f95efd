"""`.bin` files: what `torch.save` wrote, as tensors, without running anything in them.

hostile/torch_file.py says which tensor lies where, and has checked that it does. Like safetensors, tensors are views of
a private mapping of the file (see safetensors.py); only storages that begin at odd places, as in the files of old
versions, are copied.
"""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path

import torch

from bertie.checkpoint.dtypes import ITEM_BYTES
from bertie.checkpoint.hostile.paths import open_weights
from bertie.checkpoint.hostile.torch_file import read_torch_headers
from bertie.checkpoint.hostile.torch_pickle import StorageNote

_ALIGNMENT = 16  # bytes of the widest item; torch itself begins storages at multiples of 64


def read_bin(path: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """The tensors of a `pytorch_model.bin`, by name, on the CPU."""
    file = BinFile(path)
    return {name: file.tensor(name) for name in file.entries}


class BinFile:
    """An open `.bin` file. `entries` maps names to dtype, shape and place; `tensor(name)` is the tensor itself."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        with open_weights(self.path) as file:
            self._found = read_torch_headers(self.path, file)
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self.entries = self._found.tensors
        self._storages: dict[str, torch.Tensor] = {}  # of bytes; tied weights share one

    def tensor(self, name: str) -> torch.Tensor:
        """A view of the file's bytes; of a copy where they are not aligned or in the other order."""
        note = self.entries[name]
        storage = note.storage
        if storage.key not in self._storages:
            self._storages[storage.key] = self._bytes_of(storage)
        item = ITEM_BYTES[storage.dtype]
        part = self._storages[storage.key][storage.begin * item : (storage.begin + storage.length) * item]
        items = part.view(getattr(torch, note.dtype))
        return items.as_strided(note.shape, note.stride, items.storage_offset() + note.offset)

    def release(self, name: str) -> None:
        """Nothing: a storage may be another tensor's too."""

    def _bytes_of(self, storage: StorageNote) -> torch.Tensor:
        start, length = self._found.places[storage.key], storage.num_bytes
        if length == 0:
            return torch.empty(0, dtype=torch.uint8)
        mapped = torch.frombuffer(self._map, dtype=torch.uint8, count=length, offset=start)
        if self._found.byteorder != sys.byteorder:
            number = ITEM_BYTES[storage.dtype] // (2 if storage.dtype.startswith("complex") else 1)
            return mapped.view(length // number, number).flip(1).view(length)
        return mapped if start % _ALIGNMENT == 0 else mapped.clone()
