"""Launching Triton kernels again and again.

`kernel[grid](…)` works out on every call which compiled form fits its arguments, and on some machines takes 28 µs for
it, three times what the launch itself takes. A training step has a hundred launches. `launch` remembers the compiled
form under what Triton chooses it by: the tensors' types, whether all pointers are aligned and which numbers (of those
Triton looks at) are multiples of 16, and the constants.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
import triton
from torch import Tensor

INTERPRETED = bool(triton.knobs.runtime.interpret)  # Triton's own switch: kernels run as NumPy on a CPU

Arguments = tuple[Any, ...]  # tensors, numbers and None, as each kernel has them
Grid = tuple[int, ...]


class Launcher(Protocol):
    """What `[grid]` gives; it returns the compiled form it has launched."""

    def __call__(self, *arguments: object, **constants: int | None) -> Compiled: ...


class Compiled(Protocol):
    """One form of a kernel."""

    def __getitem__(self, grid: Grid, /) -> Launcher: ...


class Kernel(Compiled, Protocol):
    """What `@triton.jit` makes of a function."""

    __name__: str
    arg_names: list[str]
    do_not_specialize: list[str] | None


_compiled: dict[tuple[object, ...], Compiled] = {}
_numbers: dict[Kernel, list[int]] = {}  # per kernel: the places of arguments whose value Triton looks at


def launch(
    kernel: Kernel,
    grid: Grid,
    arguments: Arguments,
    constants: Mapping[str, int],
    **options: int | None,
) -> None:
    """`kernel[grid](*arguments, **constants, **options)`; constants in the order of the kernel's own."""
    if INTERPRETED:
        kernel[grid](*arguments, **constants, **options)
        return
    numbers = _numbers.get(kernel)
    if numbers is None:
        numbers = _numbers[kernel] = _looked_at(kernel, arguments, constants)
    pointers, device = 0, None
    dtypes: list[torch.dtype | None] = []
    for given in arguments:
        if isinstance(given, Tensor):
            pointers |= given.data_ptr()
            dtypes.append(given.dtype)
            device = given.get_device() if device is None else device
        else:
            dtypes.append(None)
    key = (
        kernel,
        device,
        pointers & 15,
        *dtypes,
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


def rows_and_warps(width: int) -> tuple[int, int]:
    """Rows of a program that goes over rows, and its warps: few of both, so that many programs have loads under way."""
    return (2, 2) if width <= 1024 else (1, 8)


def next_power_of_2(width: int) -> int:
    return 1 << (width - 1).bit_length()


def with_room(tokens: int) -> int:
    step = max(64, 1 << max(0, tokens.bit_length() - 4))
    return -(-tokens // step) * step


def _looked_at(kernel: Kernel, arguments: Arguments, constants: Mapping[str, int]) -> list[int]:
    names, ignored = kernel.arg_names, set(kernel.do_not_specialize or ())
    assert names[len(arguments) :] == list(constants), f"{kernel.__name__} takes {names}"
    given = zip(names, arguments, strict=False)
    return [k for k, (name, value) in enumerate(given) if type(value) is int and name not in ignored]
