"""Building a model that is about to be filled from a file.

Our own models are built without memory: their parameters have shapes and no values, because a checkpoint is going to
give the values. What somebody's subclass adds to them (an LSTM, a CRF, buffers) is made for real, by its own
constructor, because the checkpoint may not have it. `BertPreTrainedModel` tells where one of our models begins (its
`__init__`) and ends (its `init_weights`, the last line of every constructor).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

_OURS = "bertie."


class _Building(threading.local):
    """In each thread: whether a model is being built to be filled, and which of our models is being built in it."""

    active = False
    part: nn.Module | None = None
    modes: ExitStack


_building = _Building()


def to_be_filled(make: Callable[..., nn.Module], *arguments: Any, **keywords: Any) -> nn.Module:
    """Build a model. While that lasts, our own get no memory, and no model initialises its weights."""
    outer = dict(_building.__dict__)
    _building.active, _building.part = True, None
    try:
        return make(*arguments, **keywords)
    finally:
        if _building.part is not None:  # a constructor failed
            _building.modes.close()
        _building.__dict__.clear()
        _building.__dict__.update(outer)


def is_building() -> bool:
    """Whether weights that are made now are going to be replaced or initialised by the caller."""
    return _building.active


def begin(model: nn.Module) -> None:
    """One of our models starts to be built, unless it is part of another of ours."""
    if _building.active and _building.part is None and type(model).__module__.startswith(_OURS):
        _building.part, _building.modes = model, ExitStack()
        _building.modes.enter_context(_WithoutMemory())
        _building.modes.enter_context(_no_resets())


def end(model: nn.Module) -> None:
    if _building.active and _building.part is model:
        _building.part = None
        _building.modes.close()


class _WithoutMemory(TorchFunctionMode):
    """Tensors made in this mode have shapes and no values, and initialisation, which would be thrown away, is skipped.

    `torch.device("meta")` does the first half, with kernels that import a compiler when first used: a second and more.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.empty:
            return torch.empty(*args, **{**(kwargs or {}), "device": "meta"})
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        if func is torch.arange and len(args) <= 2:
            length = args[-1] - (args[0] if len(args) == 2 else 0)
            return torch.empty(length, dtype=torch.int64, device="meta")
        if func is torch.zeros_like:
            return torch.empty(args[0].shape, dtype=args[0].dtype, device="meta")
        return func(*args, **(kwargs or {}))


_RESETTING = (nn.Linear, nn.Embedding, nn.LayerNorm)
_patching = threading.Lock()
_builders: set[int] = set()  # threads that are building one of our models


@contextmanager
def _no_resets() -> Iterator[None]:
    """In this thread, new layers do not initialise themselves: a third of the time a model takes to be built.

    torch has no switch for it, so the layers' own method is exchanged as long as any thread is building a model; in
    other threads it does what it always does. `_WithoutMemory` alone is as right, and slower.
    """
    thread = threading.get_ident()
    with _patching:
        if not _builders:
            for kind in _RESETTING:
                kind.reset_parameters = _reset_unless_building(kind.reset_parameters)  # type: ignore[method-assign,assignment]
        _builders.add(thread)
    try:
        yield
    finally:
        with _patching:
            _builders.discard(thread)
            if not _builders:
                for kind in _RESETTING:
                    kind.reset_parameters = kind.reset_parameters.__wrapped__  # type: ignore


def _reset_unless_building(original: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(original)
    def reset_parameters(self: Any) -> None:
        if threading.get_ident() not in _builders:
            original(self)

    return reset_parameters
