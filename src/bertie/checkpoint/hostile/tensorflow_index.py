"""A TensorFlow index against itself: entries that could be, that share no byte, and slices that fit their variables.

And a bound on what a table may become in memory: shared prefixes can make gigabytes of a megabyte.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

from bertie.checkpoint.tensorflow.wire import BundleEntry, MalformedError, Slice, slice_key

_MAX_RANK = 254  # TensorFlow's own limit
_MAX_ELEMENTS = (1 << 63) - 1

# Decoded bytes allowed: this much, and this many times the file. Real indexes need about five times their size,
# counting what Python itself needs to hold one pair.
_FREE_BYTES = 16 << 20
_EXPANSION = 8
_PAIR_BYTES = 160
MAX_PAIRS = 15_000  # bert-large with its optimizer has 1,200


class DecodedBytes:
    """Counts them, so that a crafted table cannot fill the memory."""

    def __init__(self, file_bytes: int) -> None:
        self.left = self.limit = _FREE_BYTES + _EXPANSION * file_bytes

    def count_pair(self, num_bytes: int) -> None:
        self.left -= num_bytes + _PAIR_BYTES
        if self.left < 0:
            raise MalformedError(f"the table decodes to more than {self.limit} bytes")


def check_entries(entries: Mapping[str, BundleEntry], slices: Mapping[bytes, BundleEntry], num_shards: int) -> None:
    """Everything that can be said of an index without its data files; `slices` are hidden entries, by key."""
    for entry in (*entries.values(), *slices.values()):
        _check_entry(entry, num_shards)
    _check_overlaps([entry for entry in (*entries.values(), *slices.values()) if entry.size])
    for entry in entries.values():
        for extents in entry.slices:
            _check_slice(entry, extents, slices)


def _check_entry(entry: BundleEntry, num_shards: int) -> None:
    name = entry.name
    if len(entry.shape) > _MAX_RANK or any(size < 0 for size in entry.shape):
        raise MalformedError(f"{name}: {_shown(entry.shape)} is no shape")
    if math.prod(max(size, 1) for size in entry.shape) > _MAX_ELEMENTS:
        raise MalformedError(f"{name}: the shape {_shown(entry.shape)} has more than 2^63 elements")
    if not 0 <= entry.shard < num_shards:
        raise MalformedError(f"{name}: lies in data file {entry.shard} of {num_shards}")
    if entry.offset < 0 or entry.size < 0:
        raise MalformedError(f"{name}: has {entry.size} bytes at offset {entry.offset}")
    if entry.slices:
        if entry.size:
            raise MalformedError(f"{name}: is partitioned, and has {entry.size} bytes of its own")
    elif entry.dtype.is_string:
        # At least one byte of length for each string, and four of checksum.
        if entry.num_elements > entry.size - 4:
            raise MalformedError(f"{name}: {entry.num_elements} strings in {entry.size} bytes")
    elif entry.dtype.itemsize is not None and entry.num_elements * entry.dtype.itemsize != entry.size:
        wanted = entry.num_elements * entry.dtype.itemsize
        raise MalformedError(
            f"{name}: the shape {_shown(entry.shape)} of {entry.dtype.name} needs {wanted} bytes, "
            f"the entry has {entry.size}"
        )


def _check_overlaps(stored: list[BundleEntry]) -> None:
    stored.sort(key=lambda entry: (entry.shard, entry.offset))
    for first, second in pairwise(stored):
        if first.shard == second.shard and first.offset + first.size > second.offset:
            raise MalformedError(f"{first.name} and {second.name} overlap in data file {second.shard}")


def _check_slice(entry: BundleEntry, extents: Slice, slices: Mapping[bytes, BundleEntry]) -> None:
    if len(extents) != len(entry.shape):
        raise MalformedError(f"{entry.name}: a slice of rank {len(extents)} of {_shown(entry.shape)}")
    part = slices.get(slice_key(entry.name, extents))
    if part is None:
        raise MalformedError(f"{entry.name}: the slice {extents} is not in the index")
    for size, (start, length) in zip(entry.shape, extents, strict=True):
        if start < 0 or length < -1 or (length == -1 and start) or start + length > size:
            raise MalformedError(f"{entry.name}: the slice {extents} leaves {_shown(entry.shape)}")
    shape = tuple(size if length == -1 else length for size, (_, length) in zip(entry.shape, extents, strict=True))
    if part.dtype != entry.dtype or part.shape != shape:
        raise MalformedError(f"{entry.name}: the slice {extents} is {part.dtype.name} {_shown(part.shape)}")


def _shown(shape: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, shape[:8]))
    return f"[{shown}]" if len(shape) <= 8 else f"[{shown}, … {len(shape)} axes]"
