"""Tokenized texts in flat arrays, packed as the models take them, and hashed.

`TokenRows` keeps any number of texts as one array of ids: a data set of a hundred thousand texts is a few numpy arrays,
which cost little and hash fast. `pack` lays rows end to end as the models take them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bertie.running.batching import chunked
from bertie.text import BertTokenizer

Ints = npt.NDArray[np.int32] | npt.NDArray[np.int64]
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
                encoded = tokenizer(
                    [texts[i] for i in chunk],
                    seconds,
                    truncation=True,
                    max_length=max_length,
                    return_token_type_ids=pairs is not None,
                )
                types = encoded["token_type_ids"] if pairs is not None else [None] * len(chunk)
                yield from zip(encoded["input_ids"], types, strict=True)

        return cls.of(rows())

    def __len__(self) -> int:
        return len(self.splits)

    def __getitem__(self, index: int) -> TokenRow:
        return TokenRow(self.ids[self.ends[index] : self.ends[index + 1]], int(self.splits[index]))

    def length(self, index: int) -> int:
        return int(self.ends[index + 1] - self.ends[index])

    def lengths(self) -> npt.NDArray[np.int64]:
        return np.diff(self.ends)

    def take(self, indices: Ints) -> TokenRows:
        """Some of the rows, in this order."""
        lengths = self.lengths()[indices]
        ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        places = np.arange(ends[-1]) + np.repeat(self.ends[:-1][indices] - ends[:-1], lengths)
        return TokenRows(self.ids[places], ends, self.splits[indices])

    def arrays(self) -> tuple[Ints, ...]:
        return self.ids, self.ends, self.splits


def fingerprint(*parts: object) -> str:
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
