"""Labels for texts and pairs of texts, from a `BertForSequenceClassification`.

    classify("A fine film.", model="my-sentiment")                 Classification, .label and .score
    classify([("Q1", "Q2"), ("Q3", "Q4")], model="my-duplicates")  pairs, a list of answers

Scores are those of transformers' text-classification pipeline: softmax over the labels, or, where several labels can
hold at once or there is only one, the sigmoid of each; a regression gives its number as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from bertie.config import BertConfig
from bertie.errors import InputError
from bertie.model import BertForSequenceClassification
from bertie.tasks.batching import Row, run_groups
from bertie.tasks.inputs import Long, PairTask, TextOrPair, checked_choice, checked_count, chunked
from bertie.tasks.loaded import Loaded, ModelLike, open_model
from bertie.tasks.rows import DEFAULT_STRIDE, Sliding, split_text_or_pair, truncated_rows
from bertie.text import BertTokenizer
from bertie.text.truncation import Strategy

Function = Literal["softmax", "sigmoid", "none"]
FUNCTIONS: tuple[Function, ...] = ("softmax", "sigmoid", "none")
LONG: tuple[Long, ...] = ("truncate", "windows")


@dataclass(frozen=True, slots=True)
class Classification:
    """Labels with their scores, best first: all that were asked for."""

    labels: tuple[tuple[str, float], ...]

    @property
    def label(self) -> str:
        """The best label."""
        return self.labels[0][0]

    @property
    def score(self) -> float:
        """The best label's score; a regression's value."""
        return self.labels[0][1]


class Classifier(PairTask[Classification]):
    """`classify` with its model and settings fixed: call it with a text, a pair, a list or an iterator."""

    name: ClassVar[str] = "classify"

    def __init__(
        self,
        model: ModelLike,
        *,
        top_k: int | None = 1,
        multi_label: bool | None = None,
        function: Function | None = None,
        long: Long = "truncate",
        stride: int = DEFAULT_STRIDE,
        tokenizer: BertTokenizer | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | str | None = None,
    ) -> None:
        checked_count("top_k", top_k, none_means="all labels")
        checked_choice("function", function, (None, *FUNCTIONS))
        checked_choice("long", long, LONG)
        if function is not None and multi_label is not None:
            raise InputError(
                f"function={function!r} and multi_label={multi_label} were both given.",
                "function alone says how scores are made; multi_label chooses 'sigmoid' or 'softmax'.",
            )
        self.loaded = open_model(
            model, BertForSequenceClassification, task=self.name, tokenizer=tokenizer, device=device, dtype=dtype
        )
        config = self.loaded.model.config
        self.function = score_function(config, multi_label) if function is None else function
        self.top_k, self.long, self.stride = top_k, long, stride

    def stream(self, items: Iterable[TextOrPair]) -> Iterator[Classification]:
        names = label_names(self.loaded.model.config)
        for logits in classifier_logits(self.loaded, items, long=self.long, stride=self.stride):
            yield best_first(names, scores(logits, self.function), self.top_k)


def classify(
    texts: Any,
    *,
    model: ModelLike,
    top_k: int | None = 1,
    multi_label: bool | None = None,
    function: Function | None = None,
    long: Long = "truncate",
    stride: int = DEFAULT_STRIDE,
    tokenizer: BertTokenizer | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = None,
    progress: bool | None = None,
) -> Any:
    """A `Classification` for a text or pair; a list of them for a list, an iterator for an iterator.

    A pair is a tuple `(text, second text)`. `top_k` labels are given, or all (None). `multi_label` says whether
    several labels may hold at once; by default `config.problem_type` says it. `function` ("softmax", "sigmoid",
    "none") sets outright how logits become scores. Texts longer than the model are cut (`long="truncate"`: the longer
    text of a pair loses its end), or read whole in windows that overlap by `stride` tokens (`"windows"`): the logits
    are then the windows' mean, weighted by their tokens.
    """
    task = Classifier(
        model,
        top_k=top_k,
        multi_label=multi_label,
        function=function,
        long=long,
        stride=stride,
        tokenizer=tokenizer,
        device=device,
        dtype=dtype,
    )
    return task(texts, progress=progress)


# -- what other classifying tasks use too ----------------------------------------------------------------------------


def classifier_logits(
    loaded: Loaded,
    items: Iterable[TextOrPair],
    *,
    long: Long,
    stride: int,
    sliding: Sliding = "longer",
    strategy: Strategy = "longest_first",
) -> Iterator[Tensor]:
    """`[num_labels]` float32 logits on the CPU for every item; those of windows are averaged by their tokens."""
    for logits, weights in window_logits(loaded, items, long=long, stride=stride, sliding=sliding, strategy=strategy):
        if len(weights) == 1:
            yield logits[0]
        else:
            shares = torch.tensor(weights, dtype=torch.float32)
            yield (logits * (shares / shares.sum())[:, None]).sum(0)


def window_logits(
    loaded: Loaded,
    items: Iterable[TextOrPair],
    *,
    long: Long,
    stride: int,
    sliding: Sliding = "longer",
    strategy: Strategy = "longest_first",
) -> Iterator[tuple[Tensor, list[int]]]:
    """For every item `[windows, num_labels]` logits and the windows' weights; a truncated item has one window."""

    def groups() -> Iterator[tuple[list[int], Sequence[Row]]]:
        if long == "truncate":
            for chunk in chunked(items):
                rows = truncated_rows(loaded.tokenizer, chunk, max_length=loaded.max_length, strategy=strategy)
                yield from (([1], [row]) for row in rows)
            return
        for item in items:
            windows = split_text_or_pair(
                loaded.tokenizer, item, max_length=loaded.max_length, stride=stride, sliding=sliding
            )
            yield windows.weights, windows.rows

    def run(rows: list[Row]) -> Sequence[Tensor]:
        logits: Tensor = loaded.run(rows).logits
        return logits.float().cpu().unbind(0)

    for weights, answers in run_groups(groups(), run, budget=loaded.budget):
        yield torch.stack(answers), weights


def score_function(config: BertConfig, multi_label: bool | None) -> Function:
    """How logits become scores, by the same rules as transformers' pipeline."""
    if multi_label is None:
        if config.problem_type == "regression":
            return "none"
        multi_label = config.problem_type == "multi_label_classification"
    return "sigmoid" if multi_label or config.num_labels == 1 else "softmax"


def scores(logits: Tensor, function: Function) -> Tensor:
    if function == "softmax":
        return logits.softmax(-1)
    return logits.sigmoid() if function == "sigmoid" else logits


def label_names(config: BertConfig) -> list[str]:
    return [config.id2label.get(index, f"LABEL_{index}") for index in range(config.num_labels)]


def best_first(names: Sequence[str], values: Tensor, top_k: int | None) -> Classification:
    """Names with their values, the greatest first, equal ones in their own order."""
    ranked = sorted(zip(names, values.tolist(), strict=True), key=lambda pair: -pair[1])
    return Classification(tuple(ranked[:top_k]))
