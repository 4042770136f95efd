"""The CPU engine in two lines for people: which kernels run and why, how many threads and why."""

from __future__ import annotations

import os
from collections.abc import Set

import torch

from bertie.engine.cpu.cores import own_nodes, own_quota
from bertie.engine.cpu.library import bfloat16_instructions, instruction_set
from bertie.engine.cpu.runner import usable_cores
from bertie.errors import InputError


def kernels_line() -> str:
    kernels, half = instruction_set(), bfloat16_instructions()
    if kernels is None:
        return "the C++ kernels were not built; the reference runs"
    bfloat16 = f"bfloat16 by {half}" if half else "bfloat16 at float32's speed, as the processor has no bfloat16"
    asked = os.environ.get("BERTIE_CPU")
    why = f"BERTIE_CPU is {asked}" if asked else "the best that the processor has"
    if asked not in (None, "", kernels):
        why += ", which cannot be used here"
    return f"C++ kernels on {kernels}, {why} (float32, int8, {bfloat16})"


def threads_line() -> str:
    """What a model that is compiled without `threads` uses, and the limit that set it."""
    wanted, cores, quota = torch.get_num_threads(), os.cpu_count() or 1, own_quota()
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(cores))
    allowed = len(usable)
    used = min(wanted, usable_cores())
    if quota is not None and quota < min(wanted, allowed):
        why = f"the control group's quota is {quota} of {cores} cores"
    elif allowed < min(wanted, cores):
        why = f"the process may run on {allowed} of {cores} cores (affinity)"
    elif used == cores:
        why = "one for each core"
    else:
        why = f"as many as torch uses (OMP_NUM_THREADS or torch.set_num_threads), on {cores} cores"
    return f"{used}: {why}{_nodes(usable, used)}"


def _nodes(usable: Set[int], used: int) -> str:
    try:
        sizes = [len(usable & node) for node in own_nodes() if usable & node]
    except InputError as error:
        return f"; {error.cause}"
    if len(sizes) < 2:
        return ""
    if used <= min(sizes):
        return f"; the cores are on {len(sizes)} memory nodes, and the threads are always on one of them"
    return (
        f"; they are on {len(sizes)} memory nodes, each with its own copy of the weights (BERTIE_NODES=off: one copy)"
    )
