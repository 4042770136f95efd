"""Labels or a number for a text or a pair: classify, pairs and regress, with `BertForSequenceClassification`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertie.config import BertConfig
from bertie.data import BadRows, RowReader, choose_label, choose_pair, choose_text
from bertie.data.columns import PAIR_COLUMNS, label_of, text_of
from bertie.data.glue import read_glue
from bertie.data.reading import bad_row
from bertie.data.rows import Row
from bertie.errors import DataError
from bertie.json_values import items, text
from bertie.model import BertForSequenceClassification
from bertie.text import BertTokenizer
from bertie.training import metrics
from bertie.training.contract import Batch, Examples, LabelObjective, RowExamples
from bertie.training.metrics import Array
from bertie.training.sources import Columns, LabelNumbers, Source, label_numbers, sources_of
from bertie.training.task import LoadedTask, Request, Task, notes_of
from bertie.training.token_rows import TokenRow, TokenRows, fingerprint, pack

Kind = Literal["class", "several", "score"]
Choice = TypeVar("Choice")

_BEST = {
    "regression": "spearman",
    "single_label_classification": "accuracy",
    "multi_label_classification": "f1_micro",
}
_PROBLEMS = {"class": "single_label_classification", "several": "multi_label_classification", "score": "regression"}
# What GLUE judges a task by, where it is not the accuracy.
_GLUE_BEST = {"CoLA": "matthews", "MRPC": "f1", "QQP": "f1", "STS-B": "spearman"}
_MANY_LABELS = 20  # where most rows have a label of their own, it is probably no label
_LOOKED_AT = 100  # rows, to tell which columns hold what


def load(request: Request) -> LoadedTask:
    options, columns = request.options, request.options.columns
    if request.task != "regress" and isinstance(request.train, Iterator):
        request = replace(request, train=list(request.train))  # it can be read once, and its labels are looked at first
    kind: Kind = "score" if request.task == "regress" else "class"
    if request.task != "regress":
        lists = options.several_labels
        kind = "several" if (holds_lists(request.train, columns) if lists is None else lists) else "class"
    paired = {"classify": columns.pair is not None, "pairs": True, "regress": None}[request.task]
    texts, dev_texts = request.both(
        lambda given: read_texts(given, kind=kind, paired=paired, columns=columns, skip_bad=options.skip_bad)
    )
    labels: LabelNumbers | None = None
    if kind == "score":
        model = request.load(BertForSequenceClassification, num_labels=1, problem_type="regression")
    else:
        labels = texts.label_numbers(request.config())
        if len(labels) < 2 and kind == "class":
            raise DataError(
                f"{texts.source}: all rows have the label {labels.names[0]!r}.", "At least two labels are needed."
            )
        model = request.load(BertForSequenceClassification, id2label=labels.id2label, problem_type=_PROBLEMS[kind])
    length = request.max_length(model)
    train = texts.encode(request.tokenizer, max_length=length, labels=labels)
    dev = None if dev_texts is None else dev_texts.encode(request.tokenizer, max_length=length, labels=labels)
    glue = sources_of(request.train, columns)[0].glue
    objective = Classification(
        model,
        request.tokenizer,
        name=request.task,
        label_smoothing=options.label_smoothing,
        class_weights=request.class_weights(labels, train.labels if kind == "class" else None),
        best_metric=options.best_metric or (None if glue is None else _GLUE_BEST.get(glue.name)),
    )
    notes = notes_of(train, dev, labels)
    if labels is not None and len(labels) > max(_MANY_LABELS, len(train) // 2):
        notes += (f"{len(labels):,} labels for {len(train):,} rows: is it the right column? Name it with --label",)
    full = int(np.count_nonzero(train.lengths() >= length))
    if full:
        notes += (f"{full:,} of {len(train):,} texts fill all {length} tokens; what goes beyond is cut off",)
    return LoadedTask(objective, train, dev, notes, max_length=length)


_FIGURES = ("accuracy", "matthews", "f1", "f1_macro", "f1_micro", "loss")
TASKS = (
    Task("classify", _FIGURES, load, reported=("label_smoothing",)),
    Task("pairs", _FIGURES, load, reported=("label_smoothing",)),
    Task("regress", ("spearman", "pearson", "mse", "loss"), load),
)


# -- examples ----------------------------------------------------------------------------------------------------------


class TextExample(NamedTuple):
    row: TokenRow
    label: Array  # a number of a class, a score, or [labels] of 0 and 1


@dataclass(frozen=True)
class TextExamples(RowExamples[TextExample]):
    """`labels` is `[rows]` of classes (int64) or scores (float32), or `[rows, labels]` where several may apply."""

    labels: Array
    bad: BadRows

    def get(self, index: int, epoch: int) -> TextExample:
        return TextExample(self.rows[index], self.labels[index])

    def fingerprint(self) -> str:
        return fingerprint(*self.rows.arrays(), self.labels)


@dataclass(frozen=True, slots=True)
class Labelled:
    """A text or pair with its label: names (one, or where several may apply any number), or a score."""

    text_a: str
    text_b: str | None
    names: tuple[str, ...]
    score: float
    where: str


@dataclass(frozen=True)
class LabelledTexts:
    """Texts as they were read, before anything is tokenized: labels are learned from these."""

    items: list[Labelled]
    bad: BadRows
    source: str
    kind: Kind
    known: tuple[str, ...] = ()  # labels the format itself knows

    def label_numbers(self, config: BertConfig | None = None) -> LabelNumbers:
        """The labels of these texts, numbered."""
        names = {*self.known, *(name for item in self.items for name in item.names)}
        return label_numbers(names, config=config, source=self.source)

    def encode(self, tokenizer: BertTokenizer, *, max_length: int, labels: LabelNumbers | None = None) -> TextExamples:
        """Tokenized, with the numbers of their labels; a label that is not among `labels` is a bad row."""
        kept: list[Labelled] = []
        found: list[list[int]] = []
        for item in self.items:
            try:
                numbers = [] if labels is None else [labels.number(name, item.where) for name in item.names]
            except DataError as error:
                self.bad.report(error)
                continue
            kept.append(item)
            found.append(numbers)
        if not kept:
            raise DataError(f"{self.source} has no rows to use.", "Check the file, its columns and its labels.")
        seconds = None if kept[0].text_b is None else [item.text_b or "" for item in kept]
        rows = TokenRows.encode(tokenizer, [item.text_a for item in kept], seconds, max_length=max_length)
        table: Array
        if self.kind == "several":
            table = np.zeros((len(found), len(labels or ())), dtype=np.float32)
            for row, numbers in enumerate(found):
                table[row, numbers] = 1
        elif self.kind == "score":
            table = np.asarray([item.score for item in kept], dtype=np.float32)
        else:
            table = np.asarray([numbers[0] for numbers in found], dtype=np.int64)
        return TextExamples(rows, table, self.bad)


def read_texts(
    given: object, *, kind: Kind, paired: bool | None = False, columns: Columns | None = None, skip_bad: bool = False
) -> LabelledTexts:
    """All labelled texts of one source or of several files. `paired=None` takes pairs where the columns are plainly
    those of one.
    """
    bad = BadRows(skip=skip_bad)
    items: list[Labelled] = []
    known: tuple[str, ...] = ()
    sources = sources_of(given, columns)
    for source in sources:
        if source.glue is None:
            items.extend(_from_rows(source, kind, paired, bad))
        else:
            items.extend(_from_glue(source, kind, bad))
            known = tuple(source.glue.labels or ())
    return LabelledTexts(items, bad, sources[0].name, kind, known)


def _from_glue(source: Source, kind: Kind, bad: BadRows) -> Iterator[Labelled]:
    task = source.glue
    assert task is not None
    if kind == "several" or (kind == "score") != (task.labels is None):
        wanted = "a number" if task.labels is None else "one label"
        raise DataError(
            f"{task.name} has {wanted} to a text, which is not what was asked for.",
            "Use regress for STS-B, and classify or pairs for the others.",
        )
    for example in read_glue(task.name, source.name, encoding=source.columns.encoding).reading(bad):
        where = f"{source.name}, example {example.guid}"
        if example.label is None:
            bad.report(DataError(f"{where}: has no label.", "Test files have none: use train.tsv and dev.tsv."))
            continue
        names, score = ((), float(example.label)) if kind == "score" else ((str(example.label),), 0.0)
        yield Labelled(example.text_a, example.text_b, names, score, where)


def _from_rows(source: Source, kind: Kind, paired: bool | None, bad: BadRows) -> Iterator[Labelled]:
    reader, columns = source.open(skip_bad=bad.skip), source.columns
    rows = reader.reading(bad)
    head = list(islice(rows, _LOOKED_AT))
    if not head:
        return
    first, second, label = _most_choose(head, lambda names: _choose(names, paired, columns, reader.name))
    for row in chain(head, rows):
        try:
            text_b = None if second is None else text_of(row, second)
            text_a = text_of(row, first)
            found = Labelled(text_a, text_b, *_label(row, label, kind, columns.separator), row.where)
        except DataError as error:
            bad.report(error)
            continue
        yield found


def _most_choose(rows: Sequence[Row], choose: Callable[[Sequence[str]], Choice]) -> Choice:
    """The columns that most rows would choose, so that one odd row does not decide for the others."""
    choices: Counter[Choice] = Counter()
    failure: DataError | None = None
    for row in rows:
        try:
            choices[choose(list(row.values))] += 1
        except DataError as error:
            failure = failure or error
    if not choices and failure is not None:
        raise failure
    return choices.most_common(1)[0][0]


def _label_column(names: Sequence[str], columns: Columns, source: str) -> str:
    if len(names) == 1 and columns.label is None:
        raise DataError(
            f"{source}: there is only one column, {names[0]!r}; training needs a label beside every text.",
            "Give a csv, tsv or jsonl file with both.",
        )
    return choose_label(names, given=columns.label, source=source)


def _choose(names: Sequence[str], paired: bool | None, columns: Columns, source: str) -> tuple[str, str | None, str]:
    label = _label_column(names, columns, source)
    if paired is None:
        known = {name.strip().lower() for name in names}
        looks_paired = any(first in known and second in known for first, second in PAIR_COLUMNS)
        paired = columns.pair is not None or (columns.text is None and looks_paired)
    if paired:
        first, second = choose_pair(names, given=columns.pair, source=source)
        return first, second, label
    return choose_text([n for n in names if n != label], given=columns.text, source=source), None, label


def _label(row: Row, column: str, kind: Kind, separator: str) -> tuple[tuple[str, ...], float]:
    """(names, score) of a row: one name, several, or none and a score."""
    value = row.values.get(column)
    if kind == "score":
        return (), float(label_of(row, column, scored=True))
    if kind == "class":  # JSON's true and false are classes like others
        return (str(value).lower() if value is True or value is False else str(label_of(row, column)),), 0.0
    if (joined := text(value)) is not None:
        value = [part.strip() for part in joined.split(separator) if part.strip()]
    if value is None:
        raise bad_row(
            f"{row.where}: the column {column!r} should be a list of labels, and holds nothing.",
            "Where no label applies, the list is empty: [].",
        )
    listed = _listed(value)
    if listed is None or not all(isinstance(each, str | int) for each in listed):
        raise bad_row(f"{row.where}: the column {column!r} should be a list of labels: {value!r:.60}.")
    return tuple(map(str, listed)), 0.0


def _listed(value: object) -> list[object] | None:
    """What a cell lists, also as an array of numpy; None where it holds no list."""
    to_list: Callable[[], object] | None = getattr(value, "tolist", None)
    plain = value if to_list is None else to_list()
    return items(plain)


def holds_lists(given: object, columns: Columns) -> bool:
    """Whether the first label there is is a list, so that several labels may apply to a text."""
    source = sources_of(given, columns)[0]
    if source.glue is not None:
        return False
    reader: RowReader = source.open(skip_bad=True)
    head = [] if reader.once else list(islice(reader, _LOOKED_AT))
    if not head:
        return False
    column = _most_choose(head, lambda names: _label_column(names, columns, reader.name))
    labels = (row.values.get(column) for row in head)
    return _listed(next((label for label in labels if label is not None), None)) is not None


# -- objective ---------------------------------------------------------------------------------------------------------


class Classification(LabelObjective[TextExample]):
    """One label (cross-entropy), several (binary cross-entropy) or a score (squared error), as `problem_type` says."""

    name = "classify"

    def default_metric(self) -> str:
        return _BEST[self.problem]

    @property
    def problem(self) -> str:
        return str(self.model.config.problem_type)

    def collate(self, examples: Sequence[TextExample]) -> Batch:
        labels = torch.from_numpy(np.stack([example.label for example in examples]))
        tensors = pack([example.row for example in examples]) | {"labels": labels}
        units = float(labels.numel())
        if self.class_weights is not None and self.problem == "single_label_classification":
            units = float(self.class_weights[labels].sum())
        return Batch(tensors, units, len(tensors["input_ids"]), len(examples))

    def summed(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.problem == "regression":
            return F.mse_loss(logits.flatten(), labels.float(), reduction="sum")
        if self.problem == "multi_label_classification":
            weights = None if self.class_weights is None else self.class_weights.to(logits.device)
            targets = labels * (1 - self.label_smoothing) + 0.5 * self.label_smoothing
            return F.binary_cross_entropy_with_logits(logits, targets, weight=weights, reduction="sum")
        return super().summed(logits, labels)

    def evaluate(
        self, model: nn.Module, examples: Examples[TextExample], *, token_budget: int, device: torch.device | str
    ) -> dict[str, float]:
        outputs, gold, total, units = [], [], 0.0, 0.0
        for _, batch, logits, loss in self.scored(model, examples, token_budget, device):
            total, units = total + loss, units + batch.units
            outputs.append(logits.cpu().numpy())
            gold.append(batch.tensors["labels"].cpu().numpy())
        return {"loss": total / max(units, 1e-12)} | self._figures(np.concatenate(outputs), np.concatenate(gold))

    def metric_names(self, dev: Examples[TextExample]) -> tuple[str, ...]:
        if self.problem == "regression":
            return "spearman", "pearson", "mse", "loss"
        if self.problem == "multi_label_classification":
            return "f1_micro", "f1_macro", "accuracy", "loss"
        more = ("f1",) if self.model.config.num_labels == 2 else ("f1_macro", "f1_micro")
        return ("accuracy", "matthews", *more, "loss")

    def _figures(self, scores: Array, labels: Array) -> dict[str, float]:
        if self.problem == "regression":
            predicted = scores[:, 0]
            return {
                "pearson": metrics.pearson(predicted, labels),
                "spearman": metrics.spearman(predicted, labels),
                "mse": metrics.mean_squared_error(predicted, labels),
            }
        if self.problem == "multi_label_classification":
            chosen, wanted = (scores > 0).astype(np.int64), labels.astype(np.int64)  # probability above one half
            return {
                "accuracy": metrics.accuracy(chosen, wanted),
                "f1_micro": metrics.f1_micro(chosen, wanted),
                "f1_macro": metrics.f1_macro(chosen, wanted),
            }
        best, num_labels = scores.argmax(axis=1), scores.shape[1]
        figures = {"accuracy": metrics.accuracy(best, labels), "matthews": metrics.matthews(best, labels)}
        if num_labels == 2:
            return figures | {"f1": metrics.f1_binary(best, labels)}
        return figures | {
            "f1_macro": metrics.f1_macro(best, labels, num_classes=num_labels),
            "f1_micro": metrics.f1_micro(best, labels),
        }
