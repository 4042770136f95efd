"""Finding and calling the C++ library that `pip install` built beside this file, if there was a compiler."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

VERSION = 3  # of the interface at the end of csrc/encoder.cpp

_POINTER, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int, ctypes.c_float
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "bertie_version": (_INT, []),
    "bertie_instruction_set": (ctypes.c_char_p, []),
    "bertie_model_new": (_POINTER, [_INT, _INT, _INT, _INT, _FLOAT, _FLOAT, _INT, *[_POINTER] * 5]),
    "bertie_model_free": (None, [_POINTER]),
    "bertie_layer": (_INT, [_POINTER, _INT, _INT, *[_POINTER] * 4]),
    "bertie_linear": (_INT, [_POINTER, *[_INT] * 4, *[_POINTER] * 3, _INT]),
    "bertie_forward": (_INT, [*[_POINTER] * 5, _INT, _POINTER, _POINTER, _INT]),
}


@lru_cache(maxsize=1)
def load_library() -> Any | None:
    """The library, or None where it was not built (or is an older one)."""
    for path in sorted(Path(__file__).parent.glob("_kernels*.so")):
        try:
            library = ctypes.CDLL(str(path))
            for name, (result, arguments) in _SIGNATURES.items():
                function = getattr(library, name)
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError):
            continue
        if library.bertie_version() == VERSION:
            return library
    return None


def instruction_set() -> str | None:
    """What the kernels run on here: avx512-vnni, avx2 or portable; None without the library."""
    library = load_library()
    return None if library is None else library.bertie_instruction_set().decode()


def address(tensor: Tensor | None) -> int | None:
    """Where a contiguous tensor's numbers lie, for C."""
    if tensor is None:
        return None
    assert tensor.is_contiguous()
    assert tensor.device == torch.device("cpu")
    return tensor.data_ptr()
