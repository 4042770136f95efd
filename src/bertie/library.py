"""Opening a C++ library that `pip install` built beside the file that uses it, if there was a compiler."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

Signatures = dict[str, tuple[Any, list[Any]]]  # by function: what it gives back, what it takes


def open_library(beside: str, name: str, signatures: Signatures, *, version: tuple[str, int]) -> Any | None:
    """The library `name*.so` in the folder of the file `beside`, or None: it was not built, or is an older one.

    `version` names the function that tells its version, and the one that is wanted.
    """
    for path in sorted(Path(beside).parent.glob(f"{name}*.so"), key=lambda path: len(path.name)):
        try:
            library = ctypes.CDLL(str(path))
            for function_name, (result, arguments) in signatures.items():
                function = getattr(library, function_name)
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError):
            continue
        if getattr(library, version[0])() == version[1]:
            return library
    return None
