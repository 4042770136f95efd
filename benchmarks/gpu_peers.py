"""What the GPU engine is measured beside: transformers, plain and compiled, and sentence-transformers.

Everyone reads the same token ids. transformers gets them length-sorted, in padded batches that lie on the GPU already,
at the batch size it likes best; ours come packed from the computer's own memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Rows = Sequence[Sequence[int]]


def packed_batches(rows: Rows, budget: int) -> list[tuple[Tensor, list[int]]]:
    """Ids `[tokens]` in pinned memory and lengths, longest texts first, at most `budget` tokens each."""
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
    batches: list[list[int]] = [[]]
    room = budget
    for index in order:
        if len(rows[index]) > room:
            batches.append([])
            room = budget
        batches[-1].append(index)
        room -= len(rows[index])
    return [
        (torch.tensor([i for k in batch for i in rows[k]]).pin_memory(), [len(rows[k]) for k in batch])
        for batch in batches
    ]


def padded_batches(rows: Rows, size: int) -> list[tuple[Tensor, Tensor]]:
    """Ids and masks `[size, longest]` on the GPU, longest texts first."""
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
    made = []
    for start in range(0, len(order), size):
        some = order[start : start + size]
        width = len(rows[some[0]])
        ids, mask = torch.zeros(2, len(some), width, dtype=torch.long)
        for place, index in enumerate(some):
            ids[place, : len(rows[index])] = torch.tensor(rows[index])
            mask[place, : len(rows[index])] = 1
        made.append((ids.cuda(), mask.cuda()))
    return made


class Transformers:
    """BertModel of transformers with SDPA attention in bfloat16, over its padded batches."""

    def __init__(self, model: Any, rows: Rows, size: int, *, compiled: bool) -> None:
        self.size, self.batches = size, padded_batches(rows, size)
        self.call = torch.compile(model, dynamic=True) if compiled else model

    @torch.inference_mode()
    def __call__(self) -> None:
        for ids, mask in self.batches:
            self.call(input_ids=ids, attention_mask=mask)


def transformers_model(state: dict[str, Tensor]) -> Any:
    """The same weights in transformers' own class; its default configuration is BERT-base."""
    import transformers

    transformers.logging.set_verbosity_error()
    known = transformers.BertConfig()
    known._attn_implementation = "sdpa"
    model = transformers.BertModel(known, add_pooling_layer=False)
    model.load_state_dict(state)
    return model.to("cuda", torch.bfloat16).eval()


class SentenceTransformers:
    """`SentenceTransformer.encode` in bfloat16 at batch size 256."""

    def __init__(self, folder: Path) -> None:
        warnings.simplefilter("ignore")
        import sentence_transformers

        self.model: Any = sentence_transformers.SentenceTransformer(
            str(folder), device="cuda", model_kwargs={"dtype": torch.bfloat16}
        )
        self.model.max_seq_length = 256

    def __call__(self, texts: list[str]) -> Any:
        return self.model.encode(texts, batch_size=256, show_progress_bar=False)
