"""The one way texts go through a model: nobody waits for anybody, and answers come in the texts' order.

    items ──▶ tokenizer threads ─▶ rows ──▶ windows ──▶ batches by token budget ──▶ answers, in order
              C++ or Rust, beside the model             copied back while the next batches run

Items are tokenized in chunks, ahead of the model (`tokenized_ahead`). Their rows are gathered to windows, whose batches
are all started before the answers of an earlier window are read (`started_ahead`): a GPU has work while Python sorts,
copies and answers; on a CPU a batch is computed when it is started, and its answers are given at once. What is read
ahead is little at first and twice as much each time, so a stream answers soon, and never more than `BATCHES_AHEAD`
batches, so one of any length goes through. What a window is, and how its batches start, differs: `run_in_order` has
rows in Python's objects and any answers; `VectorStream`, for embedding, works on whole arrays, so that a text costs a
few microseconds.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertie.errors import InputError
from bertie.running.batching import TEXTS_AT_ONCE, split_by_tokens, token_groups
from bertie.running.open import OpenModel
from bertie.running.pooling import Ints, Pieces
from bertie.running.rows import Cutting, Row

T = TypeVar("T")
R = TypeVar("R")
P = TypeVar("P")
L = TypeVar("L", bound=Sized)  # rows, or what else has a length in tokens
Text = TypeVar("Text", bound=str | tuple[str, ...])
Answers: TypeAlias = Sequence[R] | Callable[[], Sequence[R]]
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
# Rows read ahead hold at most about this many batches: enough to sort by length, little enough to answer soon.
BATCHES_AHEAD = 16
# The first window is this part of a batch, and the first chunk has so many items.
_FIRST_PART = 8
_AT_FIRST = 16
# Characters in one call of the tokenizer: an encoded token takes a hundred bytes.
_CHARACTERS_AT_ONCE = 1 << 19
# Windows of vectors that a GPU has before it while an earlier one is read.
_WINDOWS_QUEUED = 2


def windows(items: Iterable[T], *, budget: int, length: Callable[[T], int], soon: bool = True) -> Iterator[list[T]]:
    """Items read ahead: a part of a batch at first (or, unless `soon`, a batch), then twice as many each time."""
    sizes = growing(budget, BATCHES_AHEAD * budget, soon=soon)
    wanted = next(sizes)
    held: list[T] = []
    tokens = 0
    for item in items:
        held.append(item)
        tokens += length(item)
        if tokens >= wanted:
            yield held
            held, tokens, wanted = [], 0, next(sizes)
    if held:
        yield held


def growing(budget: int, most: int, *, soon: bool) -> Iterator[int]:
    """Tokens to read ahead: a part of the budget at first (or, unless `soon`, all of it), doubled up to `most`."""
    if budget < 1:
        raise InputError(f"The token budget is {budget}; it must be a whole number of at least 1.")
    size = max(1, budget // _FIRST_PART if soon else budget)
    while True:
        yield size
        size = min(2 * size, most)


def growing_chunks(
    items: Iterable[T], most: int, *, size: Callable[[T], int] = lambda item: 0, largest: int = 1
) -> Iterator[list[T]]:
    """Lists of items, few at first, so that a stream answers soon, then twice as many each time, up to `most`.

    A list also ends where its items' sizes come to `largest`.
    """
    wanted, taken = min(_AT_FIRST, most), 0
    chunk: list[T] = []
    for item in items:
        chunk.append(item)
        taken += size(item)
        if len(chunk) >= wanted or taken >= largest:
            yield chunk
            chunk, taken, wanted = [], 0, min(2 * wanted, most)
    if chunk:
        yield chunk


def tokenizing_beside(device: torch.device) -> Tokenizing:
    return _BESIDE_GPU if device.type == "cuda" else _BESIDE_CPU


def text_chunks(items: Iterable[Text], most: int) -> Iterator[list[Text]]:
    """Texts for one call of the tokenizer each, few at first; characters are bounded as well."""
    return growing_chunks(items, most, size=_characters, largest=_CHARACTERS_AT_ONCE)


def _characters(item: str | tuple[str, ...]) -> int:
    return len(item) if isinstance(item, str) else sum(map(len, item))


def tokenized_ahead(
    items: Iterable[Text], read: Callable[[list[Text]], R], device: torch.device, *, most: int
) -> Generator[R, None, None]:
    """What `read` makes of chunks of at most `most` items, beside the model. To be closed, which ends the threads."""
    how = tokenizing_beside(device)
    return map_ahead(read, text_chunks(items, min(most, how.texts)), depth=how.calls, threads=how.threads)


def started_ahead(found: Iterable[T], start: Callable[[T], Callable[[], R]], ahead: int) -> Iterator[R]:
    """What `start` gives for each window when it is read: when `ahead` windows after it have been started."""
    started: deque[Callable[[], R]] = deque()
    for window in found:
        started.append(start(window))
        if len(started) > ahead:
            yield started.popleft()()
    while started:
        yield started.popleft()()


def run_in_order(
    rows: Iterable[L],
    run: Callable[[list[L]], Answers[R]],
    *,
    budget: int,
    ahead: int = 0,
) -> Iterator[R]:
    """Answers of `run`, which takes a batch of rows and gives as many answers, in the rows' order.

    It may also give a function that gives them: a GPU's batches are started, and read when `ahead` windows more are.
    """

    def start(window: list[L]) -> Callable[[], Iterator[R]]:
        groups = split_by_tokens([len(row) for row in window], budget)
        return partial(_in_order, [(group, run([window[place] for place in group])) for group in groups])

    return chain.from_iterable(started_ahead(windows(rows, budget=budget, length=len), start, ahead))


def _in_order(batches: list[tuple[list[int], Answers[R]]]) -> Iterator[R]:
    answers: dict[int, R] = {}
    for group, given in batches:
        answers.update(zip(group, given() if callable(given) else given, strict=True))
    return map(answers.__getitem__, range(len(answers)))


def run_groups(
    groups: Iterable[tuple[P, Sequence[L]]],
    run: Callable[[list[L]], Answers[R]],
    *,
    budget: int,
    ahead: int = 0,
) -> Iterator[tuple[P, list[R]]]:
    """As `run_in_order` for texts of several rows each: (text, its rows) in, (text, its rows' answers) out.

    Every text has at least one row.
    """
    waiting: deque[tuple[P, int]] = deque()

    def rows() -> Iterator[L]:
        for text, its_rows in groups:
            waiting.append((text, len(its_rows)))
            yield from its_rows

    answers = run_in_order(rows(), run, budget=budget, ahead=ahead)
    for first in answers:
        text, count = waiting.popleft()
        yield text, [first, *islice(answers, count - 1)]


def answered(
    loaded: OpenModel,
    items: Iterable[Text],
    read: Callable[[list[Text]], list[tuple[P, list[Row]]]],
    run: Callable[[list[Row]], Answers[R]],
) -> Iterator[tuple[P, list[R]]]:
    """Items all the way: `read` makes (what is known of an item, its rows) of some of them, `run` answers of rows."""
    device = loaded.device
    # Rows in Python's objects take room: little of them is read ahead of a CPU.
    most = _BESIDE_GPU.texts if device.type == "cuda" else TEXTS_AT_ONCE
    with closing(tokenized_ahead(items, read, device, most=most)) as chunks:
        yield from run_groups(chain.from_iterable(chunks), run, budget=loaded.budget, ahead=windows_ahead(device))


def windows_ahead(device: torch.device) -> int:
    """Windows of rows that are started before an earlier one is read: on a CPU a batch is computed when it starts."""
    return 1 if device.type == "cuda" else 0


@dataclass(frozen=True)
class Batch:
    """Some rows of a window (None: all of them, in order), on their way."""

    rows: Ints | None
    read: Callable[[], Tensor]  # [rows, …] in the computer's own memory


@dataclass(frozen=True)
class VectorStream:
    """A model, how texts become rows, how rows are pooled (`pool`), and what happens to pooled vectors (`finish`).

    `start` does both for texts of one row each, and gives what reads the vectors.
    """

    loaded: OpenModel
    cutting: Cutting
    pool: Callable[[Pieces], Tensor]  # → [rows, modes, hidden]
    finish: Callable[[Tensor, Pieces], Tensor]  # → [texts, dimension]
    start: Callable[[Pieces], Callable[[], Tensor]]
    budget: int

    def vectors(self, texts: Iterable[str], *, soon: bool = False) -> Iterator[Vectors]:
        """Blocks `[some texts, dimension]` in the texts' order. `soon`: the first of them are wanted as they come."""
        device = self.loaded.device
        soon = soon or device.type == "cuda"  # which starts on little, and works while the rest is tokenized
        queued = _WINDOWS_QUEUED if device.type == "cuda" else 0
        with closing(tokenized_ahead(texts, self.cutting.pieces, device, most=_BESIDE_GPU.texts)) as chunks:
            yield from started_ahead(self._windows(chunks, soon), self._start, queued)

    def _windows(self, pieces: Iterable[Pieces], soon: bool) -> Iterator[Pieces]:
        if self.loaded.is_fast:
            # The engine runs any mix of lengths at one speed, so rows stay in order; it likes batches that are full.
            return filled(pieces, growing(self.budget, self.budget, soon=soon))
        # The reference pads, and likes texts of one length together.
        return map(Pieces.joined, windows(pieces, budget=self.budget, length=lambda chunk: len(chunk.ids), soon=soon))

    def vector(self, text: str) -> Vectors:
        """One text's vector, `[dimension]`, without the machinery for many."""
        vector: Vectors = self._start(self.cutting.pieces([text]))()[0]
        return vector.copy()  # not a part of pinned memory

    def _start(self, pieces: Pieces) -> Callable[[], Vectors]:
        """Every batch of a window, queued."""
        groups: list[Ints | None] = [None]
        if len(pieces.ids) > self.budget or not self.loaded.is_fast:
            groups = [*token_groups(pieces.lengths, self.budget)]
        batches = []
        for rows in groups:
            batch = pieces if rows is None else pieces.take(rows)
            read = self.start(batch) if pieces.whole else self.loaded.read_later(self.pool(batch))
            batches.append(Batch(rows, read))
        return partial(self._read, pieces, batches)

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


def filled(chunks: Iterable[Pieces], sizes: Iterator[int]) -> Iterator[Pieces]:
    """The same rows in runs of as many tokens as `sizes` says, one after the other, or less than a row fewer.

    The rows of one text stay together, so a text that is longer has a run of its own.
    """
    held: Pieces | None = None
    wanted = next(sizes)
    for chunk in chunks:
        held = chunk if held is None else Pieces.joined([held, chunk])
        while len(held.ids) >= wanted:
            ends = np.append(np.flatnonzero(held.firsts)[1:], len(held))  # where texts end
            tokens = np.append(held.begins, len(held.ids))[ends]
            end = int(ends[max(0, int(np.searchsorted(tokens, wanted, side="right")) - 1)])
            yield held.between(0, end)
            held = held.between(end, len(held))
            wanted = next(sizes)
    if held is not None and len(held):
        yield held


def map_ahead(
    function: Callable[[T], R], items: Iterable[T], *, depth: int = 2, threads: int = 1
) -> Generator[R, None, None]:
    """`map(function, items)`, with up to `depth` calls ahead of the caller, in a thread beside it or in several.

    The items themselves are read in the caller's thread, and the first call is made there, so that short work starts no
    thread. An exception of `function` is raised where its answer would have been; threads end with the iterator.
    """
    process = os.getpid()
    source = iter(items)
    for item in islice(source, 1):
        yield function(item)
    pool: ThreadPoolExecutor | None = None
    queue: deque[Future[R]] = deque()
    try:
        for item in source:
            pool = pool or ThreadPoolExecutor(threads, thread_name_prefix="bertie-ahead")
            queue.append(pool.submit(function, item))
            if len(queue) > depth:
                yield _answer(queue.popleft(), process)
        while queue:
            yield _answer(queue.popleft(), process)
    finally:
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)


def _answer(future: Future[R], process: int) -> R:
    if os.getpid() != process:
        raise InputError(
            "This stream was begun before the process was forked, and the threads that read ahead for it are not here.",
            "Begin a stream in the process that reads it.",
        )
    return future.result()
