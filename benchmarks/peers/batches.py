"""What every peer is given: padded batches of token ids, made beforehand, and the same pooling.

A peer (an `Engine`, one file each) runs one padded batch. `Padded` does with it what is the same for all: batches of
neighbours in length for the sorted runs, batches as texts come for the stream, and `lanes`: with two lanes, two batches
are under way at once on one thread each, which many engines like better than one batch on two threads. Where there are
more threads, 4, 8, … lanes are tried as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Rows = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Setting:
    """How a contestant runs. `size` is texts to a batch for the peers, tokens to a batch for ours."""

    size: int
    lanes: int = 1
    variant: str = ""

    def __str__(self) -> str:
        words = [f"size {self.size}", f"{self.lanes} lanes" if self.lanes > 1 else "", self.variant]
        return ", ".join(word for word in words if word)


@dataclass(frozen=True)
class Batch:
    """`ids` and `mask` are int64 `[texts, length]`; `places` says which rows these are."""

    ids: NDArray[np.int64]
    mask: NDArray[np.int64]
    lengths: NDArray[np.int64]
    places: list[int]

    @classmethod
    def of(cls, rows: Rows, places: Sequence[int]) -> Batch:
        lengths = np.array([len(rows[place]) for place in places])
        mask = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)
        ids = np.zeros(mask.shape, np.int64)
        ids[mask.astype(bool)] = np.concatenate([rows[place] for place in places])
        return cls(ids, mask, lengths, list(places))


class Engine(Protocol):
    """One peer. `lanes` and `variants` are the settings worth trying, the first of each the likeliest."""

    @property
    def lanes(self) -> Sequence[int]: ...

    @property
    def variants(self) -> Sequence[str]: ...

    def prepare(self, folder: Path, workdir: Path, threads: int) -> str:
        """Load the checkpoint (exports are kept in `workdir`); one line on what was made of it."""

    def choose(self, variant: str, lanes: int) -> None:
        """Be ready to run this way: `lanes` batches at a time with `threads / lanes` threads each."""

    def run(self, batch: Batch) -> NDArray[np.float32]:
        """Unit vectors `[texts, hidden]`: the mean over a text's tokens."""

    def start_lane(self) -> None:
        """Called once in each lane's thread."""


class Padded:
    """A contestant made of an engine: padded batches, in lanes."""

    sizes: Sequence[int] = (32, 16, 64)
    stream_sizes: Sequence[int] = (32, 8)

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.setting = Setting(32)
        self._lanes = list(engine.lanes)
        self._pool: ThreadPoolExecutor | None = None

    @property
    def ways(self) -> list[tuple[str, int]]:
        """(variant, lanes) worth trying."""
        return [(variant, lanes) for variant in self.engine.variants for lanes in self._lanes]

    def prepare(self, folder: Path, workdir: Path, threads: int) -> str:
        note = self.engine.prepare(folder, workdir, threads)
        several = [2**k for k in range(2, 8) if 2**k <= threads] if len(self.engine.lanes) > 1 else []
        self._lanes = [*(lanes for lanes in self.engine.lanes if lanes <= threads), *several]
        return note

    def choose(self, setting: Setting) -> None:
        if (setting.variant, setting.lanes) != (self.setting.variant, self.setting.lanes) or self._pool is None:
            if self._pool is not None:
                self._pool.shutdown()
            self.engine.choose(setting.variant, setting.lanes)
            self._pool = ThreadPoolExecutor(setting.lanes, initializer=self.engine.start_lane)
        self.setting = setting

    def batches(self, rows: Rows) -> list[Batch]:
        """Sorted by length: what is prepared before the clock starts."""
        order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
        return list(_chunks(rows, order, self.setting.size))

    def run(self, batches: Iterable[Batch]) -> list[NDArray[np.float32]]:
        if self.setting.lanes == 1:
            return [self.engine.run(batch) for batch in batches]
        assert self._pool is not None
        return list(self._pool.map(self.engine.run, batches))

    def stream(self, rows: Rows) -> NDArray[np.float32]:
        """Texts as they come: a batch is the next `size` texts, padded; batch making is part of the work."""
        return np.concatenate(self.run(_chunks(rows, range(len(rows)), self.setting.size)))

    def embed(self, texts: list[str]) -> NDArray[Any]:
        encode = getattr(self.engine, "encode", None)
        if encode is None:
            raise NotImplementedError("takes token ids, not texts")
        found: NDArray[Any] = encode(texts, self.setting.size)
        return found


def _chunks(rows: Rows, order: Sequence[int], size: int) -> Iterator[Batch]:
    for start in range(0, len(order), size):
        yield Batch.of(rows, order[start : start + size])


def mean_pool(hidden: NDArray[np.float32], batch: Batch) -> NDArray[np.float32]:
    """`[texts, length, hidden]` → unit vectors `[texts, hidden]`; the sum will do, as only its direction stays."""
    summed: NDArray[np.float32] = np.matmul(batch.mask[:, None].astype(np.float32), hidden)[:, 0]
    return unit(summed)


def unit(vectors: NDArray[Any]) -> NDArray[np.float32]:
    long = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(long, 1e-12), np.float32)
