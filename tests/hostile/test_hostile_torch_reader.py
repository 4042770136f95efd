"""Our reader of `.bin` files under random programs and random directories, with fixed seeds.

Whatever the program: a typed refusal or a value, in time that grows with the program. Whatever the archive's lists say:
a refusal, or members that lie in the file and share no byte.
"""

from __future__ import annotations

import io
import random
import struct
import time
from pathlib import Path

import pytest
import torch

from bertie.checkpoint.hostile.torch_archive import DamagedArchive, read_members
from bertie.checkpoint.hostile.torch_pickle import INSTRUCTIONS, DamagedPickle, ForeignPickle, read_pickle
from bertie.checkpoint.torch_bin import read_bin
from bertie.errors import BertieError
from hostile.pickles import legacy, zipped

NAMES = [
    b"collections\nOrderedDict\n", b"torch\nFloatStorage\n", b"torch\nSize\n", b"torch\nTensor\n", b"torch\nfloat16\n",
    b"torch._utils\n_rebuild_tensor_v2\n", b"torch._utils\n_rebuild_tensor_v3\n", b"torch._utils\n_rebuild_tensor\n",
    b"torch._utils\n_rebuild_parameter\n", b"torch._utils\n_rebuild_parameter_with_state\n",
    b"torch._tensor\n_rebuild_from_type_v2\n", b"torch.nn.parameter\nParameter\n", b"torch.storage\nUntypedStorage\n",
]  # fmt: skip
STORAGE = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x01tQ"
TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n(" + STORAGE + b"K\x00K\x01\x85K\x01\x85\x89}tR"
PIECES = [*NAMES, STORAGE, TENSOR, b"(X\x01\x00\x00\x00aN", b"K\x02\x85", b"}X\x01\x00\x00\x00b" + TENSOR + b"s"]


def program(rng: random.Random) -> bytes:
    """Instructions that mostly make sense one after the other."""
    body = b"\x80\x02"
    for _ in range(rng.randrange(1, 60)):
        if rng.random() < 0.4:
            piece = rng.choice(PIECES)
            body += b"c" + piece if piece in NAMES else piece
            continue
        code = rng.choice([*INSTRUCTIONS, rng.randrange(256)])
        body += bytes([code])
        if code in b"Kqh\x8aU\x8c":
            body += bytes([rng.choice([0, 0, 1, 2, 3, 255])])
        elif code in b"Jrj":
            body += struct.pack("<i", rng.choice([0, 1, 2, -1, 2**31 - 1]))
        elif code in b"M":
            body += struct.pack("<H", rng.randrange(2**16))
        elif code in b"X":
            body += struct.pack("<I", rng.choice([0, 1, 3, 2**32 - 1])) + rng.randbytes(3)
    return body + rng.choice([b".", b".", b"s.", b"u.", b"R.", b""])


def programs(first: int, count: int, folder: Path) -> dict[str, int]:
    outcomes = dict.fromkeys(["made", "damaged", "foreign", "loaded", "refused"], 0)
    for seed in range(first, first + count):
        rng = random.Random(seed)
        body = program(rng)
        started = time.process_time()
        try:
            read_pickle(body)
            outcomes["made"] += 1
        except DamagedPickle:
            outcomes["damaged"] += 1
        except ForeignPickle:
            outcomes["foreign"] += 1
        path = folder / "x.bin"
        path.write_bytes(zipped(body) if seed % 2 else legacy(body, at=rng.choice([2, 3, 4])))
        try:
            tensors = read_bin(path)
            assert all(tensor.sum() is not None for tensor in tensors.values())
            outcomes["loaded"] += 1
        except BertieError:
            outcomes["refused"] += 1
        assert time.process_time() - started < 2, f"seed {seed}"
    return outcomes


def archives(first: int, count: int) -> dict[str, int]:
    content = io.BytesIO()
    torch.save({"a": torch.zeros(100), "b": torch.ones(3)}, content)
    sound = content.getvalue()
    lists = sound.index(b"PK\x01\x02")
    headers = [at for at in range(lists) if sound[at : at + 4] == b"PK\x03\x04"]
    outcomes = {"read": 0, "damaged": 0}
    for seed in range(first, first + count):
        rng = random.Random(seed)
        mutant = bytearray(sound)
        for _ in range(rng.choice([1, 1, 2, 4])):
            at = rng.choice(headers) + rng.randrange(34) if rng.random() < 0.3 else rng.randrange(lists, len(mutant))
            width = rng.choice([1, 2, 4, 8])
            value = rng.choice([0, 1, 2**31, 2 ** (8 * width) - 1, len(sound), lists, rng.randrange(2**16)])
            mutant[at : at + width] = (value % 2 ** (8 * width)).to_bytes(width, "little")
        if rng.random() < 0.1:
            del mutant[rng.randrange(len(mutant)) :]
        try:
            members = read_members(io.BytesIO(mutant), len(mutant))
        except DamagedArchive:
            outcomes["damaged"] += 1
            continue
        outcomes["read"] += 1
        end = 0
        for member in sorted(members.values(), key=lambda one: one.start):
            assert end <= member.start, f"seed {seed}: members overlap"
            end = member.start + member.size
        assert end <= len(mutant), f"seed {seed}: a member beyond the end"
    return outcomes


def test_random_programs_are_refused_or_make_something(tmp_path: Path) -> None:
    outcomes = programs(0, 3000, tmp_path)
    print(outcomes)
    assert min(outcomes.values()) >= 5


def test_random_directories_are_refused_or_lie_in_the_file() -> None:
    outcomes = archives(0, 3000)
    print(outcomes)
    assert min(outcomes.values()) > 100


@pytest.mark.slow
def test_very_many_random_programs_and_directories(tmp_path: Path) -> None:
    print(programs(10_000, 50_000, tmp_path), archives(10_000, 200_000))
