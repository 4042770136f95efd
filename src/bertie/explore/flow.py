"""How information may have come from the first layer's tokens to the last one's (Abnar & Zuidema 2020).

"Quantifying Attention Flow in Transformers", https://arxiv.org/abs/2005.00928. Both take the mean over heads and give
half of every token's weight to itself, for the residual connection: A = ½ mean + ½ I.

- *rollout* multiplies these matrices through the layers: what share of a token's state comes from which input token.
- *flow* reads them as pipes of that width and asks how much can flow from an input token to a token of the last layer,
  a maximum flow to each pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from bertie.errors import MissingExtra
from bertie.explore.attention import probabilities
from bertie.explore.result import Column, Floats, Result, heat_html, heat_map, long_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bertie.explore.session import Session

# scipy's maximum flow has whole numbers; this many of them are a weight of 1.
_UNIT = 1 << 24


@dataclass(frozen=True, eq=False, repr=False)
class TokenFlow(Result):
    """How much of each input token (column) reaches each of the tokens `places` (row): `weights[place, token]`.

    `method` is "rollout", whose rows add up to 1, or "flow", where each is a maximum of its own. `layers` is how many
    layers are walked.
    """

    method: str
    layers: int
    tokens: tuple[str, ...]
    places: tuple[int, ...]
    weights: Floats  # [places, S]

    @property
    def _rows(self) -> list[str]:
        return [self.tokens[place] for place in self.places]

    def columns(self) -> dict[str, Column]:
        numbered = [f"{place} {token}" for place, token in enumerate(self.tokens)]
        return long_table(
            self.weights, ("token", "input"), ([numbered[place] for place in self.places], numbered), "weight"
        )

    def html(self) -> str:
        return heat_html(self.weights, rows=self._rows, columns=self.tokens, title=self._title)

    def draw(self, axes: Axes) -> None:
        heat_map(axes, self.weights, rows=self._rows, columns=self.tokens, title=self._title)

    @property
    def _title(self) -> str:
        return f"attention {self.method}, {self.layers} layers"


@torch.no_grad()
def residual_maps(session: Session, row: int, num_layers: int) -> npt.NDArray[np.float64]:
    """`[layers, S, S]`: ½ the mean map of a layer's heads + ½ I. A layer without heads, or off, passes all on."""
    size = len(session.rows[row])
    found = np.zeros((num_layers, size, size))
    for layer in range(num_layers):
        off = {head for at, head in session.off.heads if at == layer}
        heads = [] if layer in session.off.layers else [h for h in session.heads[layer] if h not in off]
        found[layer] = np.eye(size)
        if heads:
            mean = probabilities(session, layer, row, heads).mean(0).double().cpu().numpy()
            found[layer] = (mean + found[layer]) / 2
    return found


def rollout(session: Session, row: int, layers: int | None) -> TokenFlow:
    walked = session.check_layers(layers)
    product = np.eye(len(session.rows[row]))
    for matrix in residual_maps(session, row, walked):
        product = matrix @ product
    every = tuple(range(len(product)))
    return TokenFlow("rollout", walked, session.rows[row].names, every, product.astype(np.float32))


def flow(session: Session, row: int, places: Sequence[int], layers: int | None) -> TokenFlow:
    if find_spec("scipy") is None:
        raise MissingExtra("scipy", "explore", "flow()")
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    walked = session.check_layers(layers)
    for place in places:
        session.check_place(place, row)
    maps = residual_maps(session, row, walked)
    size = maps.shape[1]
    # Node l·S + i is token i after l layers; pipes lead from inputs upwards.
    queries, keys = np.divmod(np.arange(size * size), size)
    starts = np.concatenate([layer * size + keys for layer in range(walked)] or [keys[:0]])
    ends = np.concatenate([(layer + 1) * size + queries for layer in range(walked)] or [keys[:0]])
    widths = np.rint(maps.reshape(-1) * _UNIT).astype(np.int32)
    nodes = (walked + 1) * size
    graph = csr_array((widths, (starts, ends)), shape=(nodes, nodes), dtype=np.int32)
    weights = np.zeros((len(places), size), np.float32)
    for number, place in enumerate(places):
        for token in range(size):
            if walked == 0:
                weights[number, token] = float(place == token)
                continue
            weights[number, token] = maximum_flow(graph, token, walked * size + place).flow_value / _UNIT
    return TokenFlow("flow", walked, session.rows[row].names, tuple(places), weights)
