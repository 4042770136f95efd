"""The keywords of the hub's `from_pretrained` and `save_pretrained`: what each of them means here.

Some say how to fetch files, some where the weights go. Some change nothing, because what they ask for is always so.
Some ask for what cannot be done, and are rejected with an error rather than ignored.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from bertie.config import Values
from bertie.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    import torch
    from torch import nn

_FETCHING = ("subfolder", "revision", "variant", "cache_dir", "local_files_only", "token", "force_download", "proxies")

# Weights are mapped and never copied twice, no code is run from files, .bin files are read without unpickling objects,
# downloads are always resumed, and the fastest kernels are chosen anyway. transformers 4.57 ignores some of them too.
HARMLESS_IN_LOADING = frozenset({
    "low_cpu_mem_usage", "trust_remote_code", "weights_only", "use_fast", "resume_download", "mirror",
    "offload_state_dict", "code_revision", "use_kernels", "_fast_init", "_from_auto", "_from_pipeline", "_commit_hash",
})  # fmt: skip
# What to say on the hub's site, where nothing is sent: push_to_hub itself is refused.
HARMLESS_IN_SAVING = frozenset({
    "save_peft_format", "commit_message", "commit_description", "private", "create_pr", "repo_id", "tags",
    "ignore_metadata_errors", "use_auth_token",
})  # fmt: skip

REFUSED = {
    "from_flax": "Bertie cannot read Flax weights. Convert them with the hub's library once, and load what it saves.",
    "gguf_file": "Bertie cannot read GGUF files. Load the original weights.",
    **dict.fromkeys(
        ("quantization_config", "load_in_8bit", "load_in_4bit"),
        "Weights are loaded unquantised; bertie.compile(model, precision='int8') quantises them.",
    ),
    **dict.fromkeys(
        ("tp_plan", "tp_size", "distributed_config", "device_mesh"),
        "A BERT fits on one device: there is no tensor parallelism here.",
    ),
    "push_to_hub": "Save into a folder, then upload it: huggingface_hub.upload_folder(repo_id=…, folder_path=…).",
}
_AUTOMATIC = ("auto", "balanced", "balanced_low_0", "sequential")


def take_fetching(options: Values) -> Values:
    """Remove from the keywords those that say how to fetch files, under the names that `open_checkpoint` has."""
    older, asked = options.pop("use_auth_token", None), _asked(options)
    given = {name: options.pop(name) for name in _FETCHING if name in options}
    if given.get("token") is None and older is not None:
        given["token"] = older
    if given.get("cache_dir") is not None:
        given["cache_dir"] = os.fspath(given["cache_dir"])
    defaults = {"subfolder": "", "local_files_only": False, "force_download": False}
    given = {name: defaults.get(name) if value is None else value for name, value in given.items()}
    return given if asked is None else given | {"asked": asked}


def _asked(options: Values) -> str | None:
    """Which kind of weights to read where a folder has several: a key of checkpoint.weight_files.ASKED."""
    safe, tensorflow = options.pop("use_safetensors", None), options.pop("from_tf", False)
    if safe and tensorflow:
        raise ConfigError("Both use_safetensors=True and from_tf=True were given.", "They exclude each other.")
    if tensorflow:
        return "from_tf=True"
    return None if safe is None else f"use_safetensors={bool(safe)}"


def drop_meaningless(options: Values, call: str, *, saving: bool = False) -> None:
    """Remove the keywords that change nothing; refuse those that cannot be followed."""
    for name in options.keys() & (HARMLESS_IN_SAVING if saving else HARMLESS_IN_LOADING):
        del options[name]
    for name, reason in REFUSED.items():
        if options.pop(name, None):
            raise ConfigError(f"{call} was given {name}, which is not possible here.", reason)


class DeviceMap:
    """Where the weights go: one device, for which they are loaded, or several, to which accelerate then moves them."""

    def __init__(self, options: Values, device: torch.device | str | int | None) -> None:
        self._map = options.pop("device_map", None)
        self._max_memory = options.pop("max_memory", None)
        self._folder = options.pop("offload_folder", None)
        self._offload_buffers = bool(options.pop("offload_buffers", False))
        if self._map is not None and device is not None:
            raise ConfigError("Both device and device_map were given.", "Give one: they say the same.")
        if isinstance(self._map, Mapping) and len(set(self._map.values())) == 1:
            self._map = next(iter(self._map.values()))
        several = isinstance(self._map, Mapping) or (isinstance(self._map, str) and self._map in _AUTOMATIC)
        self.device = device if self._map is None else None if several or self._map == "disk" else self._map
        self._several = several or self._map == "disk"

    def dispatch(self, model: nn.Module) -> None:
        """Move the parts of a loaded model to their devices."""
        if self._map is None:
            return
        if not self._several:
            vars(model)["hf_device_map"] = {"": self.device}
            return
        try:
            from accelerate import dispatch_model, infer_auto_device_map
            from accelerate.utils import get_balanced_memory
        except ImportError:
            raise MissingExtra("accelerate", "compat", f"device_map={self._map!r}") from None
        parts = self._map
        if not isinstance(parts, Mapping) and parts != "disk":
            memory, whole = self._max_memory, model._no_split_modules
            if parts != "sequential":
                low = parts == "balanced_low_0"
                memory = get_balanced_memory(model, memory, no_split_module_classes=whole, low_zero=low)
            parts = infer_auto_device_map(model, memory, no_split_module_classes=whole)
        elif parts == "disk":
            parts = {"": "disk"}
        devices = set(parts.values())
        if "disk" in devices and self._folder is None:
            raise ConfigError(
                f"device_map={self._map!r} puts parts of the model on the disk and does not say where.",
                "Give offload_folder='…', or more memory for the devices.",
            )
        if len(devices) == 1 and "disk" not in devices:
            model.to(next(iter(devices)))
            vars(model)["hf_device_map"] = dict(parts)
        else:
            dispatch_model(model, dict(parts), offload_dir=self._folder, offload_buffers=self._offload_buffers)
