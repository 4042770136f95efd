"""What `bertie doctor` says of the CPU engine: which kernels, how many threads, and why."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bertie.engine.cpu import describe, runner
from bertie.engine.cpu.cores import memory_nodes


@pytest.fixture(autouse=True)
def _eight_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(8)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(describe, "memory_nodes", lambda cores: 1)
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


@pytest.mark.parametrize(
    ("cores", "nodes"), [({0, 3}, 1), ({3, 4}, 2), (set(range(12)), 3), ({8, 11}, 2), ({99}, 1), (set(), 1)]
)
def test_memory_nodes_of_the_cores_in_use_are_counted(tmp_path: Path, cores: set[int], nodes: int) -> None:
    for name, line in {"node0": "0-3,8\n", "node1": "4-7,9\n", "node2": "10-11\n", "node3": "\n"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "cpulist").write_text(line)
    (tmp_path / "possible").write_text("0-3\n")
    assert memory_nodes(cores, tmp_path) == nodes
    assert memory_nodes(cores, tmp_path / "not there") == 1


def test_several_memory_nodes_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe, "memory_nodes", lambda cores: 2)
    assert describe.threads_line() == (
        "8: one for each core; they are on 2 memory nodes: consider one process for each (numactl --cpunodebind)"
    )


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
