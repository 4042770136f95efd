"""All layers of a training step as two recorded CUDA graphs: one launch forward, one back.

A step of BERT-base is some six hundred kernels, and a host that launches them from Python takes as long for it as the
GPU takes to run them; for a small batch, many times as long. So batches are filled up to round numbers (by one token in
128 at most, or in 8 where the GPU would wait anyway), and once a `Form` of batch has come twice, both passes over it
are recorded and from then on replayed. Launched or replayed, the same kernels run over the same shapes: the bits are
the same, and a resumed run, which has to record again, continues as if it had never stopped.

What recordings share, so that many of them cost no more memory than one:
- their memory pool. What a forward pass keeps is there until its backward pass is done, so there can be one at a time:
  a second forward pass before the first one's backward (the two sides of a contrastive loss) is launched.
- what goes in and comes out, by copy.
- the gradients of parameters. Autograd keeps them as they are, for the optimizer reads them before they are written
  again; where gradients are added up over several batches, those that are there are moved away first.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from bertie.engine.gpu.training.autograd import Context, apply
from bertie.engine.gpu.training.batch import Form, Passage, TrainingBatch
from bertie.engine.gpu.training.layer import LayerGradients, Saved, TrainingLayer
from bertie.engine.gpu.triton_launch import rows_of, with_room

logger = logging.getLogger("bertie.engine")

MOST = 128  # recordings; what else comes is launched
_SHARE = 8  # what one pass keeps may be this part of the GPU's memory; larger batches keep the GPU busy anyway


class Recording(Protocol):
    def replay(self) -> None: ...


Record = Callable[[Callable[[], None]], Recording]


class Graphs:
    """Records by CUDA graphs, in one pool."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], None]) -> Recording:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            work()
        return graph


class _Ends:
    """What goes into recordings and comes out of them."""

    def __init__(self, rows: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self.x, self.grad, self.out = (rows_of(rows, width, dtype, device) for _ in range(3))


class _Recorded:
    """Both passes over batches of one form."""

    def __init__(self, stack: Stack, form: Form, ends: _Ends, record: Record) -> None:
        x, grad, out = (part[: form.rows] for part in (ends.x, ends.grad, ends.out))
        self.x, self.grad, self.out = x, grad, out
        self.buffer = torch.zeros(sum(form.sizes), dtype=torch.int32, device=x.device)
        passage = Passage(form, self.buffer)
        self.gradients = gradients = stack.gradients
        kept: list[list[Saved]] = []

        def forward() -> None:
            last, saved = stack.run_forward(x, passage)
            out.copy_(last)
            kept[:] = [saved]

        def backward() -> None:
            out.copy_(stack.run_backward(grad, passage, kept.pop(), gradients))

        with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            self.forward, self.backward = record(forward), record(backward)


class _Taken:
    """One forward pass, and what its backward pass needs."""

    def __init__(self) -> None:
        self.recorded: _Recorded | None = None
        self.launched: tuple[Passage, list[Saved]] | None = None
        self.done = False


class Stack:
    """All layers of a model as one function of packed states."""

    def __init__(self, layers: list[TrainingLayer], record: Record | None = None) -> None:
        self.layers, self.record = layers, record
        self.parameters = [parameter for layer in layers for parameter in layer.parameters]
        self._recorded: dict[Form, _Recorded] = {}
        self._seen: set[Form] = set()
        self._ends: dict[int, _Ends] = {}
        self._gradients: list[LayerGradients] | None = None
        self._addresses: list[int] = []
        self._last: Callable[[], _Taken | None] = lambda: None

    def __call__(self, x: Tensor, batch: TrainingBatch) -> Tensor:
        """`[tokens, D]` → `[tokens, D]`; the batch is a filled one."""
        return apply(_Whole, x, batch, self, *self.parameters)

    @property
    def gradients(self) -> list[LayerGradients]:
        """The ones that recordings write."""
        if self._gradients is None:
            self._gradients = [LayerGradients(layer) for layer in self.layers]
        return self._gradients

    def run_forward(self, x: Tensor, passage: Passage) -> tuple[Tensor, list[Saved]]:
        kept = []
        for layer in self.layers:
            x, saved = layer.forward(x, passage, training=True, keep=True)
            kept.append(saved)
        return x, kept

    def run_backward(
        self, grad: Tensor, passage: Passage, kept: list[Saved], gradients: list[LayerGradients]
    ) -> Tensor:
        for layer, into in zip(reversed(self.layers), reversed(gradients), strict=True):
            grad = layer.backward(grad, passage, kept.pop(), into, training=True)
        return grad

    def forward(self, x: Tensor, batch: TrainingBatch) -> tuple[Tensor, _Taken]:
        recorded = self._ready(x, batch.form)
        if recorded is not None:
            return self._replay(recorded, x, batch)
        try:
            return self._launch(x, batch)
        except torch.OutOfMemoryError as error:
            if not self._recorded:
                raise
            self._stop(error)
        torch.cuda.empty_cache()
        return self._launch(x, batch)

    def _launch(self, x: Tensor, batch: TrainingBatch) -> tuple[Tensor, _Taken]:
        taken = _Taken()
        passage = Passage(batch.form, batch.to(x.device))
        filled = rows_of(batch.form.rows, x.shape[1], x.dtype, x.device)
        _fill(filled, x)
        out, kept = self.run_forward(filled, passage)
        taken.launched = passage, kept
        self._seen.add(batch.form)
        return out[: len(x)], taken

    def _replay(self, recorded: _Recorded, x: Tensor, batch: TrainingBatch) -> tuple[Tensor, _Taken]:
        taken = _Taken()
        recorded.buffer.copy_(batch.to(x.device))
        _fill(recorded.x, x)
        recorded.forward.replay()
        taken.recorded, self._last = recorded, weakref.ref(taken)
        return recorded.out[: len(x)].clone(), taken

    def backward(self, taken: _Taken, grad: Tensor) -> tuple[Tensor, list[Tensor]]:
        if taken.done:
            raise RuntimeError("The backward pass of a fused model was asked for twice; it keeps what one needs.")
        taken.done = True
        if taken.recorded is not None:
            gradients = taken.recorded.gradients
            self._move_away(gradients)
            _fill(taken.recorded.grad, grad)
            taken.recorded.backward.replay()
            of_x = taken.recorded.out[: len(grad)].clone()
        else:
            assert taken.launched is not None
            (passage, kept), taken.launched = taken.launched, None
            filled = rows_of(passage.form.rows, grad.shape[1], grad.dtype, grad.device)
            _fill(filled, grad)
            gradients = [LayerGradients(layer) for layer in self.layers]
            of_x = self.run_backward(filled, passage, kept, gradients)[: len(grad)]
        return of_x, [gradient for layer in gradients for gradient in layer.in_order()]

    def _ready(self, x: Tensor, form: Form) -> _Recorded | None:
        """The recording for a batch of this form, if it can be replayed now."""
        last = self._last()
        if self.record is None or (last is not None and not last.done):
            return None
        addresses = [norm.weight.data_ptr() for layer in self.layers for norm in layer.norms]
        if addresses != self._addresses:  # the parameters are elsewhere now, and so are recordings wrong
            self._addresses = addresses
            self._recorded.clear()
        found = self._recorded.get(form)
        if found is None and form in self._seen and len(self._recorded) < MOST and self._is_small(x, form):
            rows = with_room(form.rows)
            try:
                if rows not in self._ends:
                    self._ends[rows] = _Ends(rows, x.shape[1], x.dtype, x.device)
                found = self._recorded[form] = _Recorded(self, form, self._ends[rows], self.record)
            except RuntimeError as error:  # no memory for it, or something that cannot be recorded
                self._stop(error)
        return found

    def _stop(self, error: RuntimeError) -> None:
        """From here on everything is launched, and what recordings held is free."""
        logger.info("training steps are launched kernel by kernel from here on: %s", str(error).partition("\n")[0])
        self.record, self._gradients = None, None
        self._recorded.clear()
        self._ends.clear()

    def _is_small(self, x: Tensor, form: Form) -> bool:
        if not x.is_cuda:
            return True
        wide = sum(len(layer.half.qkv) + 2 * len(layer.half.up) + 5 * x.shape[1] for layer in self.layers)
        return form.rows * wide * x.element_size() * _SHARE <= torch.cuda.get_device_properties(x.device).total_memory

    def _move_away(self, gradients: list[LayerGradients]) -> None:
        """Gradients that autograd has kept where recordings write them."""
        if all(parameter.grad is None for parameter in self.parameters):
            return
        places = (place for layer in gradients for place in layer.in_order())
        for parameter, place in zip(self.parameters, places, strict=True):
            there = parameter.grad
            if there is not None and there.data_ptr() == place.data_ptr():
                parameter.grad = there.clone()


def _fill(room: Tensor, rows: Tensor) -> None:
    """Rows into a larger room, zeros behind them."""
    count = len(rows)
    room[:count].copy_(rows)
    room[count:].zero_()


class _WholeContext(Context, Protocol):
    taken: _Taken
    stack: Stack


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _WholeContext, x: Tensor, batch: TrainingBatch, stack: Stack, *parameters: Tensor) -> Tensor:
        out, ctx.taken = stack.forward(x, batch)
        ctx.stack = stack
        return out

    @staticmethod
    def backward(ctx: _WholeContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        of_x, gradients = ctx.stack.backward(ctx.taken, grad)
        return of_x, None, None, *gradients
