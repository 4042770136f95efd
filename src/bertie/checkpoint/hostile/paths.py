"""Names of files that a file gives us, and files of weights that are something else.

A name in a file that someone else wrote must not lead anywhere else: no separators, no `..`, no drive letters, no
links out. The one exception is the hub's cache, where every file of `models--org--name/snapshots/<revision>/` is a link
into `models--org--name/blobs/`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, BinaryIO

from bertie.config import read_json_object
from bertie.errors import CheckpointError, CheckpointNotFound, ConfigError, CorruptCheckpoint
from bertie.json_values import text


def inside(folder: Path, name: str, *, named_by: Path) -> Path:
    """`folder/name`, for a name that a file gave us: refused unless it stays in the folder."""
    plain = name not in ("", ".", "..") and not any(c in name for c in "/\\:\x00") and name == name.strip()
    if not plain or not name.isprintable() or len(name) > 255:
        raise CorruptCheckpoint(
            f"{named_by} names the file {name!r:.200}; only plain names of files beside it are followed.",
            "Do not use this checkpoint unless you know why it does that.",
        )
    path = folder / name
    if leads_out(path):
        raise CorruptCheckpoint(
            f"{named_by} names {name!r}, a link that leads out of the folder, to {os.path.realpath(path)}.",
            "Copy the file into the folder if it belongs there.",
        )
    return path


def leads_out(path: Path) -> bool:
    """Whether a file or folder is a link to somewhere else than beside itself, or the hub's cache."""
    allowed = [Path(os.path.realpath(path.parent)), *_blobs(path.parent)]
    return path.is_symlink() and Path(os.path.realpath(path)).parent not in allowed


def below(folder: Path, subfolder: str) -> Path:
    """`folder/subfolder`, for a name that a caller gave us: a folder that is there, and in `folder`."""
    parts = Path(subfolder).parts
    sound = text(subfolder) is not None and "\x00" not in subfolder and len(subfolder) < 4096
    if not sound or ".." in parts or Path(subfolder).is_absolute() or any(len(part) > 255 for part in parts):
        raise CheckpointNotFound(
            f"subfolder is {subfolder!r:.200}; it must be the path of a folder inside {folder}.", "Check subfolder=…."
        )
    path = folder / subfolder
    if not path.is_dir():
        raise CheckpointNotFound(f"{folder} has no folder {subfolder!r}.", "Check subfolder=….")
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise CheckpointNotFound(
            f"The subfolder {subfolder!r} of {folder} is a link that leads out of it, to {os.path.realpath(path)}.",
            "Give that folder itself if it is meant.",
        )
    return path


def _blobs(folder: Path) -> list[Path]:
    """The cache folder that links of this folder may lead to, when this is a snapshot in the hub's cache."""
    absolute = Path(os.path.realpath(folder))
    for parent in (absolute, *absolute.parents):
        repository = parent.parent.parent
        if parent.parent.name == "snapshots" and repository.name.startswith("models--"):
            return [repository / "blobs"]
    return []


def read_json_file(path: Path) -> dict[str, Any]:
    """A JSON object that belongs to the checkpoint rather than to its configuration."""
    try:
        return read_json_object(path)
    except ConfigError as error:
        raise CorruptCheckpoint(error.cause, error.remedy) from None


def open_weights(path: Path) -> BinaryIO:
    """Open a file of weights, or say what is there instead."""
    try:
        file = open(path, "rb")  # noqa: SIM115  # handed on open
        beginning = file.read(64)
        file.seek(0)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error
    found: CheckpointError
    if beginning.startswith(b"version https://git-lfs"):
        found = CheckpointError(
            f"{path} is a Git LFS pointer, a placeholder for the weights.",
            "Run `git lfs pull` in the repository it was cloned from, or fetch the file itself.",
        )
    elif not beginning:
        found = CorruptCheckpoint(f"{path} is empty (0 bytes).", "The download or copy did not finish: fetch it again.")
    elif beginning.lstrip()[:9].lower() in (b"<!doctype", b"<html><he", b"<html>\n<h"):
        remedy = "Fetch the file itself, not the page about it."
        found = CorruptCheckpoint(f"{path} is a web page, not weights.", remedy)
    else:
        return file
    file.close()
    raise found
