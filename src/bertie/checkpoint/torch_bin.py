"""`.bin` files: what `torch.save` wrote, opened without running anything in them.

Such a file is a pickle, and a pickle is a program. `torch.load(weights_only=True)` runs only the few instructions that
make tensors and dictionaries; everything else is refused. Newer files are zip archives whose tensors are mapped, not
read; before they are opened, the archive's own list is checked: torch stores everything uncompressed, so a member that
claims to be larger than its bytes is a bomb.

Two things torch itself does not check. Mapped, a storage may claim more bytes than its member of the archive has, and
would show its neighbours'. In the older files, a storage that the list of stored ones leaves out would keep whatever
was in memory where it was made. Both are refused here; torch shows us every storage it makes (`_Storages`).
"""

from __future__ import annotations

import io
import mmap
import os
import pickletools  # names a pickle's instructions without running them
import struct
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch

from bertie.checkpoint.headers import open_weights
from bertie.checkpoint.report import listed
from bertie.errors import BertieError, CheckpointError, CorruptCheckpoint

REMEDY = "Fetch the file again; if it is whole, save it as safetensors with the program that made it."
MAX_PICKLE_BYTES = 8 * 2**20  # names and shapes only; a thousand-layer BERT needs 2 MB
MAX_INSTRUCTIONS = 200_000  # about 25 for each tensor, 2 µs each


def read_bin(path: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """The tensors of a `pytorch_model.bin`, by name, on the CPU; mapped from the file where it is a zip archive."""
    path = Path(path)
    with open_weights(path) as file:
        zipped = file.read(4) == b"PK\x03\x04"
    records = _check_archive(path) if zipped else []
    num_stored = None if zipped else _check_head(path)
    storages = _Storages(path, mapped=zipped)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location=storages.add, weights_only=True, mmap=zipped)  # type: ignore[arg-type]
        tensors = _tensors_in(path, content)
        if num_stored is None:
            storages.check_records(records)
        elif num_stored != len(storages.made):
            raise CorruptCheckpoint(
                f"{path}: {len(storages.made)} storages are used and {num_stored} are stored.", REMEDY
            )
    except BertieError:
        raise
    except Exception as error:  # torch raises whatever the damage happens to hit
        raise _explained(path, error) from None
    return tensors


class _Storages:
    """Every piece of memory that torch makes for a file's tensors, as it makes them."""

    def __init__(self, path: Path, *, mapped: bool) -> None:
        self.path = path
        self.mapped = mapped
        self.made: list[torch.UntypedStorage] = []
        self.left = path.stat().st_size

    def add(self, storage: torch.UntypedStorage, location: str) -> torch.UntypedStorage:
        """torch's `map_location`: all stays on the CPU, wherever it was saved from."""
        self.left -= storage.nbytes()
        if self.left < 0:
            raise CorruptCheckpoint(f"{self.path}: the tensors claim more bytes than the file has.", REMEDY)
        if not self.mapped:
            storage.fill_(0)  # type: ignore[attr-defined]  # it was only allocated: what another part of the program left there must not show
        self.made.append(storage)
        return storage

    def check_records(self, records: list[tuple[int, int]]) -> None:
        """Each mapped storage is exactly one member's bytes. `records` are the members' (start, size)."""
        found = [(storage.data_ptr(), storage.nbytes()) for storage in self.made if storage.nbytes()]
        if not found:
            return
        known = set(records)
        pointer, size = found[0]
        # The map begins at a page, at the one address from which the storages lie where the members do.
        bases = {pointer - start for start, length in known if length == size and (pointer - start) % 4096 == 0}
        if not any(all((pointer - base, size) in known for pointer, size in found) for base in bases):
            raise CorruptCheckpoint(f"{self.path}: the sizes of tensors and of their bytes differ.", REMEDY)


def _check_head(path: Path) -> int:
    """An old file is five pickles and then the bytes; the fifth lists the storages whose bytes follow: how many."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        for _ in range(4):
            _check_pickle(path, view)
        return len({key for key in _check_pickle(path, view) if isinstance(key, (str, bytes))})


def _check_pickle(path: Path, stream: Any) -> list[Any]:
    """Refuse a pickle that is no pickle, or too long to run; what its instructions say besides their names."""
    said = []
    try:
        for number, (_, argument, position) in enumerate(pickletools.genops(stream)):
            if number == MAX_INSTRUCTIONS or (position or 0) > MAX_PICKLE_BYTES:
                raise CorruptCheckpoint(f"{path}: a pickle of more than {number} instructions.", REMEDY)
            said.append(argument)
    except (ValueError, UnicodeError, OverflowError, RecursionError, struct.error) as error:
        raise CorruptCheckpoint(f"{path} is not a file that torch wrote: {error!s:.200}.", REMEDY) from None
    return said


def _check_archive(path: Path) -> list[tuple[int, int]]:
    """Refuse an archive that torch did not write; the (start, size) of its members' bytes."""
    size = path.stat().st_size
    records = []
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
        with open(path, "rb") as file:
            starts = {member.header_offset: _start_of(member, file) for member in members}
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RecursionError, UnicodeError) as error:
        raise CorruptCheckpoint(
            f"{path} is a torch archive that ends too early or is damaged: {error}.", "Fetch the file again."
        ) from None
    end = 0
    for member in sorted(members, key=lambda one: one.header_offset):
        if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
            raise CorruptCheckpoint(
                f"{path}: the member {member.filename!r:.100} is compressed ({member.compress_size} bytes that claim "
                f"to be {member.file_size}); torch never writes that.",
                REMEDY,
            )
        start = starts[member.header_offset]
        if member.header_offset < end or start + member.file_size > size:
            raise CorruptCheckpoint(f"{path}: the member {member.filename!r:.100} overlaps others or the end.", REMEDY)
        end = start + member.file_size
        records.append((start, member.file_size))
        name = member.filename.rpartition("/")[2]
        if name == "constants.pkl":
            raise CheckpointError(
                f"{path} is a TorchScript program, not a set of weights.",
                "Load it with torch.jit and save its state_dict() as safetensors.",
            )
        if name.endswith(".pkl") and member.file_size > MAX_PICKLE_BYTES:
            raise CorruptCheckpoint(f"{path}: {member.filename!r:.100} is {member.file_size} bytes of pickle.", REMEDY)
        if name.endswith(".pkl"):
            with open(path, "rb") as file:
                file.seek(start)
                _check_pickle(path, io.BytesIO(file.read(member.file_size)))
    return records


def _start_of(member: zipfile.ZipInfo, file: BinaryIO) -> int:
    """Where a member's bytes begin, by the header in front of them: the archive's list does not say it."""
    file.seek(member.header_offset)
    header = file.read(30)
    if len(header) < 30 or header[:4] != b"PK\x03\x04":
        raise ValueError(f"there is no member at byte {member.header_offset}")
    name_length, extra_length = struct.unpack("<HH", header[26:30])
    return member.header_offset + 30 + int(name_length) + int(extra_length)


def _explained(path: Path, error: Exception) -> CheckpointError:
    text = " ".join(str(error).split())
    if "Unsupported global" in text or "weights_only" in text or "Weights only load failed" in text:
        start = text.find("Unsupported")
        detail = text[start : start + 160] if start >= 0 else text[:160]
        return CorruptCheckpoint(
            f"{path} holds more than tensors, and nothing else is loaded from a pickle ({detail}…).",
            "If you trust its maker, have them save the state_dict() as safetensors.",
        )
    return CorruptCheckpoint(f"{path} cannot be read by torch: {type(error).__name__}: {text[:200]}.", REMEDY)


def _tensors_in(path: Path, content: object) -> dict[str, torch.Tensor]:
    if not isinstance(content, Mapping):
        raise CheckpointError(
            f"{path} holds a {type(content).__name__}, not a dictionary of tensors.", "Save model.state_dict()."
        )
    wrong = [f"{key!r:.60} ({type(value).__name__})" for key, value in content.items() if not _named(key, value)]
    if wrong:
        raise CheckpointError(
            f"{path} holds things that are not named tensors: {listed(wrong)}.",
            "A training checkpoint? Save the model's state_dict() alone.",
        )
    for name, tensor in content.items():
        if tensor.is_sparse or tensor.is_quantized or tensor.layout != torch.strided:
            raise CheckpointError(f"{path}: {name!r} is a {tensor.layout} or quantized tensor; plain ones are read.")
        # A stride of zero lets a few bytes pose as terabytes.
        if tensor.device.type != "cpu" or tensor.numel() * tensor.itemsize > tensor.untyped_storage().nbytes():
            raise CorruptCheckpoint(
                f"{path}: {name!r} of shape {list(tensor.shape)} claims more than it holds.", REMEDY
            )
    return dict(content)


def _named(key: object, value: object) -> bool:
    return isinstance(key, str) and isinstance(value, torch.Tensor)
