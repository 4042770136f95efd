"""`BertConfig`: the numbers that make one BERT different from another.

The keys and defaults are those of a hub `config.json` with `model_type: "bert"`; Google's `bert_config.json` uses the
same names for the subset it has. A key we do not know is kept and written back, never interpreted: nothing in a
config file can name code to run.

Sources: Devlin et al. 2018 (https://arxiv.org/abs/1810.04805) for the architecture, Turc et al. 2019
(https://arxiv.org/abs/1908.08962) for the small presets.
"""

from __future__ import annotations

import gc
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from bertie.errors import CheckpointNotFound, ConfigError

POSITION_TYPES = ("absolute", "relative_key", "relative_key_query")
PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")

# The table itself, with the functions, is in model/activations.py; configs must be readable without torch.
ACTIVATIONS = (
    "gelu", "gelu_new", "gelu_fast", "gelu_10", "gelu_python", "gelu_pytorch_tanh", "gelu_accurate", "quick_gelu",
    "relu", "relu2", "relu6", "leaky_relu", "silu", "swish", "mish", "sigmoid", "tanh", "laplace", "linear",
)  # fmt: skip

# name: (layers, width); a head is 64 wide and the feed-forward layer four times the width, as in the papers
PRESETS = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}

# A file that asks for more than this is a mistake or an attack: the largest BERTs have 4e9 parameters.
MAX_PARAMETERS = 10**11
MAX_CONFIG_BYTES = 6 * 2**20  # JSON takes up to twenty times its size in memory
MAX_LABELS = 100_000


@dataclass(kw_only=True)
class BertConfig:
    """The hub's configuration keys, validated.

    >>> BertConfig.preset("tiny", vocab_size=1000).num_attention_heads
    2
    """

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str | Callable[..., Any] = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int | None = 0
    position_embedding_type: str = "absolute"
    use_cache: bool = True
    classifier_dropout: float | None = None
    is_decoder: bool = False
    add_cross_attention: bool = False
    chunk_size_feed_forward: int = 0
    pruned_heads: dict[int, list[int]] = field(default_factory=dict)
    tie_word_embeddings: bool = True
    num_labels: int = None  # type: ignore[assignment]  # resolved with id2label below; 2 when neither is given
    id2label: dict[int, str] = None  # type: ignore[assignment]
    label2id: dict[str, int] = None  # type: ignore[assignment]
    problem_type: str | None = None
    output_attentions: bool = False
    output_hidden_states: bool = False
    return_dict: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    decoder_start_token_id: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)  # unknown keys of the file, kept for writing back

    def __post_init__(self) -> None:
        self.pruned_heads = read_pruned_heads(self.pruned_heads or {})
        if self.id2label is not None:
            labels = _read_labels(self.id2label)
            if self.num_labels is not None and self.num_labels != len(labels):
                raise ConfigError(
                    f"config.num_labels ({self.num_labels}) differs from the {len(labels)} entries of config.id2label.",
                    "Give one of the two, or make them agree.",
                )
            self.__dict__["id2label"] = labels
        else:
            self.__dict__["id2label"] = {i: f"LABEL_{i}" for i in range(_checked_num_labels(self.num_labels))}
        self.__dict__["num_labels"] = len(self.id2label)
        if self.label2id is None:
            self.label2id = {label: i for i, label in self.id2label.items()}
        else:
            self.label2id = _read_label_ids(self.label2id)
        self.__dict__["_made"] = True
        self.validate()

    # -- labels stay in step: setting one of num_labels / id2label rewrites the other two --------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        if "_made" in self.__dict__ and name in ("num_labels", "id2label"):
            if name == "num_labels":
                labels = {i: f"LABEL_{i}" for i in range(_checked_num_labels(value))}
            else:
                labels = _read_labels(value)
            labels_by_name = {label: i for i, label in labels.items()}
            self.__dict__.update(num_labels=len(labels), id2label=labels, label2id=labels_by_name)
        else:
            self.__dict__[name] = value

    def __getattr__(self, name: str) -> Any:
        # Only reached for names that are not fields: the file's own extra keys read like the others.
        extra = self.__dict__.get("extra", {})
        if name in extra:
            return extra[name]
        raise AttributeError(f"BertConfig has no field '{name}'")

    # -- derived -----------------------------------------------------------------------------------------------------

    @property
    def attention_head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def head_dropout(self) -> float:
        """Dropout before a classifier: `classifier_dropout`, or `hidden_dropout_prob` when that is not set."""
        return self.hidden_dropout_prob if self.classifier_dropout is None else self.classifier_dropout

    # -- making and changing -----------------------------------------------------------------------------------------

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> BertConfig:
        """One of the published sizes: tiny, mini, small, medium, base, large."""
        if name not in PRESETS:
            raise ConfigError(f"No preset is called {name!r}.", f"There are: {', '.join(PRESETS)}.")
        layers, width = PRESETS[name]
        sizes = {
            "num_hidden_layers": layers,
            "hidden_size": width,
            "num_attention_heads": width // 64,
            "intermediate_size": 4 * width,
        }
        return cls.from_dict(sizes | overrides)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], **overrides: Any) -> BertConfig:
        """Build from a file's keys; `overrides` win. Unknown keys go to `extra`."""
        merged = dict(values) | overrides
        model_type = merged.pop("model_type", "bert")
        if model_type != "bert":
            raise ConfigError(
                f"config.model_type is {model_type!r}: this is not a BERT.", "Bertie reads model_type 'bert' only."
            )
        if "num_labels" in overrides and "id2label" not in overrides:
            # The file's labels describe another head; the caller's count wins.
            if values.get("id2label") is not None and len(values["id2label"]) != overrides["num_labels"]:
                merged.pop("id2label", None)
                merged.pop("label2id", None)
        elif "id2label" in overrides:
            merged.pop("num_labels", None)
            if "label2id" not in overrides:
                merged.pop("label2id", None)
        elif merged.get("id2label") is not None:
            merged.pop("num_labels", None)  # written by some tools beside id2label; the labels themselves are the truth
        names = {f.name for f in fields(cls)} - {"extra"}
        known = {key: value for key, value in merged.items() if key in names}
        unknown = {key: value for key, value in merged.items() if key not in names}
        return cls(**known, extra=unknown)

    @classmethod
    def from_json_file(cls, path: str | os.PathLike[str], **overrides: Any) -> BertConfig:
        """Read a hub `config.json` or Google's `bert_config.json`."""
        return cls.from_dict(read_json_object(path), **overrides)

    def replace(self, **changes: Any) -> BertConfig:
        """A changed, re-validated copy."""
        return BertConfig.from_dict(self.to_dict(), **changes)

    # -- writing -----------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The keys of a hub `config.json`. Fields outside the hub's usual set appear only when they are not default."""
        values: dict[str, Any] = {"model_type": "bert"}
        for f in fields(self):
            if f.name in ("extra", "num_labels", "label2id"):
                continue
            value = getattr(self, f.name)
            if f.name == "id2label":
                default_labels = {i: f"LABEL_{i}" for i in range(2)}
                if value != default_labels or self.label2id != {v: k for k, v in value.items()}:
                    values["id2label"] = dict(value)
                    values["label2id"] = dict(self.label2id)
                continue
            default = f.default_factory() if f.default_factory is not MISSING else f.default
            if f.name in _ALWAYS_WRITTEN or value != default:
                values[f.name] = value
        return values | self.extra

    def to_json(self) -> str:
        if callable(self.hidden_act):
            raise ConfigError(
                f"config.hidden_act is the function {self.hidden_act!r}, which a file cannot hold.",
                f"Set config.hidden_act to one of the names: {', '.join(ACTIVATIONS)}.",
            )
        return json.dumps(self.to_dict(), indent=2, sort_keys=True, default=str) + "\n"

    def to_json_file(self, path: str | os.PathLike[str]) -> None:
        Path(path).write_text(self.to_json(), encoding="utf-8")

    def to_google_dict(self) -> dict[str, Any]:
        """The keys Google's `bert_config.json` has."""
        return {name: getattr(self, name) for name in _GOOGLE_KEYS}

    # -- checking ----------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Raise `ConfigError` for the first field that cannot be; models call this again before they are built."""
        for name in _SIZES:
            value = getattr(self, name)
            if not _is_int(value) or value < 1:
                raise ConfigError(f"config.{name} is {value!r}; it takes a whole number of at least 1.")
            if value > MAX_PARAMETERS:
                raise ConfigError(f"config.{name} is {value!r:.40}; no BERT is that large.", "Check the sizes.")
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"):
            value = getattr(self, name)
            if value is None and name == "classifier_dropout":
                continue
            if not _is_number(value) or not 0 <= value < 1:
                raise ConfigError(f"config.{name} is {value!r}; it takes a probability, 0 up to (not including) 1.")
        for name in ("initializer_range", "layer_norm_eps"):
            value = getattr(self, name)
            if not _is_number(value) or not 0 <= value < 1:
                raise ConfigError(f"config.{name} is {value!r}; it takes a small number, 0 up to 1.")
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"config.{name} is {getattr(self, name)!r}; it takes true or false.")
        if not _is_int(self.chunk_size_feed_forward) or self.chunk_size_feed_forward < 0:
            raise ConfigError(
                f"config.chunk_size_feed_forward is {self.chunk_size_feed_forward!r}; it takes 0 (whole) or a length."
            )
        if self.hidden_size % self.num_attention_heads:
            raise ConfigError(
                f"config.hidden_size ({self.hidden_size}) is not a multiple of "
                f"config.num_attention_heads ({self.num_attention_heads}).",
                "Every head gets an equal share of the width.",
            )
        if not callable(self.hidden_act) and self.hidden_act not in ACTIVATIONS:
            raise ConfigError(
                f"config.hidden_act is {self.hidden_act!r}, which is not a known activation.",
                f"It takes a function, or one of: {', '.join(ACTIVATIONS)}.",
            )
        if self.position_embedding_type not in POSITION_TYPES:
            raise ConfigError(
                f"config.position_embedding_type is {self.position_embedding_type!r}.",
                f"It takes one of: {', '.join(POSITION_TYPES)}.",
            )
        if self.problem_type is not None and self.problem_type not in PROBLEM_TYPES:
            raise ConfigError(
                f"config.problem_type is {self.problem_type!r}.",
                f"It takes null or one of: {', '.join(PROBLEM_TYPES)}.",
            )
        if self.add_cross_attention and not self.is_decoder:
            raise ConfigError(
                "config.add_cross_attention is true but config.is_decoder is false.",
                "Cross-attention belongs to a decoder: set is_decoder=True as well.",
            )
        if self.pad_token_id is not None and (
            not _is_int(self.pad_token_id) or not 0 <= self.pad_token_id < self.vocab_size
        ):
            raise ConfigError(
                f"config.pad_token_id is {self.pad_token_id!r}; it takes null or an id below "
                f"config.vocab_size ({self.vocab_size})."
            )
        self._validate_pruned_heads()
        if self._parameter_estimate() > MAX_PARAMETERS:
            raise ConfigError(
                f"config describes about {self._parameter_estimate():.1e} parameters (hidden_size {self.hidden_size}, "
                f"num_hidden_layers {self.num_hidden_layers}, intermediate_size {self.intermediate_size}, "
                f"vocab_size {self.vocab_size}); no BERT is that large.",
                "Check the sizes.",
            )

    def _validate_pruned_heads(self) -> None:
        for layer, heads in self.pruned_heads.items():
            if not 0 <= layer < self.num_hidden_layers:
                raise ConfigError(
                    f"config.pruned_heads names layer {layer}; layers are 0 to {self.num_hidden_layers - 1}."
                )
            wrong = [head for head in heads if not 0 <= head < self.num_attention_heads]
            if wrong:
                raise ConfigError(
                    f"config.pruned_heads names head {wrong[0]} of layer {layer}; "
                    f"heads are 0 to {self.num_attention_heads - 1}."
                )

    def _parameter_estimate(self) -> int:
        layer = self.hidden_size * (4 * self.hidden_size + 2 * self.intermediate_size)
        rows = self.vocab_size + self.max_position_embeddings + self.type_vocab_size
        return self.num_hidden_layers * layer + rows * self.hidden_size


_SIZES = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "max_position_embeddings", "type_vocab_size",
)  # fmt: skip
_FLAGS = (
    "use_cache", "is_decoder", "add_cross_attention", "tie_word_embeddings", "output_attentions",
    "output_hidden_states", "return_dict",
)  # fmt: skip
_GOOGLE_KEYS = (
    "attention_probs_dropout_prob", "hidden_act", "hidden_dropout_prob", "hidden_size", "initializer_range",
    "intermediate_size", "max_position_embeddings", "num_attention_heads", "num_hidden_layers", "type_vocab_size",
    "vocab_size",
)  # fmt: skip
_ALWAYS_WRITTEN = frozenset(_GOOGLE_KEYS) | {
    "layer_norm_eps", "pad_token_id", "position_embedding_type", "use_cache", "classifier_dropout",
}  # fmt: skip


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


def _checked_num_labels(value: Any) -> int:
    if value is None:
        return 2
    if not _is_int(value) or not 1 <= value <= MAX_LABELS:
        raise ConfigError(
            f"config.num_labels is {value!r:.40}; it takes a whole number, at least 1 and at most {MAX_LABELS:,}."
        )
    return int(value)


def _read_labels(value: Any) -> dict[int, str]:
    """`id2label` with its keys made whole numbers (JSON has only string keys)."""
    try:
        labels = {int(key): str(label) for key, label in value.items()}
    except (AttributeError, TypeError, ValueError, OverflowError):
        raise ConfigError(f"config.id2label is {value!r:.200}; it takes an object {{id: label}}.") from None
    if not labels:
        raise ConfigError("config.id2label is empty.", "Name at least one label, or leave it out.")
    return labels


def _read_label_ids(value: Any) -> dict[str, int]:
    try:
        return {str(label): int(i) for label, i in value.items()}
    except (AttributeError, TypeError, ValueError, OverflowError):
        raise ConfigError(f"config.label2id is {value!r:.200}; it takes an object {{label: id}}.") from None


def read_pruned_heads(value: Any, name: str = "config.pruned_heads") -> dict[int, list[int]]:
    """`{layer: [heads]}` with everything in it made whole numbers."""
    try:
        return {int(layer): sorted({int(head) for head in heads}) for layer, heads in value.items()}
    except (AttributeError, TypeError, ValueError, OverflowError):
        raise ConfigError(f"{name} is {value!r:.200}; it takes an object {{layer: [heads]}}.") from None
