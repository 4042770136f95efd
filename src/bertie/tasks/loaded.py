"""A model that is ready for a task: weights, tokenizer, device, and how a batch of rows goes through it.

Tasks take a model by name, by path, as a `Loaded`, or as a model object with its tokenizer. A name or path is loaded
once and kept, so that `bertie.embed(...)` in a loop costs what it should.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, Union

import torch
from torch import Tensor

from bertie.checkpoint.read import open_checkpoint
from bertie.checkpoint.report import listed
from bertie.defaults import default_embedding_model as default_embedding_model
from bertie.errors import CheckpointError, InputError
from bertie.loading import model_class
from bertie.model.pretrained import BertPreTrainedModel
from bertie.tasks.batching import Row
from bertie.text import BertTokenizer

ModelLike = Union[str, "os.PathLike[str]", BertPreTrainedModel, "Loaded"]

# Tokens to a batch: enough to fill the device, few enough to stay in its caches.
_BUDGETS = {"cpu": 2048, "cuda": 32768}

# What a class answers, in the words of an error message.
_HEADS = {
    "BertForMaskedLM": "a masked-word head (cls.predictions)",
    "BertLMHeadModel": "a language-model head (cls.predictions)",
    "BertForNextSentencePrediction": "a next-sentence head (cls.seq_relationship)",
    "BertForSequenceClassification": "a text classifier (classifier)",
    "BertForTokenClassification": "a token classifier (classifier)",
    "BertForQuestionAnswering": "an answer head (qa_outputs)",
    "BertForMultipleChoice": "a multiple-choice head (classifier)",
}


@dataclass
class Loaded:
    """A model with its tokenizer. `folder` is where it came from, if it came from files."""

    model: Any
    tokenizer: BertTokenizer
    folder: Path | None = None
    name: str = ""
    budget: int = field(default=0)

    def __post_init__(self) -> None:
        if not self.budget:
            self.budget = _BUDGETS.get(self.model.device.type, _BUDGETS["cpu"])

    @property
    def max_length(self) -> int:
        """The longest row the model takes, special tokens included."""
        positions: int = self.model.config.max_position_embeddings
        return min(positions, self.tokenizer.model_max_length)

    @torch.inference_mode()
    def run(self, rows: Sequence[Row], **options: Any) -> Any:
        """The model's output for a packed batch; `split` gives each row its part of it."""
        device = self.model.device
        ids = torch.tensor(list(chain.from_iterable(row.ids for row in rows)), device=device)
        ends = torch.tensor([0, *accumulate(map(len, rows))])
        types = None
        if any(row.type_ids is not None for row in rows):
            flat = chain.from_iterable(row.type_ids or [0] * len(row) for row in rows)
            types = torch.tensor(list(flat), device=device)
        return self.model(ids, token_type_ids=types, cu_seqlens=ends, return_dict=True, **options)

    @staticmethod
    def split(packed: Tensor, rows: Sequence[Row]) -> tuple[Tensor, ...]:
        """`[tokens, …]` → one `[length, …]` per row."""
        return torch.split(packed, [len(row) for row in rows])


def open_model(
    model: ModelLike | None,
    kind: type[BertPreTrainedModel],
    *,
    task: str,
    tokenizer: BertTokenizer | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = None,
    default: str | None = None,
    **construct: Any,
) -> Loaded:
    """A model of class `kind` for the task called `task`. A checkpoint without that head is refused, not filled up."""
    if isinstance(model, Loaded):
        inside = model.model
        if not isinstance(inside, BertPreTrainedModel) or isinstance(inside, kind):
            return model
        if kind.__name__ == "BertModel" and hasattr(inside, "bert"):
            return replace(model, model=inside.base_model)
        raise _wrong_kind(task, kind, inside)
    if isinstance(model, BertPreTrainedModel):
        if tokenizer is None:
            raise InputError(
                f"{task} was given a model object without its tokenizer.",
                "Pass tokenizer=BertTokenizer.from_pretrained(…), or the model's folder instead of the object.",
            )
        if not isinstance(model, kind) and not (kind.__name__ == "BertModel" and hasattr(model, "bert")):
            raise _wrong_kind(task, kind, model)
        used = model.base_model if kind.__name__ == "BertModel" else model
        return Loaded(used.eval(), tokenizer, name=type(model).__name__)
    source = model if model is not None else default
    if source is None:
        raise InputError(f"{task} needs a model.", "Name one: a folder with a checkpoint, or a hub name.")
    chosen = str(device) if device is not None else ("cuda" if torch.cuda.is_available() else "cpu")
    _check_device(chosen)
    name = os.fspath(source)
    arguments = (name, _stamp(name), kind, task, chosen, dtype, tuple(sorted(construct.items())))
    loaded = _from_files(*arguments)  # type: ignore[arg-type]  # a class hashes, whatever its instances do
    return loaded if tokenizer is None else Loaded(loaded.model, tokenizer, loaded.folder, loaded.name)


def _wrong_kind(task: str, kind: type[BertPreTrainedModel], model: BertPreTrainedModel) -> InputError:
    return InputError(
        f"{task} needs a {kind.__name__}; it was given a {type(model).__name__}.",
        f"If the checkpoint has that head, name its folder, or load it with {kind.__name__}.from_pretrained(…).",
    )


def _stamp(source: str) -> tuple[int, ...]:
    """When a local folder's files last changed: one that was saved again is loaded again."""
    try:
        return tuple(sorted(entry.stat().st_mtime_ns for entry in os.scandir(source) if entry.is_file()))
    except OSError:
        return ()


def _check_device(name: str) -> None:
    try:
        kind = torch.device(name).type
    except RuntimeError as error:
        raise InputError(
            f"There is no device {name!r}: {str(error).splitlines()[0]}.", "It takes cpu, cuda, cuda:1 …"
        ) from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise InputError("The device cuda was asked for, and torch sees no GPU.", "Use cpu, or a torch built for CUDA.")


@lru_cache(maxsize=4)
def _from_files(
    source: str,
    stamp: tuple[int, ...],  # part of the key only
    kind: type[BertPreTrainedModel],
    task: str,
    device: str,
    dtype: torch.dtype | str | None,
    construct: tuple[tuple[str, Any], ...],
) -> Loaded:
    checkpoint = open_checkpoint(source, with_companions=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made: Any = kind.from_pretrained(
            source, dtype=dtype, device=device, output_loading_info=True, **dict(construct)
        )
    built, report = made
    if report.newly_initialised:
        found = model_class(checkpoint).__name__
        raise CheckpointError(
            f"{task} needs {_HEADS.get(kind.__name__, kind.__name__)}; {source} is a {found} and lacks "
            f"{listed(report.newly_initialised, shown=2)}.",
            f"Use a checkpoint fine-tuned for {task}, or fine-tune this one first.",
        )
    tokenizer = BertTokenizer.from_pretrained(checkpoint.folder)
    vocabulary = built.config.vocab_size
    if len(tokenizer) > vocabulary:
        raise CheckpointError(
            f"{source}: the tokenizer knows {len(tokenizer)} tokens, the model's vocabulary has {vocabulary}.",
            "They belong to different models, or tokens were added without resize_token_embeddings().",
        )
    return Loaded(built, tokenizer, checkpoint.folder, source)
