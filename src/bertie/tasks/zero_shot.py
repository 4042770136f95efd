"""Labels nobody trained for, from a model that knows what follows from what (natural language inference).

Every label becomes a hypothesis ("This example is sports."), and the model says how far the text entails it. One label
of several: softmax over the labels' entailment logits. Several may hold (`multi_label`), or there is one label only:
entailment against contradiction, for each label by itself. As in transformers' zero-shot pipeline, but the label called
"contradiction" is looked up by its name (there it is taken to be the first, or the last when entailment is).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, ClassVar

import torch
from torch import Tensor

from bertie.answers import Classification
from bertie.config import BertConfig
from bertie.errors import InputError
from bertie.model import BertForSequenceClassification
from bertie.running.batching import Row
from bertie.running.inputs import Task, TextOrPair, checked_choice, checked_count, described
from bertie.running.long_texts import LONG, Cuts, Long
from bertie.running.open import ModelLike, open_model
from bertie.running.rows import DEFAULT_STRIDE, split_text_or_pair, truncated_rows
from bertie.running.scoring import averaged, classifier_logits, row_logits
from bertie.tasks.classify import best_first
from bertie.text import BertTokenizer

HYPOTHESIS = "This example is {}."


class ZeroShotClassifier(Task[str, Classification]):
    """`zero_shot` with its model, labels and settings fixed."""

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
        tokenizer: BertTokenizer | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | str | None = None,
    ) -> None:
        checked_count("top_k", top_k, none_means="all labels")
        checked_choice("long", long, LONG)
        self.labels = read_labels(labels)
        if not isinstance(hypothesis, str) or "{}" not in hypothesis:
            raise InputError(
                f"hypothesis is {hypothesis!r}; it has no place for the label.", f"Write {{}} there: {HYPOTHESIS!r}."
            )
        self.hypotheses = [hypothesis.replace("{}", label) for label in self.labels]
        self.loaded = open_model(
            model, BertForSequenceClassification, task=self.name, tokenizer=tokenizer, device=device, dtype=dtype
        )
        self.contradiction, self.entailment = inference_labels(self.loaded.model.config)
        self.multi_label, self.top_k, self.long, self.stride = multi_label, top_k, long, stride

    def stream(self, items: Iterable[str]) -> Iterator[Classification]:
        pairs = ((text, hypothesis) for text in items for hypothesis in self.hypotheses)
        # The text is what is cut or slides; the hypothesis stays whole.
        pairs_told = Cuts(self.long, self.loaded.max_length)
        answers = classifier_logits(
            self.loaded, pairs, cuts=pairs_told, stride=self.stride, sliding="first", strategy="only_first"
        )
        with Cuts(self.long, self.loaded.max_length).told() as cuts:
            for first in answers:
                by_label = [first, *(next(answers) for _ in self.hypotheses[1:])]
                is_cut = max(pairs_told.next_is_cut() for _ in self.hypotheses)
                cuts.count(int(is_cut), 1)
                yield self._judged(by_label, is_cut)

    def rows(self, text: str) -> tuple[list[list[int]], list[Row]]:
        """For every label the weights of its rows, and the rows of all labels."""
        tokenizer, limit = self.loaded.tokenizer, self.loaded.max_length
        items: list[TextOrPair] = [(text, hypothesis) for hypothesis in self.hypotheses]
        if self.long != "windows":
            rows = truncated_rows(tokenizer, items, max_length=limit, strategy="only_first")
            if any(row.is_cut for row in rows):
                Cuts(self.long, limit).refuse(text)
            return [[1]] * len(items), rows
        found = [
            split_text_or_pair(tokenizer, item, max_length=limit, stride=self.stride, sliding="first") for item in items
        ]
        return [one.weights for one in found], [row for one in found for row in one.rows]

    def run(self, rows: list[Row]) -> list[Tensor]:
        """The logits of each row; rows of many texts and labels may be mixed."""
        return row_logits(self.loaded, rows)

    def decode(self, weights: Sequence[Sequence[int]], logits: Sequence[Tensor]) -> Classification:
        """The scores of the labels, from what `run` gave for the text's rows."""
        rows = iter(logits)
        return self._judged([averaged(torch.stack(list(islice(rows, len(own)))), own) for own in weights])

    def _judged(self, by_label: list[Tensor], is_cut: bool = False) -> Classification:
        logits = torch.stack(by_label)
        if self.multi_label or len(self.labels) == 1:
            values = logits[:, [self.contradiction, self.entailment]].softmax(-1)[:, 1]
        else:
            values = logits[:, self.entailment].softmax(0)
        return best_first(self.labels, values.tolist(), self.top_k, truncated=is_cut)


def zero_shot(
    texts: Any,
    labels: str | Sequence[str],
    *,
    model: ModelLike,
    hypothesis: str = HYPOTHESIS,
    multi_label: bool = False,
    top_k: int | None = None,
    long: Long = "truncate",
    stride: int = DEFAULT_STRIDE,
    tokenizer: BertTokenizer | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = None,
    progress: bool | None = None,
) -> Any:
    """A `Classification` over your own `labels` (a list, or one string with commas) for every text.

    `model` is a classifier trained for inference: one of its labels is called "entailment". `{}` in `hypothesis` is
    where a label goes. Long texts are cut with a warning, read whole (`long="windows"`), or refused (`"error"`); the
    hypothesis is never cut.
    """
    task = ZeroShotClassifier(
        labels,
        model,
        hypothesis=hypothesis,
        multi_label=multi_label,
        top_k=top_k,
        long=long,
        stride=stride,
        tokenizer=tokenizer,
        device=device,
        dtype=dtype,
    )
    return task(texts, progress=progress)


def read_labels(labels: Any) -> tuple[str, ...]:
    """Labels as given, or cut at the commas of one string."""
    if isinstance(labels, str):
        labels = [label.strip() for label in labels.split(",") if label.strip()]
    if isinstance(labels, (bytes, dict)) or not hasattr(labels, "__iter__"):
        raise InputError(f"labels is {described(labels)}; a list of strings was wanted.")
    found = tuple(labels)
    if not found:
        raise InputError("There are no labels to choose from.", "Pass at least one, like ['sports', 'politics'].")
    for number, label in enumerate(found):
        if not isinstance(label, str) or not label.strip():
            raise InputError(f"Label {number} is {described(label)}; a string with something in it was wanted.")
    if len(set(found)) < len(found):
        twice = next(label for label in found if found.count(label) > 1)
        raise InputError(f"The label {twice!r} is given more than once.", "Pass every label once.")
    return found


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
