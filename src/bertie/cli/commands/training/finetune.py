"""`bertie finetune`: teach a checkpoint a task from labelled files."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from bertie import training
from bertie.cli.support.options import (
    DEFAULT_MODEL,
    columns_option,
    delimiter_option,
    encoding_option,
    files_option,
    listed,
    with_options,
)
from bertie.cli.support.training_help import SCREEN, SectionedCommand
from bertie.cli.support.training_options import (
    command_line,
    distillation_of,
    distillation_options,
    finished,
    number,
    run_options,
    settings_of,
    training_options,
)
from bertie.errors import InputError

if TYPE_CHECKING:
    from bertie.training import Result

EXAMPLES = """\b
Examples:
  bertie finetune embed -m ./my-bert --train pairs.csv -o vectors --epochs 1
  bertie finetune answer -m ./my-bert --train dev.json -o answers --epochs 1

\b
Stopped or killed? The same line with --resume continues it, bit for bit.
Several GPUs? Put this before the line: torchrun --nproc-per-node 4 -m
"""
# What each task's rows are, for its help.
ROWS = {
    "classify": "Rows have a text and a label: csv, tsv, jsonl, parquet, or GLUE's files.",
    "pairs": "Rows have two texts and a label: inference, paraphrases, relevance.",
    "regress": "Rows have a text (or two) and a number, as STS-B has.",
    "tag": "Words with tags: CoNLL columns, or jsonl with tokens and tags.",
    "answer": "Questions, contexts and answers with their places: SQuAD's json, or jsonl.",
    "choice": "A question, its choices and the number of the right one: jsonl.",
    "embed": "Pairs that belong together (and hard negatives), or pairs with a score.",
}
LINES = {
    "classify": "Labels for texts.",
    "pairs": "Labels for pairs of texts.",
    "regress": "A number for a text or a pair.",
    "tag": "Entities and other tags of words.",
    "answer": "Answers as quotes from a text.",
    "choice": "Which of several endings or answers is right.",
    "embed": "Vectors for search and similarity.",
}
SHOWN = {
    "classify": "bertie finetune classify --train train.tsv --dev dev.tsv -o my-sentiment",
    "pairs": "bertie finetune pairs -m bert-base-uncased --train mnli.jsonl --dev-share 0.1 -o my-nli",
    "regress": "bertie finetune regress --train STS-B/train.tsv --dev STS-B/dev.tsv -o my-sts",
    "tag": "bertie finetune tag -m bert-base-cased --train train.conll --dev dev.conll -o my-ner",
    "answer": "bertie finetune answer -m bert-base-uncased --train train-v2.0.json --dev dev-v2.0.json -o my-squad",
    "choice": "bertie finetune choice -m bert-base-uncased --train train.jsonl --dev dev.jsonl -o my-choice",
    "embed": "bertie finetune embed --train pairs.jsonl --dev dev.jsonl -o my-vectors --batch-size 64",
}
_CLASSES = ("classify", "pairs", "tag", "choice")
_OWN_LENGTH = "the model's"
_LENGTHS = {"answer": "384"}
# The default of --metric, which is what a task is judged by; all there are: see training/tasks.
_JUDGED = {"regress": "spearman", "tag": "f1", "answer": "f1", "embed": "mrr, with scores spearman"}


def _metric_help(task: str) -> str:
    return f"What the best model is best at. [default: {_JUDGED.get(task, 'accuracy')}]"


@click.group(
    "finetune", epilog=EXAMPLES, subcommand_metavar="TASK …", context_settings={"help_option_names": ["-h", "--help"]}
)
def command() -> None:
    """Teach a checkpoint a task from labelled files.

    Labels are learned from the data and stored with the model. DIR is then a model like any other, with a report of
    how it went (report.md), its curves and all its numbers (metrics.jsonl).
    """


def _data_options(task: str) -> list[Callable[[Any], Any]]:
    """What the files hold, as far as it concerns this task."""
    options = [
        files_option("--train", required=True, shown="Training data; may be repeated."),
        files_option("--dev", shown="Data to judge by, and to choose the best model."),
        click.option("-m", "--model", metavar="MODEL", help=f"Folder or hub name. [default: {DEFAULT_MODEL}]"),
    ]
    if task not in ("answer", "tag", "choice"):
        options.append(click.option("--column", metavar="NAME", help="Column of the text. [default: by its name]"))
        options.append(columns_option)
        options.append(click.option("--label", metavar="NAME", help="Column of the label. [default: by its name]"))
        options.append(click.option("--glue", metavar="TASK", help="Read as this GLUE task. [default: by the folder]"))
    options += [
        click.option("--input-format", metavar="FORMAT", help="Format of the files. [default: by their endings]"),
        encoding_option,
        delimiter_option,
        click.option("--skip-bad", is_flag=True, help="Skip rows that cannot be used, and count them."),
        number("--max-length", shown=f"Longest text in tokens. [default: {_LENGTHS.get(task, _OWN_LENGTH)}]"),
        click.option("--metric", "best_metric", metavar="NAME", help=_metric_help(task)),
        number("--dev-share", metavar="X", default=0.0, shown="Share of the training data to hold out for dev."),
    ]
    return options + _own_options(task)


def _own_options(task: str) -> list[Callable[[Any], Any]]:
    options: list[Callable[[Any], Any]] = []
    if task in _CLASSES:
        shown = "Share of a label given to the others."
        options.append(number("--label-smoothing", metavar="X", default=0.0, shown=shown))
    if task in ("classify", "pairs", "tag"):
        shown = "balanced, or numbers by commas. [default: all the same]"
        options.append(click.option("--class-weights", metavar="W", help=shown))
    if task in ("classify", "pairs"):
        shown = "Whether several labels may hold at once. [default: as the data looks]"
        options.append(click.option("--several-labels/--one-label", default=None, help=shown))
    if task == "answer":
        options += [
            number("--stride", default=128, shown="Tokens that two windows share."),
            click.option("--repair", is_flag=True, help="Move answers whose place in the text is wrong."),
            number("--max-answer-tokens", default=30, shown="Longest answer."),
        ]
    if task == "embed":
        shown = "contrastive; cosine or cosent, which need scores. [default: by the data]"
        losses = click.Choice(["contrastive", "cosine", "cosent"])
        options += [
            click.option("--loss", type=losses, metavar="NAME", help=shown),
            number("--scale", metavar="X", default=20.0, shown="1 / temperature."),
            click.option("--pooling", metavar="MODE", help="mean, cls, max. [default: the model's own, or mean]"),
        ]
    return options


def _dropout_options() -> list[Callable[[Any], Any]]:
    shown = "[default: the model's own]"
    return [
        number("--dropout", metavar="X", shown=f"Of hidden states. {shown}"),
        number("--attention-dropout", metavar="X", shown=f"0 is fastest on GPUs. {shown}"),
    ]


def _add(task: str) -> None:
    @click.pass_context
    def work(context: click.Context, /, **values: Any) -> int:
        return finished(context, lambda: _finetune(task, values))

    work.__doc__ = f"{LINES[task]}\n\n    {ROWS[task]}"
    function: Any = with_options(
        work, *_data_options(task), run_options, distillation_options, *_dropout_options(),
        training_options(epochs=3.0, learning_rate=3e-5, batch_size=32, warmup=0.1),
    )  # fmt: skip
    example = f"\b\nExample:\n  {_folded(SHOWN[task])}"
    made = command.command(task, cls=SectionedCommand, short_help=LINES[task], epilog=example, context_settings=SCREEN)
    made(function)


def _folded(line: str) -> str:
    """A line that a shell takes in two, where one would not fit the screen."""
    if len(line) <= 76:
        return line
    head, _, tail = line.partition(" --train ")
    return f"{head} \\\n      --train {tail}"


def _finetune(task: str, values: dict[str, Any]) -> Result:
    settings = settings_of(values)
    train, dev = list(values.pop("train")), list(values.pop("dev"))
    output, resume, device = values.pop("output"), values.pop("resume"), values.pop("device")
    model, dropout, attention_dropout = (values.pop(name) for name in ("model", "dropout", "attention_dropout"))
    columns = training.Columns(
        text=values.pop("column", None), pair=values.pop("columns", None), label=values.pop("label", None),
        glue=values.pop("glue", None), format=values.pop("input_format", None),
        encoding=values.pop("encoding"), delimiter=values.pop("delimiter"),
    )  # fmt: skip
    teacher, distillation, temperature = values.pop("teacher"), distillation_of(values), values.pop("temperature")
    student_layers = values.pop("student_layers")
    weights = _weights(values.pop("class_weights", None))
    options = training.TaskOptions(columns=columns, class_weights=weights, **values)
    return training.finetune(
        task, model=model, train=_one_or_all(train), dev=_one_or_all(dev), output=output, settings=settings,
        options=options, dropout=dropout, attention_dropout=attention_dropout, resume=resume, device=device,
        teacher=teacher, distillation=distillation, temperature=temperature, student_layers=student_layers,
        command=command_line(),
    )  # fmt: skip


def _one_or_all(files: list[str]) -> Any:
    return None if not files else files[0] if len(files) == 1 else files


def _weights(given: str | None) -> Any:
    if given is None or given == "balanced":
        return given
    try:
        return [float(part) for part in listed(given) or []]
    except ValueError:
        raise InputError(f"--class-weights is {given!r}.", "Use balanced, or numbers such as 1,2.5,1.") from None


for _task in LINES:
    _add(_task)
