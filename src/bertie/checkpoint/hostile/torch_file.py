"""What tensors a `.bin` file holds and where their bytes are, without torch and without running anything.

`torch.save` writes a zip archive (torch_archive.py) with one member of numbers for each storage, and a pickle
(torch_pickle.py) that says which tensor lies how in which storage:

    NAME/data.pkl     the pickle          NAME/byteorder   little or big
    NAME/data/KEY     a storage's bytes

Before version 1.6 it wrote five pickles and then the storages, end to end, each behind the number of its items:

    magic number · version · about the machine · the tensors · the storages' keys in order · storages

Everything the pickles claim is checked against the bytes that are there; a file that passes can be read as it says.
"""

from __future__ import annotations

import math
import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from bertie.checkpoint.dtypes import ITEM_BYTES
from bertie.checkpoint.hostile.torch_archive import DamagedArchive, Member, read_members
from bertie.checkpoint.hostile.torch_pickle import (
    MAX_PICKLE_BYTES,
    DamagedPickle,
    ForeignPickle,
    StorageNote,
    TensorNote,
    kind_of,
    read_pickle,
)
from bertie.checkpoint.report import listed
from bertie.errors import CheckpointError, CorruptCheckpoint
from bertie.json_values import members, text, texts

REMEDY = "Fetch the file again; if it is whole, save it as safetensors with the program that made it."
_MAGIC, _VERSION = 0x1950A86A20F9469CFC6C, 1001


@dataclass(frozen=True)
class TorchFile:
    """The tensors by name; where each storage's bytes begin in the file; the order of bytes in a number."""

    tensors: dict[str, TensorNote]
    places: dict[str, int]
    byteorder: str


def read_torch_headers(path: Path, file: BinaryIO) -> TorchFile:
    """What an open `.bin` file holds."""
    size = os.fstat(file.fileno()).st_size
    zipped = file.read(4) == b"PK\x03\x04"
    try:
        found = _read_archive(path, file, size) if zipped else _read_old(path, file, size)
    except DamagedArchive as error:
        raise CorruptCheckpoint(
            f"{path} is a torch archive that ends too early or is damaged: {error}.", "Fetch the file again."
        ) from None
    except DamagedPickle as error:
        raise CorruptCheckpoint(f"{path} is not a file that torch wrote: {error}.", REMEDY) from None
    except ForeignPickle as error:
        raise CorruptCheckpoint(
            f"{path} holds more than tensors, and nothing else is loaded from a pickle: {error}.",
            "If you trust its maker, have them save the state_dict() as safetensors.",
        ) from None
    for name, tensor in found.tensors.items():
        _check_extent(path, name, tensor)
    return found


def _read_archive(path: Path, file: BinaryIO, size: int) -> TorchFile:
    members = read_members(file, size)
    folders = [
        name.removesuffix("/data.pkl") for name in members if name.count("/") == 1 and name.endswith("/data.pkl")
    ]
    if any(name.rpartition("/")[2] == "constants.pkl" for name in members):
        raise CheckpointError(
            f"{path} is a TorchScript program, not a set of weights.",
            "Load it with torch.jit and save its state_dict() as safetensors.",
        )
    if len(folders) != 1 or f"{folders[0]}/version" not in members:
        raise DamagedArchive(f"it holds {len(folders)} files named data.pkl, and should hold one and its version")
    (folder,) = folders
    stranger = next((name for name in members if not name.startswith(f"{folder}/")), None)
    if stranger is not None:
        raise DamagedArchive(f"the member {stranger!r:.100} is not in {folder!r:.100}")
    program = members[f"{folder}/data.pkl"]
    if program.size > MAX_PICKLE_BYTES:
        raise CorruptCheckpoint(f"{path}: {folder}/data.pkl is {program.size} bytes of pickle.", REMEDY)
    tensors = _tensors_in(path, read_pickle(_content(file, program))[0])
    order = members.get(f"{folder}/byteorder")
    byteorder = "little" if order is None else _content(file, order).decode("ascii", "replace")
    if byteorder not in ("little", "big"):
        raise CorruptCheckpoint(f"{path}: the order of bytes is {byteorder!r:.40}.", REMEDY)
    places = {}
    for key, storage in _storages(path, tensors).items():
        member = members.get(f"{folder}/data/{key}")
        if member is None:
            raise CorruptCheckpoint(f"{path}: the bytes of storage {key!r:.40} are missing.", REMEDY)
        if member.size != storage.num_bytes:
            raise CorruptCheckpoint(
                f"{path}: the sizes of tensors and of their bytes differ: storage {key!r:.40} should have "
                f"{storage.num_bytes} bytes and has {member.size}.",
                REMEDY,
            )
        places[key] = member.start
    if byteorder == "big" and any(tensor.dtype != tensor.storage.dtype for tensor in tensors.values()):
        raise CheckpointError(f"{path} was written on a big-endian machine, with storages of no type.", REMEDY)
    return TorchFile(tensors, places, byteorder)


def _content(file: BinaryIO, member: Member) -> bytes:
    file.seek(member.start)
    return file.read(min(member.size, MAX_PICKLE_BYTES))


def _read_old(path: Path, file: BinaryIO, size: int) -> TorchFile:
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        magic, position = read_pickle(view)
        if magic != _MAGIC:
            raise DamagedPickle("it does not begin with torch's magic number")
        version, position = read_pickle(view, position)
        if version != _VERSION:
            raise DamagedPickle(f"its version is not {_VERSION}")
        _, position = read_pickle(view, position)
        content, position = read_pickle(view, position)
        keys, position = read_pickle(view, position)
    tensors = _tensors_in(path, content)
    storages = _storages(path, tensors)
    order = texts(keys) if isinstance(keys, list) else None
    if order is None:
        raise DamagedPickle("it has no list of storages")
    if len(order) != len(storages) or set(order) != storages.keys():
        raise CorruptCheckpoint(f"{path}: {len(storages)} storages are used and {len(set(order))} are stored.", REMEDY)
    places = {}
    for key in order:
        file.seek(position)
        count = int.from_bytes(file.read(8), "little")
        places[key] = position + 8
        position += 8 + storages[key].num_bytes
        if count != storages[key].count or position > size:
            raise CorruptCheckpoint(
                f"{path}: storage {key!r:.40} should have {storages[key].count} items; {count} are announced, and the "
                f"file has {size} bytes.",
                REMEDY,
            )
    return TorchFile(tensors, places, "little")  # that is how every machine wrote them


def _tensors_in(path: Path, content: object) -> dict[str, TensorNote]:
    if (found := members(content)) is None:
        raise CheckpointError(
            f"{path} holds a {kind_of(content)}, not a dictionary of tensors.", "Save model.state_dict()."
        )
    wrong = [
        f"{key!r:.60} ({kind_of(value)})"
        for key, value in found.items()
        if text(key) is None or not isinstance(value, TensorNote)
    ]
    if wrong:
        raise CheckpointError(
            f"{path} holds things that are not named tensors: {listed(wrong)}.",
            "A training checkpoint? Save the model's state_dict() alone.",
        )
    return found


def _storages(path: Path, tensors: dict[str, TensorNote]) -> dict[str, StorageNote]:
    """The storages by key. Tensors that share one must agree about it."""
    storages: dict[str, StorageNote] = {}
    for tensor in tensors.values():
        known = storages.setdefault(tensor.storage.key, tensor.storage)
        if (known.dtype, known.count) != (tensor.storage.dtype, tensor.storage.count):
            raise CorruptCheckpoint(f"{path}: storage {known.key!r:.40} is described in two ways.", REMEDY)
    return storages


def _check_extent(path: Path, name: str, tensor: TensorNote) -> None:
    """Every item lies inside the storage; and together they are no more than it holds, as with a stride of zero."""
    item = ITEM_BYTES[tensor.dtype]
    held = tensor.storage.length * ITEM_BYTES[tensor.storage.dtype] // item
    count = math.prod(tensor.shape)
    steps = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride, strict=True))
    needed = max(count, tensor.offset + steps + 1) if count else tensor.offset
    # Of a tensor without items, torch multiplies the other dimensions in 64 bits.
    if needed > held or math.prod(length or 1 for length in tensor.shape) * item >= 2**63:
        raise CorruptCheckpoint(
            f"{path}: {name!r:.200} of shape {list(tensor.shape)} claims more than it holds.", REMEDY
        )
