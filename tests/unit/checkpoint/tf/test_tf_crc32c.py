"""CRC-32C against RFC 3720's vectors, against the plain byte loop, and against the clock."""

import random
import time

import numpy as np
import pytest

from bertie.checkpoint.tensorflow import crc32c as module
from bertie.checkpoint.tensorflow.crc32c import crc32c, mask, masked_crc32c

# RFC 3720, appendix B.4, and the check value of the CRC catalogue.
VECTORS = [
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
    (
        bytes.fromhex(
            "01c000000000000000000000000000001400000000000400000000140000001828000000000000000200000000000000"
        ),
        0xD9963A56,
    ),
    (b"123456789", 0xE3069283),
    (b"", 0),
]


def byte_loop(data: bytes, value: int = 0) -> int:
    state = value ^ 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = (state >> 1) ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


@pytest.mark.parametrize(("data", "expected"), VECTORS)
def test_known_answers(data, expected):
    assert crc32c(data) == expected


def test_masking():
    assert mask(0) == 0xA282EAD8
    assert masked_crc32c(b"123456789") == mask(0xE3069283)


@pytest.mark.parametrize("multiple", [module.SPARSE_MULTIPLE, module.SHORT_MULTIPLE])
def test_the_polynomial_divides_its_sparse_multiples(multiple):
    remainder = sum(1 << exponent for exponent in (*multiple, 0))
    while remainder.bit_length() > 32:
        remainder ^= module.POLYNOMIAL << (remainder.bit_length() - 33)
    assert remainder == 0


# Around every size at which another path begins: the byte fold, the word fold, one and two chunks of it.
SIZES = [1, 3, 4, 5, 290, 579, 580, 581, 11369, 11370, 11371, 90959, 90960, 90961, 90967]


@pytest.mark.parametrize("size", SIZES)
def test_folding_equals_the_byte_loop(size):
    data = random.Random(size).randbytes(size)
    assert crc32c(data) == byte_loop(data)
    assert crc32c(data, 0x12345678) == byte_loop(data, 0x12345678)


@pytest.mark.parametrize("size", [1 << 20, (1 << 20) + 1, (1 << 20) + 7, (1 << 20) + 8, (1 << 21) - 3, (1 << 21) + 3])
def test_chunks_join(size):
    data = random.Random(size).randbytes(size)
    cut = size // 3
    assert crc32c(data) == crc32c(data[cut:], crc32c(data[:cut]))
    pieces = 0
    for start in range(0, size, 5000):  # each below the word fold
        pieces = crc32c(data[start : start + 5000], pieces)
    assert crc32c(data) == pieces


def test_accepts_arrays_and_views_and_leaves_them_alone():
    data = np.random.default_rng(0).integers(0, 256, 200_000, dtype=np.uint8)
    copy = data.copy()
    assert crc32c(data) == crc32c(data.tobytes()) == crc32c(memoryview(data))
    assert np.array_equal(data, copy)


def test_speed_is_hundreds_of_megabytes_per_second():
    data = np.random.default_rng(0).integers(0, 256, 32 << 20, dtype=np.uint8)
    best = min(_seconds(data) for _ in range(3))
    # About 5 GB/s on a quiet core; the bar leaves room for a busy machine.
    assert data.size / best > 150e6


def _seconds(data):
    start = time.perf_counter()
    crc32c(data)
    return time.perf_counter() - start
