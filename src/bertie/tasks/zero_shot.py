"""Labels nobody trained for, from a model that knows what follows from what (natural language inference).

Every label becomes a hypothesis ("This example is sports."), and the model says how far the text entails it. One label
of several: softmax over the labels' entailment logits. Several may hold (`multi_label`), or there is one label only:
entailment against contradiction, for each label by itself. As in transformers' zero-shot pipeline, but the label called
"contradiction" is looked up by its name (there it is taken to be the first, or the last when entailment is).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import ClassVar, TypeAlias, Unpack

import torch
from torch import Tensor

from bertie.answers import Classification
from bertie.arguments import one_of, whole_number
from bertie.config import BertConfig
from bertie.errors import InputError
from bertie.model import BertForSequenceClassification
from bertie.running.open import ModelLike
from bertie.running.rows import DEFAULT_STRIDE, LONG, Cuts, Long, Reading, Row, readings
from bertie.running.task import RowTask, RunSettings, TextTask, described, function_of, is_collection
from bertie.tasks.classify import averaged, best_first

Readings: TypeAlias = list[Reading]  # one per label

HYPOTHESIS = "This example is {}."


class ZeroShotClassifier(RowTask[str, Readings, Tensor, Classification], TextTask[Classification]):
    """A `Classification` over your own `labels` (a list, or one string with commas) for every text.

    `model` is a classifier trained for inference: one of its labels is called "entailment". `{}` in `hypothesis` is
    where a label goes. Long texts are cut with a warning, read whole (`long="windows"`), or refused (`"error"`); the
    hypothesis is never cut. Windows overlap by `stride` tokens. `multi_label` scores each label independently of the
    others, and `top_k` keeps the best ones only.
    """

    name: ClassVar[str] = "zero_shot"

    def __init__(
        self,
        labels: str | Sequence[str],
        model: ModelLike,
        *,
        hypothesis: str = HYPOTHESIS,
        multi_label: bool = False,
        top_k: int | None = None,
        long: Long = "truncate",
        stride: int = DEFAULT_STRIDE,
        **settings: Unpack[RunSettings],
    ) -> None:
        whole_number("top_k", top_k, or_none="all labels")
        one_of("long", long, LONG)
        self.labels = read_labels(labels)
        if not isinstance(hypothesis, str) or "{}" not in hypothesis:
            raise InputError(
                "{hypothesis:is} it has no place for the label.",
                f"Write {{}} there: {HYPOTHESIS!r}.",
                hypothesis=hypothesis,
            )
        self.hypotheses = [hypothesis.replace("{}", label) for label in self.labels]
        self.open(model, BertForSequenceClassification, settings)
        self.contradiction, self.entailment = inference_labels(self.loaded.config)
        self.multi_label, self.top_k, self.long, self.stride = multi_label, top_k, long, stride

    def cuts(self) -> Cuts:
        return Cuts(self.long, self.loaded.max_length)

    def tokenized(self, items: list[str], cuts: Cuts) -> Iterator[tuple[Readings, list[Row]]]:
        """For every label its reading, and the rows of all labels. The text is what is cut or slides; the hypothesis
        stays whole."""
        count = len(self.hypotheses)
        pairs = [(text, hypothesis) for text in items for hypothesis in self.hypotheses]
        found = readings(
            self.loaded.tokenizer, pairs, cuts, max_length=self.loaded.max_length, stride=self.stride, sliding="first",
            strategy="only_first", each=count,
        )  # fmt: skip
        for _ in items:
            by_label = list(islice(found, count))
            yield [reading for reading, _ in by_label], [row for _, rows in by_label for row in rows]

    def start(self, rows: list[Row]) -> Callable[[], list[Tensor]]:
        """The logits of each row."""
        return self.loaded.row_logits(rows)

    def decode(self, context: Readings, judged: list[Tensor]) -> Classification:
        rows = iter(judged)
        logits = torch.stack(
            [averaged(torch.stack(list(islice(rows, len(one.weights)))), one.weights) for one in context]
        )
        if self.multi_label or len(self.labels) == 1:
            values = logits[:, [self.contradiction, self.entailment]].softmax(-1)[:, 1]
        else:
            values = logits[:, self.entailment].softmax(0)
        is_cut = any(one.is_cut for one in context)
        return best_first(self.labels, values.tolist(), self.top_k, truncated=is_cut)


zero_shot = function_of(ZeroShotClassifier, "zero_shot", positional=1)


def read_labels(labels: object) -> tuple[str, ...]:
    """Labels as given, or cut at the commas of one string."""
    match labels:
        case str():
            labels = [label.strip() for label in labels.split(",") if label.strip()]
        case _ if not is_collection(labels):
            raise InputError(f"labels is {described(labels)}; it must be a list of strings.")
    found: list[str] = []
    for number, label in enumerate(labels):
        if not isinstance(label, str) or not label.strip():
            raise InputError(f"Label {number} is {described(label)}; it must be a string that is not empty.")
        found.append(label)
    if not found:
        raise InputError("There are no labels to choose from.", "Pass at least one, like ['sports', 'politics'].")
    if len(set(found)) < len(found):
        twice = next(label for label in found if found.count(label) > 1)
        raise InputError(f"The label {twice!r} is given more than once.", "Pass every label once.")
    return tuple(found)


def inference_labels(config: BertConfig) -> tuple[int, int]:
    """The ids of contradiction and entailment, by the labels' names."""
    by_name = {name.lower(): index for name, index in config.label2id.items()}
    entailment = next((index for name, index in by_name.items() if name.startswith("entail")), None)
    if entailment is None or config.num_labels < 2:
        raise InputError(
            f"zero_shot needs a model trained for inference; this one's labels are {', '.join(config.label2id)}.",
            "One of them should be called 'entailment'. If the names are only missing, set config.id2label.",
        )
    unlike = next((index for name, index in by_name.items() if name.startswith("contra")), None)
    if unlike is None:
        unlike = config.num_labels - 1 if entailment == 0 else 0
    return unlike, entailment
