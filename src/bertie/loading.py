"""`bertie.load(x)`: a checkpoint as the class it was saved from.

The configuration's `architectures` names it. Google's folders and some older ones name none; then the tensors tell:
their heads have names of their own.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

import bertie.model
from bertie import family
from bertie.checkpoint.names import BASE, common_wrapper
from bertie.checkpoint.open_checkpoint import Checkpoint, open_checkpoint
from bertie.config import BertConfig
from bertie.errors import CheckpointError
from bertie.model.hub.options import take_fetching
from bertie.model.pretrained import BertPreTrainedModel

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("bertie.checkpoint")
Kind = TypeVar("Kind", bound=BertPreTrainedModel)
CLASSES = (
    "BertModel", "BertForPreTraining", "BertLMHeadModel", "BertForMaskedLM", "BertForNextSentencePrediction",
    "BertForSequenceClassification", "BertForMultipleChoice", "BertForTokenClassification", "BertForQuestionAnswering",
)  # fmt: skip


def load(
    source: str | os.PathLike[str],
    *,
    config: BertConfig | Mapping[str, object] | str | os.PathLike[str] | None = None,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | int | None = None,
    ignore_mismatched_sizes: bool = False,
    output_loading_info: bool = False,
    attention: str = "auto",
    **options: Any,
) -> Any:
    """A checkpoint as the class it was saved from; the arguments are those of `BertModel.from_pretrained`.

    - `source`: a folder, a file of weights, a TensorFlow checkpoint, or a hub name.
    - `config`: replaces the checkpoint's configuration.
    - `dtype`: float32 by default; "auto" keeps the checkpoint's own.
    - `device`: where the weights go; by default the CPU.
    - `ignore_mismatched_sizes`: start weights of another shape with random numbers, instead of an error.
    - `output_loading_info`: return `(model, report)`; the report lists missing and unused weights.
    - `attention`: the attention kernel, "auto" by default.
    - `options`: further keywords of `from_pretrained`, such as `revision`, `token` and `subfolder`.

    >>> type(load("tests/assets/tf/google_tiny")).__name__
    'BertForPreTraining'
    """
    checkpoint = open_checkpoint(source, needs_config=config is None, **take_fetching(options))
    model, report = model_class(checkpoint)._from_checkpoint(
        checkpoint,
        config=config,
        overrides=options,
        dtype=options.pop("torch_dtype", None) if dtype is None else dtype,
        device=device,
        ignore_mismatched_sizes=ignore_mismatched_sizes,
        attention=attention,
    )
    return (model, report) if output_loading_info else model


def model_class(checkpoint: Checkpoint) -> type[BertPreTrainedModel]:
    """The class a checkpoint was saved from, by its configuration or else by the names of its tensors."""
    found = _named(checkpoint.config)
    if found is None:
        model_type = checkpoint.config.get("model_type")
        choose = _by_tensors if family.config_class(model_type) is BertConfig else family.by_tensors
        name, reason = choose(checkpoint)
        found = family.named(model_type, name) or getattr(bertie.model, name)
        logger.info("%s: %s, because %s", checkpoint.source, name, reason)
    return found


def class_for(kind: type[Kind], source: str | os.PathLike[str]) -> type[Kind]:
    """The class that is to the checkpoint what `kind` is to BERT: RobertaForMaskedLM for BertForMaskedLM."""
    found = family.related(kind, open_checkpoint(source).config.get("model_type"))
    return cast("type[Kind]", found)


def named_kind(config: Mapping[str, object]) -> str | None:
    """What the class that the configuration names is to BERT: BertForMaskedLM for RobertaForMaskedLM."""
    found = _named(config)
    return None if found is None else family.kind_of(found).__name__


def _named(config: Mapping[str, object]) -> type[BertPreTrainedModel] | None:
    """The first of our classes that the configuration's `architectures` names."""
    named = config.get("architectures")
    model_type = config.get("model_type")
    for architecture in named if isinstance(named, list) else []:
        name = str(architecture).removeprefix("TF").removeprefix("Flax")
        if (relative := family.named(model_type, name)) is not None:
            return relative
        if name in CLASSES and family.config_class(model_type) is BertConfig:
            found: type[BertPreTrainedModel] = getattr(bertie.model, name)
            return found
    return None


def _by_tensors(checkpoint: Checkpoint) -> tuple[str, str]:
    info = checkpoint.tensors.info
    wrapper = common_wrapper(list(info))
    names = {name.removeprefix(wrapper): one.shape for name, one in info.items()}
    words = any(name.startswith("cls.predictions.") for name in names)
    pairs = any(name.startswith("cls.seq_relationship.") for name in names)
    if words and pairs:
        return "BertForPreTraining", "it holds both pretraining heads"
    if words:
        decoder = checkpoint.config.get("is_decoder") is True
        return ("BertLMHeadModel" if decoder else "BertForMaskedLM"), "it holds a head that predicts words"
    if pairs:
        return "BertForNextSentencePrediction", "it holds a next-sentence head"
    if "qa_outputs.weight" in names:
        return "BertForQuestionAnswering", "it holds qa_outputs"
    if "classifier.weight" in names:
        return _by_classifier(checkpoint, names)
    return "BertModel", "it holds no head"


def _by_classifier(checkpoint: Checkpoint, names: Mapping[str, tuple[int, ...]]) -> tuple[str, str]:
    """Three classes call their head `classifier`. Only one of them has no pooler, and one scores without labels."""
    if not any(name.removeprefix(BASE).startswith("pooler.") for name in names):
        return "BertForTokenClassification", "it holds a classifier and no pooler"
    if names["classifier.weight"][:1] == (1,) and checkpoint.config.get("problem_type") is None:
        labels = checkpoint.config.get("id2label")
        if labels is not None and len(labels) != 1:
            return "BertForMultipleChoice", "its classifier gives one score and the configuration has several labels"
    if not names["classifier.weight"]:
        raise CheckpointError(f"{checkpoint.source}: classifier.weight is a single number.")
    return (
        "BertForSequenceClassification",
        "it holds a classifier and a pooler (a token classifier saved with a pooler looks the same: use its own class)",
    )
