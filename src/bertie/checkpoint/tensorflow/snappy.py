"""Decoding Snappy blocks: what a leveldb-style table uses when its blocks are compressed.

Format: https://github.com/google/snappy/blob/main/format_description.txt (the raw block format, not the framed one).
A varint with the uncompressed length, then elements whose first byte says what they are in its two low bits:
00 a literal run, 01 a copy of 4..11 bytes (11-bit offset), 10 a copy of 1..64 bytes (16-bit offset), 11 the same with a
32-bit offset. TensorFlow writes checkpoint indexes uncompressed, but reads compressed ones, and so do we.
"""

from __future__ import annotations

from bertie.checkpoint.tensorflow.wire import Buffer, MalformedError, read_varint

# The densest element is a copy: three bytes that stand for 64.
_MAX_EXPANSION = 22


def decompress(data: Buffer) -> bytes:
    """The uncompressed block. Never allocates more than 22 times what it was given."""
    length, position = read_varint(data, 0)
    if length > _MAX_EXPANSION * len(data):
        raise MalformedError(f"a snappy block of {len(data)} bytes claims to hold {length}")
    out = bytearray()
    end = len(data)
    while position < end:
        tag = data[position]
        position += 1
        kind = tag & 3
        if kind == 0:
            run = (tag >> 2) + 1
            if run > 60:  # 61..64 mean that the length follows, in 1..4 bytes
                width = run - 60
                run = int.from_bytes(_take(data, position, width), "little") + 1
                position += width
            out += _take(data, position, run)
            position += run
        else:
            if kind == 1:
                run = (tag >> 2 & 7) + 4
                offset = (tag >> 5) << 8 | _take(data, position, 1)[0]
                position += 1
            else:
                width = 2 if kind == 2 else 4
                run = (tag >> 2) + 1
                offset = int.from_bytes(_take(data, position, width), "little")
                position += width
            if not 0 < offset <= len(out):
                raise MalformedError(f"a snappy copy reaches {offset} bytes back, {len(out)} are there")
            # A copy may overlap what it writes: offset 1 repeats one byte.
            piece = out[-offset:] if offset <= run else out[-offset : len(out) - offset + run]
            out += (piece * (run // len(piece) + 1))[:run]
        if len(out) > length:
            raise MalformedError(f"a snappy block holds more than the {length} bytes it claims")
    if len(out) != length:
        raise MalformedError(f"a snappy block holds {len(out)} bytes and claims {length}")
    return bytes(out)


def _take(data: Buffer, position: int, length: int) -> Buffer:
    if length > len(data) - position:
        raise MalformedError(f"a snappy element needs {length} bytes, {len(data) - position} are left")
    return data[position : position + length]
