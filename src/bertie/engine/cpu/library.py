"""Finding and calling the C++ library that `pip install` built beside this file, if there was a compiler."""

from __future__ import annotations

import ctypes
from functools import lru_cache

from bertie.library import Signatures, open_library

VERSION = 7  # of the interface at the end of csrc/encoder.cpp

_POINTER, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int, ctypes.c_float
_SIGNATURES: Signatures = {
    "bertie_version": (_INT, []),
    "bertie_instruction_set": (ctypes.c_char_p, []),
    "bertie_model_new": (_POINTER, [_INT, _INT, _INT, _INT, _FLOAT, _FLOAT, _INT, *[_POINTER] * 5]),
    "bertie_model_free": (None, [_POINTER]),
    "bertie_rows": (None, [_POINTER, *[ctypes.c_int64] * 3]),
    "bertie_layer": (_INT, [_POINTER, _INT, _INT, *[_POINTER] * 4]),
    "bertie_projection": (_INT, [_POINTER, *[_INT] * 3, *[_POINTER] * 4, _INT]),
    "bertie_bias": (_INT, [_POINTER, _INT, _INT, _POINTER]),
    "bertie_linear": (_INT, [_POINTER, *[_INT] * 4, *[_POINTER] * 3, _INT]),
    "bertie_limits": (None, [_POINTER, _POINTER]),
    "bertie_outside": (ctypes.c_int64, [_POINTER, _POINTER]),
    "bertie_forward": (_INT, [*[_POINTER] * 5, _INT, _POINTER, _POINTER, _INT]),
}


@lru_cache(maxsize=1)
def load_library() -> ctypes.CDLL | None:
    """The library, or None where it was not built (or is an older one)."""
    return open_library(__file__, "_kernels", _SIGNATURES, version=("bertie_version", VERSION))


def instruction_set() -> str | None:
    """What the kernels run on here: avx512-vnni, avx2 or portable; None without the library."""
    library = load_library()
    if library is None:
        return None
    name: bytes = library.bertie_instruction_set()
    return name.decode()
