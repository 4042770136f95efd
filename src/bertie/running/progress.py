"""A progress bar for long work: only on a terminal, only when it takes longer than a moment, never in a pipe.

It counts answers, and the tokens that the model has read: one long text in thousands of windows is a single answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from bertie.running.open import watching

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

T = TypeVar("T")

_PATIENCE = 1.5  # seconds before a bar appears


class Meter:
    """Answers and tokens so far, shown to nobody."""

    def __init__(self) -> None:
        self.answers = self.tokens = 0

    def update(self) -> None:
        """Either has grown, or is about to."""

    def read(self, tokens: int) -> None:
        """The model is about to read this many tokens for whoever is waiting in this thread."""
        self.update()
        self.tokens += tokens


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
        seconds = time.monotonic() - self._started
        rates = f"{self.answers / seconds:,.0f}/s" + (f", {self.tokens:,} tokens" if self.tokens else "")
        # A total that was an estimate may be passed.
        total = None if self.total is None else max(self.total, self.answers)
        bar.update(task, completed=self.answers, total=total, rates=rates)

    def _draw(self) -> tuple[Progress, TaskID]:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rates]}"), TimeRemainingColumn())
        bar = Progress(TextColumn("{task.description}"), *columns, console=Console(stderr=True), transient=True)
        task = bar.add_task(self.what, total=self.total, completed=self.answers, rates="")
        bar.start()
        return bar, task

    def stop(self) -> None:
        if self._drawn is not None:
            self._drawn[0].stop()


def with_progress(items: Iterable[T], what: str, total: int | None) -> Iterator[T]:
    """Pass items on; after a moment, show on standard error how many there were (of `total`, if that is known)."""
    bar = Bar(what, total)
    try:
        yield from metered(items, bar)
    finally:
        bar.stop()


def metered(items: Iterable[T], meter: Meter) -> Iterator[T]:
    """Pass items on, and count in `meter` how many there were and the tokens that are read for them in this thread."""
    iterator = iter(items)
    while True:
        outer, watching.read = getattr(watching, "read", None), meter.read
        try:
            item = next(iterator)
        except StopIteration:
            return
        finally:
            watching.read = outer
        yield item
        meter.answers += 1
        meter.update()
