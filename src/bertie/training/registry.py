"""From a task's name, a model and files to what the loop trains: an objective, its examples, and notes for people.

    prepared = prepare("classify", model="bert-base-uncased", train="train.jsonl", dev="dev.jsonl")
    prepared.objective, prepared.train, prepared.dev

The labels are learned from the training data and stored in the model's config; development data with others is
refused, naming file and line (or counted, with `skip_bad`).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, get_args

import numpy as np

from bertie.checkpoint.read import open_checkpoint
from bertie.checkpoint.report import NewlyInitialized
from bertie.config import BertConfig
from bertie.data import BadRows
from bertie.errors import DataError, InputError
from bertie.model import (
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
)
from bertie.model.pretrained import BertPreTrainedModel
from bertie.running.pooling import read_pooling
from bertie.running.sentence_folder import SentenceSettings, read_sentence_settings
from bertie.text import BertTokenizer
from bertie.text.windows import DEFAULT_STRIDE
from bertie.training import metrics
from bertie.training.contract import Examples, Objective
from bertie.training.distillation import make_student
from bertie.training.labels import LabelNumbers
from bertie.training.run.judging import check_metric, check_metric_of_run
from bertie.training.settings import above_zero, at_least, below_one, one_of
from bertie.training.sources import Columns, Kind, glue_of, holds_lists, several
from bertie.training.tasks.answer import Answering
from bertie.training.tasks.answer_examples import answer_examples
from bertie.training.tasks.choice import MultipleChoice
from bertie.training.tasks.choice_examples import choice_examples
from bertie.training.tasks.classify import Classification
from bertie.training.tasks.classify_examples import read_texts
from bertie.training.tasks.embed import Embedding, EmbedLoss
from bertie.training.tasks.embed_examples import EmbedExamples, embed_examples
from bertie.training.tasks.tag import Tagging
from bertie.training.tasks.tag_examples import read_tagged
from bertie.training.token_rows import held_out, held_out_groups

TASKS = ("classify", "pairs", "regress", "tag", "answer", "choice", "embed")
# What GLUE judges a task by, where it is not the accuracy.
_GLUE_BEST = {"CoLA": "matthews", "MRPC": "f1", "QQP": "f1", "STS-B": "spearman"}
_MANY_LABELS = 20  # where most rows have a label of their own, it is probably no label
_ANSWER_LENGTH = 384  # Google's for SQuAD

Model = TypeVar("Model", bound=BertPreTrainedModel)
ModelSource = str | os.PathLike[str] | BertPreTrainedModel


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
            below_one(name, getattr(self, name))
        for name, least in (("max_length", 4), ("stride", 0), ("max_answer_tokens", 1)):
            if getattr(self, name) is not None:
                at_least(name, getattr(self, name), least)
        above_zero("scale", self.scale)
        if self.loss is not None:
            one_of("loss", self.loss, get_args(EmbedLoss))


@dataclass(frozen=True)
class Prepared:
    """What the loop takes; `notes` say what was skipped or chosen."""

    objective: Objective
    train: Examples
    dev: Examples | None
    notes: tuple[str, ...] = ()
    max_length: int | None = None  # tokens to a row


def prepare(
    task: str,
    *,
    model: ModelSource,
    train: object,
    dev: object | None = None,
    tokenizer: BertTokenizer | None = None,
    options: TaskOptions | None = None,
    num_layers: int | None = None,
) -> Prepared:
    """Everything for fine-tuning. `train` and `dev` are a file, a list of files, or rows (a list of dicts, a table).

    A `model` that is an object needs its `tokenizer`, and has the head of the task already. `num_layers` takes so many
    of the model's layers, evenly spaced.
    """
    makers: dict[str, Callable[[_Request], Prepared]] = {
        "classify": _classify,
        "pairs": _classify,
        "regress": _classify,
        "tag": _tag,
        "answer": _answer,
        "choice": _choice,
        "embed": _embed,
    }
    if task not in makers:
        raise InputError(f"There is no task {task!r} to train.", f"There are: {', '.join(TASKS)}.")
    check_metric(task, None if options is None else options.best_metric)
    if isinstance(model, BertPreTrainedModel):
        if tokenizer is None:
            raise InputError(
                f"{task} was given a model object without its tokenizer.",
                "Pass tokenizer=BertTokenizer.from_pretrained(…), or the model's folder instead of the object.",
            )
    elif tokenizer is None:
        tokenizer = BertTokenizer.from_pretrained(os.fspath(model))
    assert tokenizer is not None
    request = _Request(task, model, tokenizer, train, dev, options or TaskOptions(), num_layers)
    if dev is not None and request.options.dev_share > 0:
        raise InputError(
            "Both dev and dev_share were given.",
            "Give a development file, or a share of the training file to hold out.",
        )
    prepared = makers[task](request)
    if prepared.dev is None and request.options.dev_share > 0:
        share = request.options.dev_share
        # Sentences, contexts and anchors are held out whole: their parts know too much of each other.
        split: Callable[..., Any] = held_out_groups if hasattr(prepared.train, "groups") else held_out
        rest, held = split(prepared.train, share, seed=request.options.seed)
        note = f"{len(held)} of {len(prepared.train)} examples are held out for development"
        prepared = replace(prepared, train=rest, dev=held, notes=(*prepared.notes, note))
    if prepared.dev is not None:
        judged: Any = prepared.objective
        check_metric_of_run(task, judged.best_metric, judged.metric_names(prepared.dev))
    return prepared


@dataclass(frozen=True)
class _Request:
    task: str
    model: ModelSource
    tokenizer: BertTokenizer
    train: object
    dev: object | None
    options: TaskOptions
    num_layers: int | None = None

    def load(self, kind: type[Model], **config: Any) -> Model:
        """The model with this task's head: from files with a fresh one where there is none, or the object given."""
        if isinstance(self.model, BertPreTrainedModel):
            return _with_labels(self.model, kind, config)
        with warnings.catch_warnings():
            # A fresh head is what fine-tuning begins with.
            warnings.simplefilter("ignore", NewlyInitialized)
            loaded: Model = kind.from_pretrained(self.model, ignore_mismatched_sizes=True, **config)
        if len(self.tokenizer) > loaded.config.vocab_size:
            raise InputError(
                f"The tokenizer knows {len(self.tokenizer)} tokens, the model's vocabulary has "
                f"{loaded.config.vocab_size}.",
                "They belong to different models, or tokens were added without resize_token_embeddings().",
            )
        return loaded if self.num_layers is None else make_student(loaded, num_layers=self.num_layers)

    def max_length(self, model: BertPreTrainedModel, *, default: int | None = None) -> int:
        """Tokens to a row: what was asked for, or the default, and never more than the model takes."""
        limit = min(model.config.max_position_embeddings, self.tokenizer.model_max_length)
        asked = self.options.max_length
        if asked is not None and not 4 <= asked <= limit:
            raise InputError(f"max_length is {asked}; it takes 4 to {limit}, which is what the model takes.")
        return asked or min(default or limit, limit)

    def best_metric(self) -> str | None:
        task = glue_of(next(iter(several(self.train))), self.options.columns)
        return self.options.best_metric or (None if task is None else _GLUE_BEST.get(task.name))


def _classify(request: _Request) -> Prepared:
    options = request.options
    kind: Kind = "score" if request.task == "regress" else "class"
    if request.task != "regress":
        lists = options.several_labels
        if isinstance(request.train, Iterator):  # it can be read once, and its labels are looked at first
            request = replace(request, train=list(request.train))
        kind = "several" if (holds_lists(request.train, options.columns) if lists is None else lists) else "class"
    paired = {"classify": options.columns.pair is not None, "pairs": True, "regress": None}[request.task]

    def read(given: object) -> Any:
        return read_texts(given, kind=kind, paired=paired, columns=options.columns, skip_bad=options.skip_bad)

    texts = read(request.train)
    dev_texts = None if request.dev is None else read(request.dev)
    labels: LabelNumbers | None = None
    if kind == "score":
        model = request.load(BertForSequenceClassification, num_labels=1, problem_type="regression")
    else:
        labels = texts.label_numbers(_own_config(request.model))
        if len(labels) < 2 and kind == "class":
            raise DataError(f"{texts.source}: all rows have the label {labels.names[0]!r}.", "Two labels are needed.")
        problem = "multi_label_classification" if kind == "several" else "single_label_classification"
        model = request.load(BertForSequenceClassification, id2label=labels.id2label, problem_type=problem)
    length = request.max_length(model)
    train = texts.encode(request.tokenizer, max_length=length, labels=labels)
    dev = None if dev_texts is None else dev_texts.encode(request.tokenizer, max_length=length, labels=labels)
    weights = _class_weights(options, labels, train.labels if kind == "class" else None)
    objective = Classification(
        model,
        request.tokenizer,
        name=request.task,
        label_smoothing=options.label_smoothing,
        class_weights=weights,
        best_metric=request.best_metric(),
    )
    notes = _notes(train.bad, None if dev is None else dev.bad, labels=labels)
    if labels is not None and len(labels) > max(_MANY_LABELS, len(train) // 2):
        notes += (f"{len(labels):,} labels for {len(train):,} rows: is it the right column? Name it with --label",)
    full = int(np.count_nonzero(np.diff(train.rows.ends) >= length))
    if full:
        notes += (f"{full:,} of {len(train):,} texts fill all {length} tokens; what goes beyond is cut off",)
    return Prepared(objective, train, dev, notes, max_length=length)


def _tag(request: _Request) -> Prepared:
    options = request.options

    def read(given: object) -> Any:
        return read_tagged(given, skip_bad=options.skip_bad, columns=options.columns)

    sentences = read(request.train)
    dev_sentences = None if request.dev is None else read(request.dev)
    labels = sentences.label_numbers(_own_config(request.model))
    spans = sentences.scheme() != "plain"
    model = request.load(BertForTokenClassification, id2label=labels.id2label)
    length = request.max_length(model)
    train = sentences.encode(request.tokenizer, max_length=length, labels=labels)
    dev = None if dev_sentences is None else dev_sentences.encode(request.tokenizer, max_length=length, labels=labels)
    weights = _class_weights(options, labels, train.labels[train.labels >= 0])
    objective = Tagging(
        model,
        request.tokenizer,
        spans=spans,
        label_smoothing=options.label_smoothing,
        class_weights=weights,
        best_metric=options.best_metric,
    )
    notes = _notes(train.bad, None if dev is None else dev.bad, labels=labels)
    return Prepared(objective, train, dev, notes, max_length=length)


def _answer(request: _Request) -> Prepared:
    options = request.options
    model = request.load(BertForQuestionAnswering, num_labels=2)
    length = request.max_length(model, default=_ANSWER_LENGTH)

    def read(given: object) -> Any:
        return answer_examples(
            given,
            request.tokenizer,
            max_length=length,
            stride=options.stride,
            skip_bad=options.skip_bad,
            repair=options.repair,
            columns=options.columns,
        )

    train, dev = read(request.train), None if request.dev is None else read(request.dev)
    objective = Answering(
        model, request.tokenizer, max_answer_tokens=options.max_answer_tokens, best_metric=options.best_metric
    )
    return Prepared(objective, train, dev, _notes(train.bad, None if dev is None else dev.bad), max_length=length)


def _choice(request: _Request) -> Prepared:
    options = request.options
    model = request.load(BertForMultipleChoice)
    length = request.max_length(model)

    def read(given: object) -> Any:
        return choice_examples(
            given, request.tokenizer, max_length=length, skip_bad=options.skip_bad, columns=options.columns
        )

    train, dev = read(request.train), None if request.dev is None else read(request.dev)
    objective = MultipleChoice(
        model, request.tokenizer, label_smoothing=options.label_smoothing, best_metric=options.best_metric
    )
    return Prepared(objective, train, dev, _notes(train.bad, None if dev is None else dev.bad), max_length=length)


def _embed(request: _Request) -> Prepared:
    options = request.options
    model = request.load(BertModel, add_pooling_layer=False)
    settings, folder = SentenceSettings(), None
    if not isinstance(request.model, BertPreTrainedModel):
        folder = open_checkpoint(request.model, with_companions=True).folder
        settings = read_sentence_settings(folder, model.config.hidden_size)
    if options.pooling is not None:
        settings, folder = SentenceSettings(pooling=read_pooling(options.pooling, settings.pooling)), None
    length = request.max_length(model, default=settings.max_length)

    def read(given: object, scored: bool | None) -> EmbedExamples:
        return embed_examples(
            given,
            request.tokenizer,
            max_length=length,
            columns=options.columns,
            skip_bad=options.skip_bad,
            scored=scored,
            prompt=settings.prompts.get(settings.default_prompt_name or "", ""),
        )

    train = read(request.train, False if options.loss == "contrastive" else None)
    dev = None if request.dev is None else read(request.dev, None)
    if train.scores is None and options.loss in ("cosine", "cosent"):
        raise DataError(
            f"loss={options.loss!r} needs a score for every pair, and the training data has none.",
            "Name its column: label=, or use the contrastive loss.",
        )
    if train.scores is not None:
        largest = float(np.abs(train.scores).max())
        if largest > 1:  # 0 to 5, say: a cosine goes no further than 1
            train = train.scaled(largest)
    loss: EmbedLoss = options.loss or ("contrastive" if train.scores is None else "cosine")
    best = options.best_metric
    if best is None and dev is not None:
        best = "mrr" if dev.scores is None else "spearman"
    objective = Embedding(
        model,
        request.tokenizer,
        loss=loss,
        scale=options.scale,
        settings=settings,
        folder=folder,
        max_length=length,
        best_metric=best,
    )
    return Prepared(objective, train, dev, _notes(train.bad, None if dev is None else dev.bad), max_length=length)


def _with_labels(model: BertPreTrainedModel, kind: type[Model], config: dict[str, Any]) -> Model:
    """A model object, told its labels; refused where its head is another one or of another size."""
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
    if "id2label" in config:
        model.config.id2label = config["id2label"]
    if "problem_type" in config:
        model.config.problem_type = config["problem_type"]
    return model


def _own_config(model: ModelSource) -> BertConfig:
    if isinstance(model, BertPreTrainedModel):
        return model.config
    return BertConfig.from_dict(open_checkpoint(model).config)


def _class_weights(
    options: TaskOptions, labels: LabelNumbers | None, numbers: metrics.Array | None
) -> list[float] | None:
    given = options.class_weights
    if given is None:
        return None
    if labels is None:
        raise InputError("class_weights were given, and a score has no classes.", "Leave them out.")
    if isinstance(given, str):
        if given != "balanced":
            raise InputError(f"class_weights is {given!r}.", "It takes 'balanced', or a weight for each label.")
        if numbers is None:
            raise InputError("Balanced class_weights are for one label to a text.", "Give a weight for each label.")
        return [float(weight) for weight in metrics.balanced_weights(numbers, len(labels))]
    if isinstance(given, Mapping):
        unknown = sorted(set(given) - set(labels.names))
        if unknown:
            raise InputError(
                f"class_weights names {unknown[0]!r}, which is no label.", f"There are: {', '.join(labels.names)}."
            )
        given = [given.get(name, 1.0) for name in labels.names]
    if len(given) != len(labels):
        raise InputError(
            f"class_weights is {[float(weight) for weight in given]}; there are {len(labels)} labels.",
            f"Give a weight for each, in this order: {', '.join(labels.names)}.",
        )
    if any(not 0 <= weight < float("inf") for weight in given) or not any(given):
        raise InputError(
            f"class_weights is {[float(weight) for weight in given]}; weights are 0 or more, finite, and not all 0."
        )
    return [float(weight) for weight in given]


def _notes(train: BadRows, dev: BadRows | None, *, labels: LabelNumbers | None = None) -> tuple[str, ...]:
    notes = [summary for bad in (train, dev) if bad is not None and (summary := bad.summary())]
    if labels is not None:
        shown = ", ".join(labels.names[:8]) + (" …" if len(labels) > 8 else "")
        notes.append(f"{len(labels)} labels: {shown}")
    return tuple(notes)


__all__ = ["TASKS", "Columns", "Prepared", "TaskOptions", "prepare"]
