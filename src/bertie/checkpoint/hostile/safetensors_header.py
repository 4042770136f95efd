"""The header of a safetensors file: read by us, and everything it claims checked against the file.

    8 bytes         n, the header's length, little-endian
    n bytes         JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, …, "__metadata__": {…}}
    the rest        the tensors' bytes, end to end, little-endian, row-major

(https://github.com/huggingface/safetensors, "Format".) safetensors.py makes tensors of what it describes.
"""

from __future__ import annotations

import json
import math
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeGuard

from bertie.checkpoint.dtypes import ITEM_BYTES, SAFETENSORS
from bertie.checkpoint.hostile.paths import open_weights
from bertie.errors import CheckpointError, CorruptCheckpoint
from bertie.json_values import fields, members, parsed, text

MAX_HEADER_BYTES = 2_000_000  # bert-large has 50 kB; the reference implementation takes 100 MB, and seconds
MAX_DIMENSIONS = 32
REMEDY = "The file is damaged or was not written by safetensors: fetch or save it again."


@dataclass(frozen=True)
class HeaderEntry:
    """One tensor's kind and place: `start` and `end` count from the beginning of the file, `dtype` is torch's name."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_header(path: str | os.PathLike[str]) -> tuple[dict[str, HeaderEntry], dict[str, str]]:
    """The tensors a file holds, and its metadata."""
    with open_weights(Path(path)) as file:
        return header_of(Path(path), file)


def header_of(path: Path, file: BinaryIO) -> tuple[dict[str, HeaderEntry], dict[str, str]]:
    """The same of a file that is open already."""
    size = os.fstat(file.fileno()).st_size
    header = _parsed(path, file, size)
    return _checked(path, header, base=file.tell(), size=size)


def _parsed(path: Path, file: BinaryIO, size: int) -> dict[str, object]:
    if size < 8:
        raise CorruptCheckpoint(f"{path} is {size} bytes long; a safetensors file has at least 8.", REMEDY)
    (length,) = struct.unpack("<Q", file.read(8))
    if size - 8 < length < 2**32:
        raise CorruptCheckpoint(
            f"{path} is truncated inside its header: it holds {size} bytes and the header alone claims {length}.",
            "The download or copy did not finish: fetch it again.",
        )
    if length > MAX_HEADER_BYTES:
        raise CorruptCheckpoint(f"{path} claims a header of {length} bytes; no BERT's is larger than 2 MB.", REMEDY)
    try:
        source = file.read(length).decode("utf-8")
        header = parsed(source, _without_duplicates)
        if "\\u" in source:  # JSON can spell half a character, which no name may be
            json.dumps(header, ensure_ascii=False).encode("utf-8")
    except ValueError as error:
        raise CorruptCheckpoint(f"{path}: the header is not valid JSON: {error}.", REMEDY) from None
    if (found := members(header)) is None:
        raise CorruptCheckpoint(f"{path}: the header is a JSON {type(header).__name__}, not an object.", REMEDY)
    return found


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values: dict[str, object] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"the key {key[:80]!r} is there twice")
        values[key] = value
    return values


def _checked(
    path: Path, header: dict[str, object], *, base: int, size: int
) -> tuple[dict[str, HeaderEntry], dict[str, str]]:
    """The header's entries, once they describe the rest of the file exactly: no gap, no overlap, nothing left over."""
    metadata = members(header.pop("__metadata__", {}))
    strings = {name: value for name, given in fields(metadata).items() if (value := text(given)) is not None}
    if metadata is None or len(strings) != len(metadata):
        raise CorruptCheckpoint(f"{path}: __metadata__ is not an object of strings.", REMEDY)
    entries = {name: _entry(path, name, value, base) for name, value in header.items()}
    position, previous = base, "the header"
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].end)):
        if entry.start != position:
            how = "overlaps" if entry.start < position else "leaves a gap after"
            raise CorruptCheckpoint(f"{path}: tensor {name!r} {how} {previous}.", REMEDY)
        position, previous = entry.end, repr(name)
    if position > size:
        raise CorruptCheckpoint(
            f"{path} is truncated: its header describes {position} bytes and it holds {size}.",
            "The download or copy did not finish: fetch it again.",
        )
    if position < size:
        raise CorruptCheckpoint(f"{path} holds {size - position} bytes that its header does not describe.", REMEDY)
    return entries, strings


def _entry(path: Path, name: str, value: object, base: int) -> HeaderEntry:
    given = fields(value)
    if not given.keys() >= {"dtype", "shape", "data_offsets"}:
        raise CorruptCheckpoint(f"{path}: tensor {name[:200]!r} has no dtype, shape and data_offsets.", REMEDY)
    dtype, shape, offsets = text(given["dtype"]), given["shape"], given["data_offsets"]
    if dtype not in SAFETENSORS:
        raise CheckpointError(
            f"{path}: tensor {name[:200]!r} has the dtype {given['dtype']!r:.40}, which Bertie cannot read.",
            f"Known: {', '.join(SAFETENSORS)}.",
        )
    # Of a tensor without items, torch multiplies the other dimensions in 64 bits.
    if not _are_sizes(shape, MAX_DIMENSIONS) or (0 in shape and math.prod(length or 1 for length in shape) >= 2**60):
        raise CorruptCheckpoint(f"{path}: tensor {name[:200]!r} has the shape {shape!r:.80}.", REMEDY)
    if not _are_sizes(offsets, 2) or len(offsets) != 2:
        raise CorruptCheckpoint(f"{path}: tensor {name[:200]!r} has the data_offsets {offsets!r:.80}.", REMEDY)
    begin, end = offsets
    needed = math.prod(shape) * ITEM_BYTES[SAFETENSORS[dtype]]
    if end - begin != needed:
        raise CorruptCheckpoint(
            f"{path}: tensor {name[:200]!r} of {dtype} {shape} takes {needed} bytes; its place has {end - begin}.",
            REMEDY,
        )
    return HeaderEntry(SAFETENSORS[dtype], tuple(shape), base + begin, base + end)


def _are_sizes(value: object, most: int) -> TypeGuard[list[int]]:
    if not isinstance(value, list) or len(value) > most:
        return False
    return all(type(one) is int and 0 <= one < 2**63 for one in value)
