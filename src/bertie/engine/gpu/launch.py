# mypy: disable-error-code="import-not-found,import-untyped"
"""Launching Triton kernels again and again.

`kernel[grid](…)` works out on every call which compiled form fits its arguments, and on some machines takes 28 µs for
it, three times what the launch itself takes. A training step has a hundred launches. `launch` remembers the compiled
form under what Triton chooses it by: the tensors' types, whether all pointers are aligned and which numbers (of those
Triton looks at) are multiples of 16, and the constants.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

INTERPRETED = bool(triton.knobs.runtime.interpret)  # Triton's own switch: kernels run as NumPy on a CPU

_compiled: dict[tuple[Any, ...], Any] = {}
_numbers: dict[Any, list[int]] = {}  # per kernel: the places of the arguments whose value Triton looks at, if it is one


def launch(
    kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], constants: dict[str, Any], **options: Any
) -> None:
    """`kernel[grid](*arguments, **constants, **options)`; constants in the order of the kernel's own."""
    if INTERPRETED:
        kernel[grid](*arguments, **constants, **options)
        return
    numbers = _numbers.get(kernel)
    if numbers is None:
        numbers = _numbers[kernel] = _looked_at(kernel, arguments, constants)
    tensors = [given for given in arguments if isinstance(given, Tensor)]
    pointers = 0
    for tensor in tensors:
        pointers |= tensor.data_ptr()
    key = (
        kernel,
        tensors[0].get_device(),
        pointers & 15,
        *[given.dtype if isinstance(given, Tensor) else None for given in arguments],
        *[(arguments[k] & 15 == 0, arguments[k] == 1, arguments[k] >= 2**31) for k in numbers],
        *constants.values(),
        *options.values(),
    )
    found = _compiled.get(key)
    if found is None:
        _compiled[key] = kernel[grid](*arguments, **constants, **options)
    else:
        found[(*grid, 1, 1)[:3]](*arguments, *constants.values())


def rows_of(tokens: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Room for `[tokens, width]`, cut from a little more: batches of nearly one size ask for memory of exactly one."""
    return torch.empty(with_room(tokens), width, dtype=dtype, device=device)[:tokens]


def rows_like(x: Tensor) -> Tensor:
    """The same for the size of x, `[tokens, width]`."""
    return rows_of(len(x), x.shape[1], x.dtype, x.device)


def with_room(tokens: int) -> int:
    step = max(64, 1 << max(0, tokens.bit_length() - 4))
    return -(-tokens // step) * step


def _looked_at(kernel: Any, arguments: tuple[Any, ...], constants: dict[str, Any]) -> list[int]:
    names, ignored = kernel.arg_names, set(kernel.do_not_specialize or ())
    assert names[len(arguments) :] == list(constants), f"{kernel.__name__} takes {names}"
    given = zip(names, arguments, strict=False)
    return [k for k, (name, value) in enumerate(given) if type(value) is int and name not in ignored]
