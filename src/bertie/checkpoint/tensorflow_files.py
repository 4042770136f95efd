"""Finding the bundle a person means: a prefix, one of its files, or the folder it is in.

A bundle is several files that share a *prefix*: `bert_model.ckpt.index` and `bert_model.ckpt.data-00000-of-00001` are
the bundle `bert_model.ckpt`, which is itself no file. TensorFlow also leaves a text file named `checkpoint` that says
which bundle of a folder is the newest. Only its last path component is used, so it can never lead out of the folder.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from bertie.checkpoint.report import listed
from bertie.errors import CheckpointError, CheckpointNotFound

_BUNDLE_FILE = re.compile(r"\.(index|meta|data-\d{5,}-of-\d{5,})$")
_STATE_LINE = re.compile(r'^[ \t]*model_checkpoint_path:\s*"((?:[^"\\]|\\.)*)"', re.MULTILINE)
_STATE_BYTES = 1 << 16  # the line wanted is the first; the rest lists older bundles


def find_bundle(path: str | os.PathLike[str]) -> str:
    """The prefix of the bundle at `path`: a prefix, an `.index` or data file, or a folder with one bundle in it."""
    given = os.fspath(path)
    if not given or "\x00" in given:
        raise CheckpointNotFound(f"{given!r} is not a path.", "Give a checkpoint's prefix, such as bert_model.ckpt.")
    if os.path.isdir(given):
        return _in_folder(Path(given))
    prefix = _BUNDLE_FILE.sub("", given)
    if os.path.isfile(prefix + ".index"):
        return prefix
    raise _not_found(prefix)


def bundles_in(folder: str | os.PathLike[str]) -> list[str]:
    """Names of the bundles in a folder, sorted; none if the folder cannot be read."""
    try:
        names = os.listdir(folder or ".")
    except OSError:
        return []
    return sorted(name.removesuffix(".index") for name in names if name.endswith(".index"))


def _in_folder(folder: Path) -> str:
    names = bundles_in(folder)
    newest = _newest(folder)
    if newest in names:
        return str(folder / newest)
    if len(names) == 1:
        return str(folder / names[0])
    if names:
        raise CheckpointError(
            f"{folder} holds {len(names)} TensorFlow checkpoints and no 'checkpoint' file that says which is meant.",
            f"Give one of them: {listed([str(folder / name) for name in names], shown=8)}.",
        )
    raise CheckpointNotFound(
        f"{folder} holds no TensorFlow checkpoint: there is no .index file in it.",
        "Give the folder, or the prefix, of a file such as bert_model.ckpt.index.",
    )


def _newest(folder: Path) -> str | None:
    """The bundle the folder's `checkpoint` file names, without any folder it names."""
    try:
        with open(folder / "checkpoint", "rb") as file:
            text = file.read(_STATE_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    found = _STATE_LINE.search(text)
    return None if found is None else re.split(r"[/\\]", found.group(1))[-1]


def _not_found(prefix: str) -> CheckpointNotFound:
    folder, name = os.path.split(prefix)
    folder = folder or "."
    if not os.path.isdir(folder):
        return CheckpointNotFound(
            f"{prefix}.index does not exist: there is no folder {folder}.", "Check the path's spelling."
        )
    names = bundles_in(folder)
    if os.path.isfile(prefix):
        return CheckpointNotFound(
            f"{prefix} is a file, and there is no {prefix}.index beside it.",
            "A TensorFlow checkpoint is an .index file and its .data files. One-file checkpoints, from before 2017, "
            "have to be saved again by TensorFlow.",
        )
    if not names:
        return CheckpointNotFound(
            f"{prefix}.index does not exist, and {folder} holds no other TensorFlow checkpoint.",
            "A checkpoint is named by its prefix: bert_model.ckpt for bert_model.ckpt.index.",
        )
    import difflib  # as seldom as this

    close = difflib.get_close_matches(name, names, n=3, cutoff=0.75)
    remedy = f"Did you mean {listed(close)}?" if close else "Check the name."
    there = f"Checkpoints in {folder}: {listed(names, shown=8)}."
    return CheckpointNotFound(f"{prefix}.index does not exist.", f"{remedy} {there}")
