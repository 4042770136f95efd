"""What people see of a run while it goes on: a bar or lines on the terminal, metrics.jsonl, TensorBoard.

metrics.jsonl has one JSON object per line: `{"step": 20, "kind": "train", "loss": …}` at logging steps and
`{"step": 100, "kind": "dev", "accuracy": …}` at evaluations. A resumed run takes away what was written after the
checkpoint it goes on from, so that every step is there once.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from bertie.errors import CheckpointError, MissingExtra
from bertie.files import replace_file
from bertie.training.run.checkpoint import how_to_go_on

_LINE_EVERY = 2.0  # seconds: in a pipe or a file, lines come no faster than this


class Journal:
    """Where a run's numbers go. Processes other than the main one keep a silent one (`Journal(None)`)."""

    def __init__(
        self, folder: Path | None, *, tensorboard: bool = False, show: bool | None = None, from_step: int = 0
    ) -> None:
        self.folder = folder
        self._file: IO[str] | None = None
        self._board: Any = None
        self._bar: Any = None
        self._task: Any = None
        self._total = 0
        self._last_line = 0.0
        self._show = folder is not None and (show is not False)
        self._terminal = show if show is not None else sys.stderr.isatty()
        if folder is None:
            return
        if tensorboard:
            self._board = _summary_writer(folder / "tensorboard", purge_step=from_step + 1)
        path = folder / "metrics.jsonl"
        _keep_until(path, from_step)
        self._file = path.open("a", encoding="utf-8")

    def start(self, *, step: int, num_steps: int, what: str) -> None:
        self._total = num_steps
        if not (self._show and self._terminal):
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task(what, total=num_steps, completed=step, numbers="")
        self._bar.start()

    def at(self, step: int) -> None:
        """Steps done so far; moves the bar."""
        if self._bar is not None:
            self._bar.update(self._task, completed=step)

    def log(self, step: int, values: Mapping[str, float], *, left: float | None = None) -> None:
        """Numbers of a logging step. `left` is the time left, in seconds."""
        self._write(step, "train", values)
        shown = _short(values)
        if self._bar is not None:
            self._bar.update(self._task, completed=step, numbers=shown)
        elif self._show and (time.monotonic() - self._last_line >= _LINE_EVERY or step >= self._total):
            self._last_line = time.monotonic()
            remaining = f"  {duration(left)} left" if left is not None and left >= 1 else ""
            print(f"step {step}/{self._total}  {shown}{remaining}", file=sys.stderr, flush=True)

    def evaluated(self, step: int, metrics: Mapping[str, float], *, best: bool) -> None:
        self._write(step, "dev", metrics)
        self.say(f"step {step}  dev: {_short(metrics)}{'  (best so far)' if best else ''}")

    def say(self, text: str) -> None:
        """One line for the reader."""
        if not self._show:
            return
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def _write(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        if self._file is not None:
            row = {"step": step, "kind": kind, **{name: finite(value) for name, value in values.items()}}
            try:
                self._file.write(json.dumps(row) + "\n")
                self._file.flush()
            except OSError as error:
                raise CheckpointError(
                    f"{self._file.name} cannot be written: {error.strerror or error}.",
                    how_to_go_on(Path(self._file.name).parent).replace("before it", "before"),
                ) from error
        if self._board is not None:
            for name, value in values.items():
                if math.isfinite(value):
                    self._board.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        if self._file is not None:
            with contextlib.suppress(OSError):  # a disk that refuses was told of when the line was written
                self._file.flush()
                os.fsync(self._file.fileno())
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None
        if self._board is not None:
            self._board.close()
            self._board = None


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """All rows of a run's metrics.jsonl; a line that a kill cut short is left out."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            rows.append(row)
    return rows


def duration(seconds: float) -> str:
    """`4 s`, `12 min 30 s`, `3 h 05 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _keep_until(path: Path, step: int) -> None:
    """Take away the rows after `step`; at step 0, all of them."""
    if not path.exists():
        return
    rows = [row for row in read_metrics(path.parent) if row["step"] <= step] if step else []
    replace_file(path, "".join(json.dumps(row) + "\n" for row in rows))


def finite(value: float) -> float | None:
    """JSON has no NaN and no infinity."""
    return float(value) if math.isfinite(value) else None


def _short(values: Mapping[str, float]) -> str:
    return "  ".join(
        f"{name} {_number(name, value)}" for name, value in values.items() if name in _SHOWN or _is_score(name)
    )


_SHOWN = ("loss", "lr", "tokens_per_s")
_HIDDEN = ("epoch", "grad_norm", "seconds", "skipped", "examples")


def _is_score(name: str) -> bool:
    return name not in _SHOWN and name not in _HIDDEN


def _number(name: str, value: float) -> str:
    if name == "tokens_per_s":
        return f"{value:,.0f}"
    if name == "lr":
        return f"{value:.2e}"
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def check_tensorboard() -> None:
    """Say that it is missing before anything is prepared, and not when the first number is to be written."""
    if find_spec("tensorboard") is None:
        raise MissingExtra("tensorboard", "train", "Writing TensorBoard files")


def _summary_writer(folder: Path, *, purge_step: int) -> Any:
    # The writer's own switch: without this module it imports all of TensorFlow, where that is installed.
    sys.modules.setdefault("tensorboard.compat.notf", ModuleType("tensorboard.compat.notf"))
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingExtra("tensorboard", "train", "Writing TensorBoard files") from None
    return SummaryWriter(str(folder), purge_step=purge_step)
