"""What a configuration may hold: limits, the checks of every field, and the reading of files and of nested values."""

from __future__ import annotations

import gc
import json
import math
import operator
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertie.errors import CheckpointNotFound, ConfigError

if TYPE_CHECKING:
    from bertie.config.bert import BertConfig

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

_SIZES = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "max_position_embeddings", "type_vocab_size",
)  # fmt: skip
_FLAGS = (
    "use_cache", "is_decoder", "add_cross_attention", "tie_word_embeddings", "output_attentions",
    "output_hidden_states", "return_dict",
)  # fmt: skip


def validate(config: BertConfig) -> None:
    """Raise `ConfigError` for the first field that cannot be."""
    for name in _SIZES:
        value = getattr(config, name)
        if not _is_int(value) or value < 1:
            raise ConfigError(f"config.{name} is {value!r}; it takes a whole number of at least 1.")
        if value > MAX_PARAMETERS:
            raise ConfigError(f"config.{name} is {value!r:.40}; no BERT is that large.", "Check the sizes.")
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"):
        value = getattr(config, name)
        if value is None and name == "classifier_dropout":
            continue
        if not _is_number(value) or not 0 <= value < 1:
            raise ConfigError(f"config.{name} is {value!r}; it takes a probability, 0 up to (not including) 1.")
    for name in ("initializer_range", "layer_norm_eps"):
        value = getattr(config, name)
        if not _is_number(value) or not 0 <= value <= 1:
            raise ConfigError(f"config.{name} is {value!r}; it takes a small number, 0 to 1.")
    for name in _FLAGS:
        if not isinstance(getattr(config, name), bool):
            raise ConfigError(f"config.{name} is {getattr(config, name)!r}; it takes true or false.")
    if not _is_int(config.chunk_size_feed_forward) or config.chunk_size_feed_forward < 0:
        raise ConfigError(
            f"config.chunk_size_feed_forward is {config.chunk_size_feed_forward!r}; it takes 0 (whole) or a length."
        )
    if not callable(config.hidden_act) and config.hidden_act not in ACTIVATIONS:
        raise ConfigError(
            f"config.hidden_act is {config.hidden_act!r}, which is not a known activation.",
            f"It takes a function, or one of: {', '.join(ACTIVATIONS)}.",
        )
    if config.position_embedding_type not in POSITION_TYPES:
        raise ConfigError(
            f"config.position_embedding_type is {config.position_embedding_type!r}.",
            f"It takes one of: {', '.join(POSITION_TYPES)}.",
        )
    if config.problem_type is not None and config.problem_type not in PROBLEM_TYPES:
        raise ConfigError(
            f"config.problem_type is {config.problem_type!r}.",
            f"It takes null or one of: {', '.join(PROBLEM_TYPES)}.",
        )
    if config.add_cross_attention and not config.is_decoder:
        raise ConfigError(
            "config.add_cross_attention is true but config.is_decoder is false.",
            "Cross-attention belongs to a decoder: set is_decoder=True as well.",
        )
    if config.pad_token_id is not None and (
        not _is_int(config.pad_token_id) or not 0 <= config.pad_token_id < config.vocab_size
    ):
        raise ConfigError(
            f"config.pad_token_id is {config.pad_token_id!r}; it takes null or an id below "
            f"config.vocab_size ({config.vocab_size})."
        )
    _validate_pruned_heads(config)
    if _parameter_estimate(config) > MAX_PARAMETERS:
        raise ConfigError(
            f"config describes about {_parameter_estimate(config):.1e} parameters (hidden_size {config.hidden_size}, "
            f"num_hidden_layers {config.num_hidden_layers}, intermediate_size {config.intermediate_size}, "
            f"vocab_size {config.vocab_size}); no BERT is that large.",
            "Check the sizes.",
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


def _parameter_estimate(config: BertConfig) -> int:
    layer = config.hidden_size * (4 * config.hidden_size + 2 * config.intermediate_size)
    rows = config.vocab_size + config.max_position_embeddings + config.type_vocab_size
    return config.num_hidden_layers * layer + rows * config.hidden_size


def read_json_object(path: str | os.PathLike[str]) -> dict[str, Any]:
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
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds a JSON {type(values).__name__}, not an object of keys and values.")
    return values


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    # JSON has whole numbers that no float can hold.
    return _is_int(value) or (isinstance(value, float) and math.isfinite(value))


def plain_int(value: Any) -> Any:
    """NumPy's whole numbers, which counting labels often gives, as Python's; everything else as it is."""
    if isinstance(value, bool | int | float | str) or not hasattr(type(value), "__index__"):
        return value
    try:
        return operator.index(value)
    except TypeError:  # an array of several
        return value


def checked_num_labels(value: Any) -> int:
    if value is None:
        return 2
    value = plain_int(value)
    if not _is_int(value) or not 1 <= value <= MAX_LABELS:
        raise ConfigError(
            f"config.num_labels is {value!r:.40}; it takes a whole number, at least 1 and at most {MAX_LABELS:,}."
        )
    return int(value)


def read_labels(value: Any) -> dict[int, str]:
    """`id2label` with its keys made whole numbers (JSON has only string keys)."""
    try:
        labels = {int(key): str(label) for key, label in value.items()}
    except (AttributeError, TypeError, ValueError, OverflowError):
        raise ConfigError(f"config.id2label is {value!r:.200}; it takes an object {{id: label}}.") from None
    if not labels:
        raise ConfigError("config.id2label is empty.", "Name at least one label, or leave it out.")
    return labels


def read_label_ids(value: Any) -> dict[str, int]:
    try:
        return {str(label): int(i) for label, i in value.items()}
    except (AttributeError, TypeError, ValueError, OverflowError):
        raise ConfigError(f"config.label2id is {value!r:.200}; it takes an object {{label: id}}.") from None


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
        raise ConfigError(f"{name} is {value!r:.200}; it takes an object {{layer: [heads]}}.") from None
