"""Whole models in and out of TensorFlow checkpoints: tensors under the hub's names on our side."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from bertie.checkpoint.tensorflow.bundle import BundleReader
from bertie.checkpoint.tensorflow.names import NamePlan, Transform, to_hub, to_tf1
from bertie.checkpoint.tensorflow.writer import write_bundle
from bertie.errors import WeightsMismatch
from bertie.json_values import items, whole

if TYPE_CHECKING:
    import torch

_LAYER = "bert.encoder.layer."


def load_tf_checkpoint(
    prefix: str | os.PathLike[str], config: Mapping[str, object] | None = None
) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Every weight of a TF1, TF2 or Keras BERT checkpoint under its hub name, and the names of what is not a weight.

    `config` is the model's configuration as a dict (`bert_config.json` or `config.json`). Its sizes are compared with
    the checkpoint's before anything is read, and its `architectures` name a head that the checkpoint leaves unnamed.
    """
    config = config or {}
    with BundleReader(prefix) as reader:
        try:
            plan = to_hub(reader.shapes(), head=_head_of(config))
            _check_sizes(plan, config)
        except WeightsMismatch as error:
            raise WeightsMismatch(f"{reader.prefix}: {error.cause}", error.remedy) from error
        weights = {one.hub_name: convert(reader.read(one.tf_name), one.transform) for one in plan.kept}
    return weights, list(plan.ignored)


def save_tf_checkpoint(
    prefix: str | os.PathLike[str],
    weights: Mapping[str, torch.Tensor],
    *,
    num_shards: int = 1,
    overwrite: bool = False,
) -> list[str]:
    """Write hub-named weights as a TF1 checkpoint in Google's layout; the names of what it has no place for.

    Only buffers and the tied decoder are left out. A decoder that is not the embedding table is an error: the layout
    has no place for it.
    """
    plan = to_tf1(weights)
    for decoder, tied in (
        ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
        ("cls.predictions.decoder.bias", "cls.predictions.bias"),
    ):
        if decoder in weights and (tied not in weights or not _same_bits(weights[decoder], weights[tied])):
            raise WeightsMismatch(
                f"{decoder} differs from {tied}: a TF1 checkpoint has one tensor for both.",
                "Tie the decoder to the embeddings, or save in another format.",
            )
    tensors = {one.tf_name: convert(weights[one.hub_name], one.transform) for one in plan.kept}
    write_bundle(prefix, tensors, num_shards=num_shards, overwrite=overwrite)
    return list(plan.ignored)


def _same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Equal as bytes: a NaN is not equal to itself, and a table may hold one."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    import torch

    return torch.equal(first.contiguous().view(-1).view(torch.uint8), second.contiguous().view(-1).view(torch.uint8))


def convert(tensor: torch.Tensor, transform: Transform) -> torch.Tensor:
    """Apply a plan's transform. The result is contiguous."""
    if transform is Transform.TRANSPOSE:
        tensor = tensor.T
    elif transform is Transform.MERGE_OUT:
        tensor = tensor.flatten(1).T
    elif transform is Transform.MERGE_IN:
        tensor = tensor.flatten(0, 1).T
    elif transform is Transform.FLATTEN:
        tensor = tensor.flatten()
    return tensor.contiguous()


def _head_of(config: Mapping[str, object]) -> str | None:
    named = " ".join(map(str, items(config.get("architectures")) or ()))
    if "QuestionAnswering" in named:
        return "qa_outputs"
    if "Classification" in named or "MultipleChoice" in named:
        return "classifier"
    return None


def _check_sizes(plan: NamePlan, config: Mapping[str, object]) -> None:
    shapes = {one.hub_name: one.shape for one in plan.kept}
    for name, rows in (
        ("bert.embeddings.word_embeddings.weight", "vocab_size"),
        ("bert.embeddings.position_embeddings.weight", "max_position_embeddings"),
        ("bert.embeddings.token_type_embeddings.weight", "type_vocab_size"),
    ):
        for axis, key in enumerate((rows, "hidden_size")):
            if name in shapes and key in config and shapes[name][axis] != config[key]:
                raise WeightsMismatch(
                    f"{name} is {list(shapes[name])} in the checkpoint; the configuration's {key} is {config[key]}.",
                    "The configuration belongs to another checkpoint: use the one that came with this one.",
                )
    layers = {int(name.removeprefix(_LAYER).split(".")[0]) for name in shapes if name.startswith(_LAYER)}
    wanted = whole(config.get("num_hidden_layers", len(layers))) or 0
    if (len(layers), max(layers, default=-1)) != (wanted, wanted - 1):
        raise WeightsMismatch(
            f"The checkpoint's layers: {_ranges(layers)}; the configuration's num_hidden_layers is {wanted}.",
            "The configuration belongs to another checkpoint: use the one that came with this one.",
        )


def _ranges(layers: set[int]) -> str:
    if not layers:
        return "none"
    low, high = min(layers), max(layers)
    return f"{low} to {high}" if len(layers) == high - low + 1 else ", ".join(map(str, sorted(layers)))
