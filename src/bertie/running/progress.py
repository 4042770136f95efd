"""A progress bar for long work: only on a terminal, only when it takes longer than a moment, never in a pipe.

It counts answers, and the tokens that the model has read: one long text in thousands of windows is a single answer.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

T = TypeVar("T")

_PATIENCE = 1.5  # seconds before a bar appears
_local = threading.local()  # the bar of the work that this thread is doing


class Meter:
    """Answers and tokens so far, shown to nobody."""

    def __init__(self) -> None:
        self.answers = self.tokens = 0

    def update(self) -> None:
        """Either has grown, or is about to."""


class Bar(Meter):
    """Answers and tokens so far; it is drawn once the work has taken longer than a moment."""

    def __init__(self, what: str, total: int | None) -> None:
        super().__init__()
        self.what, self.total = what, total
        self._started = time.monotonic()
        self._drawn: tuple[Progress, TaskID] | None = None

    def update(self) -> None:
        if self._drawn is None:
            if time.monotonic() - self._started < _PATIENCE:
                return
            self._drawn = self._draw()
        bar, task = self._drawn
        bar.update(task, completed=self.answers, tokens=f"{self.tokens:,} tokens" if self.tokens else "")

    def _draw(self) -> tuple[Progress, TaskID]:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[tokens]}"), TimeRemainingColumn())
        bar = Progress(TextColumn("{task.description}"), *columns, console=Console(stderr=True), transient=True)
        task = bar.add_task(self.what, total=self.total, completed=self.answers, tokens="")
        bar.start()
        return bar, task

    def stop(self) -> None:
        if self._drawn is not None:
            self._drawn[0].stop()


def with_progress(items: Iterable[T], *, what: str, total: int | None = None, show: bool | None = None) -> Iterator[T]:
    """Pass items on; after a moment, show on standard error how many there were (of `total`, if that is known).

    `show` is whether to show it at all; by default, when standard error is a terminal.
    """
    if show is None:
        show = sys.stderr.isatty()
    if not show:
        yield from items
        return
    bar = Bar(what, total)
    try:
        yield from metered(items, bar)
    finally:
        bar.stop()


def metered(items: Iterable[T], meter: Meter) -> Iterator[T]:
    """Pass items on, and count in `meter` what is read for them in this thread and how many there were."""
    iterator = iter(items)
    while True:
        outer, _local.bar = getattr(_local, "bar", None), meter
        try:
            item = next(iterator)
        except StopIteration:
            return
        finally:
            _local.bar = outer
        yield item
        meter.answers += 1
        meter.update()


def read_tokens(count: int) -> None:
    """The model is about to read so many tokens for whoever is waiting in this thread."""
    bar: Meter | None = getattr(_local, "bar", None)
    if bar is not None:
        bar.update()
        bar.tokens += count
