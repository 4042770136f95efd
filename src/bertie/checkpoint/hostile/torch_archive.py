"""The list of members of a zip archive that `torch.save` wrote, read strictly.

    members     each behind a header of its own (30 bytes, a name, padding)
    directory   for each member: name, size, where its header is
    [zip64]     the directory's place in 64 bits, and a locator that says where these are
    end         22 bytes: the directory's place

(https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT, 4.3.) Zip is loose about where these parts are, and two
programs that search for them can find two different archives in one file. So nothing is searched for here: torch
writes the parts one after the other up to the file's last byte, uncompressed, and that is what is read.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import BinaryIO

MAX_MEMBERS = 100_000  # a member to a tensor; no BERT has as many
MAX_DIRECTORY_BYTES = 32 * 2**20
_END, _ZIP64, _LOCATOR = struct.Struct("<4s4H2LH"), struct.Struct("<4sQ2H2L4Q"), struct.Struct("<4sLQL")
_ENTRY, _HEADER = struct.Struct("<4s6H3L5H2L"), struct.Struct("<4s5H3L2H")
_FULL_16, _FULL_32 = 0xFFFF, 0xFFFFFFFF  # "see the 64-bit field"
_FULLS = (_FULL_16, _FULL_32, _FULL_32)


class DamagedArchive(Exception):
    """Not an archive as torch writes it."""


@dataclass(frozen=True, slots=True)
class Member:
    """`start` is where its bytes begin in the file."""

    start: int
    size: int


def read_members(file: BinaryIO, size: int) -> dict[str, Member]:
    """The archive's members by name, each with bytes of its own inside the file."""
    place, length, count = _directory(file, size)
    if count > MAX_MEMBERS or length > MAX_DIRECTORY_BYTES:
        raise DamagedArchive(f"its list claims {count} members in {length} bytes")
    directory = _read(file, place, length)
    found: list[tuple[int, str, int]] = []
    position = 0
    for _ in range(count):
        if len(directory) - position < _ENTRY.size:
            raise DamagedArchive("its list of members ends too early")
        (signature, _, _, flags, method, _, _, _, packed, unpacked, name_length, extra_length, comment_length, disk, _,
         _, header) = _ENTRY.unpack_from(directory, position)  # fmt: skip
        names_at = position + _ENTRY.size
        extra_at = names_at + name_length
        position = extra_at + extra_length + comment_length
        if signature != b"PK\x01\x02" or disk or position > len(directory):
            raise DamagedArchive("its list of members is damaged")
        name = directory[names_at:extra_at].decode("utf-8", "backslashreplace")
        extra = directory[extra_at : extra_at + extra_length]
        unpacked, packed, header = _wide(extra, unpacked, packed, header)
        if method != 0 or flags & 1 or packed != unpacked:
            raise DamagedArchive(
                f"the member {name!r:.100} is compressed ({packed} bytes that claim to be {unpacked}), "
                "which torch never does"
            )
        found.append((header, name, unpacked))
    if position != len(directory):
        raise DamagedArchive("its list of members has bytes left over")
    return _placed(file, found, place)


def _directory(file: BinaryIO, size: int) -> tuple[int, int, int]:
    """Where the list of members begins, how long it is, and how many it names."""
    end_at = size - _END.size
    signature, disk, first, here, count, length, place, comment = _END.unpack(_read(file, end_at, _END.size))
    if signature != b"PK\x05\x06" or comment or disk or first or here != count:
        raise DamagedArchive("it does not end as an archive does")
    locator_at = end_at - _LOCATOR.size
    locator = _read(file, locator_at, _LOCATOR.size) if locator_at >= 0 else b""
    if locator.startswith(b"PK\x06\x07"):
        _, disk, wide_at, num_disks = _LOCATOR.unpack(locator)
        if wide_at != locator_at - _ZIP64.size or disk or num_disks != 1:
            raise DamagedArchive("its 64-bit directory is not where torch writes it")
        wide = _ZIP64.unpack(_read(file, wide_at, _ZIP64.size))
        narrow, (signature, _, _, _, disk, first, here, *found), end_at = (count, length, place), wide, wide_at
        count, length, place = found
        fits = all(a in (b, full) for a, b, full in zip(narrow, found, _FULLS, strict=True))
        if signature != b"PK\x06\x06" or not fits or disk or first or here != count:
            raise DamagedArchive("its two directories differ")
    if place + length != end_at:
        raise DamagedArchive("its list of members is not where torch writes it")
    return place, length, count


def _wide(extra: bytes, *narrow: int) -> list[int]:
    """The member's sizes and place; those that are full are in its extra field number 1, in this order."""
    wide = b""
    while len(extra) >= 4:
        kind, length = struct.unpack_from("<HH", extra)
        if kind == 1:
            wide = extra[4 : 4 + length]
        extra = extra[4 + length :]
    values = []
    for value in narrow:
        if value == _FULL_32:
            if len(wide) < 8:
                raise DamagedArchive("a member's size is missing")
            value, wide = int.from_bytes(wide[:8], "little"), wide[8:]
        values.append(value)
    return values


def _placed(file: BinaryIO, found: list[tuple[int, str, int]], limit: int) -> dict[str, Member]:
    """Where each member's bytes begin, which the header in front of them says; they must not overlap."""
    members: dict[str, Member] = {}
    end = 0
    for header_at, name, size in sorted(found):
        header = _read(file, header_at, _HEADER.size) if end <= header_at < limit else b""
        if not header.startswith(b"PK\x03\x04"):
            raise DamagedArchive(f"the member {name!r:.100} overlaps others or has no header")
        *_, name_length, extra_length = _HEADER.unpack(header)
        again = file.read(name_length).decode("utf-8", "backslashreplace")
        start = header_at + _HEADER.size + name_length + extra_length
        end = start + size
        if end > limit or again != name or name in members:
            raise DamagedArchive(f"the member {name!r:.100} is there twice, is cut off or overlaps others")
        members[name] = Member(start, size)
    return members


def _read(file: BinaryIO, place: int, length: int) -> bytes:
    if place < 0:
        raise DamagedArchive("it is too short")
    file.seek(place)
    data = file.read(length)
    if len(data) != length:
        raise DamagedArchive("it ends too early")
    return data
