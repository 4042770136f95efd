"""What the objectives of tasks share: a model over packed batches, evaluation, and losses over labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertie.errors import InputError
from bertie.model.outputs import ModelOutput
from bertie.model.pretrained import BertPreTrainedModel
from bertie.running.batching import split_by_tokens
from bertie.text import BertTokenizer
from bertie.training.contract import Batch, Examples, Item, Objective

_LOWER_IS_BETTER = ("loss", "mse")
Own = TypeVar("Own")


class TextObjective(Objective[Item]):
    """A model whose tokenizer is saved beside it; a task says its name, and by what it is judged by default."""

    def __init__(
        self,
        model: BertPreTrainedModel,
        tokenizer: BertTokenizer,
        *,
        name: str | None = None,
        best_metric: str | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        if name is not None:
            self.name = name
        self.best_metric = best_metric or self.default_metric()
        self.greater_is_better = self.best_metric not in _LOWER_IS_BETTER

    def default_metric(self) -> str:
        return "accuracy"

    def save_extras(self, folder: Path) -> None:
        self.tokenizer.save_pretrained(folder)


class LabelObjective(TextObjective[Item]):
    """Cross-entropy over `batch.tensors["labels"]`, those of −100 left out.

    With `class_weights` the mean is over weights, as everywhere in PyTorch: a batch's units are the weights of its
    labels.
    """

    def __init__(
        self,
        model: BertPreTrainedModel,
        tokenizer: BertTokenizer,
        *,
        name: str | None = None,
        best_metric: str | None = None,
        label_smoothing: float = 0.0,
        class_weights: Sequence[float] | None = None,
    ) -> None:
        super().__init__(model, tokenizer, name=name, best_metric=best_metric)
        self.label_smoothing = label_smoothing
        self.class_weights = None if class_weights is None else torch.tensor(class_weights, dtype=torch.float32)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        return self.summed(self.logits(model, batch), batch.tensors["labels"]), {}

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        logits: Tensor = run_model(model, batch)["logits"]
        return logits.float()

    def summed(self, logits: Tensor, labels: Tensor) -> Tensor:
        weights = None if self.class_weights is None else self.class_weights.to(logits.device)
        return F.cross_entropy(logits, labels, weight=weights, label_smoothing=self.label_smoothing, reduction="sum")

    def scored(
        self, model: nn.Module, examples: Examples[Item], token_budget: int, device: torch.device | str
    ) -> Iterator[tuple[list[int], Batch, Tensor, float]]:
        """All examples once: (their indices, the batch of them, its logits, its summed loss)."""
        with evaluating(model):
            for indices, batch in batches_of(self, examples, token_budget=token_budget, device=device):
                logits = self.logits(model, batch)
                yield indices, batch, logits, float(self.summed(logits, batch.tensors["labels"]))


def run_model(model: nn.Module, batch: Batch, **options: object) -> ModelOutput:
    """The output of a model for the texts of a batch."""
    given = {name: batch.tensors[name] for name in ("token_type_ids", "cu_seqlens")}
    output: ModelOutput = model(batch.tensors["input_ids"], **given, return_dict=True, **options)
    return output


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout and without gradients; afterwards as before."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def batches_of(
    objective: Objective[Item], examples: Examples[Item], *, token_budget: int, device: torch.device | str
) -> Iterator[tuple[list[int], Batch]]:
    """All examples once, longest first: (their indices, the batch of them on the device)."""
    for indices in split_by_tokens(examples.lengths().tolist(), token_budget):
        yield indices, objective.collate([examples.get(index, 0) for index in indices]).to(device)


def own_examples(examples: object, kind: type[Own], objective: object) -> Own:
    """The examples of a task that is evaluated on more than the loop knows of them: sentences, questions, texts."""
    if not isinstance(examples, kind):
        what = f"{type(objective).__name__} is evaluated on {kind.__name__}"
        raise InputError(f"{what}, not on {type(examples).__name__}.")
    return examples
