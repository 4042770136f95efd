"""Bulk jobs that are killed and started again, and the checks of what they leave."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

DRIVER = Path(__file__).parents[1] / "scripts" / "bulk_driver.py"
BEGUN = re.compile(r"bertie\.bulk: piece ([0-9]+) begins in process ([0-9]+)")
PATIENCE = 300.0  # seconds; the machine may be busy with other tests


class Driver:
    """A job in a process of its own."""

    def __init__(self, asked: dict[str, Any], log: Path) -> None:
        line = [sys.executable, str(DRIVER), json.dumps(asked), str(log)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        self.process = subprocess.Popen(
            line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
        )

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=PATIENCE)

    def finished(self) -> dict[str, Any]:
        out, err = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, err[-3000:]
        report: dict[str, Any] = json.loads(out.splitlines()[-1])
        return report


def wait_for(found: Callable[[], bool], what: str, driver: Driver | None = None) -> None:
    end = time.monotonic() + PATIENCE
    while not found():
        assert time.monotonic() < end, f"waited {PATIENCE:.0f} s for {what}"
        if driver is not None and driver.process.poll() is not None:
            return
        time.sleep(0.02)


def begun(*logs: Path) -> list[tuple[int, int]]:
    """(piece, process) of every piece that was begun, as the logs have it."""
    return [
        (int(found[1]), int(found[2]))
        for log in logs
        if log.exists()
        for found in BEGUN.finditer(log.read_text(errors="replace"))
    ]


def parts(output: Path) -> int:
    return len(list(output.glob("part-*.parquet")))
