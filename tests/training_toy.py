"""A small task with everything the loop asks for: sort texts of random ids by whether they hold a certain id."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import bertie
from bertie.training.contract import Batch, Examples, Objective
from bertie.training.settings import Settings

SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 16,
}


class ToyExamples(Examples[Any]):
    """`count` texts of 3 to 12 ids; the label says whether id 7 is among them."""

    def __init__(self, count: int = 40, *, seed: int = 0) -> None:
        chance = np.random.default_rng(seed)
        self.texts = [chance.integers(5, 40, size=chance.integers(3, 13)).tolist() for _ in range(count)]
        for text in self.texts[::2]:
            text[0] = 7
        self.seed = seed

    def __len__(self) -> int:
        return len(self.texts)

    def length(self, index: int) -> int:
        return len(self.texts[index])

    def get(self, index: int, epoch: int) -> Any:
        return self.texts[index], int(7 in self.texts[index])

    def fingerprint(self) -> str:
        return f"toy-{len(self.texts)}-{self.seed}"


class Toy(Objective[Any]):
    """Single-label classification over ToyExamples."""

    name = "toy"
    best_metric = "accuracy"
    greater_is_better = True

    def __init__(self, *, dropout: float = 0.1, seed: int = 0, **config: Any) -> None:
        torch.manual_seed(seed)
        drop = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
        self.model = bertie.BertForSequenceClassification(bertie.BertConfig(**(SIZES | drop | config)))
        self.before_loss: Callable[[Batch], None] = lambda batch: None
        self.batches_seen: list[Batch] = []

    def collate(self, examples: Sequence[Any]) -> Batch:
        lengths = [len(ids) for ids, _ in examples]
        return Batch(
            {
                "input_ids": torch.tensor([i for ids, _ in examples for i in ids]),
                "cu_seqlens": torch.tensor([0, *np.cumsum(lengths).tolist()]),
                "labels": torch.tensor([label for _, label in examples]),
            },
            units=len(examples),
            num_tokens=sum(lengths),
            num_examples=len(examples),
        )

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        self.before_loss(batch)
        self.batches_seen.append(batch)
        logits = model(batch.tensors["input_ids"], cu_seqlens=batch.tensors["cu_seqlens"]).logits
        return nn.functional.cross_entropy(logits, batch.tensors["labels"], reduction="sum"), {}

    def evaluate(
        self, model: nn.Module, examples: Examples[Any], *, token_budget: int, device: torch.device | str
    ) -> dict[str, float]:
        batch = self.collate([examples.get(i, 0) for i in range(len(examples))])
        with torch.no_grad():
            logits = model(batch.tensors["input_ids"], cu_seqlens=batch.tensors["cu_seqlens"]).logits
        return {"accuracy": float((logits.argmax(-1) == batch.tensors["labels"]).float().mean())}

    def save_extras(self, folder: Path) -> None:
        (folder / "vocab.txt").write_text("toy\n")


def settings(**values: Any) -> Settings:
    defaults: dict[str, Any] = {
        "epochs": 2, "batch_size": 8, "micro_batch_tokens": 40, "learning_rate": 1e-3, "log_every": 1, "seed": 3,
    }  # fmt: skip
    return Settings(**(defaults | values))
