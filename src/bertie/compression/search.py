"""The sizes that lose least under a budget: of time, or of parameters.

Every block of the model (attention and feed-forward of each layer) has a curve: what is lost when so many units are
left (importance.py), and what they cost (cost.py). Losses add up and costs add up, so the best choice is a knapsack
with one item from every block, solved by dynamic programming over the budget in equal steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from bertie.compression.importance import BLOCKS, Curve
from bertie.compression.layers import Sizes

Price = Callable[[str, int], float]  # of a block with so many units

_BINS = 4096


def cheapest_loss(curves: Sequence[dict[str, Curve]], price: Price, budget: float) -> Sizes | None:
    """The sizes within `budget` that lose least; None where not even an empty model is within it."""
    blocks = [(curve[block], block) for curve in curves for block in BLOCKS]
    step = max(budget, 1e-30) / _BINS
    best = np.zeros(_BINS + 1)  # best[b]: the least loss of the blocks so far within b steps
    chosen: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
    if budget < 0:
        return None
    for curve, block in blocks:
        prices = np.asarray([price(block, number) for number in curve.left])
        steps = np.ceil(prices / step - 1e-9).astype(np.int64)
        after, choice = np.full(_BINS + 1, np.inf), np.zeros(_BINS + 1, dtype=np.int64)
        for number in np.argsort(steps, kind="stable"):
            if (used := int(steps[number])) > _BINS:
                continue
            loss = best[: _BINS + 1 - used] + curve.loss[number]
            better = loss < after[used:]
            after[used:][better], choice[used:][better] = loss[better], number
        best = after
        chosen.append(choice)
    if not np.isfinite(best[-1]):
        return None
    sizes: list[int] = []
    place = _BINS
    for (curve, block), choice in zip(reversed(blocks), reversed(chosen), strict=True):
        number = int(choice[place])
        sizes.append(curve.left[number])
        place -= int(np.ceil(price(block, curve.left[number]) / step - 1e-9))
    sizes.reverse()
    return Sizes(tuple(sizes[::2]), tuple(sizes[1::2]))
