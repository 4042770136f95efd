"""Texts that are longer than the model: cut, read in windows, or refused; and the caller is told which.

`Cuts` belongs to one call of a task. It counts the texts of which only a part was read and, when the call ends, says so
in one warning. A stream that is left early says what was cut up to there.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, Literal

from bertie.errors import InputError, TruncationWarning

Long = Literal["truncate", "windows", "error"]
LONG: tuple[Long, ...] = ("truncate", "windows", "error")
_QUOTED = 60


class Cuts:
    """What one call did with long texts. `limit` is the model's length; `choices` says whether the task has `long=`."""

    def __init__(self, long: str, limit: int, *, choices: bool = True) -> None:
        self.long, self.limit, self.choices = long, limit, choices
        self.cut = self.seen = 0
        self._flags: deque[bool] = deque()
        self._lock = Lock()  # texts are tokenized in several threads

    def count(self, cut: int, seen: int) -> None:
        """So many more texts were seen, and so many of them cut."""
        with self._lock:
            self.cut, self.seen = self.cut + cut, self.seen + seen

    def note(self, is_cut: bool) -> None:
        """The next text in order; `next_is_cut` gives it back when the text is answered."""
        self.count(int(is_cut), 1)
        self._flags.append(is_cut)

    def next_is_cut(self) -> bool:
        return self._flags.popleft()

    def refuse(self, item: Any) -> None:
        """Raise for a text that is too long, if that was asked for."""
        if self.long != "error":
            return
        shown = repr(item[0] if isinstance(item, tuple) else item)
        raise InputError(
            f"The {'pair' if isinstance(item, tuple) else 'text'} that begins with "
            f"{shown if len(shown) <= _QUOTED else shown[:_QUOTED] + '…'} has more than {self.limit} tokens.",
            "Shorten it, or pass long='windows' to read all of it or long='truncate' to read its beginning.",
        )

    @contextmanager
    def told(self) -> Iterator[Cuts]:
        """Warn at the end of the call, also of one that is left early; an error speaks for itself."""
        try:
            yield self
        except GeneratorExit:
            self._warn()
            raise
        self._warn()

    def _warn(self) -> None:
        if not self.cut:
            return
        texts = "1 text was" if self.cut == 1 else f"{self.cut} of {self.seen} texts were"
        remedy = " Pass long='windows' to read all of each, or long='error' to refuse such texts."
        warnings.warn(
            f"{texts} longer than the model's {self.limit} tokens and cut." + (remedy if self.choices else ""),
            TruncationWarning,
            stacklevel=3,
        )
