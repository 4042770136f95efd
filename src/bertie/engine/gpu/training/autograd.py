"""PyTorch's autograd functions, with the types that PyTorch does not give them."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor
from torch.autograd import Function


class Context(Protocol):
    """What a function's two passes have in common; functions put more of their own into it."""

    needs_input_grad: tuple[bool, ...]
    saved_tensors: tuple[Tensor, ...]

    def save_for_backward(self, *tensors: Tensor) -> None: ...


def apply(function: type[Function], *given: object) -> Tensor:
    """The function of what is given, with gradients."""
    made: Tensor = function.apply(*given)  # type: ignore[no-untyped-call]  # it has no types
    return made
