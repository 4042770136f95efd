"""Checkpoints from one format into another, weights bit for bit.

hub    config.json + model.safetensors                    (Bertie, transformers)
tf     bert_config.json + bert_model.ckpt + vocab.txt     (google-research/bert)
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from dataclasses import dataclass, field
from pathlib import Path

from bertie.checkpoint.hostile.paths import leads_out
from bertie.checkpoint.open_checkpoint import Checkpoint, open_checkpoint
from bertie.checkpoint.report import LoadingReport, listed
from bertie.checkpoint.tensorflow import save_tf_checkpoint
from bertie.config import BertConfig
from bertie.config.relatives import RelativeConfig
from bertie.errors import CheckpointError, WeightsMismatch
from bertie.family import kind_of
from bertie.files import new_files
from bertie.loading import load, model_class
from bertie.model import BertModel
from bertie.model.pretrained import BertPreTrainedModel

# Small files that belong to a model and are the same in every format.
_COMPANIONS = (
    "vocab.txt", "vocab.json", "merges.txt", "sentencepiece.bpe.model", "tokenizer.json",
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json",
)  # fmt: skip


@dataclass
class Conversion:
    """What was written."""

    model: str
    source_format: str
    num_tensors: int
    notes: list[str] = field(default_factory=list)


def convert(
    source: str | os.PathLike[str], destination: str | os.PathLike[str], *, target: str = "hub", dtype: str = "auto"
) -> Conversion:
    """Write `source` to the folder `destination`; `dtype="auto"` keeps the checkpoint's own type."""
    if target not in ("hub", "tf"):
        raise CheckpointError(f"There is no format {target!r} to convert to.", "Use 'hub' or 'tf'.")
    destination = Path(destination)
    checkpoint = open_checkpoint(source)
    if destination.exists() and checkpoint.folder.resolve() == destination.resolve():
        raise CheckpointError(f"{destination} is where {source} is read from.", "Give another folder to write to.")
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise CheckpointError(f"{destination} exists already and is not an empty folder.", "Give a new folder.")
    model, report = _whole(source, checkpoint, dtype)
    result = Conversion(type(model).__name__, report.format, len(model.state_dict()))
    # Everything appears at once: a conversion that is interrupted leaves no half of it.
    with new_files(destination, obsolete=lambda name: False) as unfinished:
        if target == "hub":
            model.save_pretrained(unfinished)
        else:
            result.notes += _write_tensorflow(model, unfinished)
        copied, left_out = _copy_companions(checkpoint.folder, unfinished)
        if left_out:
            result.notes.append(f"not copied, links that lead out of the folder: {listed(left_out)}")
        if not copied:
            result.notes.append("no vocabulary was found beside the weights; add the tokenizer's files")
    if report.unexpected:
        result.notes.append(f"not carried over, no place in the model: {listed(report.unexpected)}")
    return result


def _whole(
    source: str | os.PathLike[str], checkpoint: Checkpoint, dtype: str
) -> tuple[BertPreTrainedModel, LoadingReport]:
    """The model with nothing in it that the checkpoint does not have."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, report = load(source, dtype=dtype, output_loading_info=True)
        if report.newly_initialised and all("pooler." in name for name in report.newly_initialised):
            # Many encoders were saved without a pooler; a random one must not be written.
            kind = model_class(checkpoint)
            if kind_of(kind) is BertModel:
                model, report = load(source, dtype=dtype, output_loading_info=True, add_pooling_layer=False)
    if report.newly_initialised:
        raise WeightsMismatch(
            f"{source} lacks weights of a {report.model}: {listed(report.newly_initialised)}.",
            "A conversion writes only what is there. Correct config.architectures, or train the missing part first.",
        )
    return model, report


def _write_tensorflow(model: BertPreTrainedModel, folder: Path) -> list[str]:
    config = model.config
    if isinstance(config, RelativeConfig):
        raise CheckpointError(
            f"Google's format is BERT's; this model is a {config.model_type!r}.", "Keep it in the hub's format."
        )
    if config.intermediate_sizes is not None:
        raise CheckpointError(
            "Google's format has one feed-forward size for all layers; this model has "
            f"{', '.join(map(str, config.intermediate_sizes))} neurons.",
            "Keep it in the hub's format, or write plain sizes with zeros first: bertie compress --dense.",
        )
    if config.position_embedding_type != "absolute" or config.pruned_heads or config.is_decoder:
        raise CheckpointError(
            f"Google's format has no place for this model (positions {config.position_embedding_type}, "
            f"{sum(map(len, config.pruned_heads.values()))} pruned heads, is_decoder {config.is_decoder}).",
            "Keep it in the hub's format.",
        )
    prefix = "" if hasattr(model, model.base_model_prefix) else f"{model.base_model_prefix}."
    weights = {prefix + name: tensor for name, tensor in model.state_dict().items()}
    left_out = save_tf_checkpoint(folder / "bert_model.ckpt", weights)
    (folder / "bert_config.json").write_text(json.dumps(config.to_google_dict(), indent=2) + "\n", encoding="utf-8")
    notes = [f"stored once: {listed(left_out)}"] if left_out else []
    if config.layer_norm_eps != 1e-12:
        notes.append(
            f"Google's code fixes the LayerNorm eps at 1e-12; this model was made with {config.layer_norm_eps:g}"
        )
    lost = [name for name, default in (("id2label", BertConfig().id2label), ("problem_type", None), ("pad_token_id", 0))
            if getattr(config, name) != default]  # fmt: skip
    if lost:
        notes.append(f"Google's configuration has no place for {listed(lost)}: keep the model in the hub's format too")
    return notes


def _copy_companions(source: Path, destination: Path) -> tuple[list[str], list[str]]:
    """Copy the small files beside the weights; the names of what was copied, and of the links that were not."""
    copied: list[str] = []
    left_out: list[str] = []

    def strays(folder: str, names: list[str]) -> list[str]:
        found = [name for name in names if leads_out(Path(folder, name))]
        left_out.extend(f"{os.path.relpath(folder, source)}/{name}" for name in found)
        return found

    for name in _COMPANIONS:
        if leads_out(source / name):
            left_out.append(name)
        elif (source / name).is_file():
            shutil.copyfile(source / name, destination / name)
            copied.append(name)
    for folder in sorted(path for path in source.iterdir() if path.is_dir() and path.name[:1].isdigit()):
        if (folder / "config.json").is_file():  # 1_Pooling, 2_Normalize …: sentence-transformers' modules
            if leads_out(folder):
                left_out.append(folder.name)
            else:
                shutil.copytree(folder, destination / folder.name, ignore=strays)
    return copied, left_out
