"""A label for every word: `BertForTokenClassification`, judged by whole entities."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertie.data.tags import OUTSIDE, tag_spans
from bertie.errors import InputError
from bertie.model import BertForTokenClassification
from bertie.model.losses import IGNORED
from bertie.text import BertTokenizer
from bertie.training.contract import Batch, Examples
from bertie.training.entity_metrics import entity_scores
from bertie.training.run.judging import greater_is_better
from bertie.training.tasks.tag_examples import TagExample, TagExamples
from bertie.training.token_rows import batches_of, evaluating, pack, run_model


class Tagging:
    """Cross-entropy over the first pieces of words. Units are those pieces, or with `class_weights` their weights."""

    name = "tag"

    def __init__(
        self,
        model: BertForTokenClassification,
        tokenizer: BertTokenizer,
        *,
        spans: bool = True,
        label_smoothing: float = 0.0,
        class_weights: Sequence[float] | None = None,
        best_metric: str | None = None,
    ) -> None:
        """`spans=False` for tags that are no entities (parts of speech): they are judged word by word."""
        if not 0 <= label_smoothing < 1:
            raise InputError(f"label_smoothing is {label_smoothing}; it takes 0 up to (not with) 1.")
        if class_weights is not None and len(class_weights) != model.config.num_labels:
            raise InputError(f"There are {len(class_weights)} class_weights for {model.config.num_labels} labels.")
        self.model = model
        self.tokenizer = tokenizer
        self.spans = spans
        self.label_smoothing = label_smoothing
        self.class_weights = None if class_weights is None else torch.tensor(class_weights, dtype=torch.float32)
        self.best_metric = best_metric or ("f1" if spans else "accuracy")
        self.greater_is_better = greater_is_better(self.best_metric)

    def collate(self, examples: Sequence[TagExample]) -> Batch:
        labels = torch.from_numpy(np.concatenate([example.labels for example in examples]))
        tensors = pack([example.row for example in examples]) | {"labels": labels}
        kept = labels[labels != IGNORED]
        units = float(len(kept)) if self.class_weights is None else float(self.class_weights[kept].sum())
        return Batch(tensors, units, len(labels), len(examples))

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        logits: Tensor = run_model(model, batch).logits.float()
        return self._summed(logits, batch.tensors["labels"]), {}

    def _summed(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(
            logits,
            labels,
            weight=None if self.class_weights is None else self.class_weights.to(logits.device),
            ignore_index=IGNORED,
            label_smoothing=self.label_smoothing,
            reduction="sum",
        )

    def metric_names(self, dev: Examples) -> tuple[str, ...]:
        """What `evaluate` gives; F1 by type for the types that the development data has."""
        if not self.spans:
            return "accuracy", "loss"
        sentences = dev.sentences if isinstance(dev, TagExamples) else ()
        types = sorted({span.type for sentence in sentences for span in tag_spans(sentence.tags)})
        return ("f1", "precision", "recall", "f1_macro", *(f"f1[{kind}]" for kind in types), "accuracy", "loss")

    def evaluate(
        self, model: nn.Module, examples: Examples, *, token_budget: int, device: torch.device | str
    ) -> dict[str, float]:
        if not isinstance(examples, TagExamples):
            raise InputError(f"Tagging is evaluated on TagExamples, not on {type(examples).__name__}.")
        names = self.model.config.id2label
        default = OUTSIDE if OUTSIDE in names.values() else names[0]
        predicted = [[default] * len(sentence.tokens) for sentence in examples.sentences]
        total = units = 0.0
        with evaluating(model):
            for indices, batch in batches_of(self, examples, token_budget=token_budget, device=device):
                logits: Tensor = run_model(model, batch).logits.float()
                labels = batch.tensors["labels"]
                total += float(self._summed(logits, labels))
                units += batch.units
                best = logits.argmax(dim=-1).cpu().numpy()
                marked = (labels != IGNORED).cpu().numpy()
                ends = batch.tensors["cu_seqlens"].tolist()
                for place, index in enumerate(indices):
                    here = slice(ends[place], ends[place + 1])
                    sentence, words = examples.places[index]
                    for word, label in zip(words, best[here][marked[here]], strict=True):
                        predicted[sentence][word] = names[int(label)]
        gold = [sentence.tags for sentence in examples.sentences]
        words_right = sum(
            a == b for ours, theirs in zip(predicted, gold, strict=True) for a, b in zip(ours, theirs, strict=True)
        )
        figures = {"loss": total / max(units, 1e-12), "accuracy": words_right / max(1, sum(map(len, gold)))}
        if not self.spans:
            return figures
        scores = entity_scores(predicted, gold)
        figures |= {"f1": scores.micro.f1, "precision": scores.micro.precision, "recall": scores.micro.recall}
        figures |= {"f1_macro": scores.macro_f1}
        return figures | {f"f1[{kind}]": score.f1 for kind, score in scores.by_type.items() if score.support}

    def save_extras(self, folder: Path) -> None:
        self.tokenizer.save_pretrained(folder)
