"""`bertie.register()`: transformers' `Auto…` classes give Bertie's for BERT and its relatives, until what it returns is
called.

    undo = bertie.register()
    AutoModelForMaskedLM.from_pretrained("bert-base-uncased")      # a bertie.BertForMaskedLM
    pipeline("fill-mask", model="bert-base-uncased")               # runs on it
    undo()

Models and configurations go through transformers' own registration. A tokenizer cannot: its class is looked up by the
name in tokenizer_config.json, transformers' classes first. So `AutoTokenizer.from_pretrained` is exchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import bertie
from bertie import family
from bertie.compat.auto import MODELS, tokenizer_class
from bertie.config.relatives import MODEL_TYPES
from bertie.errors import BertieError, InputError, MissingExtra
from bertie.text.kinds import KINDS

_FETCHING = ("subfolder", "revision", "cache_dir", "local_files_only", "token", "force_download")


def register() -> Callable[[], None]:
    """Let transformers' Auto classes give Bertie's models, configurations and tokenizers for BERT and its relatives.

    Calling what is returned takes it back. Objects made in between stay what they are.
    """
    try:
        import transformers
    except ImportError:
        raise MissingExtra("transformers", "compat", "bertie.register()") from None
    from bertie.compat.auto_config import CONFIGS

    registered = [getattr(transformers, name) for name in MODELS if hasattr(transformers, name)]
    for model_type, config in CONFIGS.items():
        transformers.AutoConfig.register(model_type, config, exist_ok=True)
        for auto in registered:
            with suppress(InputError):  # a relative that has no such head
                model = family.related(getattr(bertie, MODELS[auto.__name__]), model_type)
                for either in (config, model.config_class):
                    auto.register(either, model, exist_ok=True)
    original = vars(transformers.AutoTokenizer)["from_pretrained"]
    _exchange(transformers, classmethod(_tokenizer_or(original.__func__)))

    def undo() -> None:
        for model_type, config in CONFIGS.items():
            transformers.models.auto.configuration_auto.CONFIG_MAPPING._extra_content.pop(model_type, None)
            for auto in registered:
                for either in (config, family.config_class(model_type)):
                    auto._model_mapping._extra_content.pop(either, None)
        _exchange(transformers, original)

    return undo


def _exchange(transformers: ModuleType, method: object) -> None:
    transformers.AutoTokenizer.from_pretrained = method


def _tokenizer_or(original: Callable[..., object]) -> Callable[..., object]:
    """`AutoTokenizer.from_pretrained` that gives a `bertie.BertTokenizerFast` where Bertie knows the tokenizer."""

    def from_pretrained(cls: type, pretrained_model_name_or_path: str | Path, *inputs: Any, **options: Any) -> object:
        if inputs or not _is_known(pretrained_model_name_or_path, options):
            return original(cls, pretrained_model_name_or_path, *inputs, **options)
        chosen = tokenizer_class(options)
        for name in ("config", "trust_remote_code", "tokenizer_type", "_from_pipeline", "_commit_hash"):
            options.pop(name, None)
        options = {name: value for name, value in options.items() if value is not None}
        return chosen.from_pretrained(pretrained_model_name_or_path, **options)

    return from_pretrained


def _is_known(source: str | Path, options: dict[str, Any]) -> bool:
    """Whether the tokenizer is of a kind that Bertie reads, and its model BERT or a relative."""
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    from bertie.checkpoint.find_checkpoint import read_config

    if options.get("tokenizer_type") not in (None, *MODEL_TYPES):
        return False
    fetching = {name: options[name] for name in _FETCHING if options.get(name) is not None}
    stated = get_tokenizer_config(source, **fetching).get("tokenizer_class")
    if stated is not None and str(stated).removesuffix("Fast") not in KINDS:
        return False
    if options.get("config") is not None:
        return getattr(options["config"], "model_type", None) in MODEL_TYPES
    try:
        return read_config(source, **fetching).get("model_type", "bert") in MODEL_TYPES
    except BertieError:  # a tokenizer by itself
        return stated is not None
