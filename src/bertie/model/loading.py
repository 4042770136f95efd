"""`from_pretrained` and `save_pretrained`, as every model class has them.

Thin on purpose: the work is in the checkpoint room, imported when it is first needed.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Self

from bertie.config import BertConfig
from bertie.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from bertie.checkpoint.read import Checkpoint
    from bertie.model.bert import BertModel
    from bertie.model.heads import BertLMHeadModel

# Arguments of the hub's from_pretrained that change nothing here: never code from files, never a second copy.
_WITHOUT_MEANING = ("low_cpu_mem_usage", "trust_remote_code", "use_safetensors")
_SPECIAL_TOKENS = ("decoder_start_token_id", "pad_token_id", "eos_token_id", "bos_token_id")


class PretrainedIO:
    """A model's way in and out of files."""

    config: BertConfig

    @classmethod
    def from_pretrained(
        cls,
        source: str | os.PathLike[str],
        *,
        config: BertConfig | Mapping[str, Any] | str | os.PathLike[str] | None = None,
        subfolder: str = "",
        revision: str | None = None,
        variant: str | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        local_files_only: bool = False,
        token: str | bool | None = None,
        force_download: bool = False,
        dtype: torch.dtype | str | None = None,
        torch_dtype: torch.dtype | str | None = None,
        device: torch.device | str | int | None = None,
        ignore_mismatched_sizes: bool = False,
        output_loading_info: bool = False,
        attention: str = "auto",
        **overrides: Any,
    ) -> Self:
        """The model of a checkpoint, in eval mode.

        `source` is a folder, a file of weights with config.json beside it, a TensorFlow checkpoint's folder or prefix,
        a sentence-transformers folder, or a hub name. `dtype` is float32 unless given; "auto" takes the checkpoint's
        own. Further keywords change the configuration: `num_labels=3`, `is_decoder=True`. Weights the checkpoint lacks
        are initialised with one warning that lists them (missing encoder weights are an error); with
        `output_loading_info=True` the answer is `(model, LoadingReport)`.

        On the CPU the weights stay mapped to the file until they are changed: replace a file by renaming, as
        `save_pretrained` does, but never shorten it in place while a model loaded from it is in use.
        """
        from bertie.checkpoint.read import open_checkpoint

        checkpoint = open_checkpoint(
            source,
            subfolder=subfolder,
            variant=variant,
            needs_config=config is None,
            revision=revision,
            cache_dir=None if cache_dir is None else os.fspath(cache_dir),
            local_files_only=local_files_only,
            token=token,
            force_download=force_download,
        )
        model, report = cls._from_checkpoint(
            checkpoint,
            config=config,
            overrides=overrides,
            dtype=torch_dtype if dtype is None else dtype,
            device=device,
            ignore_mismatched_sizes=ignore_mismatched_sizes,
            attention=attention,
        )
        return (model, report) if output_loading_info else model  # type: ignore[return-value]

    @classmethod
    def _from_checkpoint(
        cls,
        checkpoint: Checkpoint,
        *,
        config: BertConfig | Mapping[str, Any] | str | os.PathLike[str] | None,
        overrides: dict[str, Any],
        dtype: torch.dtype | str | None,
        device: torch.device | str | int | None,
        ignore_mismatched_sizes: bool,
        attention: str,
    ) -> tuple[Self, Any]:
        from bertie.checkpoint.load import check_num_layers, fill_new_model

        checkpoint.head = cls.__name__
        attention = overrides.pop("attn_implementation", None) or attention
        arguments = {name: overrides.pop(name) for name in _constructor_arguments(cls) if name in overrides}
        overrides = {name: value for name, value in overrides.items() if name not in _WITHOUT_MEANING}
        made = _config(cls, checkpoint, config, overrides)
        check_num_layers(checkpoint.tensors, made.num_hidden_layers, source=checkpoint.source)
        model, report = fill_new_model(
            lambda: cls(made, **arguments),  # type: ignore[call-arg,arg-type,return-value]
            checkpoint,
            name=cls.__name__,
            dtype=dtype,
            device=device,
            ignore_mismatched_sizes=ignore_mismatched_sizes,
            stacklevel=3,
        )
        if attention != "auto":
            model.set_attention_backend(attention)
        return model, report

    def save_pretrained(
        self,
        folder: str | os.PathLike[str],
        *,
        max_shard_size: int | str = "5GB",
        variant: str | None = None,
        dtype: torch.dtype | str | None = None,
    ) -> None:
        """Write `model.safetensors` (in pieces beyond `max_shard_size`) and `config.json` into a folder.

        A save that is interrupted leaves what was there before. Other files in the folder are kept. `dtype` writes the
        weights in another precision than the model's own.
        """
        from bertie.checkpoint.save import save_model

        save_model(self, folder, self._config_values(), max_shard_size=max_shard_size, variant=variant, dtype=dtype)  # type: ignore[arg-type]

    def _config_values(self) -> dict[str, Any]:
        """What config.json will say, apart from dtype and architectures."""
        self.config.to_json()  # refuses what a file cannot hold
        return self.config.to_diff_dict()


class EncoderDecoderIO:
    """The same for two BERTs in one folder, in the hub's layout: a configuration that holds two, one set of weights."""

    architecture = "EncoderDecoderModel"  # the hub's name for it
    encoder: BertModel
    decoder: BertLMHeadModel

    @classmethod
    def from_pretrained(
        cls,
        source: str | os.PathLike[str],
        *,
        subfolder: str = "",
        revision: str | None = None,
        variant: str | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        local_files_only: bool = False,
        token: str | bool | None = None,
        force_download: bool = False,
        dtype: torch.dtype | str | None = None,
        torch_dtype: torch.dtype | str | None = None,
        device: torch.device | str | int | None = None,
        ignore_mismatched_sizes: bool = False,
        output_loading_info: bool = False,
    ) -> Self:
        """A pair of BERTs saved by `save_pretrained`, ours or the hub's EncoderDecoderModel's."""
        from bertie.checkpoint.load import check_num_layers, fill_new_model
        from bertie.checkpoint.read import open_checkpoint
        from bertie.model.bert import BertModel
        from bertie.model.heads import BertLMHeadModel

        checkpoint = open_checkpoint(
            source,
            subfolder=subfolder,
            variant=variant,
            model_type="encoder-decoder",
            revision=revision,
            cache_dir=None if cache_dir is None else os.fspath(cache_dir),
            local_files_only=local_files_only,
            token=token,
            force_download=force_download,
        )
        configs = _two_configs(checkpoint)
        for side, config in configs.items():
            check_num_layers(checkpoint.tensors, config.num_hidden_layers, source=checkpoint.source, prefix=f"{side}.")
        model, report = fill_new_model(
            lambda: cls(BertModel(configs["encoder"]), BertLMHeadModel(configs["decoder"])),  # type: ignore[call-arg,arg-type,return-value]
            checkpoint,
            name=cls.__name__,
            dtype=torch_dtype if dtype is None else dtype,
            device=device,
            ignore_mismatched_sizes=ignore_mismatched_sizes,
            stacklevel=2,
        )
        return (model, report) if output_loading_info else model  # type: ignore[return-value]

    def save_pretrained(
        self,
        folder: str | os.PathLike[str],
        *,
        max_shard_size: int | str = "5GB",
        variant: str | None = None,
        dtype: torch.dtype | str | None = None,
    ) -> None:
        """Write both BERTs into one folder, as the hub's EncoderDecoderModel does; see `BertModel.save_pretrained`."""
        from bertie.checkpoint.save import save_model

        encoder, decoder = self.encoder.config, self.decoder.config
        encoder.to_json(), decoder.to_json()  # refuse what a file cannot hold
        values = {name: getattr(decoder, name) for name in _SPECIAL_TOKENS if getattr(decoder, name) is not None}
        values |= {"model_type": "encoder-decoder", "is_encoder_decoder": True}
        values |= {"encoder": encoder.to_diff_dict(), "decoder": decoder.to_diff_dict()}
        save_model(self, folder, values, max_shard_size=max_shard_size, variant=variant, dtype=dtype)  # type: ignore[arg-type]


def _two_configs(checkpoint: Checkpoint) -> dict[str, BertConfig]:
    from bertie.checkpoint.folder import check_model_type

    configs = {}
    for side in ("encoder", "decoder"):
        values = checkpoint.config.get(side)
        if not isinstance(values, Mapping):
            raise ConfigError(f"{checkpoint.config_file}: {side!r} is {values!r:.80}; it takes a BERT's configuration.")
        check_model_type(values, f"{checkpoint.config_file} ({side})")
        configs[side] = BertConfig.from_dict(values)
    said = {name: checkpoint.config[name] for name in _SPECIAL_TOKENS if checkpoint.config.get(name) is not None}
    configs["decoder"] = configs["decoder"].replace(**said)
    return configs


def _constructor_arguments(cls: type) -> list[str]:
    return [name for name in inspect.signature(cls).parameters if name != "config"]


def _config(
    cls: type,
    checkpoint: Checkpoint,
    given: BertConfig | Mapping[str, Any] | str | os.PathLike[str] | None,
    overrides: dict[str, Any],
) -> BertConfig:
    if isinstance(given, BertConfig):
        values: Mapping[str, Any] = given.to_diff_dict()
    elif isinstance(given, Mapping):
        values = given
    elif given is not None:
        from bertie.checkpoint.locate import read_config

        values = read_config(given)
    else:
        values = checkpoint.config
    known = {field.name for field in fields(BertConfig)} | set(values)
    unknown = [name for name in overrides if name not in known]
    if unknown:
        raise ConfigError(
            f"{cls.__name__}.from_pretrained got {', '.join(unknown)}: neither an argument nor a configuration key.",
            "Check the spelling.",
        )
    return BertConfig.from_dict(dict(values) | _labels(cls, checkpoint, {**values, **overrides}), **overrides)


def _labels(cls: type, checkpoint: Checkpoint, values: Mapping[str, Any]) -> dict[str, Any]:
    """Google's configurations do not say how many labels a classifier has; the classifier does."""
    stated = values.get("num_labels") is not None or values.get("id2label") is not None
    info = None if stated else checkpoint.tensors.info.get("classifier.weight")
    if info is None or "Classification" not in cls.__name__ or len(info.shape) != 2:
        return {}
    return {"num_labels": info.shape[0]}
