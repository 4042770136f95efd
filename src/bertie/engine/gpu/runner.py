"""`GpuRunner`: a packed batch in, hidden states out, with nothing the host has to wait for.

    ids [tokens] ─ embed ─ 12 × layer ─ states [tokens, D]

Batches of up to 4096 tokens, and larger ones that fill a token budget, are replayed as graphs (cuda_graphs.py); others
are launched kernel by kernel, and very large ones are cut into parts. Lengths are on the host already, so the tables
that attention reads are made there and follow in one copy from pinned memory.

A pipeline gives `ids` on the host or on the device and takes the states on the device; it may have as many
batches under way as it likes, on one stream.
"""

from __future__ import annotations

import importlib.util
import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertie.engine.gpu.attention_schedule import Schedule, schedule, to_device
from bertie.engine.gpu.cuda_graphs import STEPS, GraphLadder
from bertie.engine.runner import AS_IT_IS, Means, Options, Refused, Runner
from bertie.model.bert import BertModel
from bertie.ops.packing import Packing

if TYPE_CHECKING:
    from bertie.engine.gpu.fp8 import Choice
    from bertie.engine.gpu.layers import Encoder

logger = logging.getLogger("bertie.engine")

# Tokens that go through all layers together at most: the GPU is full long before, and this bounds what a batch needs of
# its memory. Larger batches are cut.
PART = 65536


class GpuRunner(Runner):
    """All layers of a BertModel on one GPU."""

    makes_vectors = True

    def __init__(
        self, encoder: Encoder, *, device: torch.device, choice: Choice | None = None, graphs: bool = True
    ) -> None:
        self.encoder, self.device, self.choice = encoder, device, choice
        self.dtype, self.width = encoder.embeddings.tables[0].dtype, encoder.embeddings.width
        self.token_budget = 32768
        self.graphs: GraphLadder | None = None
        if graphs and device.type == "cuda":
            first = encoder.embeddings.first_position
            self.graphs = GraphLadder(self._last_state, encoder.means, device, first_position=first)
            self.steps = STEPS

    @classmethod
    def of(cls, base: BertModel, options: Options) -> GpuRunner:
        """The runner for this model, or `Refused` with what stands in the way."""
        _check(base, options)
        from bertie.engine.gpu import fp8, layers  # not where Triton is not

        encoder = layers.Encoder.of(base)
        if options.dtype != "fp8":
            return cls(encoder, device=options.device)
        assert options.calibration is not None  # compile() sees to it
        started = time.perf_counter()
        choice = fp8.choose(encoder, base, options.calibration, options.accuracy)
        seconds = time.perf_counter() - started
        logger.info("fp8: %d weights rounded in %.1f s; %s", 4 * len(encoder.layers), seconds, choice.describe())
        return cls(choice.encoder, device=options.device, choice=choice)

    def __call__(
        self, ids: Tensor, type_ids: Tensor | None, positions: Tensor | None, packing: Packing, *, all_states: bool
    ) -> list[Tensor]:
        if all_states:
            return self.states(ids, packing.lengths, type_ids=type_ids, positions=positions)
        return [self.last_state(ids, packing.lengths, type_ids=type_ids, positions=positions)]

    @torch.no_grad()
    def last_state(
        self, ids: Tensor, lengths: Sequence[int], *, type_ids: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """Ids `[tokens]` of texts of these lengths → `[tokens, D]`. Ids may lie on the device, or on the host.

        Returns as soon as the work is queued on the current stream.
        """
        positions = self._positions(ids, lengths, positions)
        parts = _parts(lengths)
        out = torch.empty(len(ids), self.width, device=self.device, dtype=self.dtype)
        for texts, tokens in parts:
            part_types, part_positions = (None if x is None else x[tokens] for x in (type_ids, positions))
            step = None if self.graphs is None else self.graphs.step_for(tokens.stop - tokens.start)
            if self.graphs is not None and step is not None:
                self.graphs(step, ids[tokens], part_types, part_positions, lengths[texts], out[tokens])
                continue
            launched = self._launched(ids[tokens], lengths[texts], part_types, part_positions, all_states=False)[-1]
            if len(parts) == 1:
                return launched
            out[tokens] = launched
        return out

    def vectors(self, ids: NDArray[Any], means: Means) -> Callable[[], Tensor]:
        """A small batch is one graph from ids to vectors."""
        given, table = torch.from_numpy(ids), _table(means)
        lengths = means.lengths
        step = None if self.graphs is None else self.graphs.step_for(len(ids))
        if self.graphs is not None and step is not None and len(lengths) <= self.graphs.rows_for(step):
            positions = self._positions(given, lengths, None)
            found = self.graphs.vectors(step, given, positions, lengths, table)
        else:
            with torch.no_grad():
                rows = to_device(table.ravel(), self.device).view(table.shape)
                found = self.encoder.means(self.last_state(given, lengths), rows).to("cpu", non_blocking=True)
        if self.device.type != "cuda":
            return lambda: found
        ready = torch.cuda.current_stream(self.device).record_event()

        def read() -> Tensor:
            ready.synchronize()
            return found

        return read

    @torch.no_grad()
    def states(
        self, ids: Tensor, lengths: Sequence[int], *, type_ids: Tensor | None = None, positions: Tensor | None = None
    ) -> list[Tensor]:
        """The embeddings and every layer's states."""
        positions = self._positions(ids, lengths, positions)
        return self._launched(ids, lengths, type_ids, positions, all_states=True)

    def _positions(self, ids: Tensor, lengths: Sequence[int], given: Tensor | None) -> Tensor | None:
        """Those given, or those that the model has otherwise; None for the kernel's own."""
        if given is not None or self.encoder.embeddings.padding is None:
            return given
        return self.encoder.embeddings.positions(ids, Packing.of(list(lengths), device=ids.device))

    def describe(self) -> str:
        where = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else str(self.device)
        dtype = str(self.dtype).removeprefix("torch.")
        line = f"{len(self.encoder.layers)} layers in {dtype if self.choice is None else 'fp8'} on {where}, packed"
        if self.graphs is not None:
            line += ", small batches as graphs"
        return line if self.choice is None else f"{line}; {self.choice.describe()}"

    def _last_state(self, ids: Tensor, type_ids: Tensor | None, positions: Tensor | None, plan: Schedule) -> Tensor:
        return self.encoder(ids, type_ids, positions, plan)[-1]

    def _launched(
        self,
        ids: Tensor,
        lengths: Sequence[int],
        type_ids: Tensor | None,
        positions: Tensor | None,
        *,
        all_states: bool,
    ) -> list[Tensor]:
        plan = schedule(lengths, self.device)
        types, places = (
            None if given is None else given.to(self.device, non_blocking=True) for given in (type_ids, positions)
        )
        if self.device.type == "cuda" and not ids.is_cuda:
            ids = ids.pin_memory()  # so that nobody waits for the copy
        ids = ids.to(self.device, non_blocking=True)
        return self.encoder(ids, types, places, plan, all_states=all_states)


def _table(means: Means) -> NDArray[np.int32]:
    """`[rows, 4]`, as pooling.py reads it."""
    table = np.empty((len(means.counts), 4), np.int32)
    table[:, 0], table[:, 1], table[:, 3] = means.firsts, means.counts, means.unit
    table.view(np.float32)[:, 2] = means.divisors
    return table


def _parts(lengths: Sequence[int]) -> list[tuple[slice, slice]]:
    """Texts and tokens of each part of a batch: as many whole texts as `PART` holds."""
    if sum(lengths) <= PART:
        return [(slice(0, len(lengths)), slice(0, sum(lengths)))]
    parts = []
    first_text = first_token = end = 0
    for text, length in enumerate(lengths):
        if end + length - first_token > PART and end > first_token:
            parts.append((slice(first_text, text), slice(first_token, end)))
            first_text, first_token = text, end
        end += length
    return [*parts, (slice(first_text, len(lengths)), slice(first_token, end))]


def _check(base: BertModel, options: Options) -> None:
    """Refuse by name what the kernels do not do."""
    config = base.config
    if config.position_embedding_type != "absolute":
        raise Refused(f"The GPU engine has no kernel for {config.position_embedding_type} positions.", AS_IT_IS)
    if config.attention_head_size > 256:
        raise Refused(f"Heads of {config.attention_head_size} are too wide for the GPU engine: 256.", AS_IT_IS)
    if importlib.util.find_spec("triton") is None:
        raise Refused("The GPU engine is written in Triton, which is not installed.", "pip install triton")
    if options.device.type != "cuda":
        return  # kernels under Triton's interpreter
    found = torch.cuda.get_device_capability(options.device)
    needed = {"bfloat16": (8, 0), "float16": (7, 5), "fp8": (8, 9)}[options.dtype]
    if found < needed:
        wanted, there = (".".join(map(str, version)) for version in (needed, found))
        raise Refused(
            f"{options.dtype} needs a GPU of compute capability {wanted}; this one has {there}.",
            "Use float16." if options.dtype != "float16" else AS_IT_IS,
        )
