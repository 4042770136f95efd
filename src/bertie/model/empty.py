"""Building a model that is about to be filled from a file.

Our own models are built without memory: their parameters have shapes and no values, because a checkpoint is going to
give the values. What somebody's subclass adds to them (an LSTM, a CRF, buffers) is made for real, by its own
constructor, because the checkpoint may not have it. `BertPreTrainedModel` tells where one of our models begins (its
`__init__`) and ends (its `init_weights`, the last line of every constructor).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

_OURS = "bertie."


class _Building(threading.local):
    """In each thread: whether a model is being built to be filled, and which of our models is being built in it."""

    active = False
    part: nn.Module | None = None
    mode: ExitStack


_building = _Building()
Parameters = ParamSpec("Parameters")
Model = TypeVar("Model", bound=nn.Module)


def to_be_filled(make: Callable[Parameters, Model], *arguments: Parameters.args, **named: Parameters.kwargs) -> Model:
    """Build a model. While that lasts, our own get no memory, and no model initialises its weights."""
    outer = dict(_building.__dict__)
    _building.active, _building.part = True, None
    try:
        return make(*arguments, **named)
    finally:
        if _building.part is not None:  # a constructor failed
            end(_building.part)
        _building.__dict__.clear()
        _building.__dict__.update(outer)


def is_building() -> bool:
    """Whether weights that are made now are going to be replaced or initialised by the caller."""
    return _building.active


def begin(model: nn.Module) -> None:
    """One of our models starts to be built, unless it is part of another one."""
    if _building.active and _building.part is None and type(model).__module__.startswith(_OURS):
        _building.part, _building.mode = model, ExitStack()
        _building.mode.enter_context(_WithoutMemory())


def end(model: nn.Module) -> None:
    if _building.active and _building.part is model:
        _building.part = None
        _building.mode.close()


class _WithoutMemory(TorchFunctionMode):
    """Tensors made in this mode have shapes and no values, and initialisation, which would be thrown away, is skipped.

    `torch.device("meta")` does the first half, with kernels that import a compiler when first used: a second and more.
    A mode belongs to one thread: layers that others make are what they always are.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        named = kwargs or {}
        if func is torch.empty or func is torch.zeros:
            return torch.empty(*args, **{**named, "device": "meta"})
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else named["tensor"]
        if func is torch.arange and len(args) <= 2:
            length = args[-1] - (args[0] if len(args) == 2 else 0)
            return torch.empty(length, dtype=torch.int64, device="meta")
        if func is torch.zeros_like:
            return torch.empty(args[0].shape, dtype=args[0].dtype, device="meta")
        return func(*args, **named)
