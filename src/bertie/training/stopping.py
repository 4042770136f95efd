"""Being asked to stop: SIGINT (Ctrl-C) and SIGTERM end a run after the step it is in, saved."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

_SECOND = 2.0  # seconds after which another Ctrl-C is a second one, and not torchrun's echo of the first


class StopRequest:
    """Whether someone asked. A second Ctrl-C, a moment later, stops at once."""

    def __init__(self) -> None:
        self.asked = False
        self._at = 0.0

    @contextlib.contextmanager
    def listening(self, say: Callable[[str], None]) -> Iterator[None]:
        """Take the signals while the block runs; only a program's main thread can."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, frame: FrameType | None) -> None:
            if not self.asked:
                self.asked, self._at = True, time.monotonic()
                say("stopping after this step, and saving …")
            elif number == signal.SIGINT and time.monotonic() - self._at > _SECOND:
                raise KeyboardInterrupt

        old = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)
