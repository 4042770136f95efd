"""Which part of a packed batch each attention program takes: worked out on the host, moved in one copy.

Texts lie end to end, so consecutive short texts are one slab of rows. A program takes a *tile* of at most `TILE` rows:
several whole short texts, or a piece of one long text. It reads the keys of `[first key, last key)` and lets a row see
the keys whose text starts where its own does. So there is one kernel and one launch for every mix of lengths, no
padding moves through memory, and a text never sees another.

    lengths 50, 60, 300, 20          tiles of 128 rows                           keys
    ├ 50 ┤├ 60 ┤                     0..110    two texts                         0..110
               ├──── 300 ────┤       110..238  238..366  366..410  one text      110..410
                              ├20┤   410..430                                    410..430
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

TILE = 64  # rows and keys of a program: four of them fit a multiprocessor, and an average paragraph fits one


@dataclass(frozen=True)
class Schedule:
    """The two tables an attention launch reads, on the device."""

    programs: Tensor  # [programs, 4] int32: first row, end of rows, first key, end of keys; all 0: nothing to do
    starts: Tensor  # [tokens] int32: where the text of each token starts
    tile: int = TILE


def tile_programs(lengths: Sequence[int], tile: int = TILE, *, longest: int | None = None) -> NDArray[np.int32]:
    """`[programs, 4]` for texts of these lengths, those with most keys first: the long ones must not come last.

    Texts over `longest` are left out.
    """
    rows: list[tuple[int, int, int, int]] = []
    slab = start = 0  # the slab of short texts that is being filled, and where the next text starts
    for length in lengths:
        end = start + length
        if end - slab > tile and start > slab:  # this text does not fit in: close the slab before it
            rows.append((slab, start, slab, start))
            slab = start
        if length > tile:
            if longest is None or length <= longest:
                rows += [(first, min(first + tile, end), start, end) for first in range(start, end, tile)]
            slab = end
        start = end
    if start > slab:
        rows.append((slab, start, slab, start))
    table = np.array(rows, dtype=np.int32).reshape(-1, 4)
    return table[np.argsort(table[:, 2] - table[:, 3], kind="stable")]


def most_programs(tokens: int, tile: int = TILE) -> int:
    """No mix of lengths that sums to `tokens` needs more programs than this.

    Two neighbouring slabs hold more than `tile` rows together; a text just over a tile has two pieces and can have a
    slab of one short text beside it.
    """
    return 3 * (tokens // tile) + 2


def host_tables(
    lengths: Sequence[int],
    *,
    tile: int = TILE,
    programs: int | None = None,
    tokens: int | None = None,
    positions_from: int | None = None,
) -> NDArray[np.int32]:
    """Both tables as one flat array, programs first, filled up with zeros to `programs` and `tokens`.

    With `positions_from`, each token's position follows: its place in its text, counted from there.
    """
    if len(lengths) <= _FEW:
        return _few_tables(tuple(lengths), tile, programs, tokens, positions_from)
    return _tables(lengths, tile, programs, tokens, positions_from)


def _tables(
    lengths: Sequence[int], tile: int, programs: int | None, tokens: int | None, positions_from: int | None
) -> NDArray[np.int32]:
    table = tile_programs(lengths, tile)
    counts = np.asarray(lengths, dtype=np.int32)
    ends = np.cumsum(counts, dtype=np.int32)
    found = int(ends[-1])
    room = 4 * (len(table) if programs is None else programs)
    width = found if tokens is None else tokens
    flat = np.zeros(room + (1 if positions_from is None else 2) * width, dtype=np.int32)
    flat[: table.size] = table.ravel()
    starts = np.repeat(ends - counts, counts)
    flat[room : room + found] = starts
    if positions_from is not None:
        places = np.arange(positions_from, positions_from + found, dtype=np.int32)
        flat[room + width : room + width + found] = places - starts
    return flat


# One short text after the other: the same few lengths come again and again.
_few_tables = lru_cache(maxsize=1024)(_tables)
_FEW = 4


def to_device(flat: NDArray[np.int32], device: torch.device) -> Tensor:
    """One copy that the host does not wait for. Pinned memory is PyTorch's own, kept until the copy is done."""
    if device.type != "cuda":
        return torch.from_numpy(flat).to(device)
    pinned = torch.empty(len(flat), dtype=torch.int32, pin_memory=True)
    pinned.numpy()[:] = flat
    return pinned.to(device, non_blocking=True)


def schedule(lengths: Sequence[int], device: torch.device, tile: int = TILE) -> Schedule:
    flat = to_device(host_tables(lengths, tile=tile), device)
    tokens = sum(lengths)
    programs = (len(flat) - tokens) // 4
    return Schedule(flat[: 4 * programs].view(programs, 4), flat[4 * programs :], tile)
