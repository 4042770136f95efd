"""The class itself: the fields with their defaults, reading and writing, and the methods that code for the hub calls.

The keys and defaults are those of a hub `config.json` with `model_type: "bert"`; Google's `bert_config.json` uses the
same names for the subset it has. A key we do not know is kept and written back, never interpreted: nothing in a
config file can name code to run.

Sources: Devlin et al. 2018 (https://arxiv.org/abs/1810.04805) for the architecture, Turc et al. 2019
(https://arxiv.org/abs/1908.08962) for the small presets.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Self, cast

from bertie.config import checks
from bertie.config.checks import ALIASES, DEFAULTS, FETCHING, PRIVATE, WITHOUT_MEANING, Values
from bertie.errors import ConfigError
from bertie.json_values import text

# name: (layers, width); a head is 64 wide and the feed-forward layer four times the width, as in the papers
PRESETS = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}
_RESOLVED: Any = None  # the default of fields that a constructor fills in


@dataclass(init=False, repr=False)
class BertConfig:
    """The hub's configuration keys, validated. Other keywords, and attributes set later, are kept and saved too.

    >>> BertConfig.preset("tiny", vocab_size=1000).num_attention_heads
    2
    >>> BertConfig(num_labels=3, my_key="mine").my_key
    'mine'
    """

    model_type: ClassVar[str] = "bert"
    attribute_map: ClassVar[dict[str, str]] = {}  # a subclass may give fields further names: {"n_embd": "hidden_size"}
    sub_configs: ClassVar[Values] = {}
    base_config_key: ClassVar[str] = ""
    has_no_defaults_at_init: ClassVar[bool] = False
    is_composition: ClassVar[bool] = False
    keys_to_ignore_at_inference: ClassVar[list[str]] = []
    base_model_tp_plan: ClassVar[None] = None
    base_model_pp_plan: ClassVar[None] = None
    base_model_ep_plan: ClassVar[None] = None
    has_segments: ClassVar[bool] = True  # relatives of BERT (family/) have none of one or the other
    has_pooler: ClassVar[bool] = True

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
    num_labels: int = _RESOLVED  # with id2label; 2 when neither is given
    id2label: dict[int, str] = _RESOLVED
    label2id: dict[str, int] = _RESOLVED
    problem_type: str | None = None
    output_attentions: bool = False
    output_hidden_states: bool = False
    return_dict: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    decoder_start_token_id: int | None = None
    extra: Values = field(default_factory=dict)  # everything else: the file's other keys, attributes set later

    def __init__(self, /, *sizes: object, **values: object) -> None:
        """Sizes may be given without names in the order above, the hub's; people usually write keywords."""
        names = list(_FIELDS)
        if len(sizes) > names.index("is_decoder"):
            raise ConfigError(f"BertConfig got {len(sizes)} values without names.", "Give keywords: vocab_size=… .")
        values = dict(zip(names, sizes, strict=False)) | values
        model_type = values.pop("model_type", self.model_type)
        if model_type != self.model_type:
            raise ConfigError(
                f"config.model_type is {model_type!r}; {type(self).__name__} reads {self.model_type!r} only.",
                "AutoConfig.from_pretrained chooses the class of BERT or a relative by model_type.",
            )
        self.__dict__.setdefault("extra", {})
        for name, default in _FIELDS.items():
            self.__dict__[name] = checks.plain_int(values.pop(name, default))
        self.__dict__["pruned_heads"] = checks.read_pruned_heads(self.pruned_heads or {})
        self._read_labels()
        if values.get("dtype") is not None:
            values.pop("torch_dtype", None)  # its older name; files have one or the other or both
        for name, value in values.items():
            self._keep(self.attribute_map.get(name, name), value)
        checks.validate(self)

    # -- labels stay in step: setting one of num_labels / id2label rewrites the other two --------------------------

    def _read_labels(self) -> None:
        given, count = self.label2id, self.num_labels
        if self.id2label is None:
            self._set_labels({i: f"LABEL_{i}" for i in range(checks.checked_num_labels(count))})
        else:
            self._set_labels(checks.read_labels(self.id2label))
            if count is not None and count != self.num_labels:
                raise ConfigError(
                    f"config.num_labels ({count}) differs from the {self.num_labels} entries of config.id2label.",
                    "Give one of the two, or make them agree.",
                )
        if given is not None:
            self.__dict__["label2id"] = checks.read_label_ids(given)

    def _set_labels(self, labels: dict[int, str]) -> None:
        names = {label: i for i, label in labels.items()}
        self.__dict__.update(num_labels=len(labels), id2label=labels, label2id=names)

    def __setattr__(self, name: str, value: object) -> None:
        name = self.attribute_map.get(name, name)
        if name == "num_labels":
            if (count := checks.checked_num_labels(value)) != self.num_labels:  # the same number keeps its labels
                self._set_labels({i: f"LABEL_{i}" for i in range(count)})
        elif name == "id2label" and value is None:  # no names: as many numbered ones as there are labels
            self._set_labels({i: f"LABEL_{i}" for i in range(checks.checked_num_labels(self.num_labels))})
        elif name == "id2label":
            self._set_labels(checks.read_labels(value))
        elif name in _FIELDS or name == "extra":
            self.__dict__[name] = checks.plain_int(value)
        elif isinstance(getattr(type(self), name, None), property):
            object.__setattr__(self, name, value)
        else:
            self._keep(name, value)

    def __getattr__(self, name: str) -> Any:
        # Only reached for names that are not fields: the file's own extra keys read like the others.
        extra = self.__dict__.get("extra", {})
        name = self.attribute_map.get(name, name)
        for place in (self.__dict__, extra, DEFAULTS, PRIVATE):
            if name in place:
                return place[name]
        raise AttributeError(f"{type(self).__name__} has no field '{name}'")

    # -- keys beside the fields --------------------------------------------------------------------------------------

    def _keep(self, name: str, value: object) -> None:
        """Store what is not a field: with the file's other keys, unless it is the default or private."""
        name = ALIASES.get(name, name)
        if name in PRIVATE:
            self.__dict__[name] = str(value) if name == "_name_or_path" else value
            return
        if name == "dtype" and value is not None and text(value) is None:
            value = str(value).removeprefix("torch.")
        extra: Values = self.__dict__.setdefault("extra", {})  # a subclass may set its own before our fields
        if name in DEFAULTS and value == DEFAULTS[name] and type(value) is type(DEFAULTS[name]):
            extra.pop(name, None)
        else:
            extra[name] = value

    def _private(self) -> Values:
        return {name: self.__dict__[name] for name in PRIVATE if name in self.__dict__}

    @property
    def dtype(self) -> Any:
        """The weights' `torch.dtype`, or None when nothing is said of it."""
        said = self.__dict__["extra"].get("dtype")
        if (name := text(said)) is None:
            return said
        import torch

        return vars(torch).get(name.removeprefix("torch."), name)

    @dtype.setter
    def dtype(self, value: object) -> None:
        self._keep("dtype", value)

    torch_dtype = dtype  # its older name

    @property
    def name_or_path(self) -> str:
        """What the model was loaded from; empty when it was not."""
        return str(self.__dict__.get("_name_or_path", ""))

    @name_or_path.setter
    def name_or_path(self, value: object) -> None:
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
        return bool(self.return_dict and not self.torchscript)

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> Self:
        """This configuration: the hub has some that hold several."""
        return self

    def __iter__(self) -> Iterator[str]:
        return iter({**PRIVATE, **self.to_dict()})

    def __contains__(self, name: object) -> bool:
        return name in list(self)

    def __repr__(self) -> str:
        lines = (f"  {name}: {value!r}" for name, value in sorted(self.to_diff_dict().items()))
        return "\n".join([f"{type(self).__name__} {{", *lines, "}"])

    # -- derived -----------------------------------------------------------------------------------------------------

    @property
    def attention_head_size(self) -> int:
        """The width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def intermediate_sizes(self) -> list[int] | None:
        """Neurons of every layer's feed-forward network where layers differ; None: `intermediate_size` each.

        A key of our own beside the hub's `pruned_heads`. 0 leaves of a feed-forward block its bias and its LayerNorm.
        """
        sizes: list[int] | None = self.__dict__["extra"].get("intermediate_sizes")
        return sizes

    @intermediate_sizes.setter
    def intermediate_sizes(self, sizes: list[int] | None) -> None:
        self.__dict__["extra"].pop("intermediate_sizes", None)
        if sizes is not None:
            self._keep("intermediate_sizes", sizes)

    @property
    def embedding_width(self) -> int:
        """How wide the embeddings are; where that is not `hidden_size`, a projection follows them."""
        return self.hidden_size

    @property
    def position_padding(self) -> int | None:
        """The row of the position table that stands for padding, before the first position's; None: there is none."""
        return None

    @property
    def position_buckets(self) -> int:
        """How many distances an attention bias that all layers share tells apart; 0: there is no such bias."""
        return 0

    @property
    def max_input_length(self) -> int:
        """The longest text, special tokens included: the position table without what stands for padding."""
        padding = self.position_padding
        return self.max_position_embeddings - (0 if padding is None else padding + 1)

    @property
    def head_dropout(self) -> float:
        """Dropout before a classifier: `classifier_dropout`, or `hidden_dropout_prob` when that is not set."""
        return self.hidden_dropout_prob if self.classifier_dropout is None else self.classifier_dropout

    # -- making and changing -----------------------------------------------------------------------------------------

    @classmethod
    def preset(cls, name: str, **overrides: object) -> Self:
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
        return cls._from_values(sizes, overrides)

    @classmethod
    def _from_values(cls, values: Mapping[str, Any], overrides: Mapping[str, object]) -> Self:
        """Build from a file's keys and what the caller wants changed."""
        merged = dict(values) | dict(overrides)
        if "num_labels" in overrides and "id2label" not in overrides:
            # The file's labels describe another head; the caller's count wins.
            if values.get("id2label") is not None and len(values["id2label"]) != overrides["num_labels"]:
                merged.pop("id2label", None)
                merged.pop("label2id", None)
        elif "id2label" in overrides:
            if "num_labels" not in overrides:
                merged.pop("num_labels", None)
            if "label2id" not in overrides:
                merged.pop("label2id", None)
        elif merged.get("id2label") is not None:
            merged.pop("num_labels", None)  # written by some tools beside id2label; the labels themselves are the truth
        return cls(**merged)

    @classmethod
    def from_json_file(cls, path: str | os.PathLike[str], **overrides: object) -> Self:
        """Read a hub `config.json` or Google's `bert_config.json`."""
        return cls._from_values(checks.read_json_object(path), overrides)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], **overrides: object) -> Self:
        """Build from a file's keys; `overrides` win, and a key that is no field is kept.

        With `return_unused_kwargs=True` the answer is `(config, unused)`: overrides that are no keys of this
        configuration come back instead of being kept.
        """
        return_unused = overrides.pop("return_unused_kwargs", False)
        overrides = {name: value for name, value in overrides.items() if name not in WITHOUT_MEANING}
        if not return_unused:
            return cls._from_values(values, overrides)
        plain = cls._from_values(values, {})
        used = {name: value for name, value in overrides.items() if hasattr(plain, name) or name in ALIASES}
        unused = {name: value for name, value in overrides.items() if name not in used or name.endswith("dtype")}
        return cast("Self", (cls._from_values(values, used), unused))  # a pair, as on the hub

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike[str], **overrides: object) -> Self:
        """The configuration of a folder, a file or a hub name, with `overrides`; see `from_dict`."""
        values, overrides = cls.get_config_dict(pretrained_model_name_or_path, **overrides)
        return cls.from_dict(values, **overrides)

    @classmethod
    def get_config_dict(
        cls, pretrained_model_name_or_path: str | os.PathLike[str], **options: Any
    ) -> tuple[Values, Values]:
        """The file's keys as they are, and those of the arguments that do not say how to fetch it."""
        from bertie.checkpoint.find_checkpoint import read_config

        if options.get("token") is None and options.get("use_auth_token") is not None:
            options["token"] = options.pop("use_auth_token")
        for name in ("gguf_file", "_configuration_file"):
            if options.pop(name, None) is not None:
                raise ConfigError(
                    f"{cls.__name__} was given {name}; a folder's configuration is read from its config.json.",
                    "Give the path of another JSON file itself.",
                )
        fetching = {name: options[name] for name in FETCHING if options.get(name) is not None}
        values = read_config(pretrained_model_name_or_path, **fetching)
        return values, {name: v for name, v in options.items() if name not in (*FETCHING, *WITHOUT_MEANING)}

    @classmethod
    def _dict_from_json_file(cls, json_file: str | os.PathLike[str]) -> Values:
        return checks.read_json_object(json_file)

    def replace(self, **changes: object) -> Self:
        """A changed, re-validated copy."""
        return self._from_values(self.to_diff_dict() | self._private(), changes)

    def update(self, values: Mapping[str, object]) -> None:
        """Set several attributes."""
        for name, value in values.items():
            setattr(self, name, value)

    def update_from_string(self, update_str: str) -> None:
        """Set attributes that exist from `"hidden_size=128,use_cache=false"`, each read as what it is now."""
        for item in update_str.split(","):
            name, equals, text = item.partition("=")
            if not equals or not hasattr(self, name):
                raise ConfigError(f"{item!r} does not set a key of this configuration.", "Write key=value,key=value.")
            setattr(self, name, checks.like(getattr(self, name), name, text))

    # -- writing -----------------------------------------------------------------------------------------------------

    def to_dict(self) -> Values:
        """Every key, those with their default values too."""
        values = {name: self.__dict__[name] for name in _FIELDS if name != "num_labels"}
        return copy.deepcopy({**DEFAULTS, **values, "model_type": self.model_type, **self.extra})

    def to_diff_dict(self) -> Values:
        """What is written: keys outside the hub's usual set appear only when they are not default."""
        values: Values = {"model_type": self.model_type}
        for name, default in _FIELDS.items():
            value = self.__dict__[name]
            if name in _ALWAYS_WRITTEN or (value != default and name not in _LABELS):
                values[name] = value
        plain = {i: f"LABEL_{i}" for i in range(2)}
        if self.id2label != plain or self.label2id != {label: i for i, label in plain.items()}:
            values |= {"id2label": dict(self.id2label), "label2id": dict(self.label2id)}
        return values | self.extra

    def to_json(self) -> str:
        """The configuration as `config.json` holds it."""
        return self.to_json_string()

    def to_json_string(self, use_diff: bool = True) -> str:
        """As a file has it; with `use_diff=False` every key is there. What JSON cannot hold is an error."""
        if callable(self.hidden_act):
            raise ConfigError(
                f"config.hidden_act is the function {self.hidden_act!r}, which a file cannot hold.",
                f"Set config.hidden_act to one of the names: {', '.join(checks.ACTIVATIONS)}.",
            )
        values = self.to_diff_dict()
        for name, value in values.items():
            try:
                json.dumps(value, default=_nested)
            except (TypeError, ValueError, RecursionError):
                raise ConfigError(
                    f"config.{name} is {value!r:.80}, which a file cannot hold.",
                    "A configuration takes numbers, texts, true, false, null, and lists and objects of them.",
                ) from None
        if not use_diff:
            values = self.to_dict()
        return json.dumps(values, indent=2, sort_keys=True, default=_nested) + "\n"

    def to_json_file(self, path: str | os.PathLike[str], use_diff: bool = True) -> None:
        """Write `to_json_string()` to a file."""
        Path(path).write_text(self.to_json_string(use_diff), encoding="utf-8")

    def save_pretrained(
        self, save_directory: str | os.PathLike[str], push_to_hub: bool = False, **ignored: object
    ) -> None:
        """Write `config.json` into a folder, replacing the one that is there in one step."""
        from bertie.files import new_files

        if push_to_hub:
            raise ConfigError("push_to_hub=True: a configuration is not uploaded from here.", _UPLOADING)
        text = self.to_json_string()
        folder = Path(save_directory)
        if folder.is_file():
            raise ConfigError(f"{folder} is a file; a configuration is saved into a folder.")
        with new_files(folder, obsolete=lambda name: name == "config.json") as place:
            (place / "config.json").write_text(text, encoding="utf-8")

    def to_google_dict(self) -> Values:
        """The keys Google's `bert_config.json` has."""
        return {name: getattr(self, name) for name in _GOOGLE_KEYS}

    def validate(self) -> None:
        """Raise `ConfigError` for what no model can be built from; models call it first."""
        checks.validate(self)
        checks.validate_heads(self)


_UPLOADING = "Save it into a folder, then upload that: huggingface_hub.upload_folder(repo_id=…, folder_path=…)."


def _nested(value: object) -> Values:
    if isinstance(value, BertConfig):
        return value.to_diff_dict()
    raise TypeError


_FIELDS: Values = {
    f.name: f.default_factory() if f.default_factory is not MISSING else f.default
    for f in fields(BertConfig)
    if f.name != "extra"
}
_LABELS = frozenset({"num_labels", "id2label", "label2id"})
_GOOGLE_KEYS = (
    "attention_probs_dropout_prob", "hidden_act", "hidden_dropout_prob", "hidden_size", "initializer_range",
    "intermediate_size", "max_position_embeddings", "num_attention_heads", "num_hidden_layers", "type_vocab_size",
    "vocab_size",
)  # fmt: skip
_ALWAYS_WRITTEN = frozenset(_GOOGLE_KEYS) | {
    "layer_norm_eps", "pad_token_id", "position_embedding_type", "use_cache", "classifier_dropout",
}  # fmt: skip
