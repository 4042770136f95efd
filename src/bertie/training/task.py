"""What a trainable task declares, what a person may say about it, and what comes of that for the loop.

A file of tasks/ declares its tasks with their names, their figures and a `load`: from a `Request` (a model, files,
options) to a `LoadedTask`. registry.py lists the files.
"""

from __future__ import annotations

import difflib
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar, get_args

from bertie.arguments import number, one_of
from bertie.checkpoint.open_checkpoint import open_checkpoint
from bertie.checkpoint.report import NewlyInitialized
from bertie.config import BertConfig
from bertie.data import BadRows
from bertie.errors import ConfigError, InputError
from bertie.family import config_class
from bertie.loading import class_for
from bertie.model.pretrained import BertPreTrainedModel
from bertie.text import BertTokenizer
from bertie.text.windows import DEFAULT_STRIDE
from bertie.training import metrics
from bertie.training.contract import Examples, Numbers, Objective
from bertie.training.distillation import make_student
from bertie.training.sources import Columns, LabelNumbers

EmbedLoss = Literal["contrastive", "cosine", "cosent"]
Model = TypeVar("Model", bound=BertPreTrainedModel)
ModelSource = str | os.PathLike[str] | BertPreTrainedModel
Read = TypeVar("Read")


@dataclass(frozen=True)
class TaskOptions:
    """What a person may say about a task and its data, besides the model and the files."""

    columns: Columns = field(default_factory=Columns)
    skip_bad: bool = False
    max_length: int | None = None  # tokens to a text or window; by default what the model takes (answer: 384)
    dev_share: float = 0.0  # of the training data, held out where there is no development file
    seed: int = 42
    best_metric: str | None = None
    label_smoothing: float = 0.0
    class_weights: str | Mapping[str, float] | Sequence[float] | None = None  # "balanced", or by label
    several_labels: bool | None = None  # classify, pairs: may several apply to a text? None looks at the data
    stride: int = DEFAULT_STRIDE  # answer: tokens that neighbouring windows share
    repair: bool = False  # answer: move answers whose place is wrong
    max_answer_tokens: int = 30  # answer
    loss: EmbedLoss | None = None  # embed: by default "cosine" for scored pairs, "contrastive" for others
    scale: float = 20.0  # embed: 1 / temperature
    pooling: str | None = None  # embed: by default the checkpoint's own, or the mean

    def __post_init__(self) -> None:
        for name in ("dev_share", "label_smoothing"):
            number(name, getattr(self, name), least=0, below=1, error=ConfigError)
        for name, least in (("max_length", 4), ("stride", 0), ("max_answer_tokens", 1)):
            if getattr(self, name) is not None:
                number(name, getattr(self, name), least=least, error=ConfigError)
        number("scale", self.scale, above=0, error=ConfigError)
        if self.loss is not None:
            one_of("loss", self.loss, get_args(EmbedLoss), ConfigError)


@dataclass(frozen=True)
class LoadedTask:
    """What the loop takes; `notes` say what was skipped or chosen."""

    objective: Objective[Any]
    train: Examples[Any]
    dev: Examples[Any] | None
    notes: tuple[str, ...] = ()
    max_length: int | None = None  # tokens to a row
    smallest_batch: int = 1  # examples, below which a loss that compares them has nothing to compare


class ReadExamples(Protocol):
    """Examples out of files, which know what was wrong there."""

    @property
    def bad(self) -> BadRows: ...


def object_or_path(model: ModelSource) -> tuple[BertPreTrainedModel | None, str]:
    """A model that is an object with its class's name, or none and where it is."""
    return (model, type(model).__name__) if isinstance(model, BertPreTrainedModel) else (None, os.fspath(model))


@dataclass(frozen=True)
class Request:
    """A task, a model for it and data; what every task makes of them is said once, here."""

    task: str
    model: BertPreTrainedModel | None  # an object, or none: then it is at `path`
    path: str
    tokenizer: BertTokenizer
    train: object
    dev: object | None
    options: TaskOptions
    num_layers: int | None = None

    def load(self, kind: type[Model], **config: Any) -> Model:
        """The model with this task's head: from files with a fresh one where there is none, or the object given."""
        if self.model is not None:
            return _with_labels(self.model, kind, config)
        with warnings.catch_warnings():
            # A fresh head is what fine-tuning begins with.
            warnings.simplefilter("ignore", NewlyInitialized)
            made = class_for(kind, self.path)
            loaded: Model = made.from_pretrained(self.path, ignore_mismatched_sizes=True, **config)
        check_vocabulary_fits(len(self.tokenizer), loaded)
        return loaded if self.num_layers is None else make_student(loaded, num_layers=self.num_layers)

    def config(self) -> BertConfig:
        """The checkpoint's own, whose labels are kept where they cover the data's."""
        if self.model is not None:
            return self.model.config
        values = open_checkpoint(self.path).config
        return config_class(values.get("model_type")).from_dict(values)

    def max_length(self, model: BertPreTrainedModel, *, default: int | None = None) -> int:
        """Tokens to a row: what was asked for, or the default, and never more than the model takes."""
        limit = min(model.config.max_input_length, self.tokenizer.model_max_length)
        asked = self.options.max_length
        if asked is not None and not 4 <= asked <= limit:
            what = f"it must be 4 to {limit}, which is what the model takes"
            raise InputError(f"{{max_length:is}} {what}.", max_length=asked)
        return asked or min(default or limit, limit)

    def both(self, read: Callable[[object], Read]) -> tuple[Read, Read | None]:
        """The training and the development data, read the same way."""
        return read(self.train), None if self.dev is None else read(self.dev)

    def class_weights(self, labels: LabelNumbers | None, numbers: Numbers | None) -> list[float] | None:
        """A weight for every label, where any were given. `numbers` are the labels of the data, one per text."""
        given = self.options.class_weights
        if given is None:
            return None
        if labels is None:
            raise InputError("class_weights were given, and a score has no classes.", "Leave them out.")
        if isinstance(given, str):
            if given != "balanced":
                raise InputError(
                    "{class_weights} is not known.", "Use 'balanced', or a weight for each label.", class_weights=given
                )
            if numbers is None:
                raise InputError("Balanced class_weights are for one label per text.", "Give a weight for each label.")
            return [float(weight) for weight in metrics.balanced_weights(numbers, len(labels))]
        if isinstance(given, Mapping):
            unknown = sorted(set(given) - set(labels.names))
            if unknown:
                raise InputError(
                    f"class_weights names {unknown[0]!r}, which is no label.", f"There are: {', '.join(labels.names)}."
                )
            given = [given.get(name, 1.0) for name in labels.names]
        weights = [float(weight) for weight in given]
        if len(weights) != len(labels):
            raise InputError(
                f"{{class_weights:is}} there are {len(labels)} labels.",
                f"Give a weight for each, in this order: {', '.join(labels.names)}.",
                class_weights=weights,
            )
        if any(not 0 <= weight < float("inf") for weight in weights) or not any(weights):
            raise InputError(
                "{class_weights:is} weights must be finite, at least 0, and not all 0.", class_weights=weights
            )
        return weights


def notes_of(train: ReadExamples, dev: ReadExamples | None, labels: LabelNumbers | None = None) -> tuple[str, ...]:
    """What was skipped, and which labels there are."""
    notes = [summary for each in (train, dev) if each is not None and (summary := each.bad.summary())]
    if labels is not None:
        shown = ", ".join(labels.names[:8]) + (" …" if len(labels) > 8 else "")
        notes.append(f"{len(labels)} labels: {shown}")
    return tuple(notes)


@dataclass(frozen=True)
class Task:
    """`metrics` are all figures it may have: which of them a run has is known once its data is (`metric_names`).

    `reported` are options that concern this task and have a default of their own: the report shows them.
    """

    name: str
    metrics: tuple[str, ...]
    load: Callable[[Request], LoadedTask]
    reported: tuple[str, ...] = ()

    def check_metric(self, name: str | None) -> None:
        """Refuse a metric that the task never has."""
        if name is not None and re.sub(r"\[.+\]", "[TYPE]", name) not in self.metrics:
            self._refuse(name, "has no such metric", self.metrics)

    def check_metric_of_run(self, name: str, known: Sequence[str]) -> None:
        """Refuse a metric that the task has, but not with this data."""
        if name not in known:
            self._refuse(name, "does not have it with this data", known)

    def _refuse(self, name: str, why: str, known: Sequence[str]) -> None:
        close = difflib.get_close_matches(name.lower(), known, n=1)
        meant = f"Did you mean {close[0]}? " if close else ""
        remedy = f"{meant}It has: {', '.join(known)}."
        raise InputError(f"{{best_metric:is}} {self.name} {why}.", remedy, best_metric=name)


def check_vocabulary_fits(num_tokens: int, model: BertPreTrainedModel) -> None:
    """Refuse a tokenizer that knows more tokens than the model has rows for."""
    if num_tokens > model.config.vocab_size:
        raise InputError(
            f"The tokenizer knows {num_tokens} tokens, the model's vocabulary has {model.config.vocab_size}.",
            "They belong to different models, or tokens were added without resize_token_embeddings().",
        )


def _with_labels(model: BertPreTrainedModel, kind: type[Model], config: Mapping[str, Any]) -> Model:
    """A model object, given its labels; refused where its head is another one or of another size."""
    if not isinstance(model, kind):
        raise InputError(
            f"The task needs a {kind.__name__}; it was given a {type(model).__name__}.",
            f"Give the checkpoint's folder, or load it with {kind.__name__}.from_pretrained(…).",
        )
    wanted = len(config["id2label"]) if "id2label" in config else config.get("num_labels", model.config.num_labels)
    if model.config.num_labels != wanted:
        raise InputError(
            f"The model has {model.config.num_labels} outputs, and the data needs {wanted}.",
            f"Make it with num_labels={wanted}.",
        )
    for name in ("id2label", "problem_type"):
        if name in config:
            setattr(model.config, name, config[name])
    return model
