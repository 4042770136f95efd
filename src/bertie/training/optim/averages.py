"""An exponential moving average of the weights (EMA), kept beside them; off by default."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from bertie.training.run.distributed import local


class Average:
    """Averaged weights by parameter name: average ← decay·average + (1 − decay)·weight after every step."""

    def __init__(self, parameters: Mapping[str, Tensor], decay: float) -> None:
        self.decay = decay
        self._weights = [local(p.detach()) for p in parameters.values()]
        self.tensors = dict(zip(parameters, (w.clone() for w in self._weights), strict=True))

    @torch.no_grad()
    def update(self, *, keep: Tensor) -> None:
        """`keep` = 1 (a skipped step) leaves the average as it is; it is a tensor, so that nobody waits for it."""
        weight = (1 - self.decay) * (1 - keep)
        for average, value in zip(self.tensors.values(), self._weights, strict=True):
            average.lerp_(value, weight.to(average.dtype))

    @torch.no_grad()
    def swap(self) -> None:
        """Let the averages and the weights change places."""
        for average, weight in zip(self.tensors.values(), self._weights, strict=True):
            kept = weight.clone()
            weight.copy_(average)
            average.copy_(kept)
