"""Labels or a number for a text or a pair: `BertForSequenceClassification`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertie.errors import InputError
from bertie.model import BertForSequenceClassification
from bertie.text import BertTokenizer
from bertie.training import metrics
from bertie.training.contract import Batch, Examples
from bertie.training.run.judging import greater_is_better
from bertie.training.tasks.classify_examples import TextExample
from bertie.training.token_rows import batches_of, evaluating, pack, run_model

_BEST = {
    "regression": "spearman",
    "single_label_classification": "accuracy",
    "multi_label_classification": "f1_micro",
}


class Classification:
    """One label (cross-entropy), several (binary cross-entropy) or a score (squared error), as `problem_type` says.

    With `class_weights` the mean is over weights, as everywhere in PyTorch: a batch's units are the weights of its
    labels.
    """

    def __init__(
        self,
        model: BertForSequenceClassification,
        tokenizer: BertTokenizer,
        *,
        name: str = "classify",
        label_smoothing: float = 0.0,
        class_weights: Sequence[float] | None = None,
        best_metric: str | None = None,
    ) -> None:
        problem = model.config.problem_type
        if problem not in _BEST:
            raise InputError(
                f"config.problem_type is {problem!r}; training takes one of {', '.join(_BEST)}.",
                "Make the task with bertie.training.registry, or set the config's problem_type.",
            )
        if not 0 <= label_smoothing < 1:
            raise InputError(f"label_smoothing is {label_smoothing}; it takes 0 up to (not with) 1.")
        if class_weights is not None and problem == "regression":
            raise InputError("class_weights were given, and a score has no classes.", "Leave them out.")
        if class_weights is not None and len(class_weights) != model.config.num_labels:
            raise InputError(f"There are {len(class_weights)} class_weights for {model.config.num_labels} labels.")
        self.name = name
        self.model = model
        self.tokenizer = tokenizer
        self.problem: str = problem
        self.label_smoothing = label_smoothing
        self.class_weights = None if class_weights is None else torch.tensor(class_weights, dtype=torch.float32)
        self.best_metric = best_metric or _BEST[problem]
        self.greater_is_better = greater_is_better(self.best_metric)

    def collate(self, examples: Sequence[TextExample]) -> Batch:
        labels = torch.from_numpy(np.stack([example.label for example in examples]))
        tensors = pack([example.row for example in examples]) | {"labels": labels}
        units = float(labels.numel())
        if self.class_weights is not None and self.problem == "single_label_classification":
            units = float(self.class_weights[labels].sum())
        return Batch(tensors, units, len(tensors["input_ids"]), len(examples))

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        logits: Tensor = run_model(model, batch).logits.float()
        return self._summed(logits, batch.tensors["labels"]), {}

    def _summed(self, logits: Tensor, labels: Tensor) -> Tensor:
        weights = None if self.class_weights is None else self.class_weights.to(logits.device)
        if self.problem == "regression":
            return F.mse_loss(logits.flatten(), labels.float(), reduction="sum")
        if self.problem == "multi_label_classification":
            targets = labels * (1 - self.label_smoothing) + 0.5 * self.label_smoothing
            return F.binary_cross_entropy_with_logits(logits, targets, weight=weights, reduction="sum")
        return F.cross_entropy(logits, labels, weight=weights, label_smoothing=self.label_smoothing, reduction="sum")

    def evaluate(
        self, model: nn.Module, examples: Examples, *, token_budget: int, device: torch.device | str
    ) -> dict[str, float]:
        outputs, gold, total, units = [], [], 0.0, 0.0
        with evaluating(model):
            for _, batch in batches_of(self, examples, token_budget=token_budget, device=device):
                logits: Tensor = run_model(model, batch).logits.float()
                total += float(self._summed(logits, batch.tensors["labels"]))
                units += batch.units
                outputs.append(logits.cpu().numpy())
                gold.append(batch.tensors["labels"].cpu().numpy())
        scores, labels = np.concatenate(outputs), np.concatenate(gold)
        return {"loss": total / max(units, 1e-12)} | self._figures(scores, labels)

    def metric_names(self, dev: Examples) -> tuple[str, ...]:
        """What `evaluate` gives."""
        if self.problem == "regression":
            return "spearman", "pearson", "mse", "loss"
        if self.problem == "multi_label_classification":
            return "f1_micro", "f1_macro", "accuracy", "loss"
        more = ("f1",) if self.model.config.num_labels == 2 else ("f1_macro", "f1_micro")
        return ("accuracy", "matthews", *more, "loss")

    def _figures(self, scores: metrics.Array, labels: metrics.Array) -> dict[str, float]:
        if self.problem == "regression":
            predicted = scores[:, 0]
            return {
                "pearson": metrics.pearson(predicted, labels),
                "spearman": metrics.spearman(predicted, labels),
                "mse": metrics.mean_squared_error(predicted, labels),
            }
        if self.problem == "multi_label_classification":
            chosen = (scores > 0).astype(np.int64)  # probability above one half
            wanted = labels.astype(np.int64)
            return {
                "accuracy": metrics.accuracy(chosen, wanted),
                "f1_micro": metrics.f1_micro(chosen, wanted),
                "f1_macro": metrics.f1_macro(chosen, wanted),
            }
        best = scores.argmax(axis=1)
        num_labels = scores.shape[1]
        figures = {"accuracy": metrics.accuracy(best, labels), "matthews": metrics.matthews(best, labels)}
        if num_labels == 2:
            return figures | {"f1": metrics.f1_binary(best, labels)}
        return figures | {
            "f1_macro": metrics.f1_macro(best, labels, num_classes=num_labels),
            "f1_micro": metrics.f1_micro(best, labels),
        }

    def save_extras(self, folder: Path) -> None:
        self.tokenizer.save_pretrained(folder)
