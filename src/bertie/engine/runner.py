"""What answers for a model: the one contract between the engine and its runners on a CPU and on a GPU.

`CpuRunner` (cpu/runner.py) and `GpuRunner` (gpu/runner.py) hold a model's weights as their kernels read them, and
`ReferenceRunner` is the model itself, where the engine has nothing better. Whoever has a runner needs to know no more
of it than `Runner` says. How one is made is said by `Options`; what it cannot do, by `Refused`. That its weights are no
longer the model's is noticed by the `FastBert` it answers for (fast.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertie.engine.calibration import Rows
from bertie.errors import InputError
from bertie.model import BertEmbeddings, BertModel
from bertie.ops.packing import Packing

AS_IT_IS = "Use the model as it is."


class Refused(InputError):
    """The engine has no runner for this model here; the reference answers instead."""


def embedding_tables(embeddings: BertEmbeddings) -> tuple[Tensor, Tensor, Tensor]:
    """Words, positions and segments; a model without segments has one, of zeros."""
    words = embeddings.word_embeddings.weight.detach()
    segments = embeddings.token_type_embeddings
    types = words.new_zeros(1, words.shape[1]) if segments is None else segments.weight.detach()
    return words, embeddings.position_embeddings.weight.detach(), types


@dataclass(frozen=True)
class Options:
    """How a runner is made. `calibration` is rows of token ids, which int8 and fp8 look at before they round.

    int8 looks at `unusual` rows as well, which may lose twice as much. `exact` are the parameters of a model that was
    rounded to bfloat16, by name, as they were before.
    """

    dtype: str
    device: torch.device
    threads: int | None = None
    accuracy: float = 0.999
    calibration: Rows | None = None
    unusual: Rows = ()
    exact: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Outside:
    """How far texts were from those that int8 was fitted on. `times` is 1 for values as wide as the widest of those."""

    texts: int  # with a value more than twice as wide, since the model was compiled
    times: float
    product: str  # where: "layer 3 down"


@dataclass(frozen=True)
class PooledRows:
    """Rows end to end, and which tokens of each become one vector: `starts` and the `counts` after it, all `[rows]`.

    The first of them is its text's `positions`-th, for a text that lies in several rows.
    """

    lengths: Tensor
    starts: Tensor
    counts: Tensor
    positions: Tensor


@dataclass(frozen=True)
class Means:
    """Rows end to end, and one vector of each: the sum of `counts` tokens' states, divided; all `[rows]`.

    The first of them is the `firsts`-th token of all. Vectors are brought to unit length where `unit` says so.
    """

    lengths: list[int]
    firsts: NDArray[np.int64]
    counts: NDArray[np.int64]
    divisors: NDArray[np.float32]  # infinite where no token counts
    unit: bool


class Runner(Protocol):
    """All layers over one packed batch."""

    device: torch.device  # where states are; on a GPU an answer returns before it is computed
    dtype: torch.dtype  # of the states; what is inside may be rounded
    token_budget: int  # tokens of a batch that keep it busy; it must be any number
    makes_vectors: bool = False  # `vectors` is the fastest way to them
    steps: Sequence[int] = ()  # sizes of small batches, in tokens, whose first batch takes long

    def __call__(
        self, ids: Tensor, type_ids: Tensor | None, positions: Tensor | None, packing: Packing, *, all_states: bool
    ) -> list[Tensor]:
        """`ids`, `type_ids` (None: all 0) and `positions` (None: those in each text) are `[tokens]` on `device`.

        Gives `[tokens, hidden]`: the last state alone, or with `all_states` the embeddings and every layer's.
        """

    def last_state(self, ids: Tensor, lengths: Sequence[int]) -> Tensor:
        """`[tokens, hidden]` of ids in the host's memory, all of segment 0."""
        packing = Packing.of(list(lengths), device=self.device)
        return self(ids.to(self.device, non_blocking=True), None, None, packing, all_states=False)[-1]

    def pooled(self, ids: Tensor, rows: PooledRows, modes: Sequence[str]) -> Tensor | None:
        """`[rows, modes, hidden]` float32, sums where a mean is meant; None: `last_state` is all that there is.

        Modes are those of running/pooling.py. A row of which no token counts has zeros, or the least number for "max".
        """
        return None

    def vectors(self, ids: NDArray[Any], means: Means) -> Callable[[], Tensor] | None:
        """`[rows, hidden]` float32 in the host's memory, when it is called; None: `pooled` or `last_state` is the way.

        `ids` are whole numbers in the host's memory, all of segment 0.
        """
        return None

    @property
    def outside(self) -> Outside | None:
        """How far texts have been from the calibration until now; None where nobody counts."""
        return None

    def describe(self) -> str:
        """One line for people: what runs where."""


class ReferenceRunner(Runner):
    """The reference, where a runner is asked for and the engine has none."""

    def __init__(self, model: BertModel) -> None:
        self._model = model
        self.device, self.dtype = model.device, model.dtype
        self.token_budget = 32768 if self.device.type == "cuda" else 2048  # in one go: few enough to stay in caches

    def __call__(
        self, ids: Tensor, type_ids: Tensor | None, positions: Tensor | None, packing: Packing, *, all_states: bool
    ) -> list[Tensor]:
        output = self._model(
            ids,
            token_type_ids=type_ids,
            position_ids=positions,
            output_attentions=False,
            output_hidden_states=all_states,
            return_dict=True,
            cu_seqlens=packing.cu_seqlens,
        )
        return list(output.hidden_states or ()) if all_states else [output.last_hidden_state]

    def describe(self) -> str:
        return f"the reference in {str(self.dtype).removeprefix('torch.')}"
