"""How many threads a team may have: what anyone may ask for, what the process's control groups allow; memory nodes.

Sources: the kernel's cgroup-v2.rst ("cpu.max"), its older scheduler/sched-bwc.rst ("cpu.cfs_quota_us"), and its
ABI/stable/sysfs-devices-node ("cpulist").
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from math import ceil
from pathlib import Path

from bertie.errors import InputError

MOST_THREADS = 1024  # that anyone may ask for
_MOST_CORES = 1024  # in csrc/nodes.h


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


@lru_cache(maxsize=1)
def own_nodes() -> list[set[int]]:
    """The cores of each memory node, as BERTIE_NODES and the system had them when first asked; none: there is one."""
    asked = os.environ.get("BERTIE_NODES")
    return memory_nodes(Path("/sys/devices/system/node")) if not asked else [] if asked == "off" else named_nodes(asked)


def memory_nodes(folder: Path) -> list[set[int]]:
    """The cores of each of the machine's memory nodes (NUMA) that has any, by the nodes' numbers."""
    numbered = [node for node in folder.glob("node*") if node.name[4:].isdecimal()]
    lists = [
        _numbers(_read(node / "cpulist").strip()) for node in sorted(numbered, key=lambda node: int(node.name[4:]))
    ]
    return [cores for cores in lists if cores]


def named_nodes(text: str) -> list[set[int]]:
    """Those of BERTIE_NODES, like `0-3,8;4-7,9`."""
    nodes = [_numbers(line.strip()) for line in text.split(";")]
    cores = [core for node in nodes for core in node or ()]
    if not all(nodes) or len(cores) > len(set(cores)):
        raise InputError(
            f"BERTIE_NODES is {text!r:.80}; it must list the cores of each memory node, and each core once.",
            'Write it like "0-7;8-15" for two nodes of eight cores each, or "off" to treat all cores as one node.',
        )
    return [node for node in nodes if node]


def _numbers(line: str) -> set[int] | None:
    """Those of a list like `0-3,8`; None where it is no such list."""
    found: set[int] = set()
    for part in line.split(","):
        match = re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", part)
        if match is None:
            return None
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < _MOST_CORES:
            return None
        found.update(range(first, last + 1))
    return found


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
