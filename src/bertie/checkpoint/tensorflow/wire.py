"""The protocol-buffer wire format, as far as checkpoint indexes need it, and the messages of a bundle's index.

Wire format: https://protobuf.dev/programming-guides/encoding. A message is a run of fields, each a varint tag
(`number << 3 | type`) and a payload: type 0 a varint, 1 eight bytes, 2 a length and that many bytes, 5 four bytes.

The messages are those of TensorFlow's `tensor_bundle.proto`, `tensor_shape.proto`, `tensor_slice.proto` and
`versions.proto`; field numbers are given beside each class. Fields we do not know are skipped, as the format asks.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from bertie.checkpoint.dtypes import TensorFlowType


class MalformedError(Exception):
    """Bytes that break their own format. Callers who know the file turn it into a CorruptCheckpoint that names it."""


Buffer = bytes | memoryview

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def read_varint(data: Buffer, position: int) -> tuple[int, int]:
    """The unsigned varint at `position`, and the position after it."""
    value = shift = 0
    while True:
        if position >= len(data):
            raise MalformedError("a varint runs past the end of its data")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise MalformedError("a varint is longer than ten bytes")
    if value >> 64:
        raise MalformedError("a varint does not fit 64 bits")
    return value, position


def write_varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF  # negative numbers are written as 64-bit two's complement
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_fields(data: Buffer) -> Iterator[tuple[int, int | bytes]]:
    """Every field of one message, as (number, value): an int for types 0, 1 and 5, bytes for type 2."""
    position = 0
    while position < len(data):
        tag, position = read_varint(data, position)
        number, kind = tag >> 3, tag & 7
        value: int | bytes
        if number == 0:
            raise MalformedError("a message field has the number 0")
        if kind == _VARINT:
            value, position = read_varint(data, position)
        else:
            if kind == _BYTES:
                length, position = read_varint(data, position)
            elif kind in (_FIXED32, _FIXED64):
                length = 4 if kind == _FIXED32 else 8
            else:
                raise MalformedError(f"field {number} has the unknown wire type {kind}")
            if length > len(data) - position:
                raise MalformedError(f"field {number} needs {length} bytes, {len(data) - position} are left")
            payload = bytes(data[position : position + length])
            position += length
            value = payload if kind == _BYTES else int.from_bytes(payload, "little")
        yield number, value


def _read_message(data: Buffer, numbers: dict[int, int], nested: Mapping[int, Callable[[bytes], object]]) -> None:
    """Fill in the numbers (signed, by field) a message has, and hand its inner messages to their functions."""
    for field, value in read_fields(data):
        if field in numbers:
            if isinstance(value, bytes):
                raise MalformedError(f"field {field} holds bytes where a number belongs")
            numbers[field] = value - (1 << 64) if value >> 63 else value
        elif field in nested:
            if not isinstance(value, bytes):
                raise MalformedError(f"field {field} holds a number where bytes belong")
            nested[field](value)


def _varint_field(number: int, value: int) -> bytes:
    # proto3 leaves a field out when it holds its default.
    return write_varint(number << 3 | _VARINT) + write_varint(value) if value else b""


def _bytes_field(number: int, payload: bytes) -> bytes:
    return write_varint(number << 3 | _BYTES) + write_varint(len(payload)) + payload


@dataclass(frozen=True)
class Header:
    """BundleHeaderProto: 1 num_shards, 2 endianness (0 little, 1 big), 3 version {1 producer, 2 min_consumer}."""

    num_shards: int
    big_endian: bool = False
    producer: int = 1
    min_consumer: int = 0

    @classmethod
    def decode(cls, data: Buffer) -> Header:
        numbers, version = {1: 0, 2: 0}, {1: 0, 2: 0}
        _read_message(data, numbers, {3: lambda inner: _read_message(inner, version, {})})
        if numbers[2] not in (0, 1):
            raise MalformedError(f"the header's endianness is {numbers[2]}; 0 (little) and 1 (big) exist")
        return cls(numbers[1], numbers[2] == 1, version[1], version[2])

    def encode(self) -> bytes:
        version = _varint_field(1, self.producer) + _varint_field(2, self.min_consumer)
        return _varint_field(1, self.num_shards) + _varint_field(2, int(self.big_endian)) + _bytes_field(3, version)


# One (start, length) per axis; a length of -1 is the whole axis.
Slice = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Entry:
    """BundleEntryProto: 1 dtype, 2 shape, 3 shard_id, 4 offset, 5 size, 6 crc32c (fixed32, masked), 7 slices.

    An entry with slices has no bytes of its own: it says the full shape of a partitioned variable.
    """

    dtype: int
    shape: tuple[int, ...]
    shard: int = 0
    offset: int = 0
    size: int = 0
    crc: int = 0
    slices: tuple[Slice, ...] = ()

    @classmethod
    def decode(cls, data: Buffer) -> Entry:
        numbers = {1: 0, 3: 0, 4: 0, 5: 0, 6: 0}
        shapes: list[tuple[int, ...]] = []
        slices: list[Slice] = []
        nested = {
            2: lambda inner: shapes.append(_decode_shape(inner)),
            7: lambda inner: slices.append(_decode_slice(inner)),
        }
        _read_message(data, numbers, nested)
        shape = shapes[-1] if shapes else ()
        return cls(numbers[1], shape, numbers[3], numbers[4], numbers[5], numbers[6], tuple(slices))

    def encode(self) -> bytes:
        shape = b"".join(_bytes_field(2, _varint_field(1, size)) for size in self.shape)
        crc = b"\x35" + struct.pack("<I", self.crc) if self.crc else b""  # 0x35: field 6, type 5
        slices = b"".join(_bytes_field(7, _encode_slice(one)) for one in self.slices)
        return (
            _varint_field(1, self.dtype)
            + _bytes_field(2, shape)
            + _varint_field(3, self.shard)
            + _varint_field(4, self.offset)
            + _varint_field(5, self.size)
            + crc
            + slices
        )


@dataclass(frozen=True)
class BundleEntry:
    """One variable as the index describes it. `size` is in bytes; `slices` is not empty for a partitioned variable."""

    name: str
    dtype: TensorFlowType
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc: int
    slices: tuple[Slice, ...] = ()

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)


def _decode_shape(data: bytes) -> tuple[int, ...]:
    """TensorShapeProto: 2 dim {1 size, 2 name}, 3 unknown_rank."""
    dims: list[dict[int, int]] = []
    unknown = {3: 0}
    _read_message(data, unknown, {2: lambda inner: _append_message(dims, inner, {1: 0})})
    if unknown[3]:
        raise MalformedError("the shape says its rank is unknown")
    return tuple(dim[1] for dim in dims)


def _decode_slice(data: bytes) -> Slice:
    """TensorSliceProto: 1 extent {1 start, 2 length}; an extent without a length is the whole axis."""
    extents: list[dict[int, int]] = []
    _read_message(data, {}, {1: lambda inner: _append_message(extents, inner, {1: 0, 2: -1})})
    return tuple((extent[1], extent[2]) for extent in extents)


def _append_message(to: list[dict[int, int]], data: bytes, numbers: dict[int, int]) -> None:
    _read_message(data, numbers, {})
    to.append(numbers)


def _encode_slice(extents: Slice) -> bytes:
    out = b""
    for start, length in extents:
        # `length` is in a oneof, so it is written even when it is 0; absent it means the whole axis.
        fixed = b"" if length == -1 else b"\x10" + write_varint(length)
        out += _bytes_field(1, _varint_field(1, start) + fixed)
    return out


def slice_key(name: str, extents: Slice) -> bytes:
    """The index key under which one slice of the partitioned variable `name` keeps its bytes.

    TensorFlow's order-preserving code: the number 0, the name with zero bytes escaped and 00 01 behind it, the rank,
    and start and length of each axis. No variable's own name begins with a zero byte, so the two never meet.
    """
    escaped = name.encode().replace(b"\x00", b"\x00\xff")  # FF, the other byte that is escaped, is not in UTF-8
    key = b"\x00" + escaped + b"\x00\x01" + _ordered_unsigned(len(extents))
    for start, length in extents:
        key += _ordered_signed(start) + _ordered_signed(length)
    return key


def _ordered_unsigned(value: int) -> bytes:
    digits = value.to_bytes((value.bit_length() + 7) // 8, "big")
    return bytes([len(digits)]) + digits


def _ordered_signed(value: int) -> bytes:
    """n bytes hold 7n-1 bits of magnitude; the n leading bits say n, and all of them are inverted below zero."""
    length = (value if value >= 0 else ~value).bit_length() // 7 + 1
    digits = bytearray(value.to_bytes(max(length, 2), "big", signed=True)[-length:])
    header = (0xFFFF << (16 - length) & 0xFFFF).to_bytes(2, "big")
    digits[0] ^= header[0]
    if length > 1:
        digits[1] ^= header[1]
    return bytes(digits)
