"""Memory that a front and an engine share: the front puts token ids there, the engine puts vectors beside them.

The front makes the memory and hands its descriptor to the engine through their socket, so it has no name, and it is
gone when both have ended, however they ended. The front alone says which block is whose (`Blocks`); a block is free
again when the engine has said that it is done with it, or has ended.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from bisect import insort
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SIZE = 64 << 20  # pages that were never written to take no memory
_ALIGNED = 64
_SPARE_PART, _SMALL_PART = 8, 256  # of a memory: what is kept for small blocks, and the largest of those


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the parts of a block lie, in bytes from its beginning."""

    rows: int
    tokens: int
    dimension: int

    @property
    def size(self) -> int:
        whole = 8 * (self.tokens + self.rows) + 4 * self.rows * self.dimension
        return -(-whole // _ALIGNED) * _ALIGNED


class SharedMemory:
    """The memory, as arrays. It is unmapped when nobody refers to an array of it any more."""

    def __init__(self, fd: int) -> None:
        try:
            mapped = mmap.mmap(fd, os.fstat(fd).st_size)
        finally:
            os.close(fd)
        self._words: NDArray[np.int64] = np.frombuffer(mapped, np.int64)
        self._floats: NDArray[np.float32] = np.frombuffer(mapped, np.float32)
        self.size = len(mapped)

    @staticmethod
    def create(size: int = SIZE) -> int:
        """A descriptor of new memory."""
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("bertie", os.MFD_CLOEXEC)
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        os.truncate(fd, size)
        return fd

    def rows(self, at: int, layout: Layout) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(ids `[tokens]`, lengths `[rows]`) of a block."""
        first = at // 8
        middle = first + layout.tokens
        return self._words[first:middle], self._words[middle : middle + layout.rows]

    def vectors(self, at: int, layout: Layout) -> NDArray[np.float32]:
        """`[rows, dimension]` of a block."""
        first = at // 4 + 2 * (layout.tokens + layout.rows)
        return self._floats[first : first + layout.rows * layout.dimension].reshape(layout.rows, layout.dimension)


class Blocks:
    """Which parts of a memory are free. The first that is large enough is taken, so that little memory is touched.

    The last eighth is for small blocks: whatever large requests are under way, there is room for small ones.

    >>> blocks = Blocks(1 << 20)
    >>> blocks.take(1 << 19), blocks.take(1 << 18), blocks.take(1 << 18)
    (0, 524288, None)
    >>> blocks.take(4096)
    786432
    >>> blocks.give(0, 1 << 19); blocks.give(1 << 19, 1 << 18)
    >>> blocks.take(3 << 18)
    0
    """

    def __init__(self, size: int) -> None:
        self._free = [(0, size)]  # (start, size), in order
        self._small, self._end_of_large = size // _SMALL_PART, size - size // _SPARE_PART

    def take(self, size: int) -> int | None:
        """The start of a block, if there is room for it."""
        for place, (start, there) in enumerate(self._free):
            if size > self._small and start + size > self._end_of_large:
                return None
            if there > size:
                self._free[place] = start + size, there - size
                return start
            if there == size:
                del self._free[place]
                return start
        return None

    def give(self, start: int, size: int) -> None:
        insort(self._free, (start, size))
        place = self._free.index((start, size))
        for left in (place, place - 1):  # with the one after it, then with the one before it
            if 0 <= left < len(self._free) - 1:
                (first, length), (second, more) = self._free[left], self._free[left + 1]
                if first + length == second:
                    self._free[left : left + 2] = [(first, length + more)]
