"""From a task's name, a model and files to what the loop trains: an objective, its examples, and notes for people.

    task = load_task("classify", model="bert-base-uncased", train="train.jsonl", dev="dev.jsonl")
    task.objective, task.train, task.dev

The labels are learned from the training data and stored in the model's config; development data with others is
refused, naming file and line (or counted, with `skip_bad`).
"""

from __future__ import annotations

from dataclasses import replace

from bertie.errors import InputError
from bertie.text import BertTokenizer
from bertie.training.contract import hold_out
from bertie.training.sources import Columns
from bertie.training.task import LoadedTask, ModelSource, Request, Task, TaskOptions, object_or_path
from bertie.training.tasks import answer, choice, classify, embed, tag

TASKS: dict[str, Task] = {task.name: task for file in (classify, tag, answer, choice, embed) for task in file.TASKS}


def find_task(name: str) -> Task:
    if name not in TASKS:
        raise InputError(f"There is no task {name!r} to train.", f"There are: {', '.join(TASKS)}.")
    return TASKS[name]


def load_task(
    task: str,
    *,
    model: ModelSource,
    train: object,
    dev: object | None = None,
    tokenizer: BertTokenizer | None = None,
    options: TaskOptions | None = None,
    num_layers: int | None = None,
) -> LoadedTask:
    """Everything for fine-tuning. `train` and `dev` are a file, a list of files, or rows (a list of dicts, a table).

    A `model` that is an object needs its `tokenizer`, and has the head of the task already. `num_layers` takes this
    many of the model's layers, evenly spaced.
    """
    found, options = find_task(task), options or TaskOptions()
    found.check_metric(options.best_metric)
    network, path = object_or_path(model)
    if tokenizer is None:
        if network is not None:
            raise InputError(
                f"{task} was given a model object without its tokenizer.",
                "Pass tokenizer=BertTokenizer.from_pretrained(…), or the model's folder instead of the object.",
            )
        tokenizer = BertTokenizer.from_pretrained(path)
    if dev is not None and options.dev_share > 0:
        raise InputError(
            "Both {dev} and {dev_share} were given.",
            "Give a development file, or a share of the training file to hold out.",
            dev=...,
            dev_share=...,
        )
    loaded = found.load(Request(task, network, path, tokenizer, train, dev, options, num_layers))
    if loaded.dev is None and options.dev_share > 0:
        rest, held = hold_out(loaded.train, options.dev_share, seed=options.seed)
        note = f"{len(held)} of {len(loaded.train)} examples are held out for development"
        loaded = replace(loaded, train=rest, dev=held, notes=(*loaded.notes, note))
    if loaded.dev is not None:
        found.check_metric_of_run(loaded.objective.best_metric, loaded.objective.metric_names(loaded.dev))
    return loaded


__all__ = ["TASKS", "Columns", "LoadedTask", "TaskOptions", "find_task", "load_task"]
