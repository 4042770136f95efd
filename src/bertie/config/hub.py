"""What code written for the hub's library does with a configuration, besides reading its fields.

Thin: reading and writing files is in bert.py and in the checkpoint room, which is imported inside the methods.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from bertie.config.checks import read_json_object
from bertie.errors import ConfigError

# Keys every configuration of the hub's library answers to, with what they are when nobody set them. Most are about
# generating text, which older files keep here; `generate` takes its arguments instead.
DEFAULTS: dict[str, Any] = {
    "architectures": None, "finetuning_task": None, "task_specific_params": None, "tokenizer_class": None,
    "prefix": None, "sep_token_id": None, "is_encoder_decoder": False, "tie_encoder_decoder": False,
    "cross_attention_hidden_size": None, "torchscript": False, "transformers_version": None, "dtype": None,
    "tf_legacy_loss": False, "use_bfloat16": False,
    "max_length": 20, "min_length": 0, "do_sample": False, "early_stopping": False, "num_beams": 1,
    "temperature": 1.0, "top_k": 50, "top_p": 1.0, "typical_p": 1.0, "repetition_penalty": 1.0, "length_penalty": 1.0,
    "no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0, "bad_words_ids": None, "num_return_sequences": 1,
    "output_scores": False, "return_dict_in_generate": False, "forced_bos_token_id": None,
    "forced_eos_token_id": None, "remove_invalid_values": False, "exponential_decay_length_penalty": None,
    "suppress_tokens": None, "begin_suppress_tokens": None, "num_beam_groups": 1, "diversity_penalty": 0.0,
}  # fmt: skip
# Where a model came from and how it runs here: readable, never written, and no part of two configurations' equality.
PRIVATE: dict[str, Any] = {
    "_name_or_path": "",
    "_commit_hash": None,
    "_attn_implementation_internal": None,
    "_auto_class": None,
}
_ALIASES = {
    "torch_dtype": "dtype",
    "name_or_path": "_name_or_path",
    "attn_implementation": "_attn_implementation_internal",
    "_attn_implementation": "_attn_implementation_internal",
}
# Arguments of from_pretrained that say how to fetch the file, and are no keys of it.
_FETCHING = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder", "proxies")
_WITHOUT_MEANING = (
    "resume_download", "use_auth_token", "trust_remote_code", "user_agent", "_from_auto", "_from_pipeline",
    "from_auto_class",
)  # fmt: skip


class HubConfig:
    """The hub's methods; `BertConfig` adds the fields."""

    model_type: ClassVar[str] = "bert"
    attribute_map: ClassVar[dict[str, str]] = {}  # a subclass may give fields further names: {"n_embd": "hidden_size"}
    sub_configs: ClassVar[dict[str, Any]] = {}
    base_config_key: ClassVar[str] = ""
    has_no_defaults_at_init: ClassVar[bool] = False
    is_composition: ClassVar[bool] = False
    keys_to_ignore_at_inference: ClassVar[list[str]] = []
    base_model_tp_plan: ClassVar[None] = None
    base_model_pp_plan: ClassVar[None] = None
    base_model_ep_plan: ClassVar[None] = None

    # -- keys beside the fields --------------------------------------------------------------------------------------

    def _keep(self, name: str, value: Any) -> None:
        """Store what is not a field: with the file's other keys, unless it is the default or private."""
        name = _ALIASES.get(name, name)
        if name in PRIVATE:
            self.__dict__[name] = str(value) if name == "_name_or_path" else value
            return
        if name == "dtype" and value is not None and not isinstance(value, str):
            value = str(value).removeprefix("torch.")
        extra: dict[str, Any] = self.__dict__.setdefault("extra", {})  # a subclass may set its own before our fields
        if name in DEFAULTS and value == DEFAULTS[name] and type(value) is type(DEFAULTS[name]):
            extra.pop(name, None)
        else:
            extra[name] = value

    def _private(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in PRIVATE if name in self.__dict__}

    @property
    def dtype(self) -> Any:
        """The weights' `torch.dtype`, or None when nothing is said of it."""
        name = self.__dict__["extra"].get("dtype")
        if not isinstance(name, str):
            return name
        import torch

        return vars(torch).get(name.removeprefix("torch."), name)

    @dtype.setter
    def dtype(self, value: Any) -> None:
        self._keep("dtype", value)

    torch_dtype = dtype  # its older name

    @property
    def name_or_path(self) -> str:
        """What the model was loaded from; empty when it was not."""
        return str(self.__dict__.get("_name_or_path", ""))

    @name_or_path.setter
    def name_or_path(self, value: Any) -> None:
        self._keep("_name_or_path", value)

    @property
    def _attn_implementation(self) -> str | None:
        """The attention kernel a model is built with: eager or sdpa. None before there is a model."""
        return self.__dict__.get("_attn_implementation_internal")

    @_attn_implementation.setter
    def _attn_implementation(self, value: str | Mapping[str, str] | None) -> None:
        self._keep("_attn_implementation", value.get("") if isinstance(value, Mapping) else value)

    @property
    def use_return_dict(self) -> bool:
        """Whether models answer with objects rather than tuples."""
        return bool(self.return_dict and not self.torchscript)  # type: ignore[attr-defined]

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> Self:
        """This configuration: the hub has some that hold several."""
        return self

    def __iter__(self) -> Iterator[str]:
        return iter({**PRIVATE, **self.to_dict()})  # type: ignore[attr-defined]

    def __contains__(self, name: object) -> bool:
        return name in list(self)

    def __repr__(self) -> str:
        lines = (f"  {name}: {value!r}" for name, value in sorted(self.to_diff_dict().items()))  # type: ignore[attr-defined]
        return "\n".join([f"{type(self).__name__} {{", *lines, "}"])

    # -- making and changing -----------------------------------------------------------------------------------------

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], **overrides: Any) -> Self:
        """Build from a file's keys; `overrides` win, and a key that is no field is kept.

        With `return_unused_kwargs=True` the answer is `(config, unused)`: overrides that are no keys of this
        configuration come back instead of being kept.
        """
        return_unused = overrides.pop("return_unused_kwargs", False)
        overrides = {name: value for name, value in overrides.items() if name not in _WITHOUT_MEANING}
        if not return_unused:
            return cls._from_values(values, overrides)  # type: ignore[attr-defined,no-any-return]
        plain = cls._from_values(values, {})  # type: ignore[attr-defined]
        used = {name: value for name, value in overrides.items() if hasattr(plain, name) or name in _ALIASES}
        unused = {name: value for name, value in overrides.items() if name not in used or name.endswith("dtype")}
        return cls._from_values(values, used), unused  # type: ignore[attr-defined,return-value]

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike[str], **overrides: Any) -> Self:
        """The configuration of a folder, a file or a hub name, with `overrides`; see `from_dict`."""
        values, overrides = cls.get_config_dict(pretrained_model_name_or_path, **overrides)
        return cls.from_dict(values, **overrides)

    @classmethod
    def get_config_dict(
        cls, pretrained_model_name_or_path: str | os.PathLike[str], **options: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The file's keys as they are, and those of the arguments that do not say how to fetch it."""
        from bertie.checkpoint.locate import read_config

        if options.get("token") is None and options.get("use_auth_token") is not None:
            options["token"] = options.pop("use_auth_token")
        for name in ("gguf_file", "_configuration_file"):
            if options.pop(name, None) is not None:
                raise ConfigError(
                    f"{cls.__name__} was given {name}; a folder's configuration is read from its config.json.",
                    "Give the path of another JSON file itself.",
                )
        fetching = {name: options[name] for name in _FETCHING if options.get(name) is not None}
        values = read_config(pretrained_model_name_or_path, **fetching)
        return values, {name: v for name, v in options.items() if name not in (*_FETCHING, *_WITHOUT_MEANING)}

    @classmethod
    def _dict_from_json_file(cls, json_file: str | os.PathLike[str]) -> dict[str, Any]:
        return read_json_object(json_file)

    def save_pretrained(
        self, save_directory: str | os.PathLike[str], push_to_hub: bool = False, **ignored: Any
    ) -> None:
        """Write `config.json` into a folder, replacing the one that is there in one step."""
        from bertie.files import new_files

        if push_to_hub:
            raise ConfigError("push_to_hub=True: a configuration is not uploaded from here.", UPLOADING)
        text = self.to_json_string()  # type: ignore[attr-defined]
        folder = Path(save_directory)
        if folder.is_file():
            raise ConfigError(f"{folder} is a file; a configuration is saved into a folder.")
        with new_files(folder, obsolete=lambda name: name == "config.json") as place:
            (place / "config.json").write_text(text, encoding="utf-8")

    def update(self, values: Mapping[str, Any]) -> None:
        """Set several attributes."""
        for name, value in values.items():
            setattr(self, name, value)

    def update_from_string(self, update_str: str) -> None:
        """Set attributes that exist from `"hidden_size=128,use_cache=false"`, each read as what it is now."""
        for item in update_str.split(","):
            name, equals, text = item.partition("=")
            if not equals or not hasattr(self, name):
                raise ConfigError(f"{item!r} does not set a key of this configuration.", "Write key=value,key=value.")
            setattr(self, name, _like(getattr(self, name), name, text))


def _like(old: Any, name: str, text: str) -> Any:
    words = {"true": True, "1": True, "y": True, "yes": True, "false": False, "0": False, "n": False, "no": False}
    try:
        if isinstance(old, bool):
            return words[text.lower()]
        if isinstance(old, int | float | str):
            return type(old)(text)
    except (KeyError, ValueError):
        raise ConfigError(f"config.{name} is {old!r} and cannot be set to {text!r}: another kind of value.") from None
    raise ConfigError(f"config.{name} is {old!r:.80}; only numbers, texts, true and false are set by a string.")


UPLOADING = "Save it into a folder, then upload that: huggingface_hub.upload_folder(repo_id=…, folder_path=…)."
