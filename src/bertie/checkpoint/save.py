"""A model into a folder: `config.json` and weights, in pieces when they are large, whole or not at all.

Weights are safetensors, or torch's own .bin for programs that read nothing else.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bertie import json_values
from bertie.checkpoint.load_weights import named_dtype, named_tensors
from bertie.checkpoint.names import renamed
from bertie.checkpoint.safetensors import stored_dtype, write_safetensors
from bertie.checkpoint.weight_files import with_variant
from bertie.errors import CheckpointError, ConfigError
from bertie.files import new_files

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?B)\s*", re.IGNORECASE)


def save_model(
    model: nn.Module,
    folder: str | os.PathLike[str],
    config: Mapping[str, object],
    *,
    state_dict: Mapping[str, torch.Tensor] | None = None,
    dtype: torch.dtype | str | None = None,
    **options: Any,
) -> None:
    """Write a model's weights, tied ones once, and its configuration. What a crash leaves is told in files.py.

    A .bin file has tied weights under all of their names, as torch.save does: their memory is in it once.
    """
    tensors = stored_once(model, state_dict, once=options.get("safe_serialization", True))
    first = next((tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()), torch.float32)
    wanted = first if dtype is None else named_dtype(dtype, "dtype")
    name = str(wanted).removeprefix("torch.")
    in_files = [(ours, theirs) for theirs, ours in getattr(model, "names_in_files", ())]
    tensors = {renamed(name, in_files): tensor for name, tensor in tensors.items()}
    architecture = getattr(model, "architecture", type(model).__name__)
    values = dict(config) | {"architectures": [architecture], "dtype": name, "torch_dtype": name}
    save_tensors(tensors, folder, values, dtype=None if dtype is None else wanted, **options)


def save_tensors(
    tensors: Mapping[str, torch.Tensor],
    folder: str | os.PathLike[str],
    config: Mapping[str, object],
    *,
    max_shard_size: int | str = "5GB",
    variant: str | None = None,
    dtype: torch.dtype | None = None,
    safe_serialization: bool = True,
    save_function: Callable[[dict[str, torch.Tensor], Path], object] | None = None,
    also: Mapping[str, str] | None = None,
) -> None:
    """Write named tensors and a configuration into a folder, replacing the model of that variant that it holds.

    `save_function(tensors, path)` writes .bin files in torch.save's place; `also` are further files, by name.
    """
    if variant is not None and not re.fullmatch(r"[\w\-]{1,64}", variant):
        raise CheckpointError(
            f"variant is {variant!r}.", "Use a short word, such as 'fp16': it becomes part of a file's name."
        )
    limit = num_bytes(max_shard_size)
    texts = {**(also or {}), "config.json": json.dumps(config, indent=2, sort_keys=True, default=str) + "\n"}
    shards = _shards(tensors, limit, dtype)
    whole = "model.safetensors" if safe_serialization else "pytorch_model.bin"
    # A reader takes safetensors where there are both, so a folder that gets .bin files must not keep older ones.
    obsolete = (whole,) if safe_serialization else (whole, "model.safetensors")
    try:
        with new_files(folder, obsolete=lambda name: _is_ours(name, obsolete, variant)) as place:
            weight_map: dict[str, str] = {}
            for number, names in enumerate(shards, start=1):
                file = _file_name(whole, number, len(shards), variant)
                shard = {name: tensors[name] for name in names}
                if safe_serialization:
                    write_safetensors(place / file, shard, dtype=dtype)
                else:
                    plain = {name: tensor.to("cpu", stored_dtype(tensor, dtype)) for name, tensor in shard.items()}
                    (save_function or torch.save)(plain, place / file)
                weight_map.update(dict.fromkeys(names, file))
            if len(shards) > 1:
                total = sum(_size(tensor, dtype) for tensor in tensors.values())
                index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
                name = with_variant(f"{whole}.index.json", variant)
                texts[name] = json.dumps(index, indent=2) + "\n"
            for name, text in texts.items():
                (place / name).write_text(text, encoding="utf-8")
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(
            f"The model could not be saved in {os.fspath(folder)}: {error.strerror or error}.",
            "What was there before is as it was. Check the space left and the permissions.",
        ) from error


def stored_once(
    model: nn.Module, given: Mapping[str, torch.Tensor] | None = None, *, once: bool = True
) -> dict[str, torch.Tensor]:
    """A model's parameters and persistent buffers by name, or those given in their place.

    A parameter that has several names is stored under the first: loading ties it again. Without `once`, under all.
    """
    ignored = getattr(model, "_keys_to_ignore_on_save", None) or ()
    found = _offloaded(model) if given is None else given
    tensors: dict[str, torch.Tensor] = {}
    seen: set[object] = set()
    for name, tensor in found.items():
        if name in ignored:
            continue
        if tensor.is_meta:
            raise CheckpointError(f"{name} has no values (it is on the meta device).", "Load or initialise the model.")
        # Given tensors are new objects, though two of them may be one weight: those share the whole of their memory.
        same = id(tensor) if given is None or not tensor.numel() else (tensor.data_ptr(), tensor.shape, tensor.stride())
        if same not in seen or not once:
            seen.add(same)
            tensors[name] = tensor.detach()
    return tensors


def _offloaded(model: nn.Module) -> Mapping[str, torch.Tensor]:
    """The model's tensors; those that accelerate keeps elsewhere until their layer runs are fetched."""
    modules = dict(model.named_modules())
    tensors = named_tensors(modules)
    if not any(tensor.is_meta for tensor in tensors.values()) or not any(
        hasattr(m, "_hf_hook") for m in modules.values()
    ):
        return tensors
    from accelerate.utils.modeling import get_state_dict_offloaded_model

    fetched: Mapping[str, torch.Tensor] = get_state_dict_offloaded_model(model)
    first = {id(tensor): name for name, tensor in reversed(tensors.items())}
    return {name: fetched.get(name, tensor) for name, tensor in tensors.items() if first[id(tensor)] == name}


def num_bytes(size: int | str) -> int:
    """`"5GB"` → 5·10⁹; `"2GiB"` counts in powers of two; a number is bytes."""
    number = json_values.whole(size) or 0
    if found := _SIZE.fullmatch(json_values.text(size) or ""):
        number = int(float(found[1]) * _UNITS.get(found[2].upper(), 0))
    if number < 1:
        raise ConfigError(
            f"max_shard_size is {size!r}.",
            "Use a number of bytes, or a text such as '5GB' or '500MiB'.",
            max_shard_size=size,
        )
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
    return tensor.numel() * stored_dtype(tensor, dtype).itemsize


def _file_name(whole: str, number: int, total: int, variant: str | None) -> str:
    if total == 1:
        return with_variant(whole, variant)
    stem, _, suffix = whole.rpartition(".")
    return f"{stem}{'' if variant is None else f'.{variant}'}-{number:05d}-of-{total:05d}.{suffix}"


def _is_ours(name: str, wholes: Sequence[str], variant: str | None) -> bool:
    """Whether a file in the folder belongs to the set this save replaces."""
    for whole in wholes:
        stem, _, suffix = whole.rpartition(".")
        stem = re.escape(stem if variant is None else f"{stem}.{variant}")
        if name == with_variant(f"{whole}.index.json", variant):
            return True
        if re.fullmatch(rf"{stem}(-\d{{5}}-of-\d{{5}})?\.{suffix}", name):
            return True
    return name == "config.json"
