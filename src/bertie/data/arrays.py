"""Vectors out as NumPy's own files: .npy is the matrix alone, written row by row; .npz has the other columns beside it.

Both are read with `numpy.load`, without pickles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, TypeAlias

from bertie.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array: TypeAlias = npt.NDArray[np.generic]

_HEADER_BYTES = 128
_MOST_TEXT_BYTES = 2**30


class ArrayRows:
    """Writes rows that have one vector each, all of one length and type."""

    def __init__(self, file: IO[bytes], name: str, kind: str) -> None:
        import numpy as np  # not for every command: it takes longer to import than `--help` may

        self._np = np
        self._file, self._name, self._is_npz = file, name, kind == "npz"
        self._vector: str | None = None  # the column of the vectors
        self._first: Array = np.zeros(0, dtype=np.float32)
        self._columns: dict[str, list[object]] = {}
        self._vectors: list[Array] = []
        self._count = 0
        if not self._is_npz and not file.seekable():
            raise DataError(
                f"{name}: a .npy file begins with its number of rows, which is known at the end.",
                "Write it to a plain file, not compressed and not through a pipe.",
            )

    def write(self, values: Mapping[str, object], columns: Sequence[str]) -> None:
        if self._vector is None:
            self._begin(values)
        vector = values.get(self._vector or "")
        first = self._first
        if not isinstance(vector, self._np.ndarray) or (vector.shape, vector.dtype) != (first.shape, first.dtype):
            raise DataError(
                f"{self._name}, row {self._count + 1}: its {self._vector} is not like the first one: "
                f"{first.dtype} numbers, {first.size} of them.",
                "Write jsonl or parquet, which take rows of all kinds.",
            )
        if self._is_npz:
            self._vectors.append(vector)
            for name, column in self._columns.items():
                column.append(values.get(name))
        else:
            self._file.write(vector.tobytes())
        self._count += 1

    def close(self) -> None:
        if self._is_npz:
            np = self._np
            vectors = np.stack(self._vectors) if self._vectors else np.zeros((0, 0), dtype=np.float32)
            others = {name: self._column(name, values) for name, values in self._columns.items()}
            np.savez(self._file, **{self._vector or "embedding": vectors}, **others)
        else:
            if not self._count:
                self._file.write(b" " * _HEADER_BYTES)
            self._file.seek(0)
            self._file.write(self._header())

    def discard(self) -> None:
        """There is nothing to discard."""

    def _begin(self, values: Mapping[str, object]) -> None:
        arrays = {name: value for name, value in values.items() if isinstance(value, self._np.ndarray)}
        vectors = {name: value for name, value in arrays.items() if value.ndim == 1}
        if len(vectors) != 1:
            found = ", ".join(values)
            raise DataError(
                f"{self._name}: NumPy files hold one vector per row; these rows have {found}.",
                "Write such answers as jsonl, csv or parquet.",
            )
        ((self._vector, self._first),) = vectors.items()
        self._columns = {name: [] for name in values if name != self._vector}
        if not self._is_npz:
            self._file.write(b" " * _HEADER_BYTES)

    def _header(self) -> bytes:
        """Version 1 of the format, padded to a fixed size, so that it can be written last."""
        shape = (self._count, self._first.size)
        told = f"{{'descr': {self._first.dtype.str!r}, 'fortran_order': False, 'shape': {shape}, }}"
        size = _HEADER_BYTES - 10
        return b"\x93NUMPY\x01\x00" + size.to_bytes(2, "little") + told.ljust(size - 1).encode() + b"\n"

    def _column(self, name: str, values: list[object]) -> Array:
        longest = max((len(value) for value in values if isinstance(value, str)), default=0)
        if 4 * longest * len(values) > _MOST_TEXT_BYTES:  # NumPy gives every text the room of the longest
            raise DataError(
                f"{self._name}: {len(values):,} texts of up to {longest:,} characters do not fit an .npz file well.",
                "Write parquet, or .npy for the vectors alone.",
            )
        column = self._np.array(values)
        if column.dtype == object:
            raise DataError(f"{self._name}: the column {name!r} is no text or number.", "Write jsonl or parquet.")
        return column
