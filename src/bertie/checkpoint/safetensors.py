"""Safetensors files: read without copying, and written. The format is told in hostile/safetensors_header.py.

Tensors alias a private (copy-on-write) mapping of the file: nothing is read until it is used, and training changes the
process's pages, never the file. Replacing the file by a rename, as our own saving does, leaves a loaded model alone;
another program that *truncates it in place* takes the pages away, and the operating system kills whoever reads them.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
import sys
from collections.abc import Mapping
from pathlib import Path

import torch

from bertie.checkpoint.dtypes import SAFETENSORS
from bertie.checkpoint.hostile.paths import open_weights
from bertie.checkpoint.hostile.safetensors_header import header_of
from bertie.errors import CheckpointError

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in SAFETENSORS.values()}
CODES = {DTYPES[name]: code for code, name in SAFETENSORS.items()}
CACHE_LINE = 64  # bytes; what torch aligns its own memory to


class SafeFile:
    """An open safetensors file. `entries` maps names to dtype, shape and place; `tensor(name)` is the tensor itself."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        with open_weights(self.path) as file:
            self.entries, self.metadata = header_of(self.path, file)
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    def tensor(self, name: str) -> torch.Tensor:
        """A view of the file's bytes; a copy only where the file did not align them."""
        entry = self.entries[name]
        count, dtype = math.prod(entry.shape), DTYPES[entry.dtype]
        if count == 0:
            return torch.empty(entry.shape, dtype=dtype)
        if sys.byteorder == "big":
            raise CheckpointError(f"{self.path} is little-endian, this machine is not.")
        if entry.start % dtype.itemsize:
            raw = torch.frombuffer(self._map, dtype=torch.uint8, count=entry.end - entry.start, offset=entry.start)
            return raw.clone().view(dtype).view(entry.shape)
        return torch.frombuffer(self._map, dtype=dtype, count=count, offset=entry.start).view(entry.shape)

    def release(self, name: str) -> None:
        """Release a tensor's pages after it was copied. They are the file's: a later use reads them again."""
        if not hasattr(mmap, "MADV_DONTNEED"):
            return
        entry = self.entries[name]
        start = -(-entry.start // mmap.PAGESIZE) * mmap.PAGESIZE
        length = entry.end // mmap.PAGESIZE * mmap.PAGESIZE - start
        if length > 0:
            self._map.madvise(mmap.MADV_DONTNEED, start, length)


# -- writing ---------------------------------------------------------------------------------------------------------


def stored_dtype(tensor: torch.Tensor, wanted: torch.dtype | None) -> torch.dtype:
    """What a tensor is written as: a count in a buffer stays a count when the weights change their precision."""
    return wanted if wanted is not None and tensor.is_floating_point() else tensor.dtype


def write_safetensors(
    path: str | os.PathLike[str],
    tensors: Mapping[str, torch.Tensor],
    *,
    dtype: torch.dtype | None = None,
    metadata: Mapping[str, str] | None = None,
) -> int:
    """Write a file, one tensor at a time and flushed to the disk; returns its size. `dtype` converts on the way.

    `path` must not be a file anyone reads: see save.py, which writes beside and renames.
    """
    kinds = {name: stored_dtype(tensor, dtype) for name, tensor in tensors.items()}
    # Widest items first, so that each tensor starts at a multiple of its own item's size; of equally wide ones, those
    # first that fill whole cache lines: nearly all weights then lie in the mapped file as torch would have put them.
    sizes = {name: tensor.numel() * kinds[name].itemsize for name, tensor in tensors.items()}
    order = sorted(tensors, key=lambda name: (-kinds[name].itemsize, sizes[name] % CACHE_LINE != 0, name))
    header: dict[str, object] = {"__metadata__": dict(metadata or {"format": "pt"})}
    position = 0
    for name in order:
        kind, tensor = kinds[name], tensors[name]
        if kind not in CODES:
            raise CheckpointError(f"{name} is {kind}, which a safetensors file cannot hold.")
        end = position + sizes[name]
        header[name] = {"dtype": CODES[kind], "shape": list(tensor.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-(8 + len(text)) % CACHE_LINE)
    with open(path, "xb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in order:
            if tensors[name].numel():
                raw = tensors[name].detach().to("cpu", kinds[name]).contiguous().view(-1).view(torch.uint8)
                file.write(raw.numpy().data)
        file.flush()
        os.fsync(file.fileno())
    return 8 + len(text) + position
