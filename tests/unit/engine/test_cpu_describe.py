"""What `bertie doctor` says of the CPU engine: which kernels, how many threads, and why."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from bertie.engine.cpu import describe, runner
from bertie.errors import InputError


@pytest.fixture(autouse=True)
def _eight_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(8)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(describe, "own_nodes", list)
    _quota(monkeypatch, None)
    yield
    torch.set_num_threads(before)


def _quota(monkeypatch: pytest.MonkeyPatch, cores: int | None) -> None:
    for module in (describe, runner):
        monkeypatch.setattr(module, "own_quota", lambda: cores)


def test_a_thread_for_each_core() -> None:
    assert describe.threads_line() == "8: one for each core"


def test_the_limit_that_counts_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    assert describe.threads_line() == "6: the process may run on 6 of 8 cores (affinity)"
    _quota(monkeypatch, 3)
    assert describe.threads_line() == "3: the control group's quota is 3 of 8 cores"
    torch.set_num_threads(2)
    assert describe.threads_line().startswith("2: as many as torch uses (OMP_NUM_THREADS")


def test_several_memory_nodes_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe, "own_nodes", lambda: [{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9}])
    assert describe.threads_line() == (
        "8: one for each core; they are on 2 memory nodes, each with its own copy of the weights (BERTIE_NODES=off: "
        "one copy)"
    )
    torch.set_num_threads(4)
    assert describe.threads_line().endswith(
        "; the cores are on 2 memory nodes, and the threads are always on one of them"
    )
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4, 5, 6, 7})
    assert "nodes" not in describe.threads_line()


def test_wrong_nodes_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise InputError("BERTIE_NODES is 'x'.", "Change it.")

    monkeypatch.setattr(describe, "own_nodes", refuse)
    assert describe.threads_line() == "8: one for each core; BERTIE_NODES is 'x'."


def test_kernels_are_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BERTIE_CPU", raising=False)
    monkeypatch.setattr(describe, "instruction_set", lambda: "amx")
    monkeypatch.setattr(describe, "bfloat16_instructions", lambda: "AMX-BF16")
    assert describe.kernels_line() == (
        "C++ kernels on amx, the best that the processor has (float32, int8, bfloat16 by AMX-BF16)"
    )
    monkeypatch.setattr(describe, "instruction_set", lambda: "avx2")
    monkeypatch.setattr(describe, "bfloat16_instructions", lambda: None)
    monkeypatch.setenv("BERTIE_CPU", "avx2")
    assert describe.kernels_line() == (
        "C++ kernels on avx2, BERTIE_CPU is avx2 (float32, int8, bfloat16 at float32's speed, as the processor has no "
        "bfloat16)"
    )
    monkeypatch.setenv("BERTIE_CPU", "amx")
    assert "avx2, BERTIE_CPU is amx, which cannot be used here (" in describe.kernels_line()
    monkeypatch.setattr(describe, "instruction_set", lambda: None)
    assert "not built" in describe.kernels_line()
