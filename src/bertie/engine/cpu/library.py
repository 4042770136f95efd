"""Finding and calling the C++ library that `pip install` built beside this file, if there was a compiler."""

from __future__ import annotations

import ctypes
from functools import lru_cache

from bertie.engine.cpu.cores import own_nodes
from bertie.library import Signatures, open_library

VERSION = 13  # of csrc/interface.cpp

_POINTER, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int, ctypes.c_float
_SIGNATURES: Signatures = {
    "bertie_version": (_INT, []),
    "bertie_instruction_set": (ctypes.c_char_p, []),
    "bertie_bfloat16": (ctypes.c_char_p, []),
    "bertie_nodes": (None, [_POINTER, _INT]),
    "bertie_model_new": (_POINTER, [_INT, _INT, _INT, _INT, _FLOAT, _FLOAT, _INT, *[_POINTER] * 5]),
    "bertie_model_free": (None, [_POINTER]),
    "bertie_rows": (None, [_POINTER, *[ctypes.c_int64] * 3]),
    "bertie_layer": (_INT, [_POINTER, _INT, _INT, *[_POINTER] * 5]),
    "bertie_projection": (_INT, [_POINTER, *[_INT] * 3, *[_POINTER] * 4, _INT]),
    "bertie_bias": (_INT, [_POINTER, _INT, _INT, _POINTER]),
    "bertie_linear": (_INT, [_POINTER, *[_INT] * 5, *[_POINTER] * 5, _INT, _INT]),
    "bertie_lookup": (_INT, [_POINTER, *[_INT] * 3, _POINTER, _POINTER, _INT]),
    "bertie_limits": (None, [_POINTER, _POINTER]),
    "bertie_outside": (ctypes.c_int64, [_POINTER, _POINTER]),
    "bertie_forward": (_INT, [*[_POINTER] * 5, _INT, _POINTER, _POINTER, _INT, _INT]),
    "bertie_squares": (_INT, [*[_POINTER] * 4, _INT, _POINTER, ctypes.c_long]),
    "bertie_pooled": (_INT, [*[_POINTER] * 4, _INT, *[_POINTER] * 4, _INT, _POINTER, _INT]),
}


@lru_cache(maxsize=1)
def load_library() -> ctypes.CDLL | None:
    """The library, or None where it was not built (or is an older one)."""
    return open_library(__file__, "_kernels", _SIGNATURES, version=("bertie_version", VERSION))


@lru_cache(maxsize=1)
def give_nodes(library: ctypes.CDLL) -> None:
    """Tell the library of several memory nodes, before its first model."""
    nodes = own_nodes()
    if len(nodes) > 1:
        node_of = [0] * (1 + max(map(max, nodes)))  # a core that none of them lists counts as the first node's
        for number, cores in enumerate(nodes):
            for core in cores:
                node_of[core] = number
        library.bertie_nodes((_INT * len(node_of))(*node_of), len(node_of))


def instruction_set() -> str | None:
    """What the kernels run on here: amx, avx2, neon-i8mm, portable, …; None without the library."""
    library = load_library()
    return None if library is None else _word(library.bertie_instruction_set())


def bfloat16_instructions() -> str | None:
    """Those that multiply bfloat16; None where float32's do it over rounded numbers, or without the library."""
    library = load_library()
    return None if library is None else _word(library.bertie_bfloat16())


def _word(name: bytes | None) -> str | None:
    return None if name is None else name.decode()
