"""How much a task needs each head, neuron, feed-forward network or layer, over a file of examples.

- *gradient* (Michel et al. 2019, "Are Sixteen Heads Really Better than One?", https://arxiv.org/abs/1905.10650): every
  part is multiplied by a gate that is 1. The importance is the mean over rows of |∂ loss / ∂ gate|: how much the loss
  would change, to first order, if the part went. All parts cost one forward and one backward pass, because every row
  has gates of its own.
- *leave_one_out*: the evaluation is run again without each part: exact, and one evaluation to a part.

Data is read, and losses and figures are computed, by the tasks of bertie.training: every layout that fine-tuning takes
is taken here. A row is what the model reads at once: a text, a pair, a window, one choice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from bertie import json_values
from bertie.arguments import one_of, whole_number
from bertie.data import BadRows, texts
from bertie.errors import DataError, InputError
from bertie.explore.opening import open_for
from bertie.explore.progress import Progress, counted
from bertie.explore.result import Column, Floats, Result, heat_html, heat_map, long_table
from bertie.explore.switches import EVERYTHING_ON, Gates, Switches, encoder_of, gated, switched
from bertie.model import BertForMaskedLM
from bertie.model.pretrained import BertPreTrainedModel
from bertie.running.batching import split_by_tokens
from bertie.running.open import ModelLike, OpenModel
from bertie.text import BertTokenizer
from bertie.text.corpus.sentence_pairs import example_key
from bertie.training.contract import Examples, RowExamples, batches_of, evaluating
from bertie.training.pretraining.objective import Pretraining
from bertie.training.pretraining.pairs import PretrainingExample
from bertie.training.registry import load_task
from bertie.training.sources import Columns, LabelNumbers, sources_of
from bertie.training.task import LoadedTask, TaskOptions
from bertie.training.tasks.classify import Classification, read_texts
from bertie.training.token_rows import TokenRows, fingerprint

if TYPE_CHECKING:
    from matplotlib.axes import Axes

E = TypeVar("E")
Of = Literal["heads", "neurons", "feed_forward", "layers"]
Method = Literal["gradient", "leave_one_out"]
OF: tuple[Of, ...] = ("heads", "neurons", "feed_forward", "layers")
METHODS: tuple[Method, ...] = ("gradient", "leave_one_out")
TASKS = ("fill", "next", "classify", "pairs", "regress", "tag", "answer", "choice", "embed")

_SHOWN_NEURONS = 64  # in a picture: the most important ones of each layer
_SEED = 42


@dataclass(frozen=True, eq=False, repr=False)
class Importance(Result):
    """`values[layer, head]`, `[layer, neuron]`, or `[layer]`; NaN for pruned heads and layers that were left out.

    By gradient they are mean absolute gradients of the loss. Left out, they are what the `metric` lost: how much the
    loss rose, or how much another figure fell. `baseline` is the metric with everything on.
    """

    of: str
    method: str
    task: str
    metric: str
    values: Floats
    baseline: float
    num_examples: int
    notes: tuple[str, ...] = ()  # what was skipped in the data

    @property
    def normalized(self) -> Floats:
        """Each layer's values divided by their length, as Michel et al. compare heads of different layers."""
        if self.values.ndim == 1:
            return self.values
        lengths = np.sqrt(np.nansum(self.values**2, axis=1, keepdims=True))
        scaled: Floats = self.values / np.maximum(lengths, np.finfo(np.float32).tiny).astype(np.float32)
        return scaled

    def ranked(self) -> list[tuple[int, int]] | list[int]:
        """(layer, number) pairs, or layers, the most important first: the last can go first."""
        flat = np.where(np.isnan(self.values), -np.inf, self.values).ravel()
        order = [int(place) for place in np.argsort(-flat, kind="stable") if np.isfinite(flat[place])]
        if self.values.ndim == 1:
            return order
        width = self.values.shape[1]
        return [divmod(place, width) for place in order]

    def columns(self) -> dict[str, Column]:
        names = ("layer",) if self.values.ndim == 1 else ("layer", self.of.removesuffix("s"))
        return long_table(self.values, names, [range(size) for size in self.values.shape], "importance")

    def html(self) -> str:
        values, rows, columns = self._picture()
        return heat_html(np.nan_to_num(values), rows=rows, columns=columns, title=self._title)

    def draw(self, axes: Axes) -> None:
        values, rows, columns = self._picture()
        heat_map(axes, values, rows=rows, columns=columns, title=self._title)
        axes.set_ylabel("layer")

    def _picture(self) -> tuple[Floats, list[str], list[str]]:
        values = self.values[:, None] if self.values.ndim == 1 else self.values
        rows = [str(layer) for layer in range(len(values))]
        if self.of == "neurons" and values.shape[1] > _SHOWN_NEURONS:
            values = -np.sort(-values, axis=1)[:, :_SHOWN_NEURONS]
            return values, rows, [f"#{rank + 1}" for rank in range(_SHOWN_NEURONS)]
        return values, rows, [str(number) for number in range(values.shape[1])]

    @property
    def _title(self) -> str:
        return f"{self.of} for {self.task}, {self.num_examples} examples, by {self.method.replace('_', ' ')}"


def importance(
    data: object,
    *,
    model: ModelLike | None = None,
    task: str | None = None,
    of: Of = "heads",
    method: Method = "gradient",
    metric: str = "loss",
    layers: Sequence[int] | None = None,
    limit: int | None = None,
    columns: Columns | None = None,
    skip_bad: bool = False,
    max_length: int | None = None,
    progress: Progress = None,
    tokenizer: BertTokenizer | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = None,
) -> Importance:
    """How much the parts of a model matter for the examples in `data`: a file, several, rows, or a table.

    `task` is the checkpoint's own by default; "pairs" and "regress" read labelled pairs and scores for a classifier.
    "fill" takes texts, of which 15 % of the words are hidden, always the same; "next" pairs with label 0 where the
    second text follows. `of` says which parts: "heads", "neurons", "feed_forward" or "layers". `method` is "gradient"
    or "leave_one_out". `metric` is what leaving a part out is judged by: the loss, or a figure of the task's own
    evaluation (accuracy, f1, …). `layers` and `limit` restrict the work; `progress` is a bar, or a function that is
    given (done, of how many). `columns`, `skip_bad` and `max_length` are those of fine-tuning; `model`, `tokenizer`,
    `device` and `dtype` are those of the tasks, and bertie-mini is the default.
    """
    one_of("of", of, OF)
    one_of("method", method, METHODS)
    one_of("task", task, (None, *TASKS))
    whole_number("limit", limit, or_none="all examples")
    if method == "gradient" and metric != "loss":
        raise InputError("{metric} has no gradient.", "Use {metric=loss}, or {method=leave_one_out}.", metric=metric)
    opened, found, _ = open_for(
        model, _OPENED_AS.get(task or "", task), tokenizer=tokenizer, device=device, dtype=dtype
    )
    if task is None:
        task = found
        if found == "classify" and (opened.config.problem_type == "regression" or opened.config.num_labels == 1):
            task = "regress"
    options = TaskOptions(columns=columns or Columns(), skip_bad=skip_bad, max_length=max_length)
    with _labels_kept(opened.model):
        loaded = _load(task, opened, data, options)
        examples = loaded.train if limit is None else _first(loaded.train, limit)
        work = _Work(task, loaded, examples, opened, _layers(opened.model, layers), of)
        return work.by_gradient(progress) if method == "gradient" else work.by_leaving_out(metric, progress)


_OPENED_AS = {"pairs": "classify", "regress": "classify"}


def _layers(model: BertPreTrainedModel, layers: Sequence[int] | None) -> list[int]:
    count = len(encoder_of(model).encoder.layer)
    chosen = list(range(count)) if layers is None else list(layers)
    for layer in chosen:
        if not 0 <= layer < count:
            raise InputError(f"There is no layer {layer}.", f"Layers are 0 to {count - 1}.")
    return chosen


# -- data --------------------------------------------------------------------------------------------------------------


@contextmanager
def _labels_kept(model: BertPreTrainedModel) -> Iterator[None]:
    """A task writes the data's labels into the model's config; it is somebody else's, and gets its own back."""
    config = model.config
    names, problem = dict(config.id2label), config.problem_type
    try:
        yield
    finally:
        config.id2label, config.problem_type = names, problem


def _load(task: str, opened: OpenModel, data: object, options: TaskOptions) -> LoadedTask:
    model, tokenizer = opened.model, opened.tokenizer
    if task == "fill":
        return _load_words(opened, data, options)
    if task == "next":
        return _load_next(opened, data, options)
    own = dict(model.config.id2label)
    if task == "embed" and opened.folder is not None:
        # From its folder, which says how it pools.
        return load_task(task, model=str(opened.folder), train=data, tokenizer=tokenizer, options=options)
    loaded = load_task(task, model=model, train=data, tokenizer=tokenizer, options=options)
    if task in ("classify", "pairs", "tag"):
        _check_labels(own, model.config.id2label)
    return loaded


def _check_labels(own: dict[int, str], found: dict[int, str]) -> None:
    """The data's labels must be the model's: numbering them again would judge the model by a shuffled key."""
    named = any(name != f"LABEL_{number}" for number, name in own.items())
    numbers = all(name in (str(number), f"LABEL_{number}") for number, name in found.items())
    if found == own or (not named and numbers):
        return
    wanted = ", ".join(own.values()) if named else f"0 to {len(own) - 1}"
    raise DataError(
        f"The data has the labels {', '.join(found.values())}; the model knows {wanted}.",
        "Write the model's labels into the data, or name the right column: columns=Columns(label=…).",
    )


@dataclass(frozen=True)
class _Texts(RowExamples[PretrainingExample]):
    """Texts to be masked; the masks of a text are decided by its number."""

    def get(self, index: int, epoch: int) -> PretrainingExample:
        return PretrainingExample(self.rows[index], example_key(_SEED, 0, index), None)

    def fingerprint(self) -> str:
        return fingerprint(*self.rows.arrays())


def _load_words(opened: OpenModel, data: object, options: TaskOptions) -> LoadedTask:
    bad, found = BadRows(skip=options.skip_bad), list[str]()
    for source in sources_of(_as_rows(data), options.columns):
        found += texts(source.open(skip_bad=options.skip_bad), options.columns.text).reading(bad)
    if not found:
        raise DataError("There are no texts in the data.", "Give a file with one text per line, or a list of texts.")
    rows = TokenRows.encode(opened.tokenizer, found, max_length=options.max_length or opened.max_length)
    objective: Any = Pretraining(cast("BertForMaskedLM", opened.model), opened.tokenizer)  # opened as one for words
    return LoadedTask(objective, _Texts(rows), None, tuple(filter(None, [bad.summary()])))


def _as_rows(data: object) -> object:
    """A list of strings is texts here, unless the first is the name of a file: then it is several files."""
    given = json_values.texts(data)
    if given is None or (given and os.path.isfile(given[0])):
        return data
    return [{"text": text} for text in given]


def _load_next(opened: OpenModel, data: object, options: TaskOptions) -> LoadedTask:
    found = read_texts(data, kind="class", paired=True, columns=options.columns, skip_bad=options.skip_bad)
    opened.model.config.problem_type = "single_label_classification"
    length = options.max_length or opened.max_length
    examples = found.encode(opened.tokenizer, max_length=length, labels=LabelNumbers(("0", "1"), "next sentence"))
    objective = Classification(opened.model, opened.tokenizer, name="next")
    return LoadedTask(objective, examples, None, tuple(filter(None, [examples.bad.summary()])))


def _first(examples: Examples[E], limit: int) -> Examples[E]:
    groups = examples.groups()
    count = len(examples) if groups is None else len(groups)
    return examples if limit >= count else examples.take(np.arange(limit))


# -- work --------------------------------------------------------------------------------------------------------------


class _Work:
    def __init__(
        self, task: str, loaded: LoadedTask, examples: Examples[Any], opened: OpenModel, layers: list[int], of: Of
    ) -> None:
        self.task, self.objective, self.examples, self.notes = task, loaded.objective, examples, loaded.notes
        self.model = self.objective.model.to(opened.device).eval()
        self.device, self.budget = opened.device, opened.budget
        self.layers, self.of = layers, of
        config, encoder = self.model.config, encoder_of(self.model).encoder
        self.heads = {layer: list(encoder.layer[layer].attention.self.heads) for layer in layers}
        num_layers = len(encoder.layer)
        width = {"heads": config.num_attention_heads, "neurons": config.intermediate_size}.get(of)
        self.shape: tuple[int, ...] = (num_layers,) if width is None else (num_layers, width)

    def result(self, method: Method, metric: str, values: Floats, baseline: float) -> Importance:
        return Importance(self.of, method, self.task, metric, values, baseline, len(self.examples), self.notes)

    def by_gradient(self, progress: Progress) -> Importance:
        sums = np.zeros(self.shape)
        rows = units = loss = 0.0
        groups = split_by_tokens(self.examples.lengths().tolist(), self.budget)
        for indices in counted(groups, "importance", progress):
            batch = self.objective.collate([self.examples.get(index, 0) for index in indices]).to(self.device)
            lengths = batch.tensors["cu_seqlens"].diff().long()
            gates = {layer: self._gate(len(lengths)) for layer in self.layers}
            owners = torch.repeat_interleave(torch.arange(len(lengths)), lengths).to(self.device)
            with torch.enable_grad(), gated(self.model, Gates(rows=owners, **{self.of: gates})):
                total, _ = self.objective.loss(self.model, batch)
                gradients = torch.autograd.grad(total, list(gates.values()), allow_unused=True)
            for layer, gradient in zip(gates, gradients, strict=True):
                if gradient is not None:
                    sums[layer] += gradient.abs().double().sum(0).cpu().numpy()
            rows, units, loss = rows + len(lengths), units + batch.units, loss + float(total.detach())
        values = (sums / max(1.0, rows)).astype(np.float32)
        return self.result("gradient", "loss", self._left(values), loss / max(units, 1e-12))

    def _gate(self, rows: int) -> Tensor:
        weight = encoder_of(self.model).embeddings.word_embeddings.weight
        return torch.ones(rows, *self.shape[1:], dtype=weight.dtype, device=self.device, requires_grad=True)

    def _left(self, values: Floats) -> Floats:
        """NaN where nothing was looked at."""
        missing = np.ones(self.shape, dtype=bool)
        for layer in self.layers:
            missing[layer] = False
            if self.of == "heads":
                missing[layer] = ~np.isin(np.arange(self.shape[1]), self.heads[layer])
        values[missing] = np.nan
        return values

    def by_leaving_out(self, metric: str, progress: Progress) -> Importance:
        done = 0

        def look_up() -> None:
            """After every batch: an evaluation of a large file takes long, and may have to stop."""
            if callable(progress):
                progress(done, len(places))

        values = self._left(np.zeros(self.shape, np.float32))
        places = [tuple(map(int, place)) for place in np.argwhere(~np.isnan(values))]
        # Of a loss more is worse, of every other figure less is.
        sign = 1 if metric in ("loss", "mse", "mlm_loss", "perplexity") else -1
        whole = self.evaluated(metric, EVERYTHING_ON, look_up)
        for place in counted(places, "importance", progress):
            off = Switches.from_json({self.of: [place if len(place) > 1 else place[0]]})
            values[place] = sign * (self.evaluated(metric, off, look_up) - whole)
            done += 1
        return self.result("leave_one_out", metric, values, whole)

    def evaluated(self, metric: str, off: Switches, look_up: Callable[[], None]) -> float:
        """A figure of the task's own evaluation, or the mean loss, without some parts.

        The model is held for one evaluation at a time, or one batch of a loss: whoever waits for it comes in between.
        """
        if metric != "loss":
            with switched(self.model, off):
                figures = self.objective.evaluate(
                    self.model, self.examples, token_budget=self.budget, device=self.device
                )
            if metric not in figures:
                raise InputError(
                    "{metric} is not a metric of this task with this data.",
                    f"There are: {', '.join(dict.fromkeys(['loss', *figures]))}.",
                    metric=metric,
                )
            return figures[metric]
        total = units = 0.0
        batches = batches_of(self.objective, self.examples, token_budget=self.budget, device=self.device)
        for _, batch in batches:
            with switched(self.model, off), evaluating(self.model):
                total += float(self.objective.loss(self.model, batch)[0])
            units += batch.units
            look_up()
        return total / max(units, 1e-12)
