"""What the training loop asks of a task, and what it gives back.

A task brings two things. `Examples` are its data as a numbered list that never depends on what was read before:
`(seed, epoch, index)` decide everything, so that a resumed run sees the same data. An `Objective` turns examples into
packed batches, batches into a loss, and a model into metrics. The loop knows nothing else about it. Both are protocols
with defaults: a class of your own inherits from them and leaves out what the defaults say. The objectives of the tasks
here share `TextObjective` and `LabelObjective`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertie.errors import BertieError, DataError, InputError
from bertie.model.outputs import ModelOutput
from bertie.model.pretrained import BertPreTrainedModel
from bertie.running.batching import split_by_tokens
from bertie.text import BertTokenizer
from bertie.training.token_rows import TokenRows, fingerprint

Numbers = npt.NDArray[np.int64]
# What JSON holds; a checkpoint's state is compared and passed on, never looked into by type.
Json = Mapping[str, object]
Item = TypeVar("Item")
Own = TypeVar("Own")
Item_co = TypeVar("Item_co", covariant=True)
Item_contra = TypeVar("Item_contra", contravariant=True)
_LOWER_IS_BETTER = ("loss", "mse")


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
class Examples(Protocol[Item_co]):
    """Map-style and deterministic."""

    def __len__(self) -> int: ...

    def length(self, index: int) -> int:
        """Tokens of an example, or an upper bound: batches are filled by it."""
        ...

    def get(self, index: int, epoch: int) -> Item_co:
        """One example, dynamic masking included, seeded by (seed, epoch, index)."""
        ...

    def fingerprint(self) -> str:
        """A hash that changes when the data or the settings change; run checkpoints keep it."""
        ...

    def lengths(self) -> Numbers:
        """The lengths of all; millions of sequences have theirs in an array."""
        return np.fromiter((self.length(index) for index in range(len(self))), dtype=np.int64, count=len(self))

    def groups(self) -> Sequence[Hashable] | None:
        """For each thing the examples are made of (a sentence, a question, a pair) what it belongs to: equal ones are
        held out together, because they know too much of each other. None: every example is a thing of its own.
        """
        return None

    def take(self, things: Numbers) -> Examples[Item_co]:
        """The examples of these things alone."""
        return Subset(self, things)


class Subset(Examples[Item_co]):
    """Some of another set's examples, by index."""

    def __init__(self, examples: Examples[Item_co], indices: Numbers) -> None:
        self.examples = examples
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    def length(self, index: int) -> int:
        return self.examples.length(int(self.indices[index]))

    def lengths(self) -> Numbers:
        return self.examples.lengths()[self.indices]

    def get(self, index: int, epoch: int) -> Item_co:
        return self.examples.get(int(self.indices[index]), epoch)

    def fingerprint(self) -> str:
        return fingerprint(self.examples.fingerprint(), self.indices)


@dataclass(frozen=True)
class RowExamples(Examples[Item_co]):
    """Examples that are one row of tokens each."""

    rows: TokenRows

    def __len__(self) -> int:
        return len(self.rows)

    def length(self, index: int) -> int:
        return self.rows.length(index)

    def lengths(self) -> Numbers:
        return self.rows.lengths()


@runtime_checkable
class Objective(Protocol[Item_contra]):
    """What is trained, and how well it does."""

    name: str  # classify, pretrain, …
    model: BertPreTrainedModel  # what is trained
    best_metric: str  # the one of `evaluate`'s figures by which the best model is chosen
    greater_is_better: bool
    whole_batches: bool = False  # does the loss compare a batch's examples? Then it is not cut to fit into memory
    evaluates_like_training: bool = False  # in the precision of training, and not in float32

    @property
    def deciding(self) -> Json:
        """What decides a run's numbers besides its data and settings (a teacher, say), as JSON has it."""
        return {}

    def collate(self, examples: Sequence[Item_contra]) -> Batch: ...

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """The SUM over the batch's units (a scalar; the mean is sum/units), and extra numbers to log.

        `model` is `self.model` or a wrapper of it (DDP, FSDP, compiled): call the argument.
        """
        ...

    def evaluate(
        self, model: nn.Module, examples: Examples[Item_contra], *, token_budget: int, device: torch.device | str
    ) -> dict[str, float]: ...

    def metric_names(self, dev: Examples[Item_contra]) -> tuple[str, ...]:
        """The figures of `evaluate` with this data that a run can be judged by."""
        return (self.best_metric,)

    def save_extras(self, folder: Path) -> None:
        """Tokenizer files and the like, beside the model; labels are in its config already."""
        ...


# -- what the objectives of tasks share --------------------------------------------------------------------------------


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


# -- what comes of a run -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """What came of a run."""

    output: Path
    steps: int
    metrics: dict[str, float]  # of the model that was kept, on the dev data; empty without any
    best_step: int | None
    stopped_early: bool
    skipped: int
    seconds: float  # of training alone, without evaluating and saving
    tokens: int
    flops: float
    oom_halvings: int = 0


class Interrupted(BertieError):
    """The run was stopped from outside.

    `began`: there is a checkpoint of it to resume from. `kept`: there is that, or at least what was made for it.
    """

    def __init__(
        self, cause: str, remedy: str | None = None, /, *, began: bool = True, kept: bool = True, **settings: object
    ) -> None:
        super().__init__(cause, remedy, **settings)
        self.began, self.kept = began, kept


class Diverged(BertieError):
    """Gradients stopped being numbers; the last good state is saved."""


# -- parts of the data -------------------------------------------------------------------------------------------------


def hold_out(examples: Examples[Item], share: float, *, seed: int = 0) -> tuple[Examples[Item], Examples[Item]]:
    """(the rest, about this share at random): a development set where none was given. Groups are held out whole."""
    groups, chance = examples.groups(), np.random.Generator(np.random.PCG64(seed))
    if groups is None:
        order = chance.permutation(len(examples))
        number = min(max(1, round(len(examples) * share)), len(examples) - 1)
        return examples.take(np.sort(order[number:])), examples.take(np.sort(order[:number]))
    members: dict[Hashable, list[int]] = {}
    for thing, group in enumerate(groups):
        members.setdefault(group, []).append(thing)
    if len(members) < 2:
        raise DataError(
            "The training data is one piece, so nothing can be held out for development.",
            "Give a file of development data.",
        )
    kept = list(members.values())
    chosen: list[int] = []
    for place in chance.permutation(len(kept))[: len(kept) - 1]:
        if chosen and len(chosen) >= share * len(groups):
            break
        chosen += kept[place]
    held = np.sort(np.asarray(chosen, dtype=np.int64))
    return examples.take(np.setdiff1d(np.arange(len(groups)), held)), examples.take(held)
