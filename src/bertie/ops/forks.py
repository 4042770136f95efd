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
from functools import cache

import torch

_HARD = 2  # omp_pause_hard: threads end


@cache
def _omp_pause() -> Callable[[int], int] | None:
    """`omp_pause_resource_all` of the OpenMP library that torch itself is linked to; the process may have others."""
    try:
        pause: Callable[[int], int] = ctypes.PyDLL(torch._C.__file__).omp_pause_resource_all
    except (AttributeError, OSError):
        return None
    return pause


def dismiss_helpers() -> bool:
    """End the threads that help this one, until it next wants some; whether OpenMP could do so.

    Threads of OpenMP wait for work by looking for it, for some milliseconds, as long as there are no more of them than
    cores. With more, each is asleep after a microsecond and has to be woken for the next step of the same pass: on two
    cores a second thread that has computed once makes a pass over a short text take twice as long. So whoever computes
    now and then lets its helpers go.
    """
    pause = _omp_pause()
    return pause is not None and pause(_HARD) == 0


def survive_forks() -> None:
    """Register what happens at every later `os.fork`."""
    dismissed = False

    def before() -> None:
        nonlocal dismissed
        dismissed = dismiss_helpers()

    def in_child() -> None:
        if not dismissed:
            torch.set_num_threads(1)

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=before, after_in_child=in_child)
