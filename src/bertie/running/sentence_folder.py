"""What a sentence-transformers folder says about turning tokens into one vector.

    modules.json                        the path of a text: Transformer, Pooling, then Dense, LayerNorm, Normalize
    1_Pooling/config.json               how token vectors become one
    2_Dense/config.json, weights        a linear layer after it
    sentence_bert_config.json           how long a text may be (beside the transformer)
    config_sentence_transformers.json   prompts, the default prompt, the similarity the model was trained for

(https://www.sbert.net/docs/sentence_transformer/usage/custom_models.html, "Structure of Sentence Transformer Models".)
A folder without modules.json is a plain BERT: the mean of its token vectors. A module that is not known here would
change the vectors, so it is rejected with its name; nothing that a file names is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from bertie.arguments import is_whole
from bertie.checkpoint.hostile.paths import inside, read_json_file
from bertie.checkpoint.open_checkpoint import FileTensors, Tensors
from bertie.checkpoint.weight_files import find_weights, read_modules_file
from bertie.errors import CheckpointError, CheckpointNotFound, CorruptCheckpoint, WeightsMismatch
from bertie.json_values import fields, items, text, texts
from bertie.running.pooling import DEFAULT_POOLING, POOLING_MODES, Pooling

SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")

# The older keys of a pooling configuration, in the order in which their vectors stand side by side.
_OLD_POOLING_KEYS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
# By the class's own name: `torch.nn.modules.activation.Tanh` is written by every version of torch in its own way.
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Identity": lambda x: x,
    "Tanh": torch.tanh,
    "ReLU": F.relu,
    "ReLU6": F.relu6,
    "LeakyReLU": F.leaky_relu,
    "ELU": F.elu,
    "GELU": F.gelu,
    "SiLU": F.silu,
    "Mish": F.mish,
    "Sigmoid": torch.sigmoid,
    "Softplus": F.softplus,
}


@dataclass(frozen=True, eq=False)
class Stage:
    """A step after pooling, vectors `[n, in]` → `[n, out]`; its weight is `[out, in]`, or as long as they are."""

    weight: Tensor | None = None
    bias: Tensor | None = None
    normalizes: ClassVar[bool] = False

    def __call__(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def to(self, device: torch.device) -> Stage:
        """Weights where the vectors are, once: a copy for every batch would make it wait."""
        moved = {
            name: None if x is None else x.to(device) for name, x in (("weight", self.weight), ("bias", self.bias))
        }
        return replace(self, **moved)


@dataclass(frozen=True, eq=False)
class Dense(Stage):
    """`activation(x · weightᵀ + bias)`."""

    activation: str = "Tanh"

    def __call__(self, x: Tensor) -> Tensor:
        assert self.weight is not None
        return _ACTIVATIONS[self.activation](F.linear(x, self.weight, self.bias))


class LayerNorm(Stage):
    def __call__(self, x: Tensor) -> Tensor:
        assert self.weight is not None
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias)


class Normalize(Stage):
    """Unit length."""

    normalizes: ClassVar[bool] = True

    def __call__(self, x: Tensor) -> Tensor:
        return F.normalize(x, p=2, dim=1)


@dataclass(frozen=True)
class SentenceSettings:
    """Everything a folder says; the defaults are those of a plain BERT."""

    pooling: Pooling = DEFAULT_POOLING
    stages: tuple[Stage, ...] = ()  # after pooling, in order
    max_length: int | None = None
    do_lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    similarity: str = "cosine"
    truncate_dim: int | None = None

    @property
    def dense_inputs(self) -> int | None:
        """How many numbers the first layer after pooling takes; None when there is none."""
        return next((stage.weight.shape[-1] for stage in self.stages if stage.weight is not None), None)

    def dimension(self, hidden_size: int, pooling: Pooling | None = None) -> int:
        """The length of a vector that leaves the last stage."""
        outputs = [stage.weight.shape[0] for stage in self.stages if stage.weight is not None]
        return outputs[-1] if outputs else hidden_size * len((pooling or self.pooling).modes)


def find_sentence_folder(transformer: Path) -> Path | None:
    """The folder with modules.json, given the transformer's: the same one or the one above. None for a plain BERT."""
    if (transformer / "modules.json").is_file():
        return transformer
    above = transformer.parent / "modules.json"
    if above.is_file() and any(_path_of(module) == transformer.name for module in _read_modules(above)):
        return transformer.parent
    return None


def read_sentence_settings(transformer: Path, hidden_size: int) -> SentenceSettings:
    """The settings around the transformer in this folder. `hidden_size` is checked against what the modules expect."""
    folder = find_sentence_folder(transformer)
    own = transformer / "sentence_bert_config.json"
    values = _optional(own)
    settings = SentenceSettings(
        max_length=_whole_number(values, "max_seq_length", own, least=3),
        do_lower_case=values.get("do_lower_case") is True,
    )
    if folder is None:
        return settings
    modules_file = folder / "modules.json"
    pooling: Pooling | None = None
    stages: list[Stage] = []
    size = hidden_size
    for module in _read_modules(modules_file):
        kind = _kind_of(module, modules_file)
        if kind == "Transformer" or kind == "Dropout":  # nothing is dropped when a model is used
            continue
        if kind == "Normalize":
            stages.append(Normalize())
            continue
        place = inside(folder, _path_of(module), named_by=modules_file)
        values = read_json_file(place / "config.json")
        if kind == "Pooling":
            if pooling is not None:
                raise CheckpointError(f"{modules_file} names two Pooling modules.", "One vector needs one.")
            pooling = _read_pooling(values, place / "config.json", hidden_size)
            size = hidden_size * len(pooling.modes)
        else:
            if pooling is None:
                raise CheckpointError(
                    f"{modules_file} has {kind} before Pooling, on every token's vector.", "That is not supported here."
                )
            stage = _read_dense(place, values, size) if kind == "Dense" else _read_layer_norm(place, size)
            stages.append(stage)
            size = stage.weight.shape[0] if stage.weight is not None else size
    settings = replace(settings, pooling=pooling or DEFAULT_POOLING, stages=tuple(stages))
    return _with_shared_settings(settings, folder / "config_sentence_transformers.json")


def _read_modules(path: Path) -> list[Mapping[str, object]]:
    listing = items(read_modules_file(path))
    if listing is None or any(type(module) is not dict for module in listing):
        raise CorruptCheckpoint(f"{path} is not a list of modules.", "Fetch the file again.")
    return list(map(fields, listing))


def _path_of(module: Mapping[str, object]) -> str:
    return str(module.get("path", ""))


def _kind_of(module: Mapping[str, object], path: Path) -> str:
    given = str(module.get("type", ""))
    kind = given.rpartition(".")[2]
    known = ("Transformer", "Pooling", "Dense", "Normalize", "LayerNorm", "Dropout")
    if not given.startswith("sentence_transformers.") or kind not in known:
        raise CheckpointError(
            f"{path} names the module {given!r:.120}, which is not known here; without it the vectors are wrong.",
            f"Known modules of sentence_transformers: {', '.join(known)}.",
        )
    return kind


def _read_pooling(values: Mapping[str, object], path: Path, hidden_size: int) -> Pooling:
    expected = values.get("embedding_dimension", values.get("word_embedding_dimension", hidden_size))
    if expected != hidden_size:
        raise WeightsMismatch(
            f"{path} pools vectors of {expected!r:.40}, and the model's have {hidden_size}.",
            "The folders belong to different models: fetch them again.",
        )
    given = values.get("pooling_mode")
    if given is None:
        given = [mode for key, mode in _OLD_POOLING_KEYS.items() if values.get(key) is True] or ["mean"]
    modes = texts(given if text(given) is None else [given])
    if not modes or not all(mode in POOLING_MODES for mode in modes):
        raise CheckpointError(
            f"{path}: pooling_mode is {given!r:.80}, which is not known here.", f"Known: {', '.join(POOLING_MODES)}."
        )
    return Pooling(tuple(modes), include_prompt=values.get("include_prompt") is not False)


def _read_dense(place: Path, values: Mapping[str, object], size: int) -> Dense:
    path = place / "config.json"
    for key in ("module_input_name", "module_output_name"):
        if values.get(key) not in (None, "sentence_embedding"):
            raise CheckpointError(f"{path}: {key} is {values[key]!r:.60}; only 'sentence_embedding' is known here.")
    named = values.get("activation_function", "torch.nn.modules.activation.Tanh")
    activation = str(named).rpartition(".")[2]
    if not str(named).startswith("torch.nn.") or activation not in _ACTIVATIONS:
        raise CheckpointError(
            f"{path}: the activation {named!r:.80} is not known here.", f"Known: {', '.join(_ACTIVATIONS)}."
        )
    tensors = _tensors(place)
    weight = _tensor(tensors, place, "linear.weight", (None, size))
    bias = None
    if values.get("bias") is not False:
        bias = _tensor(tensors, place, "linear.bias", (weight.shape[0],))
    return Dense(weight, bias, activation)


def _read_layer_norm(place: Path, size: int) -> LayerNorm:
    tensors = _tensors(place)
    return LayerNorm(
        _tensor(tensors, place, "norm.weight", (size,)),
        _tensor(tensors, place, "norm.bias", (size,)),
    )


def _tensors(place: Path) -> Tensors:
    if not place.is_dir():
        raise CheckpointNotFound(f"{place} is not there, and modules.json names it.", "Fetch the whole folder again.")
    weights = find_weights(place)
    if weights.format == "tensorflow":
        raise CheckpointError(f"{place} holds a TensorFlow checkpoint.", "A module's weights are safetensors or .bin.")
    return FileTensors(weights)


def _tensor(tensors: Tensors, place: Path, name: str, shape: tuple[int | None, ...]) -> Tensor:
    info = tensors.info.get(name)
    if info is None:
        raise WeightsMismatch(f"{place} lacks the tensor {name!r}; it holds {', '.join(tensors.info)}.")
    if len(info.shape) != len(shape) or any(w not in (None, s) for w, s in zip(shape, info.shape, strict=True)):
        wanted = [("any" if length is None else length) for length in shape]
        raise WeightsMismatch(f"{place}: {name} is {list(info.shape)}; the module before it asks for {wanted}.")
    return tensors.read(name).float()


def _optional(path: Path) -> Mapping[str, object]:
    return read_json_file(path) if path.is_file() else {}


def _whole_number(values: Mapping[str, object], key: str, path: Path, *, least: int) -> int | None:
    value = values.get(key)
    if value is None or is_whole(value, least):
        return value
    raise CheckpointError(f"{path}: {key} is {value!r:.40}; it must be a whole number of at least {least}.")


def _with_shared_settings(settings: SentenceSettings, path: Path) -> SentenceSettings:
    values = _optional(path)
    given = values.get("prompts") or {}
    prompts = {name: "" if prompt is None else prompt for name, prompt in fields(given).items()}
    if fields(given) != given or texts(list(prompts.values())) is None:
        raise CheckpointError(f"{path}: prompts is not an object of names and texts.", "Correct or remove it.")
    default = values.get("default_prompt_name")
    if default is not None and (text(default) is None or default not in prompts):
        raise CheckpointError(
            f"{path}: default_prompt_name is {default!r:.60}, and the prompts are {', '.join(prompts) or 'none'}.",
            "Correct or remove it.",
        )
    similarity = values.get("similarity_fn_name") or "cosine"
    if similarity not in SIMILARITIES:
        raise CheckpointError(
            f"{path}: similarity_fn_name is {similarity!r:.60}.", f"Known: {', '.join(SIMILARITIES)}."
        )
    return replace(
        settings,
        prompts={name: text(prompt) or "" for name, prompt in prompts.items()},
        default_prompt_name=text(default),
        similarity=similarity,
        truncate_dim=_whole_number(values, "truncate_dim", path, least=1),
    )
