"""Which tasks a checkpoint can do, and the model opened for one of them, as the reference: hooks and gradients need it.

A task is called as its function is: fill, next, classify, tag, answer, choice, embed. Every checkpoint embeds; one with
both pretraining heads can fill and judge next sentences.
"""

from __future__ import annotations

from typing import Any

import torch

from bertie.arguments import one_of
from bertie.checkpoint.open_checkpoint import open_checkpoint
from bertie.defaults import default_embedding_model, default_language_model
from bertie.errors import InputError
from bertie.loading import model_class
from bertie.model import (
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
)
from bertie.model.empty import to_be_filled
from bertie.model.pretrained import BertPreTrainedModel
from bertie.running.open import ModelLike, OpenModel, open_model
from bertie.text import BertTokenizer

KINDS: dict[str, type[BertPreTrainedModel]] = {
    "fill": BertForMaskedLM,
    "next": BertForNextSentencePrediction,
    "classify": BertForSequenceClassification,
    "tag": BertForTokenClassification,
    "answer": BertForQuestionAnswering,
    "choice": BertForMultipleChoice,
    "embed": BertModel,
}
TASKS = tuple(KINDS)


def open_for(
    model: ModelLike | None,
    task: str | None,
    *,
    paired: bool = False,
    tokenizer: BertTokenizer | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = None,
) -> tuple[OpenModel, str, tuple[str, ...]]:
    """The model, its task, and all tasks it could be opened for.

    Without a task it is the checkpoint's own; a pair given to one with both pretraining heads is a next sentence.
    """
    one_of("task", task, (None, *TASKS))
    source = model
    if source is None:
        source = default_embedding_model() if task == "embed" else default_language_model()
    match source:
        case OpenModel():
            tokenizer, found = tokenizer or source.tokenizer, type(source.model)
        case BertPreTrainedModel():
            found = type(source)
        case _:
            found = model_class(open_checkpoint(source))
    tasks = tasks_of(found)
    if task is None:
        task = "next" if paired and "next" in tasks else tasks[0]
    if task not in tasks:
        raise InputError(
            f"{{task}} needs a {KINDS[task].__name__}; this model is a {found.__name__}.",
            f"It can be explored as: {', '.join(tasks)}.",
            task=task,
        )
    match source:
        case OpenModel():
            source = OpenModel(_as_kind(source.model, KINDS[task]), source.tokenizer, source.folder, source.name)
        case BertPreTrainedModel():
            source = _as_kind(source, KINDS[task])
    construct: dict[str, Any] = {"add_pooling_layer": False} if task == "embed" else {}
    opened = open_model(
        source,
        KINDS[task],
        task="explore",
        tokenizer=tokenizer,
        device=device,
        dtype=dtype,
        engine="reference",
        **construct,
    )
    return opened, task, tasks


def tasks_of(kind: type[BertPreTrainedModel]) -> tuple[str, ...]:
    """Its own first; what a class that is not known can do is embed."""
    if issubclass(kind, BertForPreTraining):
        return "fill", "next", "embed"
    own = (task for task, known in KINDS.items() if issubclass(kind, known) and task != "embed")
    return (*own, "embed")


def _as_kind(model: BertPreTrainedModel, kind: type[BertPreTrainedModel]) -> BertPreTrainedModel:
    """A model with both pretraining heads as one with a single head, of the same modules; any other as it is."""
    if not isinstance(model, BertForPreTraining) or kind is BertModel:
        return model
    with torch.device("meta"):
        made = to_be_filled(kind, model.config)
    single = made.get_submodule("cls")  # both of the two have it
    made.bert = model.bert
    name = "predictions" if kind is BertForMaskedLM else "seq_relationship"
    setattr(single, name, getattr(model.cls, name))
    made.training = False
    return made
