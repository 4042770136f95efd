"""Sorted string tables: the file format of a checkpoint's `.index`.

TensorFlow's table library is leveldb's (https://github.com/google/leveldb/blob/main/doc/table_format.md):

    data block … data block | meta-index block | index block | footer (48 bytes)

A block is a run of entries, each `shared, unshared, value length` (varints), the key's last `unshared` bytes and the
value; the first `shared` bytes of a key are those of the key before it. Then come the offsets of the restart points
(entries with shared = 0; one in sixteen), their count (all u32 little-endian), and a trailer: one byte of compression
(0 none; 1 would be snappy, which TensorFlow turned off in version 1.2, a year before BERT) and the masked crc32c of
everything before the crc. The index block holds one entry per data block: a key not below the block's last, and the
block's handle (offset and size, varints). The footer holds the handles of the meta-index and the index, zero padding,
and the magic number.

Everything read is bounded by the file: handles must lie inside it, in order and apart.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Iterator

from bertie.checkpoint.hostile.tensorflow_index import MAX_PAIRS, DecodedBytes
from bertie.checkpoint.tensorflow.crc32c import crc32c, mask, masked_crc32c
from bertie.checkpoint.tensorflow.wire import Buffer, MalformedError, read_varint, write_varint

MAGIC = 0xDB4775248B80FB57
FOOTER_BYTES = 48
_TRAILER_BYTES = 5
_NO_COMPRESSION, _SNAPPY = 0, 1
_EMPTY_BLOCK = struct.pack("<2I", 0, 1)


def read_table(data: bytes) -> list[tuple[bytes, bytes]]:
    """All (key, value) pairs of a table, in key order. Raises MalformedError for anything that is not one."""
    view = memoryview(data)
    meta_handle, index_handle = _read_footer(view)
    decoded = DecodedBytes(len(data))
    _read_block(view, *meta_handle)  # checkpoints put nothing in it; its checksum is worth a look all the same
    pairs: list[tuple[bytes, bytes]] = []
    free = 0
    previous_key: bytes | None = None
    for separator, value in _block_entries(_read_block(view, *index_handle), decoded):
        (offset, size), _ = _read_handle(value)
        if offset < free:
            raise MalformedError(f"the data block at {offset} overlaps the one before it, which ends at {free}")
        free = offset + size + _TRAILER_BYTES
        for key, item in _block_entries(_read_block(view, offset, size), decoded):
            if previous_key is not None and key <= previous_key:
                raise MalformedError(f"the keys are out of order: {key!r} after {previous_key!r}")
            previous_key = key
            if len(pairs) == MAX_PAIRS:
                raise MalformedError(f"the table has more than {MAX_PAIRS} entries; no checkpoint of a BERT has")
            pairs.append((key, item))
        if previous_key is not None and previous_key > separator:
            raise MalformedError(f"the key {previous_key!r} is above its block's index key {separator!r}")
    return pairs


def _read_footer(view: memoryview) -> tuple[tuple[int, int], tuple[int, int]]:
    if len(view) < FOOTER_BYTES:
        raise MalformedError(f"the file has {len(view)} bytes; a table's footer alone has {FOOTER_BYTES}")
    footer = view[-FOOTER_BYTES:]
    (magic,) = struct.unpack("<Q", footer[-8:])
    if magic != MAGIC:
        raise MalformedError(f"the last eight bytes are {magic:#018x}; a table ends in {MAGIC:#018x}")
    meta_handle, position = _read_handle(footer[:-8])
    index_handle, position = _read_handle(footer[:-8], position)
    return meta_handle, index_handle


def _read_handle(data: Buffer, position: int = 0) -> tuple[tuple[int, int], int]:
    """A block's (offset, size), and the position after them."""
    offset, position = read_varint(data, position)
    size, position = read_varint(data, position)
    return (offset, size), position


def _read_block(view: memoryview, offset: int, size: int) -> Buffer:
    room = len(view) - FOOTER_BYTES - _TRAILER_BYTES
    if offset > room or size > room - offset:
        raise MalformedError(
            f"a block of {size} bytes at {offset} reaches past the end of the file ({len(view)} bytes)"
        )
    (stored,) = struct.unpack("<I", view[offset + size + 1 : offset + size + _TRAILER_BYTES])
    actual = masked_crc32c(view[offset : offset + size + 1])
    if stored != actual:
        raise MalformedError(f"the block at {offset} has crc32c {actual:#010x}, stored is {stored:#010x}")
    kind = view[offset + size]
    block = view[offset : offset + size]
    if kind == _SNAPPY:
        raise MalformedError(
            f"the block at {offset} is compressed with snappy, which TensorFlow has not written since version 1.2"
        )
    if kind != _NO_COMPRESSION:
        raise MalformedError(f"the block at {offset} has the compression type {kind}; 0 (none) is what is written")
    return block


def _block_entries(block: Buffer, decoded: DecodedBytes) -> Iterator[tuple[bytes, bytes]]:
    if len(block) < 4:
        raise MalformedError(f"a block has {len(block)} bytes, too few for its restart count")
    (num_restarts,) = struct.unpack("<I", block[-4:])
    end = len(block) - 4 * (num_restarts + 1)
    if end < 0:
        raise MalformedError(f"a block of {len(block)} bytes claims {num_restarts} restart points")
    position = 0
    key = b""
    while position < end:
        shared, position = read_varint(block, position)
        unshared, position = read_varint(block, position)
        length, position = read_varint(block, position)
        if shared > len(key):
            raise MalformedError(f"a key shares {shared} bytes with the one before it, which has {len(key)}")
        if unshared > end - position or length > end - position - unshared:
            raise MalformedError(f"an entry of {unshared} + {length} bytes reaches past the end of its block")
        decoded.count_pair(shared + unshared + length)
        key = key[:shared] + bytes(block[position : position + unshared])
        position += unshared
        yield key, bytes(block[position : position + length])
        position += length


def write_table(items: Iterable[tuple[bytes, bytes]], *, block_size: int = 262144, restart_interval: int = 16) -> bytes:
    """A table of `items`, whose keys must ascend. The defaults are TensorFlow's; blocks are not compressed."""
    out = bytearray()
    index: list[tuple[bytes, bytes]] = []  # a key not below the block's last, and the block's handle
    for first, last, block in _blocks(items, block_size, restart_interval):
        if index:
            index[-1] = _separator(index[-1][0], first), index[-1][1]
        index.append((last, _append_block(out, block)))
    if index:
        index[-1] = _successor(index[-1][0]), index[-1][1]
    handles = _append_block(out, _EMPTY_BLOCK)  # the meta-index, which checkpoints put nothing in
    blocks = [block for _, _, block in _blocks(index, sys.maxsize, 1)]
    handles += _append_block(out, blocks[0] if blocks else _EMPTY_BLOCK)
    out += handles.ljust(FOOTER_BYTES - 8, b"\x00") + struct.pack("<Q", MAGIC)
    return bytes(out)


def _blocks(
    items: Iterable[tuple[bytes, bytes]], block_size: int, restart_interval: int
) -> Iterator[tuple[bytes, bytes, bytes]]:
    """(first key, last key, block without its trailer) of each block of `items`."""
    out, restarts, count = bytearray(), [0], 0
    first = b""
    previous: bytes | None = None
    for key, value in items:
        if previous is not None and key <= previous:
            raise ValueError(f"keys must ascend: {key!r} after {previous!r}")
        shared = 0
        if count and count % restart_interval == 0:
            restarts.append(len(out))
        elif count and previous is not None:
            shared = _num_shared(key, previous)
        first = first if count else key
        for number in (shared, len(key) - shared, len(value)):
            out += write_varint(number)
        out += key[shared:] + value
        previous, count = key, count + 1
        if len(out) + 4 * (len(restarts) + 1) >= block_size:
            yield first, key, _finished(out, restarts)
            out, restarts, count = bytearray(), [0], 0
    if count and previous is not None:
        yield first, previous, _finished(out, restarts)


def _finished(out: bytearray, restarts: list[int]) -> bytes:
    return bytes(out) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def _append_block(out: bytearray, block: bytes) -> bytes:
    """Append the block and its trailer; the handle that finds it again."""
    handle = write_varint(len(out)) + write_varint(len(block))
    kind = bytes([_NO_COMPRESSION])
    out += block + kind + struct.pack("<I", mask(crc32c(kind, crc32c(block))))
    return handle


def _num_shared(first: bytes, second: bytes) -> int:
    """How many bytes two keys have in common at their beginning."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((number for number, (a, b) in pairs if a != b), min(len(first), len(second)))


def _separator(low: bytes, high: bytes) -> bytes:
    """A short key k with low <= k < high, as leveldb chooses it."""
    position = _num_shared(low, high)
    if position < min(len(low), len(high)) and low[position] + 1 < high[position]:
        return low[:position] + bytes([low[position] + 1])
    return low


def _successor(key: bytes) -> bytes:
    """A short key not below `key`."""
    for position, byte in enumerate(key):
        if byte != 0xFF:
            return key[:position] + bytes([byte + 1])
    return key
