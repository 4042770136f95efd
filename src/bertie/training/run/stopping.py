"""Being asked to stop: SIGINT (Ctrl-C) and SIGTERM.

In the loop they end a run after the step it is in, saved. Everywhere else (while data is read, a model is loaded, a
report is written) they end it at once, and `Interrupted` says what there is to go on from.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from bertie.errors import BertieError
from bertie.training.contract import Interrupted
from bertie.training.run.checkpoint import newest_step

_SECOND = 2.0  # seconds after which another Ctrl-C is a second one, and not torchrun's echo of the first
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Whether someone asked. A second Ctrl-C, a moment later, stops at once."""

    def __init__(self) -> None:
        self.asked = False
        self._at = 0.0

    @contextlib.contextmanager
    def listening(self, say: Callable[[str], None]) -> Iterator[None]:
        """Take the signals while the block runs; only a program's main thread can."""

        def ask(number: int, frame: FrameType | None) -> None:
            if not self.asked:
                self.asked, self._at = True, time.monotonic()
                say("stopping after this step, and saving …")
            elif number == signal.SIGINT and time.monotonic() - self._at > _SECOND:
                raise KeyboardInterrupt

        with _handling(ask):
            yield


@contextlib.contextmanager
def explained(output: Path) -> Iterator[None]:
    """A run that is stopped inside the block, but not by its loop, says what is kept. Of a mistake nothing is left."""
    stopped_at: list[float] = []
    existed = output.exists()

    def stop(number: int, frame: FrameType | None) -> None:
        if not stopped_at or (number == signal.SIGINT and time.monotonic() - stopped_at[0] > _SECOND):
            stopped_at.append(time.monotonic())
            raise KeyboardInterrupt

    with _handling(stop), _waking():
        try:
            yield
        except KeyboardInterrupt:
            stopped = interruption(output)
            if not existed and not stopped.kept:
                _remove_empty(output)
            raise stopped from None
        except BertieError:
            if not existed:
                _remove_empty(output)
            raise


_awake: list[int] = []  # where a byte can be read for every signal that came, while someone may want to know


@contextlib.contextmanager
def _waking() -> Iterator[None]:
    """Python hears of a signal when its main thread is back from whatever it called, which may be minutes of Rust."""
    if threading.current_thread() is not threading.main_thread() or os.name != "posix":
        yield
        return
    ours, pythons = os.pipe()
    for end in (ours, pythons):
        os.set_blocking(end, False)
    before = signal.set_wakeup_fd(pythons, warn_on_full_buffer=False)
    _awake.append(ours)
    try:
        yield
    finally:
        _awake.remove(ours)
        signal.set_wakeup_fd(before)
        os.close(ours)
        os.close(pythons)


def stop_if_signalled() -> None:
    """Called back by such work in another thread: ends it when a signal came meanwhile."""
    if _awake and threading.current_thread() is not threading.main_thread():
        with contextlib.suppress(BlockingIOError):
            if os.read(_awake[-1], 1):
                raise KeyboardInterrupt


def interruption(output: Path) -> Interrupted:
    """What there is to say about a run that was stopped outside of its loop."""
    step = newest_step(output)
    if step is not None:
        return Interrupted(
            f"Stopped. What was saved at step {step} is whole in {output}.",
            "Continue with the same command and {resume}.",
            resume=True,
        )
    kept = data_parts(output / "data")
    if kept:
        return Interrupted(
            f"Stopped before the first step. What is prepared stays in {output / 'data'} and is used again: "
            f"{', '.join(kept)}.",
            "The same command continues from there.",
            began=False,
        )
    return Interrupted(
        "Stopped before the first step. Nothing was written, and what was prepared so far is not kept.",
        "The same command starts again.",
        began=False,
        kept=False,
    )


def data_parts(data: Path) -> list[str]:
    """What of pretraining's data a killed or stopped run has left, in words."""
    parts = ["the vocabulary"] if (data / "vocabulary" / "vocab.txt").exists() else []
    for name in ("train-ids", "dev-ids", "train-pairs", "dev-pairs"):
        if (data / name / "manifest.json").exists():
            parts.append(name)
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            progress = json.loads((data / f".{name}.building" / "progress.json").read_bytes())
            if progress.get("done"):
                parts.append(f"{name} in part")
    return parts


def _remove_empty(output: Path) -> None:
    """Take a folder away that holds nothing but locks and empty folders."""
    found = list(output.rglob("*")) if output.is_dir() else []
    idle = [path.is_dir() or path.name == ".lock" or path.match(".*.lock") or not path.stat().st_size for path in found]
    if output.is_dir() and all(idle):
        shutil.rmtree(output, ignore_errors=True)


@contextlib.contextmanager
def _handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """With a handler for both signals, in the main thread; elsewhere there is none to set."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    here = os.getpid()

    def handle(number: int, frame: FrameType | None) -> None:
        if os.getpid() == here:
            handler(number, frame)
        elif number == signal.SIGTERM:  # a fork that makes batches: Ctrl-C is not for it
            os._exit(0)

    old = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, before in old.items():
            signal.signal(number, before)
