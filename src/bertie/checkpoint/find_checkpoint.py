"""From what a person points at to files: a folder, a file of weights, a TensorFlow prefix, a shipped model, a hub name.

Nothing is opened here but the configuration, and no torch is needed; open_checkpoint.py goes on from files to tensors.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, Unpack

from bertie.checkpoint import hub
from bertie.checkpoint.hostile.paths import below
from bertie.checkpoint.report import listed
from bertie.checkpoint.shipped import HUB_NAMES, SHIPPED, installed, shipped_folder
from bertie.checkpoint.tensorflow_files import find_bundle
from bertie.checkpoint.weight_files import (
    WeightFiles,
    allows,
    check_model_type,
    find_config,
    find_weights,
    model_folder,
    weights_at,
    wrong_kind,
)
from bertie.config import read_json_object
from bertie.errors import CheckpointError, CheckpointNotFound, InputError
from bertie.files import read_whole

Result = TypeVar("Result")
logger = logging.getLogger("bertie.checkpoint")
_HUB_NAME = re.compile(r"[\w.\-]{1,96}(/[\w.\-]{1,96})?")
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".json", ".ckpt", ".index", ".onnx", ".h5", ".msgpack")


@dataclass(frozen=True)
class Located:
    """Where a checkpoint lies. `config` holds the file's values as they are; empty when there is no configuration."""

    folder: Path
    config: dict[str, Any]
    config_file: Path | None
    weights: WeightFiles


def read_located(
    source: str | os.PathLike[str],
    use: Callable[[Located], Result],
    *,
    subfolder: str = "",
    variant: str | None = None,
    asked: str | None = None,
    model_type: str | None = None,
    needs_config: bool = True,
    also: tuple[str, ...] = (),
    with_companions: bool = False,
    **fetching: Unpack[hub.Fetching],
) -> Result:
    """Find what `source` names, and the result of `use` on it: opening its files, say.

    When another process saves a model there meanwhile, both are done again: what is used is of one save.
    `model_type` is the only one to take; None takes all that are known. `asked` allows only some kinds of weights
    (folder.ASKED); `also`, `with_companions` and `fetching` are those of
    `hub.fetch`, used when it is a hub name.
    """
    found = _found_on_disk(name_of(source), subfolder, **fetching)
    if found is None:
        folder = hub.fetch(
            os.fspath(source),
            subfolder=subfolder,
            variant=variant,
            asked=asked,
            wanted_type=model_type,
            also=also,
            with_companions=with_companions,
            **fetching,
        )
        found = folder, None
    folder, weights = found
    if weights is not None and asked is not None and not allows(asked, weights.format):
        raise wrong_kind(os.fspath(source), asked)

    def read() -> Result:
        config_file = find_config(folder)
        if config_file is None and needs_config:
            raise _no_config(folder, weights, variant)
        config = {} if config_file is None else read_json_object(config_file)
        if config_file is not None:
            check_model_type(config, config_file, wanted=model_type)
        return use(Located(folder, config, config_file, weights or find_weights(folder, variant=variant, asked=asked)))

    return read_whole(folder, read)


def name_of(source: str | os.PathLike[str]) -> str:
    """`source` as text; what is neither a path nor a name is refused."""
    if not isinstance(source, str | os.PathLike):
        raise InputError(
            f"A model was named by {source!r:.100}, of type {type(source).__name__}.",
            "Give the path of a folder or the name of a model on the hub.",
        )
    return os.fspath(source)


def read_config(
    source: str | os.PathLike[str], *, subfolder: str = "", **fetching: Unpack[hub.Fetching]
) -> dict[str, Any]:
    """The configuration's values alone, of a folder, a file or a hub name; no weights are looked for."""
    path = Path(given := name_of(source)).expanduser()
    if path.is_file():
        return read_json_object(path)
    if path.is_dir():
        folder = model_folder(below(path, subfolder))
        return read_whole(folder, lambda: read_json_object(find_config(folder) or folder / "config.json"))
    if _looks_like_a_path(given, path):
        raise _no_such_path(path)
    shipped = find_shipped(given, wanted=hub.MODEL, **fetching)
    if shipped is not None:
        return read_config(shipped, subfolder=subfolder)
    return read_json_object(hub.fetch_config(given, subfolder=subfolder, **fetching))


def _found_on_disk(
    given: str, subfolder: str, **fetching: Unpack[hub.Fetching]
) -> tuple[Path, WeightFiles | None] | None:
    """The folder with the configuration, and the weights if the name already says which they are; None: on the hub."""
    if not given or "\x00" in given:
        raise CheckpointNotFound(f"{given!r} is not a path or hub name.", "Give a folder, a file, or 'org/name'.")
    try:
        path = Path(given).expanduser()
        is_folder = path.is_dir()
    except (OSError, RuntimeError) as error:  # too long for a path, or the home of a user who does not exist
        raise CheckpointNotFound(f"{given!r:.200} is not a path that can be: {error!s:.200}.") from None
    if is_folder:
        return model_folder(below(path, subfolder)), None
    if path.is_file() and path.suffix != ".index" and ".data-" not in path.name:
        if path.name in ("config.json", "bert_config.json"):
            return path.parent, None
        return path.parent, weights_at(path)
    if os.path.isfile(f"{path}.index") or path.is_file():
        prefix = Path(find_bundle(path))
        return prefix.parent, WeightFiles("tensorflow", (prefix,))
    if _looks_like_a_path(given, path):
        raise _no_such_path(path)
    shipped = find_shipped(given, wanted=hub.MODEL, **fetching)
    return None if shipped is None else (model_folder(below(shipped, subfolder)), None)


def find_shipped(given: str, *, wanted: tuple[str, ...], **fetching: Unpack[hub.Fetching]) -> Path | None:
    """The folder of a shipped model, when `given` is not a path and means one: (1) its plain name, (2) its hub name,
    when neither the hub nor the cache has any of the `wanted` files. A revision or a fresh download is the hub's."""
    if fetching.get("revision") is not None or fetching.get("force_download"):
        return None
    if given in SHIPPED:
        return shipped_folder(given)
    name = HUB_NAMES.get(given)
    if name is None or name not in installed():
        return None
    if hub.has_any(given, wanted, **fetching):
        return None
    logger.info("%s: not on the hub or in its cache; the installed %s is used", given, name)
    return shipped_folder(name)


def _looks_like_a_path(given: str, path: Path) -> bool:
    return (
        not _HUB_NAME.fullmatch(given)
        or given.startswith((".", "~"))
        or path.suffix in _WEIGHT_SUFFIXES
        or ("/" in given and _holds_bundles(path.parent))
    )


def _holds_bundles(folder: Path) -> bool:
    return folder.is_dir() and any(entry.name.endswith(".index") for entry in folder.iterdir())


def _no_such_path(path: Path) -> CheckpointError:
    parent = path.parent
    if path.suffix not in (".safetensors", ".bin", ".pt", ".pth", ".json") and _holds_bundles(parent):
        try:
            find_bundle(path)
        except CheckpointError as error:
            return error
    if path.is_symlink():
        return CheckpointNotFound(f"{path} is a link to nothing.", "Its target was moved or deleted.")
    there = parent
    while not there.exists():
        there = there.parent
    if there != parent:
        return CheckpointNotFound(f"{path}: there is no folder {parent}.", f"Check the path; {there} exists.")
    beside = sorted(entry.name for entry in parent.iterdir()) if parent.is_dir() else []
    if close := get_close_matches(path.name, beside, n=1):
        remedy = f"Did you mean {close[0]}?"
    else:
        remedy = f"{parent} has: {listed(beside)}." if beside else f"{parent} is empty."
    return CheckpointNotFound(f"There is no file or folder {path}.", remedy)


def _no_config(folder: Path, weights: WeightFiles | None, variant: str | None) -> CheckpointError:
    if weights is None:
        find_weights(folder, variant=variant)  # an empty folder, or one without weights, is the worse trouble
    return CheckpointNotFound(
        f"{folder} holds weights and neither config.json nor bert_config.json, which says what they are.",
        "Fetch it from where the weights came from, or pass config=BertConfig(…).",
    )
