"""How many threads a team may have: what anyone may ask for, what the process's control groups allow; memory nodes.

Sources: the kernel's cgroup-v2.rst ("cpu.max"), its older scheduler/sched-bwc.rst ("cpu.cfs_quota_us"), and its
ABI/stable/sysfs-devices-node ("cpulist").
"""

from __future__ import annotations

from collections.abc import Set
from functools import lru_cache
from math import ceil
from pathlib import Path

from bertie.errors import InputError

MOST_THREADS = 1024  # that anyone may ask for


def check_threads(threads: int | None) -> int | None:
    """The number asked for, if it is one that a team can have; None is torch's number."""
    if threads is not None and (type(threads) is not int or not 1 <= threads <= MOST_THREADS):
        raise InputError(
            f"{{threads:is}} it must be a whole number from 1 to {MOST_THREADS}.",
            "Leave it out to use as many threads as torch does. More threads than cores are never started.",
            threads=threads,
        )
    return threads


@lru_cache(maxsize=1)
def own_quota() -> int | None:
    """This process's, as it was when first asked for."""
    return cpu_quota(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))


def cpu_quota(membership: Path, mounted: Path) -> int | None:
    """Cores' worth of time that the process's control groups allow it, rounded up; None where none sets a limit.

    A container may see only its own group, at the root of what is mounted, under whatever name the host has for it: so
    every folder from the group up to the root is looked at, and the smallest limit counts.
    """
    limits = []
    for line in _read(membership).splitlines():
        _, kinds, path = (*line.split(":", 2), "", "")[:3]
        if kinds and "cpu" not in kinds.split(","):
            continue
        for root in (mounted / kinds, mounted / "cpu") if kinds else (mounted,):
            group = Path(path.strip("/"))
            for folder in (group, *group.parents):
                if kinds:
                    given = f"{_read(root / folder / 'cpu.cfs_quota_us')} {_read(root / folder / 'cpu.cfs_period_us')}"
                else:
                    given = _read(root / folder / "cpu.max")
                match given.split():
                    case [quota, period] if quota.isdecimal() and period.isdecimal() and int(period):
                        limits.append(max(1, ceil(int(quota) / int(period))))
    return min(limits, default=None)


def memory_nodes(cores: Set[int], folder: Path = Path("/sys/devices/system/node")) -> int:
    """How many of the machine's memory nodes (NUMA) these cores belong to; 1 where the system does not say."""
    lists = [_read(node / "cpulist") for node in folder.glob("node*")]
    return max(1, sum(not cores.isdisjoint(_numbers(line)) for line in lists))


def _numbers(line: str) -> set[int]:
    """Those of a list like `0-3,8`."""
    found: set[int] = set()
    for part in line.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            found.update(range(int(first), int(last or first) + 1))
    return found


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
