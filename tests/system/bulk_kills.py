"""Bulk jobs that are killed and started again, and the checks of what they leave."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

import bertie

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

    def over(self) -> bool:
        return self.process.poll() is not None

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=PATIENCE)

    def finished(self) -> dict[str, Any]:
        out, err = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, err[-3000:]
        report: dict[str, Any] = json.loads(out.splitlines()[-1])
        return report


class ForkedDriver:
    """A job in a process that is forked from one that has imported everything: it is at work after 0.1 s, not 3."""

    def __init__(self, asked: dict[str, Any], log: Path) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["bertie.bulk", "pyarrow.parquet", __name__])
        self._report, theirs = context.Pipe(duplex=False)
        self._process = context.Process(target=_run_job, args=(asked, str(log), theirs))
        self._process.start()
        theirs.close()

    def over(self) -> bool:
        return not self._process.is_alive()

    def kill(self) -> None:
        self._process.kill()
        self._process.join(PATIENCE)

    def finished(self) -> dict[str, Any]:
        assert self._report.poll(PATIENCE), "the job does not end"
        report: dict[str, Any] = self._report.recv()
        self._process.join(PATIENCE)
        return report


def _run_job(asked: dict[str, Any], log: str, line: Connection) -> None:
    torch.set_num_threads(1)
    logging.basicConfig(filename=log, format="%(name)s: %(message)s")
    logging.getLogger("bertie.bulk").setLevel(logging.INFO)
    report = bertie.bulk("embed", **asked)
    line.send({"computed": report.computed, "rows": report.rows, "set_aside": dict(report.set_aside)})


def wait_for(found: Callable[[], bool], what: str, driver: Driver | ForkedDriver | None = None) -> None:
    end = time.monotonic() + PATIENCE
    while not found():
        assert time.monotonic() < end, f"waited {PATIENCE:.0f} s for {what}"
        if driver is not None and driver.over():
            return
        time.sleep(0.005)


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
