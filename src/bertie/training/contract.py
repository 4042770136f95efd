"""What the training loop needs to know about a task: examples, batches, losses.

A task brings two things. `Examples` are its data as a numbered list that never depends on what was read before:
`(seed, epoch, index)` decide everything, so that a resumed run sees the same data. An `Objective` turns examples into
packed batches, batches into a loss, and a model into metrics. The loop knows nothing else about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from bertie.model.pretrained import BertPreTrainedModel


@dataclass(frozen=True)
class Batch:
    """Examples end to end, ready for a model."""

    tensors: dict[str, Tensor]  # packed: input_ids [T], token_type_ids [T], cu_seqlens [n+1], labels, …
    units: float  # what the loss is a mean over: labelled tokens, texts, …
    num_tokens: int  # real ones; there is no padding
    num_examples: int

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """On a device. `cu_seqlens` stays on the CPU: the model reads the lengths there, and would wait for them."""
        moved = {
            name: tensor if name == "cu_seqlens" else tensor.to(device, non_blocking=non_blocking)
            for name, tensor in self.tensors.items()
        }
        return replace(self, tensors=moved)

    def pin_memory(self) -> Batch:
        """In page-locked memory, from which a copy to a GPU can run beside the computation."""
        return replace(self, tensors={name: tensor.pin_memory() for name, tensor in self.tensors.items()})


@runtime_checkable
class Examples(Protocol):
    """Map-style and deterministic."""

    def __len__(self) -> int: ...

    def length(self, index: int) -> int:
        """Tokens of an example, or an upper bound: batches are filled by it."""
        ...

    def get(self, index: int, epoch: int) -> Any:
        """One example, dynamic masking included, seeded by (seed, epoch, index)."""
        ...

    def fingerprint(self) -> str:
        """A hash that changes when the data or the settings change; run checkpoints keep it."""
        ...


@runtime_checkable
class Objective(Protocol):
    """What is trained, and how well it does."""

    @property
    def name(self) -> str:
        """classify, pretrain, …"""
        ...

    @property
    def best_metric(self) -> str:
        """The one of `evaluate`'s figures by which the best model is chosen."""
        ...

    @property
    def greater_is_better(self) -> bool: ...

    @property
    def model(self) -> BertPreTrainedModel:
        """What is trained."""
        ...

    def collate(self, examples: Sequence[Any]) -> Batch: ...

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """The SUM over the batch's units (a scalar; the mean is sum/units), and extra numbers to log.

        `model` is `self.model` or a wrapper of it (DDP, FSDP, compiled): call the argument.
        """
        ...

    def evaluate(
        self, model: nn.Module, examples: Examples, *, token_budget: int, device: torch.device | str
    ) -> dict[str, float]: ...

    def save_extras(self, folder: Path) -> None:
        """Tokenizer files and the like, beside the model; labels are in its config already."""
        ...
