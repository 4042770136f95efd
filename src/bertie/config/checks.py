"""What a configuration may hold: limits, the hub's keys, the checks of every field, the reading of nested values."""

from __future__ import annotations

import gc
import json
import math
import operator
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias, TypeGuard, TypeVar, cast

from bertie.arguments import is_whole
from bertie.errors import CheckpointNotFound, ConfigError
from bertie.json_values import members

if TYPE_CHECKING:
    from bertie.config.bert import BertConfig

T = TypeVar("T")
Values: TypeAlias = dict[str, Any]  # the keys of a configuration: JSON

POSITION_TYPES = ("absolute", "relative_key", "relative_key_query")
PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")

# The table itself, with the functions, is in model/activations.py; configs must be readable without torch.
ACTIVATIONS = (
    "gelu", "gelu_new", "gelu_fast", "gelu_10", "gelu_python", "gelu_pytorch_tanh", "gelu_accurate", "quick_gelu",
    "relu", "relu2", "relu6", "leaky_relu", "silu", "swish", "mish", "sigmoid", "tanh", "laplace", "linear",
)  # fmt: skip

# A file that asks for more than this is a mistake or an attack: the largest BERTs have 4e9 parameters.
MAX_PARAMETERS = 10**11
MAX_CONFIG_BYTES = 6 * 2**20  # JSON takes up to twenty times its size in memory
MAX_LABELS = 100_000

# Keys every configuration of the hub's library answers to, with what they are when nobody set them. Most are about
# generating text, which older files keep here; `generate` takes its arguments instead.
DEFAULTS: Values = {
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
PRIVATE: Values = {
    "_name_or_path": "",
    "_commit_hash": None,
    "_attn_implementation_internal": None,
    "_auto_class": None,
}
ALIASES = {
    "torch_dtype": "dtype",
    "name_or_path": "_name_or_path",
    "attn_implementation": "_attn_implementation_internal",
    "_attn_implementation": "_attn_implementation_internal",
}
# Arguments of from_pretrained that say how to fetch the file, and are no keys of it.
FETCHING = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder", "proxies")
WITHOUT_MEANING = (
    "resume_download", "use_auth_token", "trust_remote_code", "user_agent", "_from_auto", "_from_pipeline",
    "from_auto_class",
)  # fmt: skip

_SIZES = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "max_position_embeddings", "type_vocab_size",
)  # fmt: skip
_FLAGS = (
    "use_cache", "is_decoder", "add_cross_attention", "tie_word_embeddings", "output_attentions",
    "output_hidden_states", "return_dict",
)  # fmt: skip


def _is_number(value: object) -> TypeGuard[float]:
    # JSON has whole numbers that no float can hold.
    return is_whole(value) or (isinstance(value, float) and math.isfinite(value))


_CHECK_SIZES = "Check the sizes."
_Rule = tuple[tuple[str, ...], Callable[[object], bool], str]
_FIELDS: tuple[_Rule, ...] = (
    (_SIZES, lambda x: is_whole(x, 1), "a whole number of at least 1"),
    (
        ("hidden_dropout_prob", "attention_probs_dropout_prob"),
        lambda x: _is_number(x) and 0 <= x < 1,
        "a probability, 0 up to (not including) 1",
    ),
    (
        ("classifier_dropout",),
        lambda x: x is None or (_is_number(x) and 0 <= x < 1),
        "a probability, 0 up to (not including) 1",
    ),
    (("initializer_range", "layer_norm_eps"), lambda x: _is_number(x) and 0 <= x <= 1, "a small number, 0 to 1"),
    (_FLAGS, lambda x: x is True or x is False, "true or false"),
    (("chunk_size_feed_forward",), lambda x: is_whole(x, 0), "0 (whole) or a length"),
)


def validate(config: BertConfig) -> None:
    """Raise `ConfigError` for the first field that cannot be."""
    for names, fits, wanted in _FIELDS:
        for name in names:
            value = getattr(config, name)
            if not fits(value):
                raise ConfigError(f"config.{name} is {value!r}; it must be {wanted}.")
    for name in _SIZES:
        if getattr(config, name) > MAX_PARAMETERS:
            raise ConfigError(f"config.{name} is {getattr(config, name)!r:.40}; no BERT is that large.", _CHECK_SIZES)
    if not callable(config.hidden_act) and config.hidden_act not in ACTIVATIONS:
        raise ConfigError(
            f"config.hidden_act is {config.hidden_act!r}, which is not a known activation.",
            f"Use a function, or one of: {', '.join(ACTIVATIONS)}.",
        )
    for name, also, known in (
        ("position_embedding_type", "", POSITION_TYPES),
        ("problem_type", "null or ", PROBLEM_TYPES),
    ):
        value = getattr(config, name)
        if value not in known and not (also and value is None):
            raise ConfigError(f"config.{name} is {value!r}.", f"Use {also}one of: {', '.join(known)}.")
    if config.add_cross_attention and not config.is_decoder:
        raise ConfigError(
            "config.add_cross_attention is true but config.is_decoder is false.",
            "Cross-attention belongs to a decoder: set is_decoder=True as well.",
        )
    pad = config.pad_token_id
    if pad is not None and not is_whole(pad, 0, config.vocab_size - 1):
        raise ConfigError(
            f"config.pad_token_id is {pad!r}; it must be null or an id below config.vocab_size ({config.vocab_size})."
        )
    _validate_pruned_heads(config)
    _validate_intermediate_sizes(config)
    layer = config.hidden_size * (4 * config.hidden_size + 2 * config.intermediate_size)
    rows = config.vocab_size + config.max_position_embeddings + config.type_vocab_size
    if (parameters := config.num_hidden_layers * layer + rows * config.hidden_size) > MAX_PARAMETERS:
        raise ConfigError(
            f"config describes about {parameters:.1e} parameters (hidden_size {config.hidden_size}, "
            f"num_hidden_layers {config.num_hidden_layers}, intermediate_size {config.intermediate_size}, "
            f"vocab_size {config.vocab_size}); no BERT is that large.",
            _CHECK_SIZES,
        )


def validate_heads(config: BertConfig) -> None:
    """That a model can be built: Google's configurations, and tests of them, exist with widths that no model has."""
    if config.hidden_size % config.num_attention_heads:
        raise ConfigError(
            f"config.hidden_size ({config.hidden_size}) is not a multiple of "
            f"config.num_attention_heads ({config.num_attention_heads}).",
            "Every head gets an equal share of the width.",
        )


def _validate_pruned_heads(config: BertConfig) -> None:
    if any(layer < 0 for layer in config.pruned_heads):
        config.pruned_heads = from_the_start(config.pruned_heads, config.num_hidden_layers)
    for layer, heads in config.pruned_heads.items():
        if not 0 <= layer < config.num_hidden_layers:
            raise ConfigError(
                f"config.pruned_heads names layer {layer}; layers are 0 to {config.num_hidden_layers - 1}."
            )
        wrong = [head for head in heads if not 0 <= head < config.num_attention_heads]
        if wrong:
            raise ConfigError(
                f"config.pruned_heads names head {wrong[0]} of layer {layer}; "
                f"heads are 0 to {config.num_attention_heads - 1}."
            )


def _validate_intermediate_sizes(config: BertConfig) -> None:
    sizes, most = config.intermediate_sizes, config.intermediate_size
    if sizes is None:
        return
    if not isinstance(sizes, list) or not all(is_whole(size, 0, most) for size in sizes):
        raise ConfigError(
            f"config.intermediate_sizes is {sizes!r:.200}; it must be a list of whole numbers from 0 to "
            f"config.intermediate_size ({most}), one for each layer."
        )
    if len(sizes) != config.num_hidden_layers:
        raise ConfigError(
            f"config.intermediate_sizes has {len(sizes)} numbers; config.num_hidden_layers is "
            f"{config.num_hidden_layers}.",
            "Give one for each layer.",
        )


def read_json_object(path: str | os.PathLike[str]) -> Values:
    """A JSON file that must hold one object; every way it can fail is a typed error that names the file."""
    path = Path(path)
    if not path.is_file():
        raise CheckpointNotFound(f"{path} is not a file.", "Give the folder of a checkpoint, or its config.json.")
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise ConfigError(f"{path} is {path.stat().st_size} bytes; a configuration is far smaller.")
    collecting = gc.isenabled()
    gc.disable()  # a million small objects, all kept, would set the collector off again and again
    try:
        values = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise ConfigError(f"{path} is not valid JSON: {reason}.", "Fetch the file again.") from None
    finally:
        if collecting:
            gc.enable()
    if (found := members(values)) is None:
        raise ConfigError(f"{path} holds a JSON {type(values).__name__}, not an object of keys and values.")
    return found


def plain_int(value: T) -> T | int:
    """NumPy's whole numbers, which counting labels often gives, as Python's; everything else as it is."""
    if isinstance(value, int):
        return value
    try:
        return operator.index(cast("SupportsIndex", value))  # what it raises for others is what we ask
    except TypeError:
        return value


def checked_num_labels(value: object) -> int:
    if value is None:
        return 2
    value = plain_int(value)
    if not is_whole(value, 1, MAX_LABELS):
        raise ConfigError(
            f"config.num_labels is {value!r:.40}; it must be a whole number, at least 1 and at most {MAX_LABELS:,}."
        )
    return int(value)


def read_labels(value: Any) -> dict[int, str]:
    """`id2label` with its keys made whole numbers (JSON has only string keys)."""
    try:
        labels = {int(key): str(label) for key, label in value.items()}
    except (AttributeError, TypeError, ValueError, OverflowError):
        raise ConfigError(f"config.id2label is {value!r:.200}; it must be an object {{id: label}}.") from None
    if not labels:
        raise ConfigError("config.id2label is empty.", "Name at least one label, or leave it out.")
    return labels


def read_label_ids(value: Any) -> dict[str, int]:
    try:
        return {str(label): int(i) for label, i in value.items()}
    except (AttributeError, TypeError, ValueError, OverflowError):
        raise ConfigError(f"config.label2id is {value!r:.200}; it must be an object {{label: id}}.") from None


def from_the_start(pruned: dict[int, list[int]], num_layers: int) -> dict[int, list[int]]:
    """The same with every layer counted from the first: −1 is the last one, as in a list."""
    found: dict[int, list[int]] = {}
    for layer, heads in pruned.items():
        number = layer + num_layers if -num_layers <= layer < 0 else layer
        found[number] = sorted({*found.get(number, []), *heads})
    return found


def read_pruned_heads(value: Any, name: str = "config.pruned_heads") -> dict[int, list[int]]:
    """`{layer: [heads]}` with everything in it made whole numbers."""
    try:
        return {int(layer): sorted({int(head) for head in heads}) for layer, heads in value.items()}
    except (AttributeError, TypeError, ValueError, OverflowError):
        raise ConfigError(f"{name} is {value!r:.200}; it must be an object {{layer: [heads]}}.") from None


def like(old: object, name: str, text: str) -> object:
    words = {"true": True, "1": True, "y": True, "yes": True, "false": False, "0": False, "n": False, "no": False}
    try:
        if old is True or old is False:
            return words[text.lower()]
        if isinstance(old, int | float | str):
            return type(old)(text)
    except (KeyError, ValueError):
        raise ConfigError(f"config.{name} is {old!r} and cannot be set to {text!r}: another kind of value.") from None
    raise ConfigError(f"config.{name} is {old!r:.80}; only numbers, texts, true and false are set by a string.")
