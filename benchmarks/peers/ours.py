"""Bertie: `bertie.compile` on packed batches, and the task API from text to vectors.

Without the engine's C++ runner the reference model runs in its place, and the report says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.peers.batches import Rows, Setting
from benchmarks.texts import MAX_TOKENS
from bertie import BertModel
from bertie.engine import FastBert
from bertie.engine.runner import PooledRows
from bertie.errors import BertieError
from bertie.running.batching import split_by_tokens
from bertie.running.open import OpenModel
from bertie.running.rows import Row
from bertie.running.stream import run_in_order
from bertie.tasks.embed import Embedder
from bertie.text import BertTokenizer


@dataclass(frozen=True)
class PackedBatch:
    """`ids` `[tokens]`, `rows.lengths` `[texts]`."""

    ids: Tensor
    rows: PooledRows
    places: list[int]

    @classmethod
    def of(cls, rows: Rows, places: Sequence[int]) -> PackedBatch:
        lengths = [len(rows[place]) for place in places]
        ids = torch.tensor(list(chain.from_iterable(rows[place] for place in places)))
        counts = torch.tensor(lengths)
        zeros = torch.zeros_like(counts)
        return cls(ids, PooledRows(counts, zeros, counts, zeros), list(places))


class Packed:
    """Our contestant; `setting.size` is the token budget."""

    ways: Sequence[tuple[str, int]] = (("", 1),)
    sizes: Sequence[int] = (2048, 1024, 4096)  # and the engine's own, which is larger where there are many threads
    stream_sizes: Sequence[int] = (2048, 1024)

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.setting = Setting(self.sizes[0])

    def prepare(self, folder: Path, workdir: Path, threads: int) -> str:
        torch.set_num_threads(threads)
        tokenizer = BertTokenizer.from_pretrained(folder)
        reference = BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
        self.model: Any
        try:
            from bertie.engine import compile  # noqa: A004

            self.model = compile(reference, dtype=self.dtype, device="cpu", tokenizer=tokenizer, threads=threads)
            note: str = self.model.runner.describe()
            own = self.model.runner.token_budget
            self.sizes = (own, *(size for size in self.sizes if size != own))
            self.stream_sizes = (own, *(size for size in self.stream_sizes if size != own))
            self.setting = Setting(own)
        except (ImportError, BertieError) as error:
            self.model = reference
            line = (str(error).splitlines() or [""])[0]
            note = f"THE REFERENCE MODEL IN FLOAT32, NOT THE ENGINE ({type(error).__name__}: {line})"
        self.loaded = OpenModel(self.model, tokenizer, folder)
        self.embedder = Embedder(self.loaded, max_length=min(MAX_TOKENS, self.loaded.max_length))
        return note

    def choose(self, setting: Setting) -> None:
        self.setting = setting
        self.loaded.budget = setting.size

    def batches(self, rows: Rows) -> list[PackedBatch]:
        return [PackedBatch.of(rows, places) for places in split_by_tokens([len(r) for r in rows], self.setting.size)]

    def run(self, batches: Iterable[PackedBatch]) -> list[NDArray[np.float32]]:
        return [self._forward(batch).numpy() for batch in batches]

    def stream(self, rows: Rows) -> NDArray[np.float32]:
        """As tasks do it: rows read ahead within a window, batches by token budget, answers in order."""

        def run(batch: list[Row]) -> Sequence[Tensor]:
            return self._forward(PackedBatch.of([row.ids for row in batch], range(len(batch)))).unbind()

        return torch.stack(list(run_in_order(map(Row, rows), run, budget=self.setting.size))).numpy()

    def embed(self, texts: list[str]) -> NDArray[Any]:
        return self.embedder.embed(texts, progress=False)

    @torch.inference_mode()
    def _forward(self, batch: PackedBatch) -> Tensor:
        """Unit vectors, pooled by the engine, as the peers' graphs end in them."""
        lengths = batch.rows.lengths
        if isinstance(self.model, FastBert):
            summed = self.model.pooled(batch.ids, batch.rows, ["mean"])
            assert summed is not None
            return F.normalize(summed[:, 0])
        ends = F.pad(lengths.cumsum(0), (1, 0))
        hidden = self.model(batch.ids, cu_seqlens=ends).last_hidden_state
        return F.normalize(torch.segment_reduce(hidden.float(), "sum", lengths=lengths, axis=0, unsafe=True))
