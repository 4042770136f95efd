"""The protobuf messages of a checkpoint's index, and the keys of partitioned variables."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.checkpoint.tensorflow.wire import (
    Entry,
    Header,
    MalformedError,
    read_fields,
    read_varint,
    slice_key,
    write_varint,
)


@given(st.integers(0, 2**64 - 1))
def test_varints_round_trip(value):
    assert read_varint(write_varint(value), 0) == (value, len(write_varint(value)))


@pytest.mark.parametrize("data", ["", "80", "8080808080808080808001", "ffffffffffffffffff02"])
def test_bad_varints_are_refused(data):
    with pytest.raises(MalformedError, match="varint"):
        read_varint(bytes.fromhex(data), 0)


def test_header_known_answer():
    # The first value of Google's own indexes.
    assert Header.decode(bytes.fromhex("08011a020801")) == Header(1)
    assert Header(1).encode().hex() == "08011a020801"
    assert Header.decode(Header(3, True, 1, 2).encode()) == Header(3, True, 1, 2)


sizes = st.integers(0, 2**63 - 1)
slices = st.lists(st.lists(st.tuples(sizes, st.integers(-1, 2**40)), max_size=3).map(tuple), max_size=3).map(tuple)


@given(st.builds(Entry, st.integers(0, 30), st.lists(sizes, max_size=6).map(tuple), st.integers(0, 99), sizes, sizes,
                 st.integers(0, 2**32 - 1), slices))  # fmt: skip
def test_entries_round_trip(entry):
    assert Entry.decode(entry.encode()) == entry


def test_unknown_fields_are_skipped():
    extra = bytes.fromhex("7a03616263" + "a10600000000000000ff" + "ad0600000001")  # numbers 15, 100 and 101
    assert Entry.decode(extra + Entry(1, (2,), size=8).encode() + extra) == Entry(1, (2,), size=8)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("0b", "wire type 3"),
        ("00", "number 0"),
        ("12", "varint"),
        ("1205aa", "needs 5 bytes, 1 are left"),
        ("35aabb", "needs 4 bytes"),
        ("0a00", "bytes where a number"),
        ("1001", "number where bytes"),
        ("12021801", "rank is unknown"),
    ],
)
def test_malformed_entries_are_refused(data, reason):
    with pytest.raises(MalformedError, match=reason):
        Entry.decode(bytes.fromhex(data))


@given(st.binary(max_size=60))
def test_any_bytes_parse_or_are_refused(data):
    for parse in (Entry.decode, Header.decode, lambda raw: list(read_fields(raw))):
        with contextlib.suppress(MalformedError):
            parse(data)


def test_slice_keys_known_answers():
    # From an index TensorFlow wrote: a variable in three slices of rows, another in two of columns.
    assert slice_key("rows/w", ((0, 67), (0, 2))) == b"\x00rows/w\x00\x01\x01\x02\x80\xc0\x43\x80\x82"
    assert slice_key("rows/w", ((134, 66), (0, 2))) == b"\x00rows/w\x00\x01\x01\x02\xc0\x86\xc0\x42\x80\x82"
    assert slice_key("columns/w", ((0, 3), (3, 2))) == b"\x00columns/w\x00\x01\x01\x02\x80\x83\x83\x82"
    assert slice_key("v", ((0, -1),)) == b"\x00v\x00\x01\x01\x01\x80\x7f"  # the whole axis


@given(st.lists(st.integers(0, 2**62), min_size=2, max_size=2, unique=True))
def test_slice_keys_sort_as_their_numbers_do(numbers):
    low, high = sorted(numbers)
    assert slice_key("v", ((low, -1),)) < slice_key("v", ((high, -1),))
