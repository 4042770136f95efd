"""`from_pretrained` and `save_pretrained`, as every model class has them.

Thin on purpose: the work is in the checkpoint room, imported when it is first needed.
"""

from __future__ import annotations

import copy
import inspect
import json
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import torch
from torch import Tensor, nn

from bertie.config import OF_BOTH, BertConfig, EncoderDecoderConfig, Values
from bertie.errors import ConfigError
from bertie.model.adapters import base_of_adapter, save_adapter
from bertie.model.empty import to_be_filled
from bertie.model.generation.options import GenerationConfig
from bertie.model.hub.methods import HubModel
from bertie.model.hub.options import DeviceMap, drop_meaningless, take_fetching

if TYPE_CHECKING:
    from bertie.checkpoint.open_checkpoint import Checkpoint
    from bertie.checkpoint.report import LoadingReport
    from bertie.model.bert import BertModel
    from bertie.model.heads import BertLMHeadModel

Source: TypeAlias = str | os.PathLike[str]
GENERATION = "generation_config.json"
_SPECIAL_TOKENS = ("decoder_start_token_id", "pad_token_id", "eos_token_id", "bos_token_id")


class Saved(nn.Module):
    """A model's way into files."""

    def save_pretrained(
        self,
        save_directory: Source,
        is_main_process: bool = True,
        state_dict: Mapping[str, Tensor] | None = None,
        save_function: Callable[..., object] | None = None,
        push_to_hub: bool = False,
        max_shard_size: int | str = "5GB",
        safe_serialization: bool = True,
        variant: str | None = None,
        token: str | bool | None = None,
        *,
        dtype: torch.dtype | str | None = None,
        **options: Any,
    ) -> None:
        """Write `model.safetensors` (in pieces beyond `max_shard_size`) and `config.json` into a folder.

        A save that is interrupted leaves what was there before. Other files in the folder are kept. `dtype` writes the
        weights in another precision than the model's own; `state_dict` holds other weights to write than the model's,
        such as those gathered from several processes; only the main process writes. `safe_serialization=False` writes
        `pytorch_model.bin`, through `save_function` if there is one.
        """
        from bertie.checkpoint.save import save_model

        name, peft_format = type(self).__name__, options.get("save_peft_format", True)
        options |= {"push_to_hub": push_to_hub}
        drop_meaningless(options, f"{name}.save_pretrained", saving=True)
        if options:
            raise ConfigError(f"{name}.save_pretrained got {', '.join(options)}, which it does not take.")
        if not is_main_process:
            return
        if getattr(self, "_hf_peft_config_loaded", False):
            save_adapter(self, save_directory, state_dict=state_dict, save_peft_format=peft_format)
            return
        save_model(
            self,
            save_directory,
            self._config_values(),
            state_dict=state_dict,
            max_shard_size=max_shard_size,
            variant=variant,
            dtype=dtype,
            safe_serialization=safe_serialization,
            save_function=save_function,
            also=self._other_files(),
        )

    def _config_values(self) -> Values:
        """What config.json will say, apart from dtype and architectures; refuses what a file cannot hold."""
        raise NotImplementedError

    def _other_files(self) -> dict[str, str]:
        """By name, what is written beside them."""
        raise NotImplementedError


class PretrainedIO(Saved, HubModel):
    """A model's way in and out of files."""

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: Source | None,
        *model_args: Any,
        config: BertConfig | Mapping[str, object] | Source | None = None,
        dtype: torch.dtype | str | None = None,
        torch_dtype: torch.dtype | str | None = None,
        device: torch.device | str | int | None = None,
        ignore_mismatched_sizes: bool = False,
        output_loading_info: bool = False,
        state_dict: Mapping[str, Tensor] | None = None,
        key_mapping: Mapping[str, str] | None = None,
        attention: str = "auto",
        **options: Any,
    ) -> Self:
        """The model of a checkpoint, in eval mode.

        The first argument is a folder, a file of weights with config.json beside it, a TensorFlow checkpoint's folder
        or prefix, a sentence-transformers folder, or a hub name. `dtype` is float32 unless given; "auto" takes the
        checkpoint's own. Weights the checkpoint lacks are initialised with one warning that lists them (missing encoder
        weights are an error); with `output_loading_info=True` the answer is `(model, LoadingReport)`.

        Further keywords change the configuration (`num_labels=3`, `is_decoder=True`), go to the class's constructor,
        say how to fetch files (`subfolder`, `revision`, `variant`, `cache_dir`, `local_files_only`, `token`,
        `force_download`), or are others of the hub's: hub/options.py has them all.

        On the CPU the weights stay mapped to the file until they are changed: replace a file by renaming, as
        `save_pretrained` does, but never shorten it in place while a model loaded from it is in use.
        """
        from bertie.checkpoint.open_checkpoint import given_checkpoint, open_checkpoint

        fetching = take_fetching(options)
        to_adapter = {name: options.pop(name) for name in ("adapter_name", "adapter_kwargs") if name in options}
        base = base_of_adapter(pretrained_model_name_or_path)
        adapter, pretrained_model_name_or_path = pretrained_model_name_or_path, base or pretrained_model_name_or_path
        if state_dict is not None:
            for name in ("variant", "asked"):  # which of the files, and none is read
                fetching.pop(name, None)
            source = pretrained_model_name_or_path if config is None else None
            checkpoint = given_checkpoint(source, state_dict, **fetching)
        else:
            checkpoint = open_checkpoint(
                pretrained_model_name_or_path,  # type: ignore[arg-type]  # None is rejected with a message
                needs_config=config is None,
                model_type=cls.config_class.model_type,
                also=(GENERATION,) if cls.can_generate() else (),
                **fetching,
            )
        model, report = cls._from_checkpoint(
            checkpoint,
            *model_args,
            config=config,
            overrides=options,
            dtype=torch_dtype if dtype is None else dtype,
            device=device,
            ignore_mismatched_sizes=ignore_mismatched_sizes,
            key_mapping=key_mapping,
            attention=attention,
        )
        if base is not None:
            model.load_adapter(str(adapter), **to_adapter)  # type: ignore[operator]  # peft's, through transformers
        return (model, report) if output_loading_info else model  # type: ignore[return-value]

    @classmethod
    def _from_checkpoint(
        cls,
        checkpoint: Checkpoint,
        *model_args: Any,
        config: BertConfig | Mapping[str, object] | Source | None,
        overrides: Values,
        dtype: torch.dtype | str | None,
        device: torch.device | str | int | None,
        ignore_mismatched_sizes: bool,
        attention: str,
        key_mapping: Mapping[str, str] | None = None,
    ) -> tuple[Self, LoadingReport]:
        from bertie.checkpoint.load_weights import check_num_layers, fill_new_model

        checkpoint.head = cls.__name__
        generation = overrides.pop("generation_config", None)
        attention = overrides.pop("attn_implementation", None) or attention
        places = DeviceMap(overrides, device)
        drop_meaningless(overrides, f"{cls.__name__}.from_pretrained")
        made, arguments = _config(cls, checkpoint, config, overrides)
        made.name_or_path = checkpoint.source
        if cls.__module__.startswith("bertie.") and not key_mapping:  # somebody's own class may have no encoder
            check_num_layers(checkpoint.tensors, made.num_hidden_layers, source=checkpoint.source)
        if attention != "auto":
            made._attn_implementation = attention
        model, report = fill_new_model(
            lambda: to_be_filled(cls, made, *model_args, **arguments),
            checkpoint,
            name=cls.__name__,
            dtype=dtype,
            device=places.device,
            ignore_mismatched_sizes=ignore_mismatched_sizes,
            key_mapping=key_mapping,
            stacklevel=3,
        )
        model.config.dtype = report.dtype
        if model.can_generate():
            _set_generation(model, checkpoint, generation)
        places.dispatch(model)
        return model, report

    def _config_values(self) -> Values:
        self.config.to_json()  # refuses what a file cannot hold
        return self.config.to_diff_dict()

    def _other_files(self) -> dict[str, str]:
        """A model that writes has its settings for that in a file of their own, as the hub's do."""
        if not self.can_generate():
            return {}
        return {GENERATION: _generation_file(self.config, vars(self).get("_generation_config"))}


class EncoderDecoderIO(Saved):
    """The same for two BERTs in one folder, in the hub's layout: a configuration that holds two, one set of weights."""

    architecture = "EncoderDecoderModel"  # the hub's name for it
    encoder: BertModel
    decoder: BertLMHeadModel

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: Source,
        *,
        dtype: torch.dtype | str | None = None,
        torch_dtype: torch.dtype | str | None = None,
        device: torch.device | str | int | None = None,
        ignore_mismatched_sizes: bool = False,
        output_loading_info: bool = False,
        **options: Any,
    ) -> Self:
        """A pair of BERTs saved by `save_pretrained`, ours or the hub's EncoderDecoderModel's."""
        from bertie.checkpoint.load_weights import check_num_layers, fill_new_model
        from bertie.checkpoint.open_checkpoint import open_checkpoint

        checkpoint = open_checkpoint(
            pretrained_model_name_or_path,
            model_type="encoder-decoder",
            also=(GENERATION,),
            **take_fetching(options),
        )
        attention, generation = options.pop("attn_implementation", None), options.pop("generation_config", None)
        places = DeviceMap(options, device)
        drop_meaningless(options, f"{cls.__name__}.from_pretrained")
        if options:
            raise ConfigError(
                f"{cls.__name__}.from_pretrained got {', '.join(options)}, which it does not take.",
                "Change a configuration after loading: model.encoder.config, model.decoder.config.",
            )
        configs = _two_configs(checkpoint)
        for side, config in configs.items():
            config.name_or_path, config._attn_implementation = checkpoint.source, attention
            found, wanted = checkpoint.tensors, config.num_hidden_layers
            check_num_layers(found, wanted, source=checkpoint.source, prefix=f"{side}.")
        model, report = fill_new_model(
            lambda: to_be_filled(cls._joined, configs),
            checkpoint,
            name=cls.__name__,
            dtype=torch_dtype if dtype is None else dtype,
            device=places.device,
            ignore_mismatched_sizes=ignore_mismatched_sizes,
            stacklevel=2,
        )
        _set_generation(model, checkpoint, generation)
        places.dispatch(model)
        return (model, report) if output_loading_info else model  # type: ignore[return-value]

    @classmethod
    def _joined(cls, configs: Mapping[str, BertConfig]) -> Self:
        """A new pair."""
        raise NotImplementedError

    def _config_values(self) -> Values:
        """As the hub's EncoderDecoderModel has it."""
        encoder, decoder = self.encoder.config, self.decoder.config
        encoder.to_json(), decoder.to_json()  # refuse what a file cannot hold
        return EncoderDecoderConfig(encoder=encoder, decoder=decoder).to_diff_dict()

    def _other_files(self) -> dict[str, str]:
        return {GENERATION: _generation_file(self.decoder.config, vars(self).get("_generation_config"))}


def _generation_file(config: BertConfig, settings: GenerationConfig | None) -> str:
    """The settings set by the user, or what the configuration says of how to begin, to end and to pad."""
    if settings is not None and hasattr(settings, "to_json_string"):
        return str(settings.to_json_string())
    if settings is not None:
        return json.dumps(settings.to_diff_dict(), indent=2, sort_keys=True) + "\n"
    values = {name: getattr(config, name) for name in sorted(_SPECIAL_TOKENS) if getattr(config, name) is not None}
    return json.dumps({"_from_model_config": True, **values}, indent=2) + "\n"


def _set_generation(model: Any, checkpoint: Checkpoint, given: Any) -> None:
    """Settings for writing: those given, else those of the folder's own file, if there is one."""
    if given is not None:
        model.generation_config = GenerationConfig(**given.to_dict())
    elif checkpoint.state_dict is None and (checkpoint.folder / GENERATION).is_file():
        model.generation_config = GenerationConfig.from_pretrained(checkpoint.folder)


def _two_configs(checkpoint: Checkpoint) -> dict[str, BertConfig]:
    from bertie.checkpoint.weight_files import check_model_type

    configs = {}
    for side in ("encoder", "decoder"):
        values = checkpoint.config.get(side)
        if not isinstance(values, Mapping):
            raise ConfigError(f"{checkpoint.config_file}: {side!r} is {values!r:.80}, not a BERT's configuration.")
        check_model_type(values, f"{checkpoint.config_file} ({side})")
        configs[side] = BertConfig.from_dict(values)
    said = {name: checkpoint.config[name] for name in OF_BOTH if checkpoint.config.get(name) is not None}
    configs["decoder"] = configs["decoder"].replace(**said)
    return configs


def _config(
    cls: type[PretrainedIO],
    checkpoint: Checkpoint,
    given: BertConfig | Mapping[str, object] | Source | None,
    overrides: Values,
) -> tuple[BertConfig, Values]:
    """The configuration, and those of the keywords that are the constructor's arguments."""
    parameters = inspect.signature(cls).parameters
    takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    arguments = {name: overrides.pop(name) for name in parameters if name != "config" and name in overrides}
    made = copy.deepcopy(given) if isinstance(given, BertConfig) else None
    if made is not None:
        values: Mapping[str, Any] = made.extra
    else:
        values = checkpoint.config if given is None else _values_of(given)
        values = dict(values) | _labels(cls, checkpoint, {**values, **overrides})
    known = {"num_labels", *BertConfig(), *cls.config_class(), *values} if overrides else set()
    unknown = {name: overrides.pop(name) for name in list(overrides) if name not in known}
    if takes_any:
        arguments |= unknown
    elif unknown:
        raise ConfigError(
            f"{cls.__name__}.from_pretrained got {', '.join(unknown)}: neither an argument nor a configuration key.",
            "Check the spelling.",
        )
    if made is None:
        made = cls.config_class.from_dict(values, **overrides)
    elif overrides:
        made = made.replace(**overrides)
    return made, arguments


def _values_of(given: Any) -> Mapping[str, Any]:
    """The keys of a dictionary, of another library's configuration, or of the file that is named."""
    if isinstance(given, Mapping):
        return given
    found: Values = given.to_dict() if hasattr(given, "to_dict") else BertConfig.get_config_dict(given)[0]
    return found


def _labels(cls: type, checkpoint: Checkpoint, values: Mapping[str, object]) -> Values:
    """Google's configurations do not say how many labels a classifier has; the classifier does."""
    stated = values.get("num_labels") is not None or values.get("id2label") is not None
    info = None if stated else checkpoint.tensors.info.get("classifier.weight")
    if info is None or "Classification" not in cls.__name__ or len(info.shape) != 2:
        return {}
    return {"num_labels": info.shape[0]}
