"""Small batches as recorded CUDA graphs: one launch instead of a hundred.

A forward pass of BERT-base is 86 kernels of a few microseconds; launching them one by one costs the host more than the
GPU needs to run them. So for each step of a ladder of token counts the pass is recorded once, over buffers that stay
where they are, and replayed for every batch that fits. A batch smaller than its step leaves rows unused: no attention
program reads or writes them, and in everything else rows do not meet. Large batches are replayed too where a token
budget made them: a slow host launches 86 kernels hardly faster than the GPU runs them.

All inputs lie in one buffer of int32, so that what comes from the host comes in one copy:

    rows to pool [R, 4] │ attention programs [P, 4] │ starts [N] │ positions [N] │ ids [N] │ segments [N]

Whoever wants one vector of each text gets graphs of their own, which end with it (pooling.py), and reads vectors where
the graph wrote them: from ids to vectors a batch is one copy, one launch and one copy.

Graphs share one memory pool: they run one after the other, and what leaves a graph is a copy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertie.engine.gpu.attention_schedule import TILE, Schedule, host_tables, most_programs

# Any batch of up to 4096 tokens has a step. Where cost goes with tokens the steps are at most a half apart; below 128
# tokens a pass costs what its weights cost.
STEPS = (16, 32, 64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
# Above, only what a token budget makes: batches that miss a step by less than a text.
FULL_STEPS = (8192, 16384, 32768, 65536)
_TEXT = 512
_TOKENS_PER_ROW = 4  # at least, on average, in a batch whose vectors a graph makes

Forward = Callable[[Tensor, Tensor, Tensor, Schedule], Tensor]  # ids, segments, positions, plan → [N, D]
MeansOf = Callable[[Tensor, Tensor], Tensor]  # states, table of rows → [R, D] fp32


class _Staging:
    """Pinned memory that a batch's inputs are put together in, and when the GPU has read it."""

    def __init__(self, size: int) -> None:
        self.pinned = torch.zeros(size, dtype=torch.int32, pin_memory=True)
        self.array: NDArray[np.int32] = self.pinned.numpy()
        self.read = torch.cuda.Event()  # type: ignore[no-untyped-call]  # it has no types


@dataclass
class _Recording:
    """One step of the ladder."""

    tokens: int
    rows: int  # that it pools at most; 0 where it pools none
    programs: int
    tile: int
    buffer: Tensor  # [4·R + 4·P + 4·N] int32
    graph: torch.cuda.CUDAGraph
    out: Tensor  # [N, D], or vectors [R, D] where it pools
    staging: Iterator[_Staging]  # a few, in turn, so that the host may be some batches ahead
    has_types: bool = False  # whether the segments in the buffer are other than 0

    def part(self, number: int) -> slice:
        """Where in the buffer the N numbers of a part are: 0 starts, 1 positions, 2 ids, 3 segments."""
        start = 4 * (self.rows + self.programs) + number * self.tokens
        return slice(start, start + self.tokens)


class GraphLadder:
    """Recorded forward passes, made when first needed."""

    def __init__(self, forward: Forward, means: MeansOf, device: torch.device, *, first_position: int = 0) -> None:
        self.forward, self.means, self.device, self.first_position = forward, means, device, first_position
        self._recordings: dict[tuple[int, int], _Recording] = {}  # by tokens and rows
        self._pool = torch.cuda.graph_pool_handle()
        self._lock = threading.Lock()  # one batch at a time in the buffers
        self._stream: torch.cuda.Stream | None = None  # where the last batch ran

    @staticmethod
    def step_for(tokens: int) -> int | None:
        """The step that a batch of this many tokens is replayed at, or None: it is launched."""
        if tokens <= STEPS[-1]:
            return next(step for step in STEPS if step >= tokens)
        return next((step for step in FULL_STEPS if 0 <= step - tokens < _TEXT), None)

    def __call__(
        self,
        step: int,
        ids: Tensor,
        type_ids: Tensor | None,
        positions: Tensor | None,
        lengths: Sequence[int],
        out: Tensor,
    ) -> None:
        """`[tokens]` on the device or on the host, at most `step` → the last states into `out`, `[tokens, D]`."""
        with self._lock:
            recording = self._recording(step)
            self._follow()
            self._fill(recording, ids, type_ids, positions, lengths)
            recording.graph.replay()
            out.copy_(recording.out[: len(ids)])

    @staticmethod
    def rows_for(step: int) -> int:
        """How many rows of a batch may be pooled at this step."""
        return max(4, step // _TOKENS_PER_ROW)

    def vectors(
        self, step: int, ids: Tensor, positions: Tensor | None, lengths: Sequence[int], table: NDArray[np.int32]
    ) -> Tensor:
        """`[rows, D]` fp32 in pinned memory, on its way there, of ids on the host and rows as pooling.py has them."""
        with self._lock:
            recording = self._recording(step, self.rows_for(step))
            self._follow()
            self._fill(recording, ids, None, positions, lengths, table)
            recording.graph.replay()
            # The next batch writes there as well, but only after this copy: one stream has both.
            return recording.out[: len(table)].to("cpu", non_blocking=True)

    def _follow(self) -> None:
        """A batch on another stream than the last one waits for it: they share the buffers."""
        stream = torch.cuda.current_stream(self.device)
        if self._stream is not None and stream != self._stream:
            stream.wait_stream(self._stream)
        self._stream = stream

    def _fill(
        self,
        recording: _Recording,
        ids: Tensor,
        type_ids: Tensor | None,
        positions: Tensor | None,
        lengths: Sequence[int],
        table: NDArray[np.int32] | None = None,
    ) -> None:
        """What the host knows goes in one copy; what is on the device already, from there."""
        staging = next(recording.staging)
        staging.read.synchronize()  # it was read some batches ago
        whole = host_tables(
            tuple(lengths),
            tile=recording.tile,
            programs=recording.programs,
            tokens=recording.tokens,
            positions_from=self.first_position,
        )
        sent = 4 * recording.rows
        if table is not None:
            staging.array[: table.size] = table.ravel()
            staging.array[table.size : sent] = 0
        staging.array[sent : sent + len(whole)] = whole
        sent += len(whole)
        if not ids.is_cuda:
            staging.array[sent : sent + len(ids)] = ids.numpy()
            sent += len(ids)
        recording.buffer[:sent].copy_(staging.pinned[:sent], non_blocking=True)
        staging.read.record(self._stream)
        for part, given in ((1, positions), (2, ids if ids.is_cuda else None), (3, type_ids)):
            if given is not None:
                start = recording.part(part).start
                recording.buffer[start : start + len(ids)].copy_(given, non_blocking=True)
        if type_ids is None and recording.has_types:
            recording.buffer[recording.part(3)].zero_()
        recording.has_types = type_ids is not None

    def _recording(self, step: int, rows: int = 0) -> _Recording:
        found = self._recordings.get((step, rows))
        if found is None:
            # Not as inference tensors: a later batch may come from outside inference mode.
            with torch.inference_mode(False), torch.no_grad():
                found = self._recordings[step, rows] = self._record(step, rows)
        return found

    def _record(self, step: int, rows: int) -> _Recording:
        tile = min(TILE, max(16, step))
        programs = most_programs(step, tile)
        size = 4 * rows + 4 * programs + 4 * step
        buffer = torch.zeros(size, dtype=torch.int32, device=self.device)
        staging = cycle([_Staging(size) for _ in range(4)])
        recording = _Recording(step, rows, programs, tile, buffer, torch.cuda.CUDAGraph(), buffer, staging)
        starts, positions, ids, types = (buffer[recording.part(number)] for number in range(4))
        table = buffer[: 4 * rows].view(rows, 4)
        plan = Schedule(buffer[4 * rows : 4 * (rows + programs)].view(programs, 4), starts, tile)

        def run() -> Tensor:
            states = self.forward(ids, types, positions, plan)
            return self.means(states, table) if rows else states

        # Real texts of `step` tokens while kernels compile and cuBLAS looks for its fastest way.
        text = min(step, 128)
        texts, first = (text,) * (step // text), self.first_position
        tables = host_tables(texts, tile=tile, programs=programs, tokens=step, positions_from=first)
        buffer[4 * rows : 4 * rows + len(tables)].copy_(torch.from_numpy(tables))
        side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]  # it has no types
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            run()
            run()
        torch.cuda.current_stream(self.device).wait_stream(side)
        with torch.cuda.graph(recording.graph, pool=self._pool, capture_error_mode="thread_local"):
            recording.out = run()
        return recording
