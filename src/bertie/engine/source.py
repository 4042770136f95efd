"""Noticing that the weights a runner was made from are no longer what they were.

A compiled model shares its weights with the model it was made from, and a runner holds copies of most of them. After
either one is trained, resized, pruned, converted or taken apart, a runner would put new embeddings through old layers.
So a `Source` remembers which modules and tensors there are, where each tensor's numbers lie (`weight.data = …`,
`model.to(…)`) and how often it was written to (`_version`: optimizers, `load_state_dict`, `p.mul_()` under `no_grad`).

`weight.data.mul_()` and writing through numpy leave none of these signs. On a CPU some numbers from the middle of every
tensor are compared as well, which notices what changes a tensor as a whole, and may miss what changes a part of it.

This is asked before every answer, so whatever runs once per tensor is a loop in C: one of ours (csrc/unchanged.cpp),
8 µs for a hundred tensors, or `map` over PyTorch's methods where that was not built, 25 µs.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor, nn

from bertie.engine.cpu.library import load_library

_SAMPLE = 64  # bytes of a tensor that are compared: one cache line
_version = attrgetter("_version")
# PyTorch's `int64_t at::TensorBase::_version() const`, and the same question as `Tensor.data_ptr` in its C interface.
_ASKED = "_ZNK2at10TensorBase8_versionEv", "aoti_torch_get_data_ptr"


class _Watched(ctypes.Structure):
    """One tensor, as csrc/unchanged.cpp reads it."""

    _fields_ = [
        ("tensor", ctypes.c_void_p),
        ("version", ctypes.c_int64),
        ("address", ctypes.c_void_p),
        ("sample", ctypes.c_void_p),
        ("size", ctypes.c_int64),
        ("sampled", ctypes.c_char * _SAMPLE),
    ]


class Source:
    """The modules and parameters below some roots, as they are now."""

    def __init__(self, **roots: nn.Module) -> None:
        modules = [module for root in roots.values() for module in root.modules()]
        self._dicts: list[dict[str, Any]] = [
            d for module in modules for d in (module._modules, module._parameters) if d
        ]
        self._parts = self._current_parts()
        self._hooks = [hooks for module in modules for hooks in (module._forward_hooks, module._forward_pre_hooks)]
        named = {
            f"{prefix}.{name}": parameter
            for prefix, root in roots.items()
            for name, parameter in root.named_parameters()
        }
        self._tensors = list(named.values())
        self._counted = [x for x in self._tensors if not x.is_inference()]  # those have no version
        self._addresses = list(map(Tensor.data_ptr, self._tensors))
        self._versions = list(map(_version, self._counted))
        self._kept = [x.detach() for x in self._tensors]  # the samples' memory, also when the tensors move
        samples = [_sample(x) for x in self._kept]
        self._samples = [sample for sample in samples if sample is not None]
        self._sampled = b"".join(self._samples)
        self._named = {
            name: (id(x), address, None if x.is_inference() else x._version, x.shape, sample and bytes(sample))
            for (name, x), address, sample in zip(named.items(), self._addresses, samples, strict=True)
        }
        watch = _native()
        self._tensors_are_current = self._compare_tensors if watch is None else watch(self._tensors, samples)

    def is_current(self) -> bool:
        """Whether everything is still as it was."""
        parts = self._current_parts()
        return (
            len(parts) == len(self._parts) and all(map(is_, parts, self._parts)) and bool(self._tensors_are_current())
        )

    def _compare_tensors(self) -> bool:
        return (
            list(map(Tensor.data_ptr, self._tensors)) == self._addresses
            and list(map(_version, self._counted)) == self._versions
            and b"".join(self._samples) == self._sampled
        )

    def is_watched(self) -> bool:
        """Whether there are hooks on these modules, which a runner would not call."""
        return any(self._hooks)

    def difference(self, later: Source) -> str:
        """What is not as it was, by the name of its first tensor."""
        before, after = self._named, later._named
        changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        if not changed:
            return "its modules"
        return changed[0] if len(changed) == 1 else f"{changed[0]} and {len(changed) - 1} more"

    def _current_parts(self) -> list[Any]:
        """All values of the modules' dictionaries: `chain(map(dict.values, …))`, in half the time."""
        return gc.get_referents(*self._dicts)


def _sample(x: Tensor) -> Any:
    """The middle of a tensor's memory as it is whenever one looks; None where that is not to be had."""
    size = x.numel() * x.element_size()
    if x.device.type != "cpu" or not size or not x.is_contiguous():
        return None
    length = min(size, _SAMPLE)
    return (ctypes.c_char * length).from_address(x.data_ptr() + (size - length) // 2)


_Watch = Callable[[Sequence[Tensor], Sequence[Any]], Callable[[], int]]


@lru_cache(maxsize=1)
@torch.inference_mode(False)
def _native() -> _Watch | None:
    """Makes the question whether tensors are as they are now, asked in C++; None where that cannot be had."""
    library = load_library()
    probe = torch.zeros(3, device="cpu").add_(1)
    # A tensor's Python object holds its at::Tensor, which is one pointer: to what `_cdata` tells.
    words = memoryview(ctypes.string_at(id(probe), Tensor.__basicsize__)).cast("P").tolist()
    if library is None or words.count(probe._cdata) != 1:
        return None
    inside = words.index(probe._cdata) * ctypes.sizeof(ctypes.c_void_p)
    try:
        asked = [ctypes.cast(ctypes.CDLL(torch._C.__file__)[name], ctypes.c_void_p) for name in _ASKED]
        function = ctypes.PyDLL(library._name).bertie_unchanged  # PyDLL: no other Python thread runs meanwhile
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_int, *[ctypes.c_void_p] * 2]

    def watch(tensors: Sequence[Tensor], samples: Sequence[Any]) -> Callable[[], int]:
        each = []
        for x, sample in zip(tensors, samples, strict=True):
            version = -1 if x.is_inference() else x._version
            place, size = (None, 0) if sample is None else (ctypes.addressof(sample), len(sample))
            each.append(_Watched(id(x) + inside, version, x.data_ptr(), place, size))
            if sample is not None:
                ctypes.memmove(ctypes.addressof(each[-1]) + _Watched.sampled.offset, sample, size)
        return partial(function, (_Watched * len(each))(*each), len(each), *asked)

    unchanged = watch([probe], [None])
    before = unchanged()
    probe.add_(1)
    return watch if before and not unchanged() else None
