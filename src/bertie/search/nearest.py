"""The k best of very many vectors, exactly, in bounded memory.

Blocks of vectors are multiplied with the queries in fp32, and what comes near the k best is scored again in fp64, row
by row. A matrix product rounds differently in different places, so two equal vectors may get unequal scores from it;
the second score depends on the two vectors alone. Hence the answer does not depend on how the vectors lie in blocks,
nor on which queries are asked together, and equal scores are put in the order of their positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_BLOCK_ROWS = 8192
_QUERIES = 256
_RESCORED = 1 << 14  # pairs at once

# A part's first position, and its vectors [rows, dimension]
Parts = Iterable[tuple[int, Tensor]]


def top_k(
    parts: Callable[[], Parts], queries: NDArray[np.float32], k: int, *, longest: float | None = None
) -> list[list[tuple[int, float]]]:
    """For each query the (position, dot product) of its k best vectors, the best first; `parts()` gives them all.

    `longest` is the greatest length of a vector where that is known, which spares measuring them.
    """
    found: list[list[tuple[int, float]]] = []
    for start in range(0, len(queries), _QUERIES):
        found += _top_k(parts(), queries[start : start + _QUERIES], k, longest)
    return found


def _top_k(parts: Parts, queries: NDArray[np.float32], k: int, longest: float | None) -> list[list[tuple[int, float]]]:
    best = _Best(len(queries), k)
    single, double = torch.from_numpy(queries), queries.astype(np.float64)
    lengths = single.norm(dim=1)
    for first, vectors in parts:
        for start in range(0, vectors.shape[0], _BLOCK_ROWS):
            block = vectors[start : start + _BLOCK_ROWS].float()
            scores = single @ block.T  # [queries, rows]
            # How far rounding may have moved a score: a generous multiple of what it does over `dimension` additions.
            length = float(block.norm(dim=1).max()) if longest is None else longest
            slack = 4e-7 * math.sqrt(block.shape[1]) * lengths * length
            least = best.least.clone()
            if block.shape[0] >= k:
                least = torch.maximum(least, scores.topk(k, dim=1).values[:, -1])
            rows, columns = (near.numpy() for near in (scores >= (least - 2 * slack)[:, None]).nonzero().unbind(1))
            for at in range(0, len(rows), _RESCORED):
                asked, near = rows[at : at + _RESCORED], columns[at : at + _RESCORED]
                exact = (double[asked] * block[torch.from_numpy(near)].double().numpy()).sum(axis=1)
                best.offer(asked, exact, near + first + start)
    return best.listed()


class _Best:
    """The best so far of every query, as three columns: query, score, position."""

    def __init__(self, num_queries: int, k: int) -> None:
        self.k = k
        self.num_queries = num_queries
        self.least = torch.full((num_queries,), -torch.inf)  # below this nothing can get in
        self._query = np.empty(0, dtype=np.int64)
        self._score = np.empty(0, dtype=np.float64)
        self._position = np.empty(0, dtype=np.int64)

    def offer(self, query: NDArray[np.int64], score: NDArray[np.float64], position: NDArray[np.int64]) -> None:
        query = np.concatenate((self._query, query))
        score = np.concatenate((self._score, score))
        position = np.concatenate((self._position, position))
        order = np.lexsort((position, -score, query))
        query, score, position = query[order], score[order], position[order]
        rank = np.arange(len(query)) - np.searchsorted(query, query)  # within its query
        kept = rank < self.k
        self._query, self._score, self._position = query[kept], score[kept], position[kept]
        full = rank == self.k - 1
        self.least[torch.from_numpy(query[full])] = torch.from_numpy(score[full]).float()

    def listed(self) -> list[list[tuple[int, float]]]:
        answers: list[list[tuple[int, float]]] = [[] for _ in range(self.num_queries)]
        for query, score, position in zip(
            self._query.tolist(), self._score.tolist(), self._position.tolist(), strict=True
        ):
            answers[query].append((position, score))
        return answers
