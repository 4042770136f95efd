"""The states between the layers of a text, kept for what is off: a run computes only the layers that differ.

A head that is switched off changes nothing below its layer, and the next one that is switched changes nothing below
its own: each run begins with the states of the kept run that is like it up to the highest layer. All sessions of one
reading share what is kept, so the answers that a switchboard asks for cost a few layers each instead of twelve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bertie.explore.reading import Reading
from bertie.explore.switches import Means, Switches, encoder_of, from_layer, held, switched

_MOST_SWITCHED = 1  # runs with parts off that are kept beside the one with everything on


@dataclass(frozen=True, eq=False)
class _Run:
    row: int
    off: Switches
    means: Means | None
    states: Tensor  # [layers + 1, S, D]

    def shared_layers(self, off: Switches, means: Means | None) -> int:
        """How many of its first layers gave what they would give with `off` and `means`; -1: all."""
        if self.means is not means and (self.off and off):
            return min(found for found in (self.off.lowest(), off.lowest()) if found is not None)
        lowest = ((self.off - off) | (off - self.off)).lowest()
        return -1 if lowest is None else lowest


class States:
    """The states of a reading's rows. Whoever asks holds the model."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._runs: list[_Run] = []  # the last used last

    def get(self, row: int, off: Switches, means: Means | None) -> Tensor:
        """`[layers + 1, S, D]`: a row's states after the embeddings and after each layer."""
        with held(self._reading.loaded.model):
            runs = [run for run in self._runs if run.row == row]
            shared = [run.shared_layers(off, means) for run in runs]
            if -1 in shared:
                found = runs[shared.index(-1)]
                self._runs.remove(found)
            else:
                nearest = max(range(len(runs)), key=shared.__getitem__, default=None)
                base, first = (torch.empty(0), 0) if nearest is None else (runs[nearest].states, shared[nearest])
                found = _Run(row, off, means, self._run(row, off, means, base, first))
            self._keep(found)
            return found.states

    def _keep(self, run: _Run) -> None:
        others = [one for one in self._runs if one.row == run.row and one.off]
        for one in others[: len(others) + bool(run.off) - _MOST_SWITCHED]:
            self._runs.remove(one)
        self._runs.append(run)

    @torch.no_grad()
    def _run(self, row: int, off: Switches, means: Means | None, base: Tensor, first: int) -> Tensor:
        reading = self._reading
        model = reading.loaded.model
        bert = encoder_of(model)
        with switched(model, off, means), from_layer(bert, lambda: base, first):
            # Packed, as the tasks run it: the same bits.
            output = bert(
                inputs_embeds=reading.embeds(row),
                token_type_ids=reading.types(row, 1)[0],
                cu_seqlens=torch.tensor([0, len(reading.rows[row])]),
                output_hidden_states=True,
                return_dict=True,
            )
        above: Sequence[Tensor] = output.hidden_states or ()
        return torch.stack([*base[:first], *above[first:]])
