"""How ColBERT reads texts: a marker after [CLS], queries filled up with [MASK], documents without punctuation.

    query        [CLS] [Q] who wrote it ? [SEP] [MASK] [MASK] …     always as many vectors, 32
    document     [CLS] [D] she wrote it   [SEP]                     no vectors for punctuation

Filling up lets the model add words of its own to a query; the other tokens do not see these [MASK]s, unless the
checkpoint was trained so. How a checkpoint was trained is in `artifact.metadata`, a JSON file that the authors' library
writes beside the weights; one without it has that library's defaults, and no markers where the vocabulary lacks theirs.

Sources: Khattab & Zaharia 2020 (https://arxiv.org/abs/2004.12832, section 3.2), Santhanam et al. 2021 (ColBERTv2,
https://arxiv.org/abs/2112.01488).
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from bertie.config import read_json_object
from bertie.errors import CheckpointError
from bertie.json_values import text, whole
from bertie.running.open import OpenModel
from bertie.running.rows import Row
from bertie.text import BertTokenizer

METADATA = "artifact.metadata"
_FRAME = 3  # [CLS], the marker and [SEP]


@dataclass(frozen=True)
class Colbert:
    """A checkpoint's way with queries, or with documents."""

    marker: int | None
    length: int  # tokens of a text at most, the marker among them
    filling: int | None = None  # what fills up a query
    sees_filling: bool = False  # whether the other tokens see it
    skipped: frozenset[int] = frozenset()  # ids that get no vector

    def marked(self, row: Row) -> Row:
        """A row with its marker, filled up if it is a query's; it has room for the marker."""
        ids = [*row.ids]
        if self.marker is not None:
            ids.insert(1, self.marker)
        if self.filling is not None:
            ids += [self.filling] * (self.length - len(ids))
        return replace(row, ids=ids, type_ids=None)

    @property
    def room(self) -> int:
        """Tokens of a text, framed, before it is marked."""
        return self.length - (self.marker is not None)

    def states(self, loaded: OpenModel, rows: Sequence[Row]) -> list[Tensor]:
        """`[length, hidden]` of each row."""
        if self.filling is None or self.sees_filling:
            return list(loaded.split(loaded.run(rows).last_hidden_state, rows))
        ids = torch.tensor([row.ids for row in rows], device=loaded.device)  # filled up, they are of one length
        after = (ids != self.filling).long().flip(1).cumsum(1).flip(1)  # how many tokens of its own a text still has
        seen = (after > 0)[:, None].expand(-1, ids.shape[1], -1)  # [texts, queries, keys]
        return list(loaded.model(ids, attention_mask=seen.long(), return_dict=True).last_hidden_state)

    def kept(self, row: Row) -> list[int]:
        """The places of tokens that get a vector."""
        return [place for place, index in enumerate(row.ids) if index not in self.skipped]


def read_colbert(folder: Path, tokenizer: BertTokenizer, *, longest: int, query: bool) -> Colbert:
    """What a ColBERT checkpoint's folder says of queries or documents, for a model that reads `longest` tokens."""
    file = folder / METADATA
    given = read_json_object(file) if file.is_file() else {}
    side = "query" if query else "doc"
    length = _length(given, f"{side}_maxlen", 32 if query else 220, file)
    marker = _marker(given, f"{side}_token_id", "[unused0]" if query else "[unused1]", tokenizer, file)
    if query:
        sees = given.get("attend_to_mask_tokens") is True
        return Colbert(marker, min(length, longest), tokenizer.mask_token_id, sees)
    skipped: set[int] = set()
    if given.get("mask_punctuation") is not False:
        skipped.update(tokenizer.encode(mark, add_special_tokens=False)[0] for mark in string.punctuation)
        skipped.discard(tokenizer.unk_token_id)  # where the vocabulary lacks a mark
    return Colbert(marker, min(length, longest), skipped=frozenset(skipped))


def _length(given: Mapping[str, object], name: str, default: int, file: Path) -> int:
    length = whole(given.get(name, default))
    if length is None or length <= _FRAME:
        raise CheckpointError(
            f"{file}: {name} is {given.get(name)!r}; a length of more than {_FRAME} tokens was expected.",
            "Fetch the file again.",
        )
    return length


def _marker(given: Mapping[str, object], name: str, default: str, tokenizer: BertTokenizer, file: Path) -> int | None:
    token = text(given.get(name, default))
    found = None if token is None else tokenizer.get_vocab().get(token)
    if found is None and name in given:
        raise CheckpointError(
            f"{file}: {name} is {given[name]!r}, which is no token of the vocabulary.",
            "The two belong to different models: fetch both again.",
        )
    return found
