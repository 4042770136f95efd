"""Labels for texts and pairs of texts, from a `BertForSequenceClassification`.

    classify("A fine film.", model="my-sentiment")                 Classification, .label and .score
    classify([("Q1", "Q2"), ("Q3", "Q4")], model="my-duplicates")  pairs, a list of answers

Scores are those of transformers' text-classification pipeline: softmax over the labels, or, where several labels can
hold at once or there is only one, the sigmoid of each; a regression gives its number as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, Unpack

import torch
from torch import Tensor

from bertie.answers import Classification
from bertie.arguments import one_of, whole_number
from bertie.config import BertConfig
from bertie.errors import InputError
from bertie.model import BertForSequenceClassification
from bertie.running.open import ModelLike
from bertie.running.rows import DEFAULT_STRIDE, LONG, Long, Reading, Row, TextOrPair
from bertie.running.task import PairTask, RunSettings, ScoringTask, function_of

Function = Literal["softmax", "sigmoid", "none"]
FUNCTIONS: tuple[Function, ...] = ("softmax", "sigmoid", "none")


class Classifier(ScoringTask[TextOrPair, list[float], Classification], PairTask[Classification]):
    """A `Classification` for a text or pair; a list of them for a list, an iterator for an iterator.

    A pair is a tuple `(text, second text)`. `top_k` labels are given, or all (None). `multi_label` says whether
    several labels may apply at once; by default this is read from `config.problem_type`. `function` ("softmax",
    "sigmoid", "none") sets how logits become scores. Texts longer than the model are cut with a warning
    (`long="truncate"`: the longer text of a pair loses its end), read whole in windows that overlap by `stride` tokens
    (`"windows"`: the logits are then the windows' mean, weighted by their tokens), or rejected (`"error"`).
    """

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
        **settings: Unpack[RunSettings],
    ) -> None:
        whole_number("top_k", top_k, or_none="all labels")
        one_of("function", function, (None, *FUNCTIONS))
        one_of("long", long, LONG)
        if function is not None and multi_label is not None:
            raise InputError(
                "{function} and {multi_label} were both given.",
                "function alone says how scores are made; multi_label chooses 'sigmoid' or 'softmax'.",
                function=function,
                multi_label=multi_label,
            )
        self.open(model, BertForSequenceClassification, settings)
        self.names = label_names(self.loaded.config)
        self.function = score_function(self.loaded.config, multi_label) if function is None else function
        self.top_k, self.long, self.stride = top_k, long, stride

    def start(self, rows: list[Row]) -> Callable[[], list[list[float]]]:
        """The scores of each row; the logits, where rows are windows, which are averaged first."""
        logits = self.loaded.logits(rows)
        function: Function = "none" if self.long == "windows" else self.function

        def read() -> list[list[float]]:
            found: list[list[float]] = scores(logits(), function).tolist()
            return found

        return read

    def decode(self, context: Reading, judged: list[list[float]]) -> Classification:
        values = judged[0]
        if self.long == "windows":
            values = scores(averaged(torch.tensor(judged), context.weights)[None], self.function)[0].tolist()
        return best_first(self.names, values, self.top_k, truncated=context.is_cut)


classify = function_of(Classifier, "classify")


# -- what other classifying tasks use too ----------------------------------------------------------------------------


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


def averaged(logits: Tensor, weights: Sequence[int]) -> Tensor:
    """`[windows, num_labels]` → `[num_labels]`, by the windows' weights."""
    if len(weights) == 1:
        return logits[0]
    shares = torch.tensor(weights, dtype=torch.float32)
    return (logits * (shares / shares.sum())[:, None]).sum(0)


def label_names(config: BertConfig) -> list[str]:
    return [config.id2label.get(index, f"LABEL_{index}") for index in range(config.num_labels)]


def best_first(
    names: Sequence[str], values: Sequence[float], top_k: int | None, *, truncated: bool = False
) -> Classification:
    """Names with their values, the greatest first, equal ones in their own order."""
    ranked = sorted(zip(names, values, strict=True), key=lambda pair: -pair[1])
    return Classification(tuple(ranked[:top_k]), truncated)
