"""What every result file says about where its numbers come from."""

from __future__ import annotations

import datetime
import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def describe(packages: tuple[str, ...] = ("torch", "transformers")) -> str:
    """One line: processor, cores, GPU where there is one, Python, versions."""
    versions = ", ".join(f"{name} {found}" for name in packages if (found := _version(name)))
    return f"{_processor()}, {os.cpu_count()} cores{_gpu()}; Python {platform.python_version()}; {versions}"


def save_result(name: str, command: str, rows: Any, **more: Any) -> Path:
    """Write `results/NAME-DATE.json`."""
    RESULTS.mkdir(exist_ok=True)
    today = datetime.date.today().isoformat()
    path = RESULTS / f"{name}-{today}.json"
    result = {"date": today, "machine": describe(), "command": command, **more, "rows": rows}
    path.write_text(json.dumps(result, indent=2) + "\n")
    return path


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _gpu() -> str:
    import torch

    return f"; {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""


def _processor() -> str:
    features = ""
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    model = next((line.split(":")[1].strip() for line in info.splitlines() if line.startswith("model name")), "CPU")
    flags = next((line for line in info.splitlines() if line.startswith("flags")), "")
    features = " ".join(f for f in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8") if f in flags.split())
    return f"{model} ({features})"
