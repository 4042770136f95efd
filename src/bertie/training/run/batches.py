"""Which examples a step takes, and how they are cut to what fits into memory.

    order of an epoch   a permutation that (seed, epoch) decide
    global batch        the next `batch_size` examples of it, or as many as `batch_tokens` hold
    micro-batch         a share of a global batch that fits into `micro_batch_tokens`

The order and the global batches know nothing about processes or memory. So a run can be resumed with another number of
processes, or with smaller micro-batches, and every step still sees the same examples. A global batch is split so
that every process gets as many micro-batches as any other, of nearly the same number of tokens.
"""

from __future__ import annotations

import multiprocessing
import queue
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic

import numpy as np
import torch

from bertie.errors import DataError, InputError
from bertie.training.contract import Batch, Examples, Item, Numbers, Objective
from bertie.training.settings import Settings

_AHEAD = 4  # steps whose batches are made before they are needed


@dataclass(frozen=True)
class Place:
    """Where in the data a step is."""

    step: int
    epoch: int
    start: int  # of the global batch, in the epoch's order
    end: int


@dataclass
class Share:
    """What one process does in one step.

    Every process has the same number of micro-batches. Where there are fewer examples than those, some repeat one and
    say that they hold none (`num_examples` 0): their loss counts nothing.
    """

    place: Place
    micro_batches: list[Batch]
    squares: int = 0  # Σ length², for counting what attention computes

    def __post_init__(self) -> None:
        self.units = sum(batch.units for batch in self.micro_batches)
        self.num_tokens = sum(batch.num_tokens for batch in self.micro_batches)
        self.num_examples = sum(batch.num_examples for batch in self.micro_batches)

    def pin_memory(self) -> Share:
        return Share(self.place, [batch.pin_memory() for batch in self.micro_batches], self.squares)


class DataOrder:
    """The steps of a run over examples, of which it knows the lengths."""

    def __init__(self, examples: Examples[object], settings: Settings) -> None:
        if len(examples) == 0:
            raise DataError("There are no examples to train on.", "Check the training file and its columns.")
        self.seed = settings.seed
        self.lengths = np.asarray(examples.lengths(), dtype=np.int64)
        self._size, self._tokens = settings.batch_size, settings.batch_tokens
        self._epochs: dict[int, tuple[Numbers, Numbers]] = {}
        self._lock = threading.Lock()
        self.num_steps, self.steps_of_epoch = self._count(settings)

    def _count(self, settings: Settings) -> tuple[int, list[int]]:
        """All steps of the run, and where each epoch begins (in steps; the last entry is the end of the last one)."""
        starts = [0]
        if settings.max_steps is not None:
            while starts[-1] < settings.max_steps:
                starts.append(starts[-1] + len(self._bounds(len(starts) - 1)) - 1)
            return settings.max_steps, starts
        for epoch in range(int(np.ceil(settings.epochs))):
            starts.append(starts[-1] + len(self._bounds(epoch)) - 1)
        whole = int(settings.epochs)
        steps = starts[whole]
        if settings.epochs > whole:
            steps += max(1, round((settings.epochs - whole) * (starts[whole + 1] - starts[whole])))
        return max(1, steps), starts

    def order(self, epoch: int) -> Numbers:
        """The examples of an epoch, in their order."""
        return self._epoch(epoch)[0]

    def _bounds(self, epoch: int) -> Numbers:
        """Where the global batches of an epoch begin and end in its order."""
        return self._epoch(epoch)[1]

    def _epoch(self, epoch: int) -> tuple[Numbers, Numbers]:
        # The loop and the thread that makes its batches ask at the same time, about neighbouring epochs.
        with self._lock:
            if epoch not in self._epochs:
                while len(self._epochs) > 2:
                    del self._epochs[next(iter(self._epochs))]
                self._epochs[epoch] = self._make_epoch(epoch)
            return self._epochs[epoch]

    def _make_epoch(self, epoch: int) -> tuple[Numbers, Numbers]:
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.lengths))
        if self._tokens is None:
            return order, np.append(np.arange(0, len(order), self._size), len(order))
        ends = np.cumsum(self.lengths[order])
        bounds, position = [0], 0
        while position < len(order):
            taken = ends[position - 1] if position else 0
            fits = int(np.searchsorted(ends, taken + self._tokens, side="right"))
            position = max(fits, position + 1)  # an example longer than the batch makes one of its own
            bounds.append(position)
        return order, np.array(bounds)

    def place(self, step: int) -> Place:
        epoch = int(np.searchsorted(self.steps_of_epoch, step, side="right")) - 1
        bounds, number = self._bounds(epoch), step - self.steps_of_epoch[epoch]
        return Place(step, epoch, int(bounds[number]), int(bounds[number + 1]))

    def ends_epoch(self, step: int) -> bool:
        """Whether an epoch ends with this step."""
        return step + 1 in self.steps_of_epoch

    def indices(self, place: Place) -> Numbers:
        return self.order(place.epoch)[place.start : place.end]


def split_batch(lengths: list[int], *, budget: int, num_processes: int) -> list[list[list[int]]]:
    """`[process][micro-batch]` → rows of a global batch.

    Rows go from the longest to the shortest, each to the emptiest part, into as few parts as hold no more than `budget`
    tokens (a row longer than that gets a part of its own). Parts keep the order of the batch.
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    each = max(1, -(-sum(lengths) // (budget * num_processes)))
    while True:
        num_parts = each * num_processes
        parts: list[list[int]] = [[] for _ in range(num_parts)]
        filled = np.zeros(num_parts, dtype=np.int64)
        for row in order:
            emptiest = int(filled.argmin())
            parts[emptiest].append(row)
            filled[emptiest] += lengths[row]
        crowded = any(len(part) > 1 and used > budget for part, used in zip(parts, filled, strict=True))
        if not crowded:
            break
        each += 1
    return [[sorted(parts[k]) for k in range(p, num_parts, num_processes)] for p in range(num_processes)]


@dataclass
class BatchMaker(Generic[Item]):
    """Makes a process's share of a step. `pieces` may be lowered while a run continues: it cuts the share smaller."""

    order: DataOrder
    examples: Examples[Item]
    objective: Objective[Item]
    budget: int
    process: int = 0
    num_processes: int = 1
    vocab_size: int | None = None
    pieces: int | None = None

    def share(self, step: int) -> Share:
        place = self.order.place(step)
        rows = self.order.indices(place)
        lengths = [int(self.order.lengths[row]) for row in rows]
        limit = sum(lengths) + 1 if self.objective.whole_batches else self.budget
        parts = split_batch(lengths, budget=limit, num_processes=self.num_processes)[self.process]
        if self.pieces is not None:  # after all processes have their parts: each may cut its own as it must
            parts = [piece for part in parts for piece in self._cut(part, lengths)]
        batches = [self._batch([int(rows[k]) for k in part or [0]], place.epoch, real=bool(part)) for part in parts]
        return Share(place, batches, sum(_squares(batch) for batch in batches if batch.num_examples))

    def _cut(self, part: list[int], lengths: list[int]) -> list[list[int]]:
        assert self.pieces is not None
        cut = split_batch([lengths[row] for row in part], budget=self.pieces, num_processes=1)[0]
        return [[part[k] for k in piece] for piece in cut]

    def _batch(self, indices: list[int], epoch: int, *, real: bool) -> Batch:
        batch = self.objective.collate([self.examples.get(index, epoch) for index in indices])
        ids = batch.tensors.get("input_ids")
        if self.vocab_size is not None and ids is not None and ids.numel():
            low, high = (int(x) for x in ids.aminmax())  # here, on the CPU: in the loop a GPU would have to wait
            if low < 0 or high >= self.vocab_size:
                raise InputError(
                    f"A batch holds the token id {low if low < 0 else high}; the model knows 0 to "
                    f"{self.vocab_size - 1} (vocab_size).",
                    "The tokenizer and the model do not belong together.",
                )
        return batch if real else Batch(batch.tensors, 0.0, 0, 0)


def _squares(batch: Batch) -> int:
    ends = batch.tensors.get("cu_seqlens")
    return 0 if ends is None else int(ends.diff().double().square().sum())


def made_ahead(make: Callable[[int], Share], steps: range, *, pin: bool = False) -> Generator[Share, None, None]:
    """The shares of these steps, made in a thread a few steps ahead. Closing the iterator ends the thread."""
    ready: queue.Queue[Future[Share]] = queue.Queue(_AHEAD)
    ended = threading.Event()

    def work() -> None:
        for step in steps:
            made: Future[Share] = Future()
            try:
                share = make(step)
                made.set_result(share.pin_memory() if pin else share)
            except BaseException as error:
                made.set_exception(error)
            while not ended.is_set():
                try:
                    ready.put(made, timeout=0.1)
                    break
                except queue.Full:
                    continue
            if ended.is_set() or made.exception() is not None:
                return

    thread = threading.Thread(target=work, name="bertie-batches", daemon=True)
    thread.start()
    try:
        for _ in steps:
            yield ready.get().result()
    finally:
        ended.set()
        thread.join(timeout=10)


class _Steps(torch.utils.data.Dataset[Share]):
    """Steps as the data loader's processes ask for them."""

    def __init__(self, make: Callable[[int], Share]) -> None:
        self.make = make

    def __getitem__(self, step: int) -> Share:
        return self.make(step)


def made_by_processes(
    make: Callable[[int], Share], steps: range, *, workers: int, pin: bool = False
) -> Generator[Share, None, None]:
    """The same from worker processes, for data that is made into batches more slowly than the device takes them."""
    loader = torch.utils.data.DataLoader(
        _Steps(make),
        sampler=steps,
        batch_size=None,
        num_workers=workers,
        prefetch_factor=_AHEAD,
        pin_memory=pin,
        # Forked workers share the data as it is; others would have to be sent all of it.
        multiprocessing_context="fork" if "fork" in multiprocessing.get_all_start_methods() else None,
    )
    yield from loader
