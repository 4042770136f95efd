"""Parquet and Arrow files, a batch at a time, through pyarrow (extra `data`), which is imported when first needed.

Arrow files come in two layouts: the file format (also called feather), with an index at its end, and the stream format,
which `datasets` writes under the name `.arrow`. Both are read; parquet is read and written.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import IO, Any

from bertie.data.source import Opened, PathLike
from bertie.errors import DataError, MissingExtra

_BATCH_ROWS = 1024
_HELD_BYTES = 1 << 28


def _pyarrow(purpose: str) -> ModuleType:
    try:
        import pyarrow
    except ImportError:
        raise MissingExtra("pyarrow", "data", purpose) from None
    module: ModuleType = pyarrow
    return module


def read_batches(source: Opened, *, kind: str, path: PathLike | None) -> Iterator[dict[str, Any]]:
    """Rows as dicts of Python values. `path` is the plain file; what comes from a pipe is first put on disk."""
    pa = _pyarrow(f"Reading {source.name} ({kind})")
    plain = path is not None and _is_plain(source, path)
    with _guarded(pa, source.name, kind), open(path, "rb") if plain and path else _on_disk(source) as file:
        for batch in _parquet(file) if kind == "parquet" else _arrow(pa, source, file):
            yield from batch.to_pylist()


def parquet_rows(path: str | os.PathLike[str]) -> int:
    """How many rows a parquet file says it has; 0 where that cannot be read."""
    pa = _pyarrow(f"Reading {path} (parquet)")
    import pyarrow.parquet as pq

    try:
        return int(pq.read_metadata(path).num_rows)
    except (pa.ArrowException, OSError):
        return 0


class ParquetRows:
    """Writes rows to parquet in groups; a column has the type of the first group that tells it.

    Groups are held back while a column has nothing but None and empty lists, until they become many.
    """

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._pa = _pyarrow(f"Writing {name} (parquet)")
        self._file = file
        self._name = name
        self._rows: list[Mapping[str, Any]] = []
        self._columns: list[str] = []
        self._held: list[Any] = []
        self._schema: Any = None
        self._writer: Any = None

    def write(self, values: Mapping[str, Any], columns: Sequence[str]) -> None:
        self._columns = list(columns)
        self._rows.append(values)
        if len(self._rows) == _BATCH_ROWS:
            self._flush()

    def close(self) -> None:
        if self._rows or self._schema is None:
            self._flush()
        self._release()
        self._writer.close()

    def discard(self) -> None:
        # Left open, it would finish its file when it is collected, long after the file was given up.
        if self._writer is not None:
            with suppress(self._pa.ArrowException, OSError, ValueError):
                self._writer.close()

    def _flush(self) -> None:
        table = self._pa.table({column: self._array(column) for column in self._columns})
        self._rows = []
        self._held.append(table)
        if self._writer is None:
            self._schema = self._merged(table.schema)
            is_open = any(_is_open(self._pa, kind) for kind in self._schema.types)
            if is_open and sum(one.nbytes for one in self._held) < _HELD_BYTES:
                return
        self._release()

    def _release(self) -> None:
        """Write what was held back. A column that is still without a value becomes text, the likeliest to come."""
        if self._writer is None:
            import pyarrow.parquet as pq

            pa = self._pa
            fields = [one.with_type(pa.string()) if pa.types.is_null(one.type) else one for one in self._schema]
            self._schema = pa.schema(fields)
            self._writer = pq.ParquetWriter(self._file, self._schema)
        for table in self._held:
            self._writer.write_table(table.cast(self._schema))
        self._held = []

    def _merged(self, schema: Any) -> Any:
        try:
            return schema if self._schema is None else self._pa.unify_schemas([self._schema, schema])
        except self._pa.ArrowException as error:
            raise self._mixed(f"there are values of different types: {error}") from None

    def _array(self, column: str) -> Any:
        pa = self._pa
        values = [row.get(column) for row in self._rows]
        known = self._schema.field(column).type if self._schema is not None else None
        wanted = None if known is None or (self._writer is None and _is_open(pa, known)) else known
        try:
            return pa.array(values, type=wanted)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            now = f"values that are not all {wanted}" if wanted is not None else "values of different types"
            raise self._mixed(f"the column {column!r} has {now}: {error}") from None

    def _mixed(self, cause: str) -> DataError:
        return DataError(f"{self._name}: {cause}.", "Give it values of one type, or write jsonl.")


def _is_open(pa: ModuleType, kind: Any) -> bool:
    """Whether a type, or one inside it, is that of None alone."""
    if pa.types.is_list(kind):
        return _is_open(pa, kind.value_type)
    if pa.types.is_struct(kind):
        return any(_is_open(pa, kind.field(number).type) for number in range(kind.num_fields))
    return bool(pa.types.is_null(kind))


def _is_plain(source: Opened, path: PathLike) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == source.head[:4]


@contextmanager
def _on_disk(source: Opened) -> Iterator[IO[bytes]]:
    # Both formats are read from their end, which a pipe or a compressed file does not offer.
    with tempfile.TemporaryFile() as file:
        shutil.copyfileobj(source.stream, file)
        file.seek(0)
        yield file


@contextmanager
def _guarded(pa: ModuleType, name: str, kind: str) -> Iterator[None]:
    try:
        yield
    except DataError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise DataError(
            f"{name}: cannot be read as {kind}: {reason}.", "It may be cut short, or be of another format: {format=}."
        ) from error


def _parquet(file: IO[bytes]) -> Iterator[Any]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as table:
        yield from table.iter_batches(batch_size=_BATCH_ROWS)


def _arrow(pa: ModuleType, source: Opened, file: IO[bytes]) -> Iterator[Any]:
    if source.head.startswith(b"FEA1"):
        raise DataError(f"{source.name}: feather of version 1, which is no longer read.", "Convert it with pyarrow.")
    if source.head.startswith(b"ARROW1"):
        with pa.ipc.open_file(file) as reader:
            for index in range(reader.num_record_batches):
                yield from _slices(reader.get_batch(index))
    else:
        with pa.ipc.open_stream(file) as reader:
            for batch in reader:
                yield from _slices(batch)


def _slices(batch: Any) -> Iterator[Any]:
    # A feather file may be one batch of millions of rows, and as Python objects they are many times larger.
    for start in range(0, batch.num_rows, _BATCH_ROWS):
        yield batch.slice(start, _BATCH_ROWS)
