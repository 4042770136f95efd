"""GLUE's tab-separated files, as the benchmark ships them (Wang et al. 2018, https://gluebenchmark.com/tasks).

Their quotes are not quoting: in MRPC a field may begin with a quote that never closes. CoLA's train and dev files have
no header. Test files have no labels.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count

from bertie.data.columns import Example, label_of, text_of
from bertie.data.reading import BadRows, Reader, bad_row, converted
from bertie.data.rows import Row, rows_of
from bertie.data.source import Opened, PathLike, read_source
from bertie.errors import DataError


@dataclass(frozen=True, slots=True)
class GlueTask:
    """Where a task's files have their texts and label; `labels` is None where the label is a score."""

    name: str
    text_a: str
    text_b: str | None
    label: str
    labels: tuple[str, ...] | None


_ENTAILMENT = ("entailment", "not_entailment")
_TASKS = (
    GlueTask("CoLA", "sentence", None, "label", ("0", "1")),
    GlueTask("SST-2", "sentence", None, "label", ("0", "1")),
    GlueTask("MRPC", "#1 String", "#2 String", "Quality", ("0", "1")),
    GlueTask("STS-B", "sentence1", "sentence2", "score", None),
    GlueTask("QQP", "question1", "question2", "is_duplicate", ("0", "1")),
    GlueTask("MNLI", "sentence1", "sentence2", "gold_label", ("contradiction", "entailment", "neutral")),
    GlueTask("QNLI", "question", "sentence", "label", _ENTAILMENT),
    GlueTask("RTE", "sentence1", "sentence2", "label", _ENTAILMENT),
    GlueTask("WNLI", "sentence1", "sentence2", "label", ("0", "1")),
)
GLUE_TASKS = {task.name: task for task in _TASKS}

_COLA_COLUMNS = ("source", "label", "mark", "sentence")


def glue_task(name: str) -> GlueTask:
    """The task called `name`, in any spelling: SST-2, sst2, sst_2."""
    folded = {_fold(task): task for task in GLUE_TASKS}
    if _fold(name) in folded:
        return GLUE_TASKS[folded[_fold(name)]]
    close = difflib.get_close_matches(_fold(name), folded, n=1)
    hint = f"Did you mean {folded[close[0]]}? " if close else ""
    raise DataError(f"There is no GLUE task {name!r} here.", f"{hint}There are: {', '.join(GLUE_TASKS)}.")


def read_glue(task: str, path: PathLike, *, encoding: str = "utf-8", skip_bad: bool = False) -> Reader[Example]:
    """Read one file of a task. Labels stay the file's strings (`"entailment"`, `"1"`); STS-B's scores are floats."""
    chosen = glue_task(task)

    rows = read_source(path, partial(_rows, chosen, encoding=encoding), skip_bad=skip_bad)
    file = rows.name.replace("\\", "/").rsplit("/", 1)[-1].lower()
    split = re.split(r"[^a-z]", file)[0] or chosen.name.lower()

    def begin(first: Row) -> Callable[[Row], Example]:
        _check_columns(chosen, first, rows.name)
        numbers = count()

        def example(row: Row) -> Example:
            number = next(numbers)
            return _example(chosen, row, f"{split}-{row.values.get('index', number)}")

        return example

    return converted(rows, begin)


def _fold(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _rows(task: GlueTask, source: Opened, bad: BadRows, *, encoding: str) -> Iterator[Row]:
    headed = task.name != "CoLA" or b"sentence" in source.head.split(b"\n")[0].rstrip(b"\r").split(b"\t")
    return rows_of(source, bad, format="tsv", encoding=encoding, columns=None if headed else _COLA_COLUMNS)


def _check_columns(task: GlueTask, row: Row, name: str) -> None:
    wanted = [task.text_a] + ([task.text_b] if task.text_b else [])
    missing = [column for column in wanted if column not in row.values]
    if missing:
        raise DataError(
            f"{name}: no column {missing[0]!r}, which {task.name} has; the header has: {', '.join(row.values)}.",
            f"Check that this is a file of {task.name}, with its header line.",
        )


def _example(task: GlueTask, row: Row, guid: str) -> Example:
    text_b = text_of(row, task.text_b) if task.text_b else None
    label: str | float | None = None
    if task.label in row.values:
        label = label_of(row, task.label, scored=task.labels is None)
        if task.labels is not None and label not in task.labels:
            raise bad_row(f"{row.where}: the label {label!r} is not one of {task.name}'s: {', '.join(task.labels)}.")
    return Example(guid, text_of(row, task.text_a), text_b, label)
