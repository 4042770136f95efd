"""What is in a folder: which file is the configuration, which are the weights, and what to say when there are none.

In order of preference:

    model.safetensors              one file
    model.safetensors.index.json   several, named by the index
    pytorch_model.bin, pytorch_model.bin.index.json
    bert_model.ckpt.index + .data  a TensorFlow checkpoint (Google's folders; configuration in bert_config.json)

An index says which tensor is in which file: `{"metadata": …, "weight_map": {"tensor name": "file name", …}}`.
`variant="fp16"` looks for `model.fp16.safetensors` and so on. A sentence-transformers folder keeps the model either in
the root or in the folder its modules.json names, such as `0_Transformer`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bertie.checkpoint.hostile.paths import inside, read_json_file
from bertie.checkpoint.report import listed
from bertie.checkpoint.tensorflow_files import find_bundle
from bertie.config.relatives import MODEL_TYPES, OTHERS
from bertie.errors import CheckpointError, CheckpointNotFound, CorruptCheckpoint
from bertie.json_values import fields, items, members, text

CONFIG_NAMES = ("config.json", "bert_config.json")
WEIGHT_NAMES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
# Keywords of from_pretrained that say which of several kinds of weights to read, and the kinds each of them allows.
ASKED = {
    "use_safetensors=True": ("safetensors",),
    "use_safetensors=False": ("torch", "tensorflow"),
    "from_tf=True": ("tensorflow",),
}
_MAX_MODULES_BYTES = 1 << 20
MAX_FILES = 10_000  # more than a BERT has tensors
_VARIANT = re.compile(r"[\w\-]+(\.[\w\-]+)*")
_SIZES = {"hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"}

# Other programs' weights, which people find in the same places.
FOREIGN = (
    (".onnx", "ONNX", "an ONNX graph"),
    (".h5", "Keras HDF5", "TensorFlow's tf_model.h5"),
    (".msgpack", "Flax", "Flax weights"),
    (".gguf", "GGUF", "llama.cpp weights"),
    (".ot", "rust-bert", "rust-bert weights"),
    (".npz", "NumPy", "NumPy arrays"),
    (".tflite", "TensorFlow Lite", "a TensorFlow Lite graph"),
    (".mlmodel", "Core ML", "a Core ML model"),
    (".xml", "OpenVINO", "an OpenVINO graph"),
)


@dataclass(frozen=True)
class WeightFiles:
    """Where the weights are. `format` is safetensors, torch or tensorflow; a prefix stands for TensorFlow's files."""

    format: str
    files: tuple[Path, ...]
    index: Path | None = None


def with_variant(name: str, variant: str | None) -> str:
    """`model.safetensors` → `model.fp16.safetensors`; `….index.json` → `….index.fp16.json`, as the hub does."""
    if variant is None:
        return name
    if text(variant) is None or len(variant) > 64 or not _VARIANT.fullmatch(variant):
        raise CheckpointError(
            f"variant is {variant!r:.200}.", "Use a short word, such as 'fp16': it becomes part of a file's name."
        )
    stem, _, suffix = name.rpartition(".")
    return f"{stem}.{variant}.{suffix}"


def find_weights(folder: Path, *, variant: str | None = None, asked: str | None = None) -> WeightFiles:
    """The folder's weights, or an error that says what it holds instead; `asked` is one of ASKED."""
    for name in WEIGHT_NAMES:
        path = folder / with_variant(name, variant)
        if path.is_file() and allows(asked, kind_of(name)):
            return weights_at(path)
    has_bundle = variant is None and any(name.endswith(".index") for name in os.listdir(folder))
    if has_bundle and allows(asked, "tensorflow"):
        return WeightFiles("tensorflow", (Path(find_bundle(folder)),))
    if asked is not None and (has_bundle or any((folder / with_variant(n, variant)).is_file() for n in WEIGHT_NAMES)):
        raise wrong_kind(str(folder), asked)
    raise _no_weights(folder, variant)


def kind_of(name: str) -> str:
    return "safetensors" if ".safetensors" in name else "torch"


def allows(asked: str | None, kind: str) -> bool:
    return asked is None or kind in ASKED[asked]


def wrong_kind(where: str, asked: str) -> CheckpointNotFound:
    wanted = {"safetensors": ".safetensors", "torch": ".bin", "tensorflow": "TensorFlow (.index and .data)"}
    return CheckpointNotFound(
        f"{where}: {asked} asks for weights as {' or '.join(wanted[kind] for kind in ASKED[asked])} files, and there "
        "are only others.",
        "Leave it out: the weights are read as they are, and no format runs code from the files.",
    )


def weights_at(path: Path) -> WeightFiles:
    """The weights one file stands for: itself, or the files its index names."""
    if path.name.endswith(".json"):
        files = tuple(path.parent / name for name in read_index(path))
        return WeightFiles(kind_of(path.name), files, index=path)
    if path.suffix == ".safetensors":
        return WeightFiles("safetensors", (path,))
    if path.suffix in (".bin", ".pt", ".pth"):
        return WeightFiles("torch", (path,))
    foreign = next((what for suffix, _, what in FOREIGN if path.suffix == suffix), None)
    raise CheckpointError(
        f"{path} is {foreign}, which Bertie cannot read."
        if foreign
        else f"{path} is not a known kind of weights file.",
        "Read are .safetensors, .bin, their .index.json, and TensorFlow checkpoints.",
    )


def read_index(path: Path) -> dict[str, list[str]]:
    """The index's files, each with the tensors it should hold. Every file is there, inside the index's folder."""
    weight_map = members(read_json_file(path).get("weight_map"))
    named = {name: text(file) for name, file in fields(weight_map).items()}
    if weight_map is None or None in named.values():
        raise CorruptCheckpoint(f"{path} has no weight_map of tensor names to file names.", "Fetch the file again.")
    files: dict[str, list[str]] = {}
    for name, file in named.items():
        files.setdefault(file or "", []).append(name)
    if len(files) > MAX_FILES:
        raise CorruptCheckpoint(f"{path} names {len(files)} files; no model has more than {MAX_FILES}.")
    missing = [file for file in files if not inside(path.parent, file, named_by=path).is_file()]
    if missing:
        raise CheckpointNotFound(
            f"{path.parent} lacks {len(missing)} of the {len(files)} files that {path.name} names: {listed(missing)}.",
            "Fetch the missing files; a checkpoint in pieces needs all of them.",
        )
    return files


def find_config(folder: Path) -> Path | None:
    return next((folder / name for name in CONFIG_NAMES if (folder / name).is_file()), None)


def model_folder(folder: Path) -> Path:
    """The folder that holds the transformer itself: this one, or the one its modules.json names."""
    modules = folder / "modules.json"
    if find_config(folder) is not None or not modules.is_file():
        return folder
    name = transformer_module(modules)
    if name == "":
        return folder
    found = inside(folder, name, named_by=modules)
    if not found.is_dir():
        raise CheckpointNotFound(
            f"{modules} says the transformer is in {name!r}, and there is no such folder.", "Fetch the whole model."
        )
    return found


def transformer_module(modules: Path) -> str:
    """The folder of the Transformer module in a sentence-transformers modules.json; '' for the root."""
    for module in read_modules(modules):
        if str(module.get("type", "")).endswith(".Transformer"):
            return str(module.get("path", ""))
    raise CheckpointError(
        f"{modules} names no Transformer module.", "Is this a sentence-transformers folder of a BERT?"
    )


def read_modules(path: Path) -> list[Mapping[str, object]]:
    """What a modules.json lists; an entry that is no object has no fields."""
    return [fields(module) for module in items(read_modules_file(path)) or ()]


def read_modules_file(path: Path) -> object:
    try:
        if path.stat().st_size > _MAX_MODULES_BYTES:
            raise ValueError(f"{path.stat().st_size} bytes are too many")
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError, OSError) as error:
        raise CorruptCheckpoint(f"{path} is not valid JSON: {error!s:.200}.", "Fetch the file again.") from None


def check_model_type(
    values: Mapping[str, object], where: str | os.PathLike[str], *, wanted: str | None = "bert"
) -> None:
    """Refuse another architecture by its name. Old configurations name none and pass; None wants any we know."""
    model_type = values.get("model_type", _guessed_type(values))
    if "model_type" not in values and model_type in MODEL_TYPES:
        raise CheckpointError(
            f"{where} has no model_type, and its architecture is {_architectures(values)}: a {model_type!r} model.",
            f'Add "model_type": "{model_type}" to it.',
        )
    if model_type is None and not values.keys() & _SIZES:
        inner = _found_inside(values, "architectures")
        what = f", though something inside it is a {listed([str(name) for name in inner])}" if inner else ""
        raise CheckpointError(
            f"{where} does not describe a BERT: it has {listed(list(map(str, values))) or 'no keys'}{what}.",
            f"A BERT's configuration has model_type 'bert' and {listed(sorted(_SIZES))}.",
        )
    if model_type is None or model_type == wanted or (wanted is None and model_type in MODEL_TYPES):
        return
    cause = f"{where} describes a {model_type!r} model ({_architectures(values) or 'no architecture named'})"
    if "encoder-decoder" in (wanted, model_type):
        remedy = "A pair of BERTs is loaded with BertEncoderDecoder.from_pretrained, a single one with BertModel's."
    elif model_type in MODEL_TYPES:
        remedy = "bertie.load(…) takes the class that the checkpoint was saved from."
    else:
        reason = OTHERS.get(str(model_type))
        remedy = f"{reason + ', so it is no BERT. ' if reason else ''}Bertie reads {', '.join(MODEL_TYPES)}."
    raise CheckpointError(
        f"{cause}, not a {wanted!r} one." if wanted else f"{cause}, which Bertie cannot read.", remedy
    )


def _found_inside(values: Mapping[str, object], key: str, *, depth: int = 5) -> list[object]:
    """The first list under this key, however a wrapping program nested the configuration."""
    if found := items(values.get(key)):
        return found
    below = map(fields, values.values()) if depth else ()
    return next((found for value in below if (found := _found_inside(value, key, depth=depth - 1))), [])


def _guessed_type(values: Mapping[str, object]) -> str | None:
    """Very old configurations have no model_type; their keys give them away, or a relative's own architecture."""
    if "n_embd" in values:
        return "gpt2"
    if "d_model" in values:
        return "encoder-decoder or XLNet-like"
    named = [str(name).lower().removeprefix("tf") for name in items(values.get("architectures")) or ()]
    begins = {model_type: model_type.replace("-", "") for model_type in MODEL_TYPES[1:]}
    return next((kind for kind, begin in begins.items() if any(name.startswith(begin) for name in named)), None)


def _architectures(values: Mapping[str, object]) -> str:
    return listed([str(name)[:80] for name in items(values.get("architectures")) or ()])


def _no_weights(folder: Path, variant: str | None) -> CheckpointError:
    names = sorted(os.listdir(folder))
    if not names:
        return CheckpointNotFound(f"{folder} is an empty folder.", "Give the folder a checkpoint was saved in.")
    wanted = listed([with_variant(name, variant) for name in WEIGHT_NAMES])
    if variant is not None:
        return CheckpointNotFound(
            f"{folder} holds no weights of the variant {variant!r} (looked for {wanted}).",
            f"It holds: {listed(names)}.",
        )
    foreign = {kind for name in names for suffix, kind, _ in FOREIGN if name.endswith(suffix)}
    if "onnx" in names and (folder / "onnx").is_dir():
        foreign.add("ONNX")
    if foreign:
        return CheckpointError(
            f"{folder} holds weights only as {' and '.join(sorted(foreign))}, which Bertie cannot read.",
            "Fetch model.safetensors or pytorch_model.bin of the same model, or convert it with the program it is for.",
        )
    stray = [name for name in names if name.endswith((".safetensors", ".bin", ".pt", ".pth"))]
    data = [name for name in names if ".data-0" in name]
    if data:
        return CheckpointNotFound(
            f"{folder} holds {listed(data)} without the .index file that belongs to it.",
            "Fetch the .index file too: it says what is in the data.",
        )
    if stray:
        return CheckpointNotFound(
            f"{folder} holds no weights under the usual names ({wanted}), but it does hold {listed(stray)}.",
            f"Name the file: from_pretrained({str(folder / stray[0])!r}).",
        )
    return CheckpointNotFound(
        f"{folder} holds no weights (looked for {wanted}, and TensorFlow's bert_model.ckpt.index).",
        f"It holds: {listed(names)}.",
    )
