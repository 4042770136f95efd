"""Whether a call computes an answer, or records how answers are to be computed later.

TorchScript, export, fx and compilation run a model once on an example and keep the operations. Nothing may then depend
on the example: not on its values (a mask of ones is not every mask), and in a recording not on its sizes either.
"""

from __future__ import annotations

import torch
from torch.fx import _symbolic_trace


def records_sizes() -> bool:
    """Whether tensors may later have other sizes than the example's: `torch.jit.trace`, `torch.export`, ONNX, fx."""
    if torch.compiler.is_compiling():
        return torch.compiler.is_exporting()
    if _symbolic_trace.is_fx_symbolic_tracing():
        return True
    return torch._C._is_tracing()  # what torch.jit.is_tracing(), which has no types, calls; ONNX's old exporter traces


def values_are_known() -> bool:
    """Whether tensors hold the values of this very call, rather than stand for those of calls to come."""
    return not (
        torch.compiler.is_compiling()
        or records_sizes()
        or torch._C._len_torch_dispatch_stack() > 0  # fake tensors, make_fx
        or torch._C._functorch.peek_interpreter_stack() is not None  # vmap
    )
