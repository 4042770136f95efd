"""QUALITY 6, for `.bin` files: programs of harmless instructions that never end, and archives with two directories.

`torch.load(weights_only=True)` runs every one of these; `PROGRAMS` are pickles, `ARCHIVES` are whole files.
"""

from __future__ import annotations

import io
import pickle
import struct
import zlib
from collections.abc import Callable

import torch

from hostile.pickles import legacy, zipped

_START, _END = b"\x80\x02", b"."


def _call(module: str, name: str, *arguments: bytes) -> bytes:
    return f"c{module}\n{name}\n".encode() + b"(" + b"".join(arguments) + b"tR"


def _nest() -> bytes:
    """A tuple of another one twice, forty deep: 2⁴⁰ steps for whoever hashes or prints it."""
    body = b"K\x01q\x00"
    for level in range(40):
        body += b"h" + bytes([level]) + b"\x86q" + bytes([level + 1])
    return body


def _storage(key: bytes, count: bytes, more: bytes = b"") -> bytes:
    return b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\n" + key + b"X\x03\x00\x00\x00cpu" + count + more + b"tQ"


_ONE = b"X\x01\x00\x00\x000", b"K\x01"


def _rebuilt(storage: bytes, offset: bytes = b"K\x00", shape: bytes = b")", more: bytes = b"\x89}") -> bytes:
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + offset + shape + b")" + more + b"tR"


def _many(number: int, one: Callable[[int], bytes]) -> bytes:
    return b"".join(one(n) for n in range(number))


def _colliding_keys() -> bytes:
    """Numbers that all have the hash 0: a dictionary of them takes time quadratic in their count."""
    numbers = ((2**61 - 1) * n for n in range(1, 60_000))
    return _START + b"}(" + b"".join(pickle.dumps(n, 2)[2:-1] + b"N" for n in numbers) + b"u" + _END


def _shape_of_shapes() -> bytes:
    """One tuple of 90,000 sizes as the shape of 20,000 tensors."""
    storage = b"X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x01tQ"
    head = (
        b"ctorch._utils\n_rebuild_tensor_v2\nq\x00(("
        + storage
        + b"K\x00("
        + b"K\x01" * 90_000
        + b"tq\x01h\x01\x89}tq\x02R"
    )
    again = b"h\x00h\x02R"
    return _START + b"]" + head + b"a(" + again * 20_000 + b"e" + _END


def _ordered_again() -> bytes:
    """One list of 60,000 pairs, made a dictionary 30,000 times."""
    pairs = b"](" + _many(60_000, lambda n: b"h\x00") + b"e"
    start = _START + b"X\x01\x00\x00\x00aK\x01\x86q\x00]" + b"ccollections\nOrderedDict\nq\x01" + pairs + b"\x85q\x02R"
    return start + b"h\x01h\x02R" * 30_000 + _END


def _marks_in_marks() -> bytes:
    """150,000 values, and a tuple begun above them 20,000 times."""
    return _START + b"N" * 150_000 + b"(t" * 20_000 + _END


PROGRAMS: dict[str, Callable[[], bytes]] = {
    "40 nested tuples as a key": lambda: _START + b"}" + _nest() + b"K\x01s" + _END,
    "40 nested tuples": lambda: _START + _nest() + _END,
    "nested tuples as a name": lambda: _START + b"X\x01\x00\x00\x00a" + _nest() + b"\x93" + _END,
    "nested tuples as a storage": lambda: _START + _rebuilt(_nest()) + _END,
    "nested tuples as a storage's key": lambda: _START + _rebuilt(_storage(_nest(), b"K\x01")) + _END,
    "nested tuples as a storage's size": lambda: _START + _rebuilt(_storage(_ONE[0], _nest())) + _END,
    "nested tuples as a storage's part": lambda: _START + _rebuilt(_storage(*_ONE, _nest())) + _END,
    "nested tuples as an offset": lambda: _START + _rebuilt(_storage(*_ONE), _nest()) + _END,
    "nested tuples as a shape": lambda: _START + _rebuilt(_storage(*_ONE), b"K\x00", _nest()) + _END,
    "nested tuples as marks": lambda: _START + _rebuilt(_storage(*_ONE), more=b"\x89}" + _nest()) + _END,
    "nested tuples as a type": lambda: (
        _START + _call("torch._tensor", "_rebuild_from_type_v2", b"ctorch\nSize\n", _nest(), b")", b"N") + _END
    ),
    "one storage of 90,000 words, 20,000 times": lambda: (
        _START
        + b"]"
        + _storage(*_ONE, b"N" * 90_000).replace(b"tQ", b"tq\x00Q")
        + b"a("
        + b"h\x00Q" * 20_000
        + b"e"
        + _END
    ),
    "bytearray of 6e9": lambda: (
        _START + _call("builtins", "bytearray", b"\x8a\x08" + struct.pack("<q", 6 * 10**9)) + _END
    ),
    "bytearray of 6e9, Python 2": lambda: (
        _START + _call("__builtin__", "bytearray", b"\x8a\x08" + struct.pack("<q", 6 * 10**9)) + _END
    ),
    "1.2 MB of punycode": lambda: (
        _START
        + _call(
            "_codecs",
            "encode",
            b"X" + struct.pack("<I", 1_200_000) + "".join(chr(0x4E00 + n % 20_000) for n in range(400_000)).encode(),
            b"X\x08\x00\x00\x00punycode",
        )
        + _END
    ),
    "60,000 keys of one hash": _colliding_keys,
    "one shape of 90,000, 20,000 times": _shape_of_shapes,
    "one list of pairs, 30,000 times": _ordered_again,
    "150,000 values under 20,000 marks": _marks_in_marks,
    "a number of 200 bytes": lambda: _START + b"\x8a\xc8" + b"\x7f" * 200 + _END,
    "a dictionary in itself": lambda: _START + b"}q\x00X\x01\x00\x00\x00ah\x00s" + _END,
    "a Counter": lambda: _START + _call("collections", "Counter", b"}") + _END,
}


def two_directories() -> bytes:
    """An archive whose zip64 locator names another directory than the one that lies in front of it.

    Python's zipfile reads what lies in front: a sound archive. torch follows the locator, to a pickle of 2 GB.
    """
    sound = _sound()
    end, wide = sound.rindex(b"PK\x05\x06"), sound.rindex(b"PK\x06\x06")
    length, place = struct.unpack("<QQ", sound[wide + 40 : wide + 56])
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = squeeze.compress(bytes(1 << 20)) + squeeze.flush(zlib.Z_FULL_FLUSH)
    packed = block * 2047 + squeeze.flush(zlib.Z_FINISH)
    sizes, name = (len(packed), 2047 << 20), b"archive/data.pkl"
    begin = len(sound[:place])
    member = struct.pack("<4s5H3L2H", b"PK\x03\x04", 45, 0, 8, 0, 0, 0, *sizes, len(name), 0) + name + packed
    hidden_at = begin + len(member)
    hidden = struct.pack(
        "<4s6H3L5H2L", b"PK\x01\x02", 45, 45, 0, 8, 0, 0, 0, *sizes, len(name), 0, 0, 0, 0, 0, begin
    ) + name  # fmt: skip
    entries = sound[place : place + length]
    hidden += entries[46 + sum(struct.unpack("<HHH", entries[28:34])) :]  # the others are as they were
    count = entries.count(b"PK\x01\x02")
    hidden_end_at = hidden_at + len(hidden)
    hidden_end = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, len(hidden), hidden_at)
    shown_at = hidden_end_at + len(hidden_end)
    shown_end = sound[wide : wide + 48] + struct.pack("<Q", shown_at)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, hidden_end_at, 1)
    last = sound[end : end + 16] + struct.pack("<LH", shown_at, 0)
    return sound[:place] + member + hidden + hidden_end + entries + shown_end + locator + last


def _with(content: bytes, signature: bytes, at: int, value: bytes) -> bytes:
    place = content.rindex(signature) + at
    return content[:place] + value + content[place + len(value) :]


def _sound() -> bytes:
    content = io.BytesIO()
    torch.save({"a": torch.zeros(4)}, content)
    return content.getvalue()


ARCHIVES: dict[str, Callable[[], bytes]] = {
    "two directories": two_directories,
    "a locator that points elsewhere": lambda: _with(_sound(), b"PK\x06\x07", 8, struct.pack("<Q", 0)),
    "a directory of 2^40 members": lambda: _with(_sound(), b"PK\x06\x06", 24, struct.pack("<QQ", 2**40, 2**40)),
    "a directory of 2^60 bytes": lambda: _with(_sound(), b"PK\x06\x06", 40, struct.pack("<Q", 2**60)),
    "two directories that differ": lambda: _with(_sound(), b"PK\x05\x06", 16, struct.pack("<L", 4)),
    "a comment": lambda: _with(_sound(), b"PK\x05\x06", 20, struct.pack("<H", 3)) + b"PK\x05",
    "something after the end": lambda: _sound() + b"\0",
    "a member without a name of its own": lambda: _with(_sound(), b"PK\x03\x04", 30, b"zz"),
}
FILES: dict[str, Callable[[], bytes]] = {
    **{f"zip, {name}": (lambda make=make: zipped(make())) for name, make in PROGRAMS.items()},  # type: ignore[misc]
    **{f"legacy, {name}": (lambda make=make: legacy(make(), at=3)) for name, make in PROGRAMS.items()},  # type: ignore[misc]
    **{f"as the list of storages, {name}": (lambda make=make: legacy(make(), at=4)) for name, make in PROGRAMS.items()},  # type: ignore[misc]
    **ARCHIVES,
}
