"""`finetune(…)`: a checkpoint and labelled files in, a model for a task out.

    from bertie.training import finetune

    result = finetune("classify", model="bert-base-uncased", train="train.tsv", dev="dev.tsv", output="my-model")
    result.metrics        # {"accuracy": …}

`output` is then a model folder like any other: `bertie classify -m my-model "A fine film."`. Under torchrun the same
call trains with many processes.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from bertie.defaults import default_embedding_model
from bertie.errors import CheckpointError, InputError
from bertie.model.bert import BertSelfAttention
from bertie.model.pretrained import BertPreTrainedModel
from bertie.text import BertTokenizer
from bertie.training.contract import Examples, Objective
from bertie.training.distillation import (
    TEMPERATURE,
    Distillation,
    Weights,
    check_temperature,
    check_vocabulary,
    load_teacher,
)
from bertie.training.registry import TASKS, Prepared, TaskOptions, prepare
from bertie.training.run.batches import needs_whole_batches
from bertie.training.run.checkpoint import check_output, seed_everything
from bertie.training.run.distributed import World, world
from bertie.training.run.journal import check_tensorboard
from bertie.training.run.judging import check_metric
from bertie.training.run.loop import Result
from bertie.training.run.loop import train as train_loop
from bertie.training.run.report import Subject, write_report
from bertie.training.run.stopping import explained
from bertie.training.settings import Settings
from bertie.training.tasks.embed_examples import EmbedExamples


def finetune(
    task: str,
    *,
    train: object,
    output: str | os.PathLike[str],
    model: str | os.PathLike[str] | BertPreTrainedModel | None = None,
    dev: object | None = None,
    tokenizer: BertTokenizer | None = None,
    epochs: float | None = None,
    learning_rate: float | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    settings: Settings | None = None,
    options: TaskOptions | None = None,
    dropout: float | None = None,
    attention_dropout: float | None = None,
    teacher: str | os.PathLike[str] | None = None,
    distillation: Weights | None = None,
    temperature: float = TEMPERATURE,
    student_layers: int | None = None,
    resume: bool = False,
    device: str | None = None,
    show: bool | None = None,
    command: str | None = None,
) -> Result:
    """Fine-tune `model` (by default all-MiniLM-L6-v2) for a task: classify, pairs, regress, tag, answer, choice, embed.

    `train` and `dev` are a file, several, or rows. The four most used settings have arguments of their own; the others
    are in `settings`, and what concerns the task and its data is in `options`. With a `teacher`, a larger model trained
    for the same task, `model` learns from its answers too, as `distillation` weighs them. Instead of a `model`,
    `student_layers` begins with so many of the teacher's own layers.
    """
    if task not in TASKS:
        raise InputError(f"There is no task {task!r} to train.", f"There are: {', '.join(TASKS)}.")
    made = _settings(settings, epochs=epochs, learning_rate=learning_rate, batch_size=batch_size, seed=seed)
    chosen = replace(options or TaskOptions(), seed=made.seed)
    check_student(student_layers, teacher, model)
    check_metric(task, chosen.best_metric)
    check_dropout(dropout, attention_dropout)
    check_temperature(temperature)
    check_teacher(teacher, distillation, temperature)
    if dev is None and not chosen.dev_share:
        for name, value in (("best_metric", chosen.best_metric), ("patience", made.patience)):
            if value is not None:
                raise InputError(
                    f"{name} is {value!r}, and there is no development data to judge by.",
                    "Name a file of it: dev=, or hold a share of the training data out: dev_share=.",
                )
    if made.tensorboard:
        check_tensorboard()
    check_output(output, resume=resume)
    source = (teacher if student_layers else default_embedding_model()) if model is None else model
    assert source is not None
    with explained(Path(output)), world(device=device, shard=made.shard) as here:
        seed_everything(made.seed)  # a fresh head is the same for the same seed
        if tokenizer is None and not isinstance(source, BertPreTrainedModel):
            tokenizer = BertTokenizer.from_pretrained(os.fspath(source))
        if teacher is not None and tokenizer is not None:
            check_vocabulary(teacher, tokenizer)
        prepared = prepare(
            task, model=source, train=train, dev=dev, tokenizer=tokenizer, options=chosen, num_layers=student_layers
        )
        _check_batch(prepared.objective, prepared.train, made)
        set_dropout(prepared.objective.model, hidden=dropout, attention=attention_dropout)
        objective = with_teacher(prepared.objective, teacher, distillation, temperature, here)
        name = os.fspath(source) if isinstance(source, str | os.PathLike) else type(source).__name__
        if student_layers is not None:
            name = f"{student_layers} layers of {name}"
        return run(
            objective, prepared.train, prepared.dev, made, output,
            here=here, resume=resume, show=show, model_name=name, notes=prepared.notes,
            command=command or f"bertie.training.finetune({task!r}, …) from Python",
            options=deciding(chosen, _DECIDING) | {"dropout": dropout, "attention_dropout": attention_dropout},
            told=_told(task, chosen, prepared) | told_of_teacher(teacher, distillation, temperature),
        )  # fmt: skip


def _told(task: str, options: TaskOptions, prepared: Prepared) -> dict[str, Any]:
    """What the report says besides the settings: what is in force, of what concerns the task."""
    config = prepared.objective.model.config
    found = deciding(options, _DECIDING) | {"best_metric": None if prepared.dev is None else options.best_metric}
    return {
        "max_length": prepared.max_length,
        "dropout": config.hidden_dropout_prob,
        "attention_dropout": config.attention_probs_dropout_prob,
        **{name: value for name, value in found.items() if value is not None and task in _CONCERNED.get(name, TASKS)},
    }


# Of a task's options those that decide its numbers and do not show in the data's fingerprint.
_DECIDING = ("best_metric", "label_smoothing", "class_weights", "max_answer_tokens", "loss", "scale", "pooling")

_CONCERNED = {
    "label_smoothing": ("classify", "pairs", "tag", "choice"),
    "max_answer_tokens": ("answer",),
    "scale": ("embed",),
}


def deciding(options: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """These of the options, as JSON gives them back."""
    return dict(json.loads(json.dumps({name: getattr(options, name) for name in names}, default=str)))


def run(
    objective: Objective,
    examples: Examples,
    dev: Examples | None,
    settings: Settings,
    output: str | os.PathLike[str],
    *,
    here: World,
    resume: bool,
    show: bool | None,
    model_name: str,
    notes: tuple[str, ...],
    command: str,
    options: dict[str, Any] | None = None,
    told: dict[str, Any] | None = None,
) -> Result:
    """Train and, on the main process, write the report, which lists what is `told` beside the settings."""
    num_parameters = objective.model.num_parameters()
    result = train_loop(
        objective, examples, dev, settings, output, world=here, resume=resume, show=show, notes=notes, options=options
    )
    if here.is_main:
        subject = Subject(
            task=objective.name,
            model=model_name,
            num_parameters=num_parameters,
            num_train=len(examples),
            num_dev=0 if dev is None else len(dev),
            best_metric=objective.best_metric,
            command=command,
            notes=notes,
            options=told or {},
        )
        try:
            write_report(result, subject, settings, here)
        except OSError as error:
            raise CheckpointError(
                f"The report could not be written in {result.output}: {error.strerror or error}.",
                "The model itself is there and whole. Make room, and resume=True writes the report.",
            ) from error
    return result


def _check_batch(objective: Objective, examples: Examples, settings: Settings) -> None:
    """Refuse batches in which nothing can be compared."""
    alone = isinstance(examples, EmbedExamples) and examples.table.shape[1] == 2
    if settings.batch_size < 2 and settings.batch_tokens is None and alone and needs_whole_batches(objective):
        raise InputError(
            f"batch_size is {settings.batch_size}; rows of a batch are compared with each other, two at least.",
            "Larger batches teach more: 64, say.",
        )


def with_teacher(
    objective: Objective,
    teacher: str | os.PathLike[str] | None,
    weights: Weights | None,
    temperature: float,
    here: World,
) -> Objective:
    """The objective itself, or distillation around it."""
    if teacher is None:
        return objective
    loaded = load_teacher(teacher, objective).to(here.device)
    return Distillation(objective, loaded, weights=weights, temperature=temperature)


def check_student(layers: int | None, teacher: object | None, model: object | None) -> None:
    """Refuse `student_layers` where there is no teacher to take them from, or a student already."""
    if layers is None:
        return
    if teacher is None:
        raise InputError(
            f"student_layers is {layers}, and there is no teacher to take them from.",
            "Name a teacher: --teacher ./my-large-bert.",
        )
    if model is not None:
        raise InputError(
            "Both model and student_layers were given.",
            "The student is either a model of its own or some layers of the teacher: leave one of them out.",
        )


def check_teacher(teacher: object | None, weights: Weights | None, temperature: float) -> None:
    """Refuse what says how to learn from a teacher where there is none."""
    if teacher is not None:
        return
    said = None if weights is None or weights == Weights() else f"distillation is {list(vars(weights).values())}"
    if temperature != TEMPERATURE:
        said = f"temperature is {temperature}"
    if said is not None:
        raise InputError(
            f"{said}, and there is no teacher to learn from.", "Name a teacher: --teacher ./my-large-bert."
        )


def told_of_teacher(
    teacher: str | os.PathLike[str] | None, weights: Weights | None, temperature: float
) -> dict[str, Any]:
    """What the report says of a teacher, where there is one."""
    if teacher is None:
        return {}
    return {"teacher": os.fspath(teacher), "distillation": vars(weights or Weights()), "temperature": temperature}


def check_dropout(hidden: float | None, attention: float | None) -> None:
    """Refuse what is no probability."""
    for name, value in (("dropout", hidden), ("attention_dropout", attention)):
        if value is not None and not 0 <= value < 1:
            raise InputError(f"{name} is {value}; it takes 0 up to (not with) 1.")


def set_dropout(model: BertPreTrainedModel, *, hidden: float | None = None, attention: float | None = None) -> None:
    """Other dropout probabilities than the checkpoint's, in the model and in its configuration."""
    check_dropout(hidden, attention)
    in_attention = {id(m.dropout) for m in model.modules() if isinstance(m, BertSelfAttention)}
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            value = attention if id(module) in in_attention else hidden
            module.p = module.p if value is None else value
    if hidden is not None:
        model.config.hidden_dropout_prob = hidden
    if attention is not None:
        model.config.attention_probs_dropout_prob = attention
        model.set_attention_backend("auto")


def _settings(given: Settings | None, **changes: Any) -> Settings:
    return replace(given or Settings(), **{name: value for name, value in changes.items() if value is not None})


__all__ = ["check_student", "check_teacher", "finetune", "run", "set_dropout", "told_of_teacher", "with_teacher"]
