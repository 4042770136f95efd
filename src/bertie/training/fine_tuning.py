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

from bertie.arguments import number
from bertie.defaults import default_embedding_model
from bertie.errors import CheckpointError, InputError
from bertie.model.bert import BertSelfAttention
from bertie.model.pretrained import BertPreTrainedModel
from bertie.text import BertTokenizer
from bertie.training.contract import Examples, Item, Objective, Result
from bertie.training.distillation import TEMPERATURE, Teaching, Weights
from bertie.training.registry import find_task, load_task
from bertie.training.run.checkpoint import check_output, seed_everything
from bertie.training.run.distributed import World, world
from bertie.training.run.journal import check_tensorboard
from bertie.training.run.loop import train as train_loop
from bertie.training.run.report import Subject, write_report
from bertie.training.run.stopping import explained
from bertie.training.settings import Settings
from bertie.training.task import TaskOptions, object_or_path

# Of a task's options those that decide its numbers and do not show in the data's fingerprint.
_DECIDING = ("best_metric", "label_smoothing", "class_weights", "max_answer_tokens", "loss", "scale", "pooling")
_WITH_DEFAULT = ("label_smoothing", "max_answer_tokens", "scale")  # of them; tasks say which concern them


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

    - `task`: one of those.
    - `train`, `dev`: a file, several, or rows (a list of dicts, a table, a `datasets.Dataset`).
    - `output`: the folder for the model and its report.
    - `model`, `tokenizer`: a folder, a hub name, or a model object with its tokenizer.
    - `epochs`, `learning_rate`, `batch_size`, `seed`: the most used of the `settings`; `Settings` has the others.
    - `options`: a `TaskOptions` for what concerns the task and its data.
    - `dropout`, `attention_dropout`: by default the model's own.
    - `teacher`: a larger model trained for the same task, from whose outputs `model` learns too. `distillation` are the
      weights of the losses, `temperature` softens the teacher's probabilities, and `student_layers` starts from this
      many of the teacher's own layers instead of a `model`.
    - `resume`: continue the run in `output`.
    - `device`: by default a GPU if PyTorch finds one.
    - `show`: whether to print progress; by default on a terminal.
    - `command`: what the report shows as the command that was run.
    """
    found = find_task(task)
    given: dict[str, Any] = {"epochs": epochs, "learning_rate": learning_rate, "batch_size": batch_size, "seed": seed}
    made = replace(settings or Settings(), **{name: value for name, value in given.items() if value is not None})
    chosen = replace(options or TaskOptions(), seed=made.seed)
    teaching = Teaching(teacher, distillation, temperature, student_layers)
    teaching.check_student(model)
    found.check_metric(chosen.best_metric)
    check_dropout(dropout, attention_dropout)
    teaching.check()
    if dev is None and not chosen.dev_share:
        for name, value in (("best_metric", chosen.best_metric), ("patience", made.patience)):
            if value is not None:
                raise InputError(
                    f"{{{name}:is}} there is no development data to judge by.",
                    "Name a file of it: {dev}, or hold a share of the training data out: {dev_share}.",
                    **{name: value, "dev": ..., "dev_share": ...},
                )
    if made.tensorboard:
        check_tensorboard()
    check_output(output, resume=resume)
    source = model if model is not None else teacher if student_layers and teacher else default_embedding_model()
    with explained(Path(output)), world(device=device, shard=made.shard) as here:
        seed_everything(made.seed)  # a fresh head is the same for the same seed
        network, name = object_or_path(source)
        if tokenizer is None and network is None:
            tokenizer = BertTokenizer.from_pretrained(name)
        if tokenizer is not None:
            teaching.check_vocabulary(tokenizer)
        loaded = load_task(
            task, model=source, train=train, dev=dev, tokenizer=tokenizer, options=chosen, num_layers=student_layers
        )
        if made.batch_tokens is None and made.batch_size < loaded.smallest_batch:
            raise InputError(
                "{batch_size:is} rows of a batch are compared with each other, two at least.",
                "Larger batches teach more: try 64.",
                batch_size=made.batch_size,
            )
        set_dropout(loaded.objective.model, hidden=dropout, attention=attention_dropout)
        decided, config = deciding(chosen, _DECIDING), loaded.objective.model.config
        concerned = {*_DECIDING} - {*_WITH_DEFAULT} | {*found.reported}
        reported: dict[str, object] = {
            "max_length": loaded.max_length,
            "dropout": config.hidden_dropout_prob,
            "attention_dropout": config.attention_probs_dropout_prob,
            **{key: value for key, value in decided.items() if value is not None and key in concerned},
        }
        if loaded.dev is None:
            reported.pop("best_metric", None)
        return run(
            teaching.around(loaded.objective, here), loaded.train, loaded.dev, made, output,
            here=here, resume=resume, show=show, notes=loaded.notes,
            model_name=name if student_layers is None else f"{student_layers} layers of {name}",
            command=command or f"bertie.training.finetune({task!r}, …) from Python",
            options=decided | {"dropout": dropout, "attention_dropout": attention_dropout},
            reported=reported | teaching.reported(),
        )  # fmt: skip


def deciding(options: object, names: tuple[str, ...]) -> dict[str, object]:
    """These of the options, as JSON gives them back."""
    return dict(json.loads(json.dumps({name: getattr(options, name) for name in names}, default=str)))


def run(
    objective: Objective[Item],
    examples: Examples[Item],
    dev: Examples[Item] | None,
    settings: Settings,
    output: str | os.PathLike[str],
    *,
    here: World,
    resume: bool,
    show: bool | None,
    model_name: str,
    notes: tuple[str, ...],
    command: str,
    options: dict[str, object] | None = None,
    reported: dict[str, object] | None = None,
) -> Result:
    """Train and, on the main process, write the report, which lists what is `reported` beside the settings."""
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
            options=reported or {},
        )
        try:
            write_report(result, subject, settings, here)
        except OSError as error:
            raise CheckpointError(
                f"The report could not be written in {result.output}: {error.strerror or error}.",
                "The model itself is complete. Make room, and {resume} writes the report.",
                resume=True,
            ) from error
    return result


def check_dropout(hidden: float | None, attention: float | None) -> None:
    """Refuse what is no probability."""
    for name, value in (("dropout", hidden), ("attention_dropout", attention)):
        if value is not None:
            number(name, value, least=0, below=1)


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
