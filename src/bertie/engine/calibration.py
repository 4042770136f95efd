"""What int8 and fp8 are fitted on, and how a model is looked at meanwhile.

Where nothing else is given they are fitted on a page of prose on many subjects, and int8 also on texts unlike it, in
other scripts and in none, and on rows of ids from all over the vocabulary.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Literal, TypeGuard, cast

import torch
from torch import Tensor, nn

from bertie.errors import InputError
from bertie.model import BertLayer, BertModel
from bertie.ops.packing import Packing
from bertie.text import BertTokenizer

Rows = Sequence[Sequence[int]]  # token ids, a row to a text
PRODUCTS = ("qkv", "out", "up", "down")  # of a layer; queries, keys and values are one
Key = tuple[int, str]  # a layer's number and one of its products
_LONGEST = 128
_TEXTS = Path(__file__).parent / "calibration_texts.json"


@cache
def own_texts(kind: Literal["prose", "unusual"]) -> list[str]:
    """What comes with the package (calibration_texts.json)."""
    texts: dict[str, list[str]] = json.loads(_TEXTS.read_text(encoding="utf-8"))
    return texts[kind]


def calibration_rows(
    base: BertModel, tokenizer: BertTokenizer | None, calibration: Sequence[str] | Rows | None
) -> Rows:
    """What was given as rows of token ids, or the page of prose."""
    if calibration is None:
        calibration = own_texts("prose")
    if not calibration:
        raise InputError("calibration is empty.", "Give some texts of the kind the model will read.")
    if not _are_texts(calibration):
        return cast(Rows, calibration)
    if tokenizer is None:
        raise InputError(
            "Rounding to eight bits is fitted on text, and the model came without its tokenizer.",
            "Pass tokenizer=BertTokenizer.from_pretrained(…), or calibration=rows of token ids.",
        )
    return tokenizer.encode_ids(list(calibration), max_length=min(base.config.max_input_length, _LONGEST))


def unusual_rows(base: BertModel, tokenizer: BertTokenizer) -> Rows:
    """The texts unlike prose, and ids from all over the vocabulary, short and long."""
    limit = min(base.config.max_input_length, _LONGEST)
    size = min(base.config.vocab_size, len(tokenizer))
    written = tokenizer.encode_ids(own_texts("unusual"), max_length=limit)
    first, last = written[0][0], written[0][-1]  # [CLS] and [SEP]
    chance = random.Random(0)
    lengths = (1, 1, 1, 1, 2, 3, 5, 8, 20, 20, 60, 60)
    drawn = [[first, *(chance.randrange(size) for _ in range(length)), last] for length in lengths]
    return [*written, *(row[:limit] for row in drawn)]


def _are_texts(given: Sequence[str] | Rows) -> TypeGuard[Sequence[str]]:
    return isinstance(given[0], str)


def packed(rows: Rows, device: torch.device | str = "cpu") -> tuple[Tensor, Packing]:
    """Rows of token ids as one batch."""
    ids = torch.tensor(list(chain.from_iterable(rows)), device=device)
    return ids, Packing.of([len(row) for row in rows], device=device)


def mean_vectors(states: Tensor, packing: Packing) -> Tensor:
    """`[tokens, D]` → the mean of each text `[texts, D]`, in fp32."""
    return torch.stack([text.float().mean(0) for text in torch.split(states, list(packing.lengths))])


def products_of(layer: BertLayer) -> dict[str, tuple[nn.Linear, ...]]:
    """A layer's products by name, those that read the same input together; without those that pruning left empty."""
    inside = layer.attention.self
    parts = (inside.query, inside.key, inside.value), (layer.attention.output.dense,)
    named = zip(PRODUCTS, (*parts, (layer.intermediate.dense,), (layer.output.dense,)), strict=True)
    return {name: linears for name, linears in named if linears[0].weight.numel()}


@contextmanager
def inputs_watched(model: BertModel, look: Callable[[Key, Tensor], None]) -> Iterator[None]:
    """While the model runs, `look` gets every product's input `[tokens, I]`."""

    def watch(key: Key, module: nn.Linear) -> torch.utils.hooks.RemovableHandle:
        return module.register_forward_pre_hook(lambda _, given: look(key, given[0]))

    handles = [
        watch((number, name), linears[0])
        for number, layer in enumerate(model.encoder.layer)
        for name, linears in products_of(layer).items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
