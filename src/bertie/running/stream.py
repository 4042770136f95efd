"""Texts to vectors at the speed of the model: nobody waits for anybody.

    texts ──▶ tokenizer threads ─▶ rows ──▶ batches by token budget ──▶ pooled there ──▶ back, in order
              C++, beside the model         ids from pinned memory      copied while the next batches run

Work is done on whole arrays: a text costs a few microseconds of Python. On a GPU every batch of a window is queued
before the vectors of the window before it are read, so the GPU has work while Python sorts, copies and answers. On a
CPU a batch is computed when it is started, and its answers are given at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertie.running.batching import growing, map_ahead, token_groups, windows
from bertie.running.cutting import Cutting, filled, text_chunks
from bertie.running.open import Loaded
from bertie.running.pooling import Ints, Pieces

Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class Tokenizing:
    """Texts to a call of the tokenizer at most, calls ahead of the model, and threads that make them."""

    texts: int
    calls: int
    threads: int


# In C++ (text/wordpiece/native.py) one thread makes fifteen million tokens a second, and Python's lock is free
# meanwhile; a GPU reads three million of BERT-base and more of smaller models. Through Rust, which has threads of its
# own, a second caller neither helps nor harms much. A CPU model reads a hundredth of that.
_BESIDE_GPU = Tokenizing(texts=1024, calls=8, threads=2)
_BESIDE_CPU = Tokenizing(texts=256, calls=2, threads=1)
# Windows that a GPU has before it while an earlier one is read.
_WINDOWS_QUEUED = 2


def tokenizing_beside(device: torch.device) -> Tokenizing:
    return _BESIDE_GPU if device.type == "cuda" else _BESIDE_CPU


@dataclass(frozen=True)
class Batch:
    """Some rows of a window (None: all of them, in order), on their way. A GPU has written `values` when `ready`."""

    rows: Ints | None
    values: Tensor  # [rows, …] in the computer's own memory
    ready: torch.cuda.Event | None

    def read(self) -> Tensor:
        if self.ready is not None:
            self.ready.synchronize()
        return self.values


@dataclass(frozen=True)
class Pipeline:
    """A model, how texts are cut, how rows are pooled (`pool`), and what happens to pooled vectors (`finish`)."""

    loaded: Loaded
    cutting: Cutting
    pool: Callable[[Pieces], Tensor]  # → [rows, modes, hidden]
    finish: Callable[[Tensor, Pieces], Tensor]  # → [texts, dimension]
    budget: int

    def vectors(self, texts: Iterable[str], *, soon: bool = False) -> Iterator[Vectors]:
        """Blocks `[some texts, dimension]` in the texts' order. `soon`: the first of them are wanted as they come."""
        device = self.loaded.model.device
        how = tokenizing_beside(device)
        soon = soon or device.type == "cuda"  # which starts on little, and works while the rest is tokenized
        queued = _WINDOWS_QUEUED if device.type == "cuda" else 0
        running: list[tuple[Pieces, list[Batch]]] = []
        chunks = text_chunks(texts, how.texts)
        with closing(map_ahead(self.cutting.pieces, chunks, depth=how.calls, threads=how.threads)) as pieces:
            for window in self._windows(pieces, soon):
                running.append(self._started(window))
                if len(running) > queued:
                    yield self._read(*running.pop(0))
            for rest in running:
                yield self._read(*rest)

    def _windows(self, pieces: Iterable[Pieces], soon: bool) -> Iterator[Pieces]:
        if self.loaded.is_fast:
            # The engine runs any mix of lengths at one speed, so rows stay in order; it likes batches that are full.
            return filled(pieces, growing(self.budget, self.budget, soon=soon))
        # The reference pads, and likes texts of one length together.
        return map(Pieces.joined, windows(pieces, budget=self.budget, length=lambda chunk: len(chunk.ids), soon=soon))

    def vector(self, text: str) -> Vectors:
        """One text's vector, `[dimension]`, without the machinery for many."""
        vector: Vectors = self._read(*self._started(self.cutting.pieces([text])))[0]
        return vector.copy()  # not a part of pinned memory

    @torch.inference_mode()
    def _started(self, pieces: Pieces) -> tuple[Pieces, list[Batch]]:
        """Every batch of a window, queued."""
        groups: list[Ints | None] = [None]
        if len(pieces.ids) > self.budget or not self.loaded.is_fast:
            groups = [*token_groups(pieces.lengths, self.budget)]
        batches = []
        for rows in groups:
            batch = pieces if rows is None else pieces.take(rows)
            values = self.pool(batch)
            if pieces.whole:
                values = self.finish(values, batch)
            ready = None
            if values.is_cuda:
                # Into pinned memory, behind the batch, without waiting for either.
                device, values = values.device, values.to("cpu", non_blocking=True)
                ready = torch.cuda.current_stream(device).record_event()
            batches.append(Batch(rows, values, ready))
        return pieces, batches

    @torch.inference_mode()
    def _read(self, pieces: Pieces, batches: list[Batch]) -> Vectors:
        """The vectors of a window, in order, once they are there."""
        values = batches[0].read()
        if batches[0].rows is not None:
            values = torch.empty(len(pieces), *values.shape[1:])
            for batch in batches:
                values.numpy()[batch.rows] = batch.read().numpy()
        if not pieces.whole:
            values = self.finish(values, pieces)
        return values.numpy()
