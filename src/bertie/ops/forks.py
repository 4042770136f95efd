"""Torch in a forked child: pools and workers of multiprocessing, DataLoader's, servers that fork.

Torch computes with the help of OpenMP's threads, which belong to the thread that first wanted them. A child is a copy
of that thread without its helpers, and waits for them for ever. So they are dismissed before a fork, and parent and
child each start new ones when they next want some. An OpenMP library older than 5.0 cannot dismiss them; there torch
computes with one thread in the child, which needs no help.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

import torch

_HARD = 2  # omp_pause_hard: threads end


def _omp_pause() -> Callable[[int], int] | None:
    """`omp_pause_resource_all` of the OpenMP library that torch itself is linked to; the process may have others."""
    try:
        pause: Callable[[int], int] = ctypes.PyDLL(torch._C.__file__).omp_pause_resource_all
    except (AttributeError, OSError):
        return None
    return pause


def survive_forks() -> None:
    """Register what happens at every later `os.fork`."""
    pause = _omp_pause()
    dismissed = False

    def before() -> None:
        nonlocal dismissed
        dismissed = pause is not None and pause(_HARD) == 0

    def in_child() -> None:
        if not dismissed:
            torch.set_num_threads(1)

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=before, after_in_child=in_child)
