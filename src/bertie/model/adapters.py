"""peft's adapters in a folder: what `model.add_adapter` put in is saved alone, and loaded again over its base model.

`add_adapter`, `set_adapter`, `load_adapter` and the like are transformers' own methods, which a model has once
transformers is imported (hub/methods.py). With an adapter in it a model's weights have other names, so that a folder
with all of them would be nobody's checkpoint. As on the hub the folder gets `adapter_config.json`, which names the base
model, and `adapter_model.safetensors`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertie.arguments import is_path
from bertie.config import read_json_object
from bertie.errors import CheckpointError, ConfigError, MissingExtra
from bertie.json_values import text

if TYPE_CHECKING:
    import torch

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def base_of_adapter(source: object) -> str | None:
    """The model that the adapter in a folder was made for; None where the folder holds none."""
    if not is_path(source) or not os.path.isfile(file := os.path.join(source, _CONFIG)):
        return None
    try:
        import peft  # noqa: F401  # with transformers, so that the model made next can load adapters
    except ImportError:
        raise MissingExtra("peft", "compat", f"Loading the adapter in {os.fspath(source)}") from None
    base = read_json_object(Path(file)).get("base_model_name_or_path")
    if not (named := text(base)):
        raise CheckpointError(
            f"{file} does not name the model that the adapter is for: base_model_name_or_path is {base!r}.",
            "Load that model, then call model.load_adapter with this folder.",
        )
    return named


def save_adapter(
    model: Any,
    folder: str | os.PathLike[str],
    *,
    state_dict: Mapping[str, torch.Tensor] | None,
    save_peft_format: bool = True,
) -> None:
    """Write the active adapter of a model that has some; its other weights stay where they came from."""
    from safetensors.torch import save_file

    from bertie.files import new_files

    active = model.active_adapters()
    if len(active) != 1:
        raise ConfigError(
            f"{len(active)} adapters are active ({', '.join(active)}); a folder holds one.",
            "Save one after the other: model.set_adapter('…'), then model.save_pretrained('…').",
        )
    prefix = "base_model.model." if save_peft_format else ""
    tensors = model.get_adapter_state_dict(active[0], state_dict=state_dict)
    with new_files(folder, obsolete=lambda name: name in (_CONFIG, _WEIGHTS)) as place:
        model.peft_config[active[0]].save_pretrained(str(place))
        named = {prefix + name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        save_file(named, place / _WEIGHTS, metadata={"format": "pt"})
