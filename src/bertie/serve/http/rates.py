"""How many requests a second a key (or an address) may send.

The buckets are in a table of a fixed size, so many clients fill no memory, and all fronts of a server can share it. A
client has one of a few places, by its digest; where all are taken, the client that was seen longest ago is forgotten.
Two fronts that count for a client at the same instant may count once: a rate is kept to within that.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
import time

from bertie.serve.failures import overloaded

_BUCKET = struct.Struct("<8sdd")  # digest, requests left, when that was
_BUCKETS = 16_384
_PLACES = 8


def shared_buckets() -> mmap.mmap:
    """A table for this process and those that it forks."""
    return mmap.mmap(-1, _BUCKETS * _BUCKET.size)


class Rates:
    """A bucket for every client: `rate` requests a second, and as many at once."""

    def __init__(self, rate: float, buckets: mmap.mmap | None = None) -> None:
        self._rate = rate
        self._most = max(1.0, rate)
        self._table = buckets or bytearray(_BUCKETS * _BUCKET.size)

    def check(self, who: str) -> None:
        now = time.monotonic()  # one clock for all processes of the machine
        digest = hashlib.blake2b(who.encode("utf-8", "surrogateescape"), digest_size=8).digest()
        at, left, then = self._find(digest, now)
        left = min(self._most, left + (now - then) * self._rate)
        if left < 1:
            raise overloaded(f"More than {self._rate:g} requests a second.", retry_after=(1 - left) / self._rate)
        _BUCKET.pack_into(self._table, at, digest, left - 1, now)

    def _find(self, digest: bytes, now: float) -> tuple[int, float, float]:
        """(where its bucket is or will be, requests left, when that was)."""
        first = int.from_bytes(digest[:4], "little")
        oldest, oldest_at = float("inf"), 0
        for step in range(_PLACES):
            at = (first + step) % _BUCKETS * _BUCKET.size
            held, left, then = _BUCKET.unpack_from(self._table, at)
            if held == digest:
                return at, left, then
            if then < oldest:
                oldest, oldest_at = then, at
        return oldest_at, self._most, now
