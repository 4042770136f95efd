"""A model into a folder: `config.json` and safetensors, in pieces when they are large, whole or not at all."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from bertie.checkpoint.atomic import new_files
from bertie.checkpoint.folder import with_variant
from bertie.checkpoint.load import named_dtype
from bertie.checkpoint.safe import write_safetensors
from bertie.errors import CheckpointError, ConfigError

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?B)\s*", re.IGNORECASE)


def save_model(
    model: nn.Module,
    folder: str | os.PathLike[str],
    config: Mapping[str, Any],
    *,
    max_shard_size: int | str = "5GB",
    variant: str | None = None,
    dtype: torch.dtype | str | None = None,
) -> None:
    """Write a model's weights, tied ones once, and its configuration. What a crash leaves is told in atomic.py."""
    tensors = stored_once(model)
    wanted = next(iter(tensors.values())).dtype if dtype is None else named_dtype(dtype, "dtype")
    name = str(wanted).removeprefix("torch.")
    architecture = getattr(model, "architecture", type(model).__name__)
    values = dict(config) | {"architectures": [architecture], "dtype": name, "torch_dtype": name}
    save_tensors(
        tensors, folder, values, max_shard_size=max_shard_size, variant=variant, dtype=None if dtype is None else wanted
    )


def save_tensors(
    tensors: Mapping[str, torch.Tensor],
    folder: str | os.PathLike[str],
    config: Mapping[str, Any],
    *,
    max_shard_size: int | str = "5GB",
    variant: str | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Write named tensors and a configuration into a folder, replacing the model of that variant that it holds."""
    if variant is not None and not re.fullmatch(r"[\w\-]{1,64}", variant):
        raise CheckpointError(
            f"variant is {variant!r}.", "It takes a short word, such as 'fp16': it becomes a file name."
        )
    limit = num_bytes(max_shard_size)
    text = json.dumps(config, indent=2, sort_keys=True, default=str) + "\n"
    shards = _shards(tensors, limit, dtype)
    try:
        with new_files(folder, obsolete=lambda name: _is_ours(name, variant)) as place:
            weight_map: dict[str, str] = {}
            for number, names in enumerate(shards, start=1):
                file = _file_name(number, len(shards), variant)
                write_safetensors(place / file, {name: tensors[name] for name in names}, dtype=dtype)
                weight_map.update(dict.fromkeys(names, file))
            if len(shards) > 1:
                total = sum(_size(tensor, dtype) for tensor in tensors.values())
                index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
                name = with_variant("model.safetensors.index.json", variant)
                (place / name).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
            (place / "config.json").write_text(text, encoding="utf-8")
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(
            f"The model could not be saved in {os.fspath(folder)}: {error.strerror or error}.",
            "What was there before is as it was. Check the space left and the permissions.",
        ) from error


def stored_once(model: nn.Module) -> dict[str, torch.Tensor]:
    """A model's parameters by name. One that has several names is stored under the first: loading ties it again."""
    tensors: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.is_meta:
            raise CheckpointError(f"{name} has no values (it is on the meta device).", "Load or initialise the model.")
        if id(parameter) not in seen:
            seen.add(id(parameter))
            tensors[name] = parameter.detach()
    return tensors


def num_bytes(size: int | str) -> int:
    """`"5GB"` → 5·10⁹; `"2GiB"` counts in powers of two; a number is bytes."""
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    found = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if found is None or (number := int(float(found[1]) * _UNITS.get(found[2].upper(), 0))) < 1:
        raise ConfigError(f"max_shard_size is {size!r}.", "It takes a number of bytes, or such as '5GB' or '500MiB'.")
    return number


def _shards(tensors: Mapping[str, torch.Tensor], limit: int, dtype: torch.dtype | None) -> list[list[str]]:
    """Names of the tensors of each file, in order; a tensor larger than the limit gets a file of its own."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, tensor in tensors.items():
        size = _size(tensor, dtype)
        if shards[-1] and filled + size > limit:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards


def _size(tensor: torch.Tensor, dtype: torch.dtype | None) -> int:
    return tensor.numel() * (dtype or tensor.dtype).itemsize


def _file_name(number: int, total: int, variant: str | None) -> str:
    stem = "model" if variant is None else f"model.{variant}"
    return f"{stem}.safetensors" if total == 1 else f"{stem}-{number:05d}-of-{total:05d}.safetensors"


def _is_ours(name: str, variant: str | None) -> bool:
    """Whether a file in the folder belongs to the set this save replaces."""
    stem = re.escape("model" if variant is None else f"model.{variant}")
    index = with_variant("model.safetensors.index.json", variant)
    return name in ("config.json", index) or bool(re.fullmatch(rf"{stem}(-\d{{5}}-of-\d{{5}})?\.safetensors", name))
