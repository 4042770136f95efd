"""The right one of several choices: `BertForMultipleChoice`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertie.errors import InputError
from bertie.model import BertForMultipleChoice
from bertie.text import BertTokenizer
from bertie.training import metrics
from bertie.training.contract import Batch, Examples
from bertie.training.run.judging import greater_is_better
from bertie.training.tasks.choice_examples import ChoiceExample
from bertie.training.token_rows import batches_of, evaluating, pack, run_model


class MultipleChoice:
    """Cross-entropy over a question's choices; units are questions."""

    name = "choice"

    def __init__(
        self,
        model: BertForMultipleChoice,
        tokenizer: BertTokenizer,
        *,
        label_smoothing: float = 0.0,
        best_metric: str | None = None,
    ) -> None:
        if not 0 <= label_smoothing < 1:
            raise InputError(f"label_smoothing is {label_smoothing}; it takes 0 up to (not with) 1.")
        self.model = model
        self.tokenizer = tokenizer
        self.label_smoothing = label_smoothing
        self.best_metric = best_metric or "accuracy"
        self.greater_is_better = greater_is_better(self.best_metric)

    def collate(self, examples: Sequence[ChoiceExample]) -> Batch:
        tensors = pack([row for example in examples for row in example.rows])
        tensors["labels"] = torch.tensor([example.answer for example in examples])
        return Batch(tensors, float(len(examples)), len(tensors["input_ids"]), len(examples))

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        return self._summed(self._logits(model, batch), batch.tensors["labels"]), {}

    def _logits(self, model: nn.Module, batch: Batch) -> Tensor:
        num_rows, num_questions = len(batch.tensors["cu_seqlens"]) - 1, len(batch.tensors["labels"])
        logits: Tensor = run_model(model, batch, num_choices=num_rows // num_questions).logits
        return logits.float()

    def _summed(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels, label_smoothing=self.label_smoothing, reduction="sum")

    def metric_names(self, dev: Examples) -> tuple[str, ...]:
        """What `evaluate` gives."""
        return "accuracy", "loss"

    def evaluate(
        self, model: nn.Module, examples: Examples, *, token_budget: int, device: torch.device | str
    ) -> dict[str, float]:
        predicted, gold, total = [], [], 0.0
        with evaluating(model):
            for _, batch in batches_of(self, examples, token_budget=token_budget, device=device):
                logits, labels = self._logits(model, batch), batch.tensors["labels"]
                total += float(self._summed(logits, labels))
                predicted.append(logits.argmax(dim=-1).cpu().numpy())
                gold.append(labels.cpu().numpy())
        accuracy = metrics.accuracy(np.concatenate(predicted), np.concatenate(gold))
        return {"loss": total / max(1, len(examples)), "accuracy": accuracy}

    def save_extras(self, folder: Path) -> None:
        self.tokenizer.save_pretrained(folder)
