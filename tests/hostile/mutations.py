"""Ways to damage bytes and JSON, each decided by a seeded generator alone."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from typing import Any

# What a JSON value may be replaced by: other types, borders of integers, numbers no float holds, names that mean
# something elsewhere.
NASTY_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63), 10**9, 10**12,
    10**400, -(10**400), 0.5, -0.0, 1e308, 5e-324, "", "0", "1e9", "true", "null", "bert", "gpt2", "gelu", "F32", "F64",
    "\x00", "\ud800", "é" * 50, "x" * 5000, "../../../etc/passwd", "__import__('os')", [], {}, [[]], [{}], {"": None},
    {"a": {"b": {"c": []}}}, [0] * 300, [-1, 2**63], {"0": "x", "00": "y"}, ["bert"], [None],
)  # fmt: skip
# What JSON text may get in the middle of it: not all of it is JSON.
NASTY_TEXT: tuple[bytes, ...] = (
    b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b"9" * 5000, b"0" * 20, b"\\ud800", b"\\u0000", b"\\",
    b'"', b"'", b",", b":", b"{", b"}", b"[", b"]", b"//", b"\xef\xbb\xbf", b"\xff", b"\xed\xa0\x80", b"\x00", b"\r",
    b"[" * 5000, b'{"a":' * 5000, b"[]" * 50, b"null", b"true", b"{}", b"[]", b"1", b"-", b".", b"e",
)  # fmt: skip

Mutation = Callable[[bytearray, random.Random], None]


def flip_bit(data: bytearray, rng: random.Random) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def set_byte(data: bytearray, rng: random.Random) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def insert_bytes(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.randbytes(rng.choice((1, 1, 2, 8, 100)))


def delete_bytes(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    del data[at : at + rng.choice((1, 1, 2, 8, 100, 1000))]


def truncate(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data) + 1) :]


def append_bytes(data: bytearray, rng: random.Random) -> None:
    data += rng.choice((b"\x00", b"\n", rng.randbytes(64), bytes(data[:200])))


def duplicate_chunk(data: bytearray, rng: random.Random) -> None:
    start, at = rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)
    data[at:at] = data[start : start + rng.choice((4, 32, 500))]


def swap_chunks(data: bytearray, rng: random.Random) -> None:
    length = rng.choice((1, 4, 16, 200))
    if len(data) > 2 * length:
        first = rng.randrange(len(data) - 2 * length + 1)
        second = rng.randrange(first + length, len(data) - length + 1)
        one, other = data[first : first + length], data[second : second + length]
        data[first : first + length], data[second : second + length] = other, one


def run_of_zeros(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    length = min(rng.choice((1, 8, 64, 500)), len(data) - at)
    data[at : at + length] = bytes(length)


def set_integer(data: bytearray, rng: random.Random) -> None:
    """An integer of some width, little-endian, at the borders where sizes and offsets go wrong."""
    kind = rng.choice("HIQ")
    width = struct.calcsize(kind)
    if len(data) >= width:
        values = (0, 1, 2, 0xFF, 2 ** (8 * width) - 1, 2 ** (8 * width - 1), 2 ** (8 * width - 1) - 1, len(data))
        at = rng.randrange(len(data) - width + 1)
        data[at : at + width] = struct.pack(f"<{kind}", rng.choice(values) % 2 ** (8 * width))


BYTE_MUTATIONS: tuple[Mutation, ...] = (
    flip_bit, flip_bit, set_byte, insert_bytes, delete_bytes, truncate, append_bytes, duplicate_chunk, swap_chunks,
    run_of_zeros, set_integer,
)  # fmt: skip


def mutate_bytes(content: bytes, rng: random.Random, *, most: int = 4) -> bytes:
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, most))):
        rng.choice(BYTE_MUTATIONS)(data, rng)
    return bytes(data)


def mutate_part(content: bytes, start: int, end: int, rng: random.Random) -> bytes:
    """Damage between two places only."""
    return content[:start] + mutate_bytes(content[start:end], rng) + content[end:]


def mutate_json(content: bytes, rng: random.Random) -> bytes:
    """Values of other kinds and sizes, lost and repeated keys, and text that is no JSON."""
    if rng.random() < 0.3:
        return mutate_json_text(content, rng)
    values = json.loads(content)
    for _ in range(rng.choice((1, 1, 2, 5))):
        values = _edit(values, rng)
    text = json.dumps(values, ensure_ascii=rng.random() < 0.5, indent=rng.choice((None, 2)))
    return text.encode("utf-8", "surrogatepass")


def mutate_json_text(content: bytes, rng: random.Random) -> bytes:
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 3))):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(4)
        if kind == 0:
            data[at:at] = rng.choice(NASTY_TEXT)
        elif kind == 1:  # the same keys again, with other values
            data = bytearray(bytes(data).rstrip().removesuffix(b"}") + b"," + bytes(data).lstrip().removeprefix(b"{"))
        elif kind == 2:
            data[at : at + rng.choice((1, 5, 20))] = rng.choice(NASTY_TEXT)
        else:
            rng.choice(BYTE_MUTATIONS)(data, rng)
    return bytes(data)


def _edit(values: Any, rng: random.Random) -> Any:
    """One change somewhere in a tree of JSON values."""
    if not isinstance(values, (dict, list)) or not values or rng.random() < 0.02:
        return _changed(values, rng)
    if isinstance(values, list):
        at = rng.randrange(len(values))
        if rng.random() < 0.2:
            return values[:at] + rng.choice(([], [rng.choice(NASTY_VALUES)], values[at:] * 2))
        return [*values[:at], _edit(values[at], rng), *values[at + 1 :]]
    key = rng.choice(list(values))
    kind = rng.randrange(10)
    if kind == 0:
        return {name: value for name, value in values.items() if name != key}
    if kind == 1:
        renamed = rng.choice((key.upper(), key + "_", key[:-1], "", "\ud800", "__class__", rng.choice(list(values))))
        return {renamed if name == key else name: value for name, value in values.items()}
    if kind == 2:
        return values | {key: values[rng.choice(list(values))]}
    return values | {key: _edit(values[key], rng)}


def _changed(value: Any, rng: random.Random) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and rng.random() < 0.4:
        return value + rng.choice((-1, 1, 8, -8, value, 2**32))
    if isinstance(value, str) and value and rng.random() < 0.4:
        at = rng.randrange(len(value))
        return value[:at] + rng.choice(("", " ", "#", "\x00", "\u0301", "A", value)) + value[at + 1 :]
    return rng.choice(NASTY_VALUES)
