"""Tokenized texts in flat arrays, packed batches out of them, and a model over a whole set of examples.

`TokenRows` keeps any number of texts as one array of ids: a data set of a hundred thousand texts is a few numpy arrays,
which cost little and hash fast. `pack` lays rows end to end as the models take them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from bertie.errors import DataError
from bertie.running.batching import chunked, split_by_tokens
from bertie.text import BertTokenizer
from bertie.training.contract import Batch, Examples, Objective

Ints = npt.NDArray[np.integer[Any]]
_TEXTS_AT_ONCE = 1024


class TokenRow(NamedTuple):
    """One input of a model: ids, of which the first `split` are of segment 0 and the others of segment 1."""

    ids: Ints
    split: int


@dataclass(frozen=True)
class TokenRows:
    """Rows end to end: row i is `ids[ends[i]:ends[i + 1]]`."""

    ids: npt.NDArray[np.int32]  # [tokens]
    ends: npt.NDArray[np.int64]  # [rows + 1], the first is 0
    splits: npt.NDArray[np.int32]  # [rows]

    @classmethod
    def of(cls, rows: Iterable[tuple[Sequence[int], Sequence[int] | None]]) -> TokenRows:
        """From (ids, segments); None for segments that are all 0."""
        ids: list[npt.NDArray[np.int32]] = []
        lengths, splits = [], []
        for row, types in rows:
            ids.append(np.asarray(row, dtype=np.int32))
            lengths.append(len(row))
            splits.append(len(row) if types is None else len(types) - int(np.count_nonzero(types)))
        flat = np.concatenate(ids) if ids else np.zeros(0, dtype=np.int32)
        ends = np.concatenate([[0], np.cumsum(np.asarray(lengths, dtype=np.int64))]).astype(np.int64)
        return cls(flat, ends, np.asarray(splits, dtype=np.int32))

    @classmethod
    def encode(
        cls, tokenizer: BertTokenizer, texts: Sequence[str], pairs: Sequence[str] | None = None, *, max_length: int
    ) -> TokenRows:
        """Texts or pairs with their special tokens, the longer of a pair cut first."""

        def rows() -> Iterator[tuple[Sequence[int], Sequence[int] | None]]:
            for chunk in chunked(range(len(texts)), _TEXTS_AT_ONCE):
                seconds = None if pairs is None else [pairs[i] for i in chunk]
                encoded = tokenizer([texts[i] for i in chunk], seconds, truncation=True, max_length=max_length)
                types = encoded["token_type_ids"] if pairs is not None else [None] * len(chunk)
                yield from zip(encoded["input_ids"], types, strict=True)

        return cls.of(rows())

    def __len__(self) -> int:
        return len(self.splits)

    def __getitem__(self, index: int) -> TokenRow:
        return TokenRow(self.ids[self.ends[index] : self.ends[index + 1]], int(self.splits[index]))

    def length(self, index: int) -> int:
        return int(self.ends[index + 1] - self.ends[index])

    def take(self, indices: Ints) -> TokenRows:
        """Some of the rows, in this order."""
        lengths = np.diff(self.ends)[indices]
        ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        places = np.arange(ends[-1]) + np.repeat(self.ends[:-1][indices] - ends[:-1], lengths)
        return TokenRows(self.ids[places], ends, self.splits[indices])

    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        return self.ids, self.ends, self.splits


def fingerprint(*parts: Any) -> str:
    """A hash of arrays and of whatever JSON can hold."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            digest.update(f"{part.dtype.str}{part.shape}".encode())
            digest.update(np.ascontiguousarray(part).data)
        else:
            digest.update(json.dumps(part, sort_keys=True, default=str).encode())
        digest.update(b"\0")
    return digest.hexdigest()[:32]


def pack(rows: Sequence[TokenRow]) -> dict[str, Tensor]:
    """`input_ids [T]`, `token_type_ids [T]` and `cu_seqlens [rows + 1]`."""
    lengths = np.fromiter((len(row.ids) for row in rows), dtype=np.int64, count=len(rows))
    splits = np.fromiter((row.split for row in rows), dtype=np.int64, count=len(rows))
    ends = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.concatenate([row.ids for row in rows]).astype(np.int64)
    places = np.arange(len(ids)) - np.repeat(ends[:-1], lengths)
    types = (places >= np.repeat(splits, lengths)).astype(np.int64)
    return {
        "input_ids": torch.from_numpy(ids),
        "token_type_ids": torch.from_numpy(types),
        "cu_seqlens": torch.from_numpy(ends.astype(np.int32)),
    }


def run_model(model: nn.Module, batch: Batch, **options: Any) -> Any:
    """The output of a model for the texts of a batch."""
    tensors = batch.tensors
    return model(
        tensors["input_ids"],
        token_type_ids=tensors["token_type_ids"],
        cu_seqlens=tensors["cu_seqlens"],
        return_dict=True,
        **options,
    )


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
    objective: Objective, examples: Examples, *, token_budget: int, device: torch.device | str
) -> Iterator[tuple[list[int], Batch]]:
    """All examples once, longest first: (their indices, the batch of them on the device)."""
    lengths = [examples.length(index) for index in range(len(examples))]
    for indices in split_by_tokens(lengths, token_budget):
        yield indices, objective.collate([examples.get(index, 0) for index in indices]).to(device)


class Separable(Protocol):
    """Examples that are made of larger things, which must not be torn apart when a part of them is held out."""

    def groups(self) -> Sequence[Hashable]:
        """For each thing (a sentence, a question, a pair) what it belongs to: equal ones stay together."""
        ...

    def take(self, things: npt.NDArray[np.int64]) -> Any:
        """Examples of the same kind, of these things alone."""
        ...


class Subset:
    """Some of another set's examples, by index."""

    def __init__(self, examples: Examples, indices: npt.NDArray[np.int64]) -> None:
        self.examples = examples
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    def length(self, index: int) -> int:
        return self.examples.length(int(self.indices[index]))

    def get(self, index: int, epoch: int) -> Any:
        return self.examples.get(int(self.indices[index]), epoch)

    def fingerprint(self) -> str:
        return fingerprint(self.examples.fingerprint(), self.indices)


def held_out_groups(examples: Separable, share: float, *, seed: int = 0) -> tuple[Any, Any]:
    """(the rest, about this share of the things): whole groups, drawn at random until there are enough."""
    members: dict[Hashable, list[int]] = {}
    groups = examples.groups()
    for thing, group in enumerate(groups):
        members.setdefault(group, []).append(thing)
    if len(members) < 2:
        raise DataError(
            "The training data is all one piece, of which nothing can be held out for development.",
            "Give a file of development data.",
        )
    kept = list(members.values())
    chosen: list[int] = []
    for place in np.random.Generator(np.random.PCG64(seed)).permutation(len(kept))[: len(kept) - 1]:
        if chosen and len(chosen) >= share * len(groups):
            break
        chosen += kept[place]
    held = np.sort(np.asarray(chosen, dtype=np.int64))
    rest = np.setdiff1d(np.arange(len(groups)), held)
    return examples.take(rest), examples.take(held)


def held_out(examples: Examples, share: float, *, seed: int = 0) -> tuple[Subset, Subset]:
    """(the rest, a random share of the examples): a development set where none was given."""
    order = np.random.Generator(np.random.PCG64(seed)).permutation(len(examples))
    number = min(max(1, round(len(examples) * share)), len(examples) - 1)
    return Subset(examples, np.sort(order[number:])), Subset(examples, np.sort(order[:number]))
