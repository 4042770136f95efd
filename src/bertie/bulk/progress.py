"""How a job goes, for people: rows, rows and tokens a second, time left, and what a million rows cost.

On a terminal it is one line that changes; in a log a line now and then. Rates are of this run alone.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field

_LINE_EVERY = 30.0  # seconds, in a log
_SHOWN_EVERY = 0.5  # on a terminal


@dataclass
class Progress:
    """Rows of the whole job, of earlier runs, and of this one."""

    total: int
    before: int = 0
    price: float | None = None  # of all workers together, an hour
    show: bool = False
    rows: int = 0
    tokens: int = 0
    started: float = field(default_factory=time.monotonic)
    _shown: float = 0.0
    _width: int = 0

    def tick(self, rows: int, tokens: int) -> None:
        """So many more rows are answered."""
        self.rows += rows
        self.tokens += tokens
        now = time.monotonic()
        every = _SHOWN_EVERY if sys.stderr.isatty() else _LINE_EVERY
        if self.show and now - max(self._shown, self.started) >= every:
            self._shown = now
            self._print(self.line())

    @property
    def seconds(self) -> float:
        return max(1e-9, time.monotonic() - self.started)

    @property
    def cost(self) -> float | None:
        """Of a million rows at this rate."""
        if self.price is None or not self.rows:
            return None
        return self.price * self.seconds / 3600 / self.rows * 1e6

    def line(self) -> str:
        """`1,200,000 of 4,000,000 rows, 812 rows/s, 51,204 tokens/s, 57 min left, 0.31 per million rows`"""
        rate = self.rows / self.seconds
        done = self.before + self.rows
        parts = [f"{done:,} of {max(self.total, done):,} rows", f"{rate:,.0f} rows/s"]
        parts.append(f"{self.tokens / self.seconds:,.0f} tokens/s")
        if rate and done < self.total:
            parts.append(f"{in_words((self.total - done) / rate)} left")
        if self.cost is not None:
            parts.append(f"{self.cost:,.2f} per million rows")
        return ", ".join(parts)

    def close(self) -> None:
        if self.show and self._width:
            print(file=sys.stderr, flush=True)

    def _print(self, line: str) -> None:
        if sys.stderr.isatty():
            print(f"\r{line:{self._width}}", end="", file=sys.stderr, flush=True)
            self._width = len(line)
        else:
            print(line, file=sys.stderr, flush=True)


def in_words(seconds: float) -> str:
    """
    >>> in_words(42), in_words(600), in_words(10000), in_words(400000)
    ('42 s', '10 min', '2 h 47 min', '4 d 15 h')
    """
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    minutes = round(whole / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
