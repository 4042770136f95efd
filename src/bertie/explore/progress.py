"""How long work tells how far it is: with a bar, or to a function, which may raise to stop it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from bertie.running.task import with_bar

T = TypeVar("T")

# A bar or none, by default on a terminal; or a function that is given (done, of how many).
Progress = bool | None | Callable[[int, int], None]


def counted(items: Sequence[T], what: str, progress: Progress) -> Iterator[T]:
    """The items, one after the other, with how many are done told on the way."""
    if not callable(progress):
        yield from with_bar(items, what, len(items), progress)
        return
    progress(0, len(items))
    for done, item in enumerate(items, start=1):
        yield item
        progress(done, len(items))
