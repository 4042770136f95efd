"""Logits of texts and pairs, for the tasks that classify: one vector of numbers to an item, in order.

    items ──▶ tokenizer threads ─▶ rows ──▶ batches by token budget ──▶ logits, copied while the next batches run

On a GPU the batches of a window are queued before the logits of the window before it are read, so that it has work
while Python makes rows and answers. On a CPU a window is computed when it is started, and given at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import chain

import torch
from torch import Tensor

from bertie.running.batching import Row, growing_chunks, map_ahead, run_groups, split_by_tokens, windows
from bertie.running.inputs import TEXTS_AT_ONCE, TextOrPair
from bertie.running.long_texts import Cuts
from bertie.running.open import Loaded
from bertie.running.rows import Sliding, split_text_or_pair, truncated_rows
from bertie.running.stream import tokenizing_beside
from bertie.text.truncation import Strategy

_Started = list[tuple[list[int], Callable[[], Tensor]]]


def logit_blocks(
    loaded: Loaded, items: Iterable[TextOrPair], *, cuts: Cuts, strategy: Strategy = "longest_first"
) -> Iterator[Tensor]:
    """`[some items, num_labels]` float32 logits on the CPU, block after block; what is too long is cut, or refused."""
    device = loaded.model.device
    how = tokenizing_beside(device)
    most = how.texts if device.type == "cuda" else TEXTS_AT_ONCE

    def rows_of(chunk: list[TextOrPair]) -> list[Row]:
        rows = truncated_rows(loaded.tokenizer, chunk, max_length=loaded.max_length, strategy=strategy)
        for row, item in zip(rows, chunk, strict=True):
            if row.is_cut:
                cuts.refuse(item)
        return rows

    def noted(row: Row) -> Row:
        cuts.note(row.is_cut)
        return row

    running: list[_Started] = []
    chunks = growing_chunks(items, most)
    with closing(map_ahead(rows_of, chunks, depth=how.calls, threads=how.threads)) as rows:
        for window in windows(map(noted, chain.from_iterable(rows)), budget=loaded.budget, length=len):
            running.append(_start(loaded, window))
            if len(running) > loaded.windows_ahead:
                yield _read(running.pop(0))
        yield from map(_read, running)


def window_logits(
    loaded: Loaded,
    items: Iterable[TextOrPair],
    *,
    cuts: Cuts,
    stride: int,
    sliding: Sliding = "longer",
    strategy: Strategy = "longest_first",
) -> Iterator[tuple[Tensor, list[int]]]:
    """For every item `[windows, num_labels]` logits and the windows' weights; a truncated item has one window."""
    if cuts.long != "windows":
        for block in logit_blocks(loaded, items, cuts=cuts, strategy=strategy):
            yield from ((logits[None], [1]) for logits in block)
        return

    def groups() -> Iterator[tuple[list[int], Sequence[Row]]]:
        for item in items:
            found = split_text_or_pair(
                loaded.tokenizer, item, max_length=loaded.max_length, stride=stride, sliding=sliding
            )
            cuts.note(found.is_cut)
            yield found.weights, found.rows

    for weights, answers in run_groups(groups(), partial(row_logits, loaded), budget=loaded.budget):
        yield torch.stack(answers), weights


def row_logits(loaded: Loaded, rows: list[Row]) -> list[Tensor]:
    """`[num_labels]` float32 logits on the CPU for each row."""
    logits: Tensor = loaded.run(rows).logits
    return list(logits.float().cpu().unbind(0))


def classifier_logits(
    loaded: Loaded,
    items: Iterable[TextOrPair],
    *,
    cuts: Cuts,
    stride: int,
    sliding: Sliding = "longer",
    strategy: Strategy = "longest_first",
) -> Iterator[Tensor]:
    """`[num_labels]` float32 logits on the CPU for every item; those of windows are averaged by their tokens."""
    for logits, weights in window_logits(loaded, items, cuts=cuts, stride=stride, sliding=sliding, strategy=strategy):
        yield averaged(logits, weights)


def averaged(logits: Tensor, weights: Sequence[int]) -> Tensor:
    """`[windows, num_labels]` → `[num_labels]`, by the windows' weights."""
    if len(weights) == 1:
        return logits[0]
    shares = torch.tensor(weights, dtype=torch.float32)
    return (logits * (shares / shares.sum())[:, None]).sum(0)


def _start(loaded: Loaded, window: Sequence[Row]) -> _Started:
    """Every batch of a window, queued: the places of its rows, and their logits, to be read later."""
    return [
        (places, loaded.read_later(loaded.run([window[place] for place in places]).logits.float()))
        for places in split_by_tokens([len(row) for row in window], loaded.budget)
    ]


def _read(started: _Started) -> Tensor:
    """The logits of a window in its rows' order, once they are there."""
    found = [(places, logits()) for places, logits in started]
    block = torch.empty(sum(len(places) for places, _ in found), found[0][1].shape[1])
    for places, logits in found:
        block[places] = logits
    return block
