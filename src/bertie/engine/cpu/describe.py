"""The CPU engine in two lines for people: which kernels run and why, how many threads and why."""

from __future__ import annotations

import os

import torch

from bertie.engine.cpu.cores import memory_nodes, own_quota
from bertie.engine.cpu.library import bfloat16_instructions, instruction_set
from bertie.engine.cpu.runner import usable_cores


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
    nodes = memory_nodes(usable)
    if nodes > 1:
        why += f"; they are on {nodes} memory nodes: consider one process for each (numactl --cpunodebind)"
    return f"{used}: {why}"
