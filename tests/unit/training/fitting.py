"""Training a tiny model with plain torch, as the simplest loop there is: what every objective must stand."""

from __future__ import annotations

from typing import Any

import torch

from bertie.training.contract import Examples, Objective

# The words of the tiny tokenizer, so that texts differ by tokens the model can tell apart.
GOOD = ["a good film", "the dog sleeps", "good good dog", "the capital of france", "it was good at all"]
BAD = ["nothing at all", "stocks fell on monday", "investors worried about prices", "nobody expected", "rising prices"]


def fit(
    objective: Objective, examples: Examples, *, steps: int = 60, rate: float = 3e-3, batch_size: int = 10
) -> list[float]:
    """AdamW over the examples in order, again and again; the loss of every step."""
    model = objective.model
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    model.train()
    losses = []
    for step in range(steps):
        first = step * batch_size
        chosen = [(first + k) % len(examples) for k in range(min(batch_size, len(examples)))]
        batch = objective.collate([examples.get(index, first // len(examples)) for index in chosen])
        loss, _ = objective.loss(model, batch)
        optimizer.zero_grad()
        (loss / batch.units).backward()
        optimizer.step()
        losses.append(float(loss.detach()) / batch.units)
    return losses


def evaluated(objective: Objective, examples: Examples, *, token_budget: int = 256) -> dict[str, Any]:
    figures = objective.evaluate(objective.model, examples, token_budget=token_budget, device="cpu")
    assert all(isinstance(value, float) for value in figures.values()), figures
    assert objective.best_metric in figures
    return figures
