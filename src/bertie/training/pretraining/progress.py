"""What people see while text is made ready for pretraining: a bar on a terminal, lines elsewhere, for each phase.

    with Preparation(show=None).phase("tokenizing", "documents", "tokens") as phase:
        tokenize_corpus(…, progress=phase.at)

A phase that has nothing to do (all is there already) shows nothing. At its end a line says what was made, and how long
it took.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

from bertie.training.run.journal import duration
from bertie.training.run.stopping import look_elsewhere

_LINE_EVERY = 2.0  # seconds: in a pipe or a file, lines come no faster than this
_STAGES = {"letters": "counting letters", "words": "counting words", "pieces": "merging pieces"}


class Preparation:
    """`show` is as for training: False is silence, None looks whether there is a terminal."""

    def __init__(self, *, show: bool | None, is_main: bool = True) -> None:
        self.shown = is_main and show is not False
        self.terminal = show if show is not None else sys.stderr.isatty()

    @contextlib.contextmanager
    def phase(self, what: str, done: str, made: str, *, size: int = 0) -> Iterator[Phase]:
        """One phase: what is going on, and what is counted. `size` is the number of characters there are to read."""
        phase = Phase(what, done, made, size=size, shown=self.shown, terminal=self.terminal)
        try:
            yield phase
            phase.end()
        finally:
            phase.close()


class Phase:
    """One phase while it goes on; `at` and `read` are given to whoever does the work."""

    def __init__(self, what: str, done: str, made: str, *, size: int, shown: bool, terminal: bool) -> None:
        self.what, self.counted, self.size = what, (done, made), size
        self.shown, self.terminal = shown, terminal
        self.numbers: str | None = None  # nothing was done yet
        self._began = time.monotonic()
        self._last_line = 0.0
        self._bar: Any = None
        self._task: Any = None  # the bar's only one
        if shown and terminal:
            self._bar = _bar()
            self._task = self._bar.add_task(what, total=1.0, numbers="")

    def at(self, done: int, made: int, share: float) -> None:
        """So much is done, so much was made of it, and that is this share of all."""
        self._show(self.what, f"{done:,} {self.counted[0]}, {made:,} {self.counted[1]}", share)

    def read(self, stage: str, characters: int) -> None:
        """A vocabulary's progress: the text is read twice, then its pieces are merged, of which no share is known."""
        share = None
        if stage != "pieces":
            share = min(1.0, (characters / max(1, self.size) + (stage == "words")) / 2)
        self._show(f"{self.what}: {_STAGES.get(stage, stage)}", f"{characters / 1e6:,.1f} MB read", share)

    def end(self, made: str | None = None) -> None:
        """Say what was made, if anything was."""
        if self.numbers is None:
            return
        self.close()
        if self.shown:
            took = duration(time.monotonic() - self._began)
            print(f"{self.what}: {made or self.numbers}, in {took}", file=sys.stderr, flush=True)
        self.numbers = None

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _show(self, what: str, numbers: str, share: float | None) -> None:
        look_elsewhere()
        self.numbers = numbers
        if not self.shown:
            return
        if self.terminal:
            if share is None:  # of what has no known end, the bar goes to and fro
                self._bar.remove_task(self._task)
                self._task = self._bar.add_task(what, total=None, numbers=numbers)
            else:
                self._bar.update(self._task, description=what, numbers=f"{share:4.0%}  {numbers}", completed=share)
        elif time.monotonic() - self._last_line >= _LINE_EVERY or share is None:
            self._last_line = time.monotonic()
            part = "" if share is None else f"{share:.0%}, "
            print(f"{what}: {part}{numbers}", file=sys.stderr, flush=True)


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[numbers]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    bar.start()
    return bar
