"""A progress bar for long work: only on a terminal, only when it takes longer than a moment, never in a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

_PATIENCE = 1.5  # seconds before a bar appears


def with_progress(items: Iterable[T], *, what: str, total: int | None = None, show: bool | None = None) -> Iterator[T]:
    """Pass items on; after a moment, show on standard error how many there were (of `total`, if that is known).

    `show` is whether to show it at all; by default, when standard error is a terminal.
    """
    if show is None:
        show = sys.stderr.isatty()
    if not show:
        yield from items
        return
    started, count, bar, task = time.monotonic(), 0, None, None
    try:
        for item in items:
            yield item
            count += 1
            if bar is not None and task is not None:
                bar.update(task, completed=count)
            elif time.monotonic() - started > _PATIENCE:
                from rich.console import Console
                from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

                bar = Progress(
                    TextColumn("{task.description}"),
                    BarColumn(),
                    MofNCompleteColumn(),
                    TimeRemainingColumn(),
                    console=Console(stderr=True),
                    transient=True,
                )
                task = bar.add_task(what, total=total, completed=count)
                bar.start()
    finally:
        if bar is not None:
            bar.stop()
