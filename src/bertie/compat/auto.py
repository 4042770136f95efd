"""The hub's `Auto…` names, for scripts that import them: `from bertie import AutoTokenizer, AutoModelForMaskedLM`.

On the hub these choose among hundreds of architectures by config.json's `model_type`. Here they choose among BERT and
its relatives, and a checkpoint of another architecture is refused by its name. `bertie.load` chooses the head.
`bertie.register()` is for the other direction: transformers' own `Auto…` classes, giving Bertie's models.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import bertie  # its names are imported when they are first used: a tokenizer needs no torch, a model no tokenizer
from bertie.checkpoint.find_checkpoint import read_config
from bertie.checkpoint.weight_files import check_model_type
from bertie.config import BertConfig
from bertie.config.checks import FETCHING
from bertie.config.relatives import MODEL_TYPES
from bertie.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from bertie.model import *  # noqa: F403
    from bertie.text import BertTokenizer

M = TypeVar("M", bound="bertie.BertPreTrainedModel")


class _Auto:
    def __init__(self, *arguments: object, **options: object) -> None:
        name = type(self).__name__
        raise ConfigError(f"{name} only has class methods; it has no instances.", f"Call {name}.from_pretrained('…').")


class AutoConfig(_Auto):
    """Stands for `BertConfig`, or for a relative's configuration."""

    @staticmethod
    def for_model(model_type: str, *arguments: object, **options: object) -> BertConfig:
        """A new configuration: `AutoConfig.for_model("bert", hidden_size=128)`."""
        return _config_class(model_type, "AutoConfig.for_model")(*arguments, **options)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike[str], **options: Any) -> BertConfig:
        """The configuration of a folder, a file or a hub name; further keywords change it."""
        options.pop("code_revision", None)
        values, changes = BertConfig.get_config_dict(pretrained_model_name_or_path, **options)
        check_model_type(values, pretrained_model_name_or_path, wanted=None)
        found = _config_class(values.get("model_type"), "AutoConfig.from_pretrained")
        return found.from_dict(values, name_or_path=os.fspath(pretrained_model_name_or_path), **changes)


class AutoTokenizer(_Auto):
    """Stands for `BertTokenizerFast`, or with `use_fast=False` for `BertTokenizerSlow`."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike[str], **options: Any) -> BertTokenizer:
        """The tokenizer of a checkpoint; the arguments are those of `BertTokenizer.from_pretrained`."""
        chosen = tokenizer_class(options)
        options.pop("trust_remote_code", None)  # a permission, and there is no code to run
        config, named = options.pop("config", None), options.pop("tokenizer_type", None)
        _config_class(named or getattr(config, "model_type", None), "AutoTokenizer.from_pretrained")
        return chosen.from_pretrained(pretrained_model_name_or_path, **options)  # type: ignore[arg-type]


class _AutoModel(_Auto, Generic[M]):
    """Stands for the class with this head of BERT or a relative; `config.json` says of which (`model_type`)."""

    _model: str

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | os.PathLike[str] | None, *model_args: Any, **options: Any
    ) -> M:
        """The model of a checkpoint; the arguments are those of `BertModel.from_pretrained`."""
        made = cls._class()
        config = options.get("config")
        if isinstance(config, BertConfig):
            made = cls._class(config.model_type)
        elif pretrained_model_name_or_path is not None and config is None:
            fetching = {name: options[name] for name in FETCHING if options.get(name) is not None}
            with suppress(CheckpointError):  # what is wrong with it is said when it is loaded
                made = cls._class(read_config(pretrained_model_name_or_path, **fetching).get("model_type"))
        return made.from_pretrained(pretrained_model_name_or_path, *model_args, **options)

    @classmethod
    def from_config(cls, config: Any, **options: Any) -> M:
        """A new model with fresh weights; `dtype` and `attn_implementation` as in `from_pretrained`."""
        for name in ("trust_remote_code", "code_revision"):
            options.pop(name, None)
        if not isinstance(config, BertConfig):  # transformers' own, say from its CONFIG_MAPPING
            kind = getattr(config, "model_type", type(config).__name__)
            config = _config_class(kind, f"{cls.__name__}.from_config").from_dict(config.to_dict())
        return cls._class(config.model_type)._from_config(config, **options)

    @classmethod
    def _class(cls, model_type: object = None) -> type[M]:
        """The class that is to this model_type what the named one is to BERT."""
        found: type[M] = getattr(bertie, cls._model)
        if model_type in (None, found.config_class.model_type):
            return found
        from bertie import family  # a tokenizer needs none of it

        return cast("type[M]", family.related(found, model_type))


class AutoModel(_AutoModel["BertModel"]):
    _model = "BertModel"


class AutoModelForTextEncoding(_AutoModel["BertModel"]):
    _model = "BertModel"


class AutoModelForPreTraining(_AutoModel["BertForPreTraining"]):
    _model = "BertForPreTraining"


class AutoModelForCausalLM(_AutoModel["BertLMHeadModel"]):
    _model = "BertLMHeadModel"


class AutoModelForMaskedLM(_AutoModel["BertForMaskedLM"]):
    _model = "BertForMaskedLM"


class AutoModelForNextSentencePrediction(_AutoModel["BertForNextSentencePrediction"]):
    _model = "BertForNextSentencePrediction"


class AutoModelForSequenceClassification(_AutoModel["BertForSequenceClassification"]):
    _model = "BertForSequenceClassification"


class AutoModelForMultipleChoice(_AutoModel["BertForMultipleChoice"]):
    _model = "BertForMultipleChoice"


class AutoModelForTokenClassification(_AutoModel["BertForTokenClassification"]):
    _model = "BertForTokenClassification"


class AutoModelForQuestionAnswering(_AutoModel["BertForQuestionAnswering"]):
    _model = "BertForQuestionAnswering"


MODELS = {auto.__name__: auto._model for auto in _AutoModel.__subclasses__()}


def tokenizer_class(options: dict[str, Any]) -> type[BertTokenizer]:
    """The one that `use_fast`, which is taken out of the options, asks for."""
    from bertie.text import BertTokenizerFast, BertTokenizerSlow

    return BertTokenizerSlow if options.pop("use_fast", True) is False else BertTokenizerFast


def _config_class(model_type: object, call: str) -> type[BertConfig]:
    if model_type in (None, BertConfig.model_type):
        return BertConfig
    if model_type not in MODEL_TYPES:
        raise ConfigError(
            f"{call} was given a {model_type!r}; Bertie has models of {', '.join(MODEL_TYPES)}.",
            f"For other models call transformers' own {call}.",
        )
    from bertie import family

    return family.config_class(model_type)
