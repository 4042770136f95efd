"""CRC-32C (Castagnoli) at memory speed, with numpy alone.

TensorFlow guards every index block and every tensor with CRC-32C (RFC 3720, appendix B.4; polynomial 0x1EDC6F41,
bit-reflected), so reading a 400 MB checkpoint means hashing 400 MB. A byte-at-a-time loop in Python does 15 MB/s.

The trick here needs no table for the bulk of the data. A CRC is the remainder of the message, read as a polynomial over
GF(2), divided by P. If P divides a *sparse* polynomial

    x^a + x^b + x^c + 1,

it also divides that polynomial's 2^k-th powers, x^(aB) + x^(bB) + x^(cB) + 1 with B = 2^k (squaring over GF(2) only
spreads the exponents). So x^(aB) = x^(bB) + x^(cB) + 1 modulo P: a block of B bits may be removed from the front of the
message and XORed into the blocks a-b, a-c and a places further on, and the remainder stays the same. With B = 64 these
are XORs of whole arrays of 64-bit words. What is left, some 45 kB, is folded again with B = 8, and the last 290 bytes
go through the classical table.

The exponents below were found by exhaustive search; a test checks that P divides both polynomials.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Octets = npt.NDArray[np.uint8]

POLYNOMIAL = 0x11EDC6F41  # P with its leading x^32, highest power first

# a, then the other exponents; the constant term 1 is understood. The gap a-b is how many blocks one XOR can span.
SPARSE_MULTIPLE = (5685, 1362, 426)  # four terms, the widest gap among those of degree below 6000
SHORT_MULTIPLE = (290, 136, 113, 107, 32)  # six terms, for the last kilobytes

_CHUNK_BYTES = 1 << 20  # how much is copied into the working buffer at a time; stays inside the L2 cache
_MASK_DELTA = 0xA282EAD8


def _byte_table() -> list[int]:
    reflected = int(f"{POLYNOMIAL & 0xFFFFFFFF:032b}"[::-1], 2)
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (reflected if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _byte_table()


def crc32c(data: bytes | memoryview | Octets, value: int = 0) -> int:
    """CRC-32C of `data` (bytes, or any contiguous buffer), continuing from the checksum `value` of what came before.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    >>> crc32c(b"6789", crc32c(b"12345")) == crc32c(b"123456789")
    True
    """
    message: Octets = np.frombuffer(data, dtype=np.uint8)
    state = value ^ 0xFFFFFFFF
    if message.size >= 2 * 8 * SPARSE_MULTIPLE[0]:
        message, state = _fold_words(message, state), 0
    for multiple in (SPARSE_MULTIPLE, SHORT_MULTIPLE):
        if message.size >= 2 * multiple[0]:
            message, state = _fold_bytes(message, state, multiple), 0
    table = _TABLE
    for byte in message.tobytes():
        state = table[(state ^ byte) & 0xFF] ^ (state >> 8)
    return state ^ 0xFFFFFFFF


def masked_crc32c(data: bytes | memoryview | Octets) -> int:
    """The form stored in files: rotated and offset, so that a checksum of data holding checksums stays sound."""
    return mask(crc32c(data))


def crc32c_of_lengths(lengths: list[int]) -> int:
    """Lengths of strings enter a checksum as u32 (u64 from 4 GiB on), though they are stored as varints."""
    return crc32c(b"".join(length.to_bytes(4 if length < 1 << 32 else 8, "little") for length in lengths))


def mask(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def _fold_words(message: Octets, state: int) -> Octets:
    """A message of a·8 bytes with the same remainder. `state` enters by XOR with the first four bytes."""
    carry_bytes = 8 * SPARSE_MULTIPLE[0]
    # Zero bytes in front of a message change nothing, so the first chunk may have any length; the others are words.
    words = np.zeros((carry_bytes + _CHUNK_BYTES) // 8, dtype=np.uint64)
    octets = words.view(np.uint8)
    start = 0
    while start < message.size:
        length = (message.size - start) % _CHUNK_BYTES or _CHUNK_BYTES
        if length < 8:
            length += _CHUNK_BYTES // 2  # the state's four bytes must fit the first chunk
        used = carry_bytes + -(-length // 8) * 8
        end = used - length
        octets[end:used] = message[start : start + length]
        if start == 0:  # nothing is carried yet, and the padding in front of the first bytes is zero already
            _enter_state(octets[end:], state)
        _fold(words[: used // 8], SPARSE_MULTIPLE)
        octets[:carry_bytes] = octets[used - carry_bytes : used].copy()
        start += length
    return octets[:carry_bytes]


def _fold_bytes(message: Octets, state: int, multiple: tuple[int, ...]) -> Octets:
    octets = message.copy()
    _enter_state(octets, state)
    _fold(octets, multiple)
    return octets[-multiple[0] :]


def _enter_state(octets: Octets, state: int) -> None:
    octets[:4] ^= np.frombuffer(state.to_bytes(4, "little"), dtype=np.uint8)


def _fold(blocks: Octets | npt.NDArray[np.uint64], exponents: tuple[int, ...]) -> None:
    """Fold all but the last a blocks into those last a, in place. The folded blocks are left as they are."""
    degree = exponents[0]
    shifts = [degree - exponent for exponent in (*exponents[1:], 0)]
    step = min(shifts)
    stop = len(blocks) - degree
    for start in range(0, stop, step):
        source = blocks[start : min(start + step, stop)]
        for shift in shifts:
            target = blocks[start + shift : start + shift + len(source)]
            np.bitwise_xor(target, source, out=target)
