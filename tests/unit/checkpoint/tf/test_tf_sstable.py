"""Sorted string tables: round trips, blocks, checksums and crafted tables."""

import struct
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.checkpoint.tensorflow.crc32c import masked_crc32c
from bertie.checkpoint.tensorflow.sstable import FOOTER_BYTES, MAGIC, read_table, write_table
from bertie.checkpoint.tensorflow.wire import MalformedError, write_varint


def trailer(block: bytes, kind: int = 0) -> bytes:
    return bytes([kind]) + struct.pack("<I", masked_crc32c(block + bytes([kind])))


def block(*entries: tuple[int, bytes, bytes]) -> bytes:
    """A block of (shared, rest of the key, value) with one restart point."""
    body = b"".join(
        write_varint(shared) + write_varint(len(rest)) + write_varint(len(value)) + rest + value
        for shared, rest, value in entries
    )
    return body + struct.pack("<II", 0, 1)


def table(data: bytes, kind: int = 0, *, separator: bytes = b"\xff", handles: bytes | None = None) -> bytes:
    """A table with one data block, as wrong as its arguments make it."""
    out = data + trailer(data, kind)
    meta_handle = write_varint(len(out)) + write_varint(8)
    out += block() + trailer(block())
    index = block((0, separator, handles or write_varint(0) + write_varint(len(data))))
    position = len(out)
    out += index + trailer(index)
    footer = meta_handle + write_varint(position) + write_varint(len(index))
    return out + footer.ljust(FOOTER_BYTES - 8, b"\x00") + struct.pack("<Q", MAGIC)


@given(
    st.dictionaries(st.binary(max_size=40), st.binary(max_size=60), max_size=80),
    st.integers(30, 400),
    st.integers(1, 20),
)
def test_round_trip(pairs, block_size, restart_interval):
    items = sorted(pairs.items())
    assert read_table(write_table(items, block_size=block_size, restart_interval=restart_interval)) == items


def test_keys_must_ascend_when_written():
    with pytest.raises(ValueError, match="ascend"):
        write_table([(b"b", b""), (b"a", b"")])


def test_compressed_blocks_are_refused_by_name():
    with pytest.raises(MalformedError, match="compressed with snappy, which TensorFlow has not written since"):
        read_table(table(block((0, b"key", b"value")), 1))


def test_every_flipped_bit_outside_the_padding_is_noticed():
    items = [(b"bert/%03d" % n, bytes(20)) for n in range(30)]
    sound = write_table(items, block_size=200)
    for position in range(len(sound)):
        flipped = bytearray(sound)
        flipped[position] ^= 0x10
        try:
            assert read_table(bytes(flipped)) == items
        except MalformedError:
            continue
        assert position >= len(sound) - FOOTER_BYTES  # the footer's padding


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "footer alone has 48"),
        (bytes(47), "footer alone has 48"),
        (bytes(48), "ends in 0xdb4775248b80fb57"),
        (table(b"abc"), "too few for its restart count"),
        (table(b"\xff\xff\xff\x7f"), "restart points"),
        (table(block((1, b"a", b""))), "shares 1 bytes"),
        (table(block((0, b"b", b""), (0, b"a", b""))), "out of order"),
        (table(block((0, b"a", b""), (0, b"a", b""))), "out of order"),
        (table(block((0, b"b", b"")), separator=b"a"), "above its block's index key"),
        (table(block((0, b"a", b"")), 7), "compression type 7"),
        (table(block((0, b"a", b"")), handles=write_varint(0) + write_varint(1 << 40)), "reaches past the end"),
        (table(block((0, b"a", b"")), handles=write_varint(1 << 63) + write_varint(1)), "reaches past the end"),
        (table(block((0, b"a", b"")), handles=b"\x80"), "varint"),
        (
            table(write_varint(0) + write_varint(200) + write_varint(0) + struct.pack("<II", 0, 1)),
            "past the end of its",
        ),
        (table(b"\x80" * 12 + struct.pack("<II", 0, 1)), "varint"),
    ],
)
def test_crafted_tables_are_refused(data, reason):
    with pytest.raises(MalformedError, match=reason):
        read_table(data)


def test_blocks_that_overlap_are_refused():
    data = block((0, b"a", b""))
    out = data + trailer(data)
    handle = write_varint(0) + write_varint(len(data))
    index = block((0, b"x", handle), (0, b"y", handle))
    footer = handle + write_varint(len(out)) + write_varint(len(index))
    out += index + trailer(index) + footer.ljust(40, b"\x00") + struct.pack("<Q", MAGIC)
    with pytest.raises(MalformedError, match="overlaps the one before"):
        read_table(out)


def test_shared_prefixes_cannot_fill_the_memory():
    # A megabyte of entries that each share half a megabyte with the key before: 45 GB if it were decoded.
    body = [write_varint(0) + write_varint(500_000) + write_varint(0) + b"k" * 500_000]
    body += [write_varint(499_000 + n) + write_varint(1) + write_varint(0) + b"z" for n in range(90_000)]
    data = b"".join(body) + struct.pack("<II", 0, 1)
    start = time.perf_counter()
    assert peak_bytes_when_refused(table(data), "decodes to more than") < 32 << 20
    assert time.perf_counter() - start < 1


def test_many_tiny_pairs_cannot_fill_the_memory():
    count = 300_000
    body = b"\x00\x00\x00" + b"".join(write_varint(n) + b"\x01\x00a" for n in range(count))
    data = table(body + struct.pack("<II", 0, 1))
    assert peak_bytes_when_refused(data, "decodes to more than") < 32 << 20


def peak_bytes_when_refused(data, reason):
    tracemalloc.start()
    try:
        with pytest.raises(MalformedError, match=reason):
            read_table(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
