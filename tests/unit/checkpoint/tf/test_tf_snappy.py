"""Snappy blocks: hand-made known answers, a second implementation where there is one, and malformed input."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.checkpoint.tensorflow.snappy import decompress
from bertie.checkpoint.tensorflow.wire import MalformedError, write_varint

# Written from the format description: literals of the three length forms, copies of the three offset forms.
KNOWN = [
    ("00", b""),
    ("0308616263", b"abc"),
    ("0a0061220100", b"a" * 10),  # a literal, then a 2-byte-offset copy that overlaps itself
    ("060461620102", b"ababab"),  # a 1-byte-offset copy of four
    ("060461620f02000000", b"ababab"),  # a 4-byte-offset copy of four
    ("40f03f" + "78" * 64, b"x" * 64),  # a literal whose length takes one byte more
    ("c801f4c700" + "79" * 200, b"y" * 200),  # … two bytes more
]


@pytest.mark.parametrize(("encoded", "plain"), KNOWN)
def test_known_answers(encoded, plain):
    assert decompress(bytes.fromhex(encoded)) == plain


@pytest.mark.parametrize(
    ("encoded", "reason"),
    [
        ("", "varint"),
        ("ffffffffffffffffffffff", "varint"),
        ("05", "holds 0 bytes and claims 5"),
        ("0008616263", "holds more than the 0 bytes"),
        ("03086162", "needs 3 bytes"),
        ("04006101", "needs 1 bytes"),
        ("0400610100", "reaches 0 bytes back"),
        ("0400610105", "reaches 5 bytes back"),
        ("10f0", "needs 1 bytes"),
        ("808080808080808001", "claims to hold"),
        ("ffffffff0f" + "0061", "claims to hold"),
    ],
)
def test_malformed_input_is_refused(encoded, reason):
    with pytest.raises(MalformedError, match=reason):
        decompress(bytes.fromhex(encoded))


@given(st.binary(max_size=200))
def test_any_bytes_decode_or_are_refused(data):
    try:
        plain = decompress(data)
    except MalformedError:
        return
    assert len(plain) <= 22 * len(data)


@given(st.lists(st.sampled_from([b"bert/encoder/layer_", b"/kernel", b"\x00\x01", b"adam_m"]), max_size=200))
def test_decodes_what_another_implementation_encodes(pieces):
    pyarrow = pytest.importorskip("pyarrow", reason="the other implementation comes with pyarrow")
    plain = b"".join(pieces)
    assert decompress(pyarrow.compress(plain, codec="snappy", asbytes=True)) == plain


def test_length_is_read_as_a_varint():
    assert decompress(write_varint(300) + b"\xf4\x2b\x01" + b"z" * 300) == b"z" * 300
