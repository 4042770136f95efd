"""`.bin` files: what `torch.save` wrote, as tensors, without running anything in them.

torch_headers.py says which tensor lies where, and has checked that it does. Like safetensors, tensors are views of a
private mapping of the file (see safe.py); only storages that begin at odd places, as in the files of
old versions, are read into memory.
"""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path
from typing import BinaryIO

import torch

from bertie.checkpoint.headers import open_weights
from bertie.checkpoint.torch_headers import TorchFile, read_torch_headers
from bertie.checkpoint.torch_pickle import ITEM_BYTES, StorageNote
from bertie.errors import CorruptCheckpoint

_ALIGNMENT = 16  # bytes of the widest item; torch itself begins storages at multiples of 64
_KINDS = {name: getattr(torch, name) for name in ITEM_BYTES}


def read_bin(path: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """The tensors of a `pytorch_model.bin`, by name, on the CPU; mapped from the file where they are aligned."""
    path = Path(path)
    with open_weights(path) as file:
        found = read_torch_headers(path, file)
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        storages: dict[str, torch.Tensor] = {}  # of bytes; tied weights share one
        tensors = {}
        for name, note in found.tensors.items():
            storage = note.storage
            if storage.key not in storages:
                storages[storage.key] = _bytes_of(path, storage, found, file, mapped)
            item = ITEM_BYTES[storage.dtype]
            part = storages[storage.key][storage.begin * item : (storage.begin + storage.length) * item]
            items = part.view(_KINDS[note.dtype])
            tensors[name] = items.as_strided(note.shape, note.stride, items.storage_offset() + note.offset)
    return tensors


def _bytes_of(path: Path, storage: StorageNote, found: TorchFile, file: BinaryIO, mapped: mmap.mmap) -> torch.Tensor:
    start, length = found.places[storage.key], storage.num_bytes
    if length and start % _ALIGNMENT == 0 and found.byteorder == sys.byteorder:
        return torch.frombuffer(mapped, dtype=torch.uint8, count=length, offset=start)
    raw = torch.empty(length, dtype=torch.uint8)
    file.seek(start)
    if file.readinto(raw.numpy().data) != length:  # type: ignore[attr-defined]
        raise CorruptCheckpoint(f"{path} became shorter while it was read.", "Load it again when it is whole.")
    if found.byteorder == sys.byteorder:
        return raw
    number = ITEM_BYTES[storage.dtype] // (2 if storage.dtype.startswith("complex") else 1)
    return raw.view(length // number, number).flip(1).view(length)
