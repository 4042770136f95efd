"""The rows of a piece: batches of columns in the job's schema, with what is wrong with single rows said beside them.

Every row of the input is a row here, also one that cannot be read (a line that is not JSON, one that is not UTF-8): its
columns are then empty, and its error says what was there. Text that is not UTF-8 is repaired with U+FFFD where it is
kept, so that whoever reads the answers can read them.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import IO, TYPE_CHECKING

from bertie.bulk.inputs import InputFile, Piece, Reading, Span, arrow_batches, header, unreadable
from bertie.bulk.stores import open_file
from bertie.data import BadRows, Row
from bertie.data.rows import rows_of
from bertie.data.source import from_stream
from bertie.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa
    from _typeshed import WriteableBuffer

Values = Mapping[str, object]  # of a row, by column

BATCH_ROWS = 2048
_COLUMN_BYTES = 1 << 22
_LINE = re.compile(r"^, line [0-9]+( to [0-9]+)?: ")  # of the part that was read; Batch.where() says it of the file


@dataclass(frozen=True)
class Batch:
    """Rows of the input, where they are, and what is wrong with some of them, by number."""

    rows: pa.RecordBatch
    errors: Mapping[int, str]
    file: InputFile
    first: int  # the first row's number: in the file, from 0, or among the lines after `byte`
    byte: int = 0

    def where(self, number: int) -> str:
        if self.byte:
            return f"{self.file.name}, row {self.first + number + 1} after byte {self.byte:,}"
        return f"{self.file.name}, row {self.first + number + 1}"


def read_piece(
    files: Sequence[InputFile], piece: Piece, schema: pa.Schema, reading: Reading, asked: Collection[str] = ()
) -> Iterator[Batch]:
    """All rows of a piece, in order. `asked` are the columns that have to be text; in others, JSON may become text."""
    for span in piece.spans:
        file = files[span.file]
        try:
            if file.format in ("parquet", "arrow"):
                yield from _columns(file, span, schema)
            else:
                yield from _lines(file, span, schema, reading, asked)
        except DataError:
            raise
        except (OSError, ValueError, KeyError) as error:
            raise unreadable(file, error) from error


# -- parquet and Arrow -------------------------------------------------------------------------------------------------


def _columns(file: InputFile, span: Span, schema: pa.Schema) -> Iterator[Batch]:
    import pyarrow as pa

    at = 0
    for begin, batch in _parquet(file, span) if file.format == "parquet" else _arrow(file, span):
        for start in range(max(begin, span.start), min(begin + batch.num_rows, span.stop), BATCH_ROWS):
            stop = min(start + BATCH_ROWS, begin + batch.num_rows, span.stop)
            part = batch.slice(start - begin, stop - start)
            columns = [part.column(part.schema.get_field_index(name)) for name in schema.names]
            arrays = [_as_type(column, wanted.type) for column, wanted in zip(columns, schema, strict=True)]
            errors: dict[int, str] = {}
            repaired = [_repaired(one, wanted, errors) for one, wanted in zip(arrays, schema, strict=True)]
            yield Batch(pa.RecordBatch.from_arrays(repaired, schema=schema), errors, file, start)
            at = stop
    if at < span.stop:
        raise DataError(
            f"{file.name}: it has {at:,} rows; when the job began it had at least {span.stop:,}.",
            "Restore the file, or run a new job.",
        )


def _parquet(file: InputFile, span: Span) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(the first row's number, batch), from the row group on in which the span begins."""
    import pyarrow.parquet as pq

    # A few MB of a column at a time: a row group may have a million rows.
    with open_file(file.name) as source, pq.ParquetFile(source, buffer_size=_COLUMN_BYTES) as table:
        about = table.metadata
        wanted, begin, at = [], None, 0
        for number in range(about.num_row_groups):
            size = about.row_group(number).num_rows
            if at < span.stop and at + size > span.start:
                wanted.append(number)
                begin = at if begin is None else begin
            at += size
        at = begin or 0
        # Without threads: one core may be all that a worker has.
        for batch in table.iter_batches(batch_size=BATCH_ROWS, row_groups=wanted, use_threads=False):
            yield at, batch
            at += batch.num_rows
            if at >= span.stop:
                return


def _arrow(file: InputFile, span: Span) -> Iterator[tuple[int, pa.RecordBatch]]:
    at = 0
    for _, batch in arrow_batches(file):
        if batch is None:
            continue
        if at + batch.num_rows > span.start:
            yield at, batch
        at += batch.num_rows
        if at >= span.stop:
            return


def _as_type(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    # A cast to text would check that it is UTF-8, and fail as a whole.
    return column if column.type == wanted else column.cast(wanted, safe=True)


def _repaired(column: pa.Array, field: pa.Field, errors: dict[int, str]) -> pa.Array:
    """The column, with text that is not UTF-8 repaired and its rows noted."""
    import pyarrow as pa

    if not _is_text(field.type):
        return column
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        pass
    else:
        return column
    texts: list[str | None] = []
    raw = pa.Array.from_buffers(_bytes_type(field.type), len(column), column.buffers(), offset=column.offset)
    for number, value in enumerate(raw.to_pylist()):
        try:
            texts.append(None if value is None else value.decode())
        except UnicodeDecodeError as error:
            errors[number] = _not_utf8(field.name, error)
            texts.append(value.decode(errors="replace"))
    return pa.array(texts, type=field.type)


def _bytes_type(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    return pa.large_binary() if pa.types.is_large_string(kind) else pa.binary()


def _not_utf8(name: str, error: UnicodeDecodeError) -> str:
    return f"the column {name!r} is not UTF-8: byte 0x{error.object[error.start]:02x} at {error.start + 1}"


# -- text files --------------------------------------------------------------------------------------------------------


class _Noted(BadRows):
    """Bad lines, kept until the next row comes."""

    def __init__(self) -> None:
        super().__init__(skip=True)
        self.waiting: list[DataError] = []

    def report(self, error: DataError) -> None:
        self.waiting.append(error)


def _lines(file: InputFile, span: Span, schema: pa.Schema, reading: Reading, asked: Collection[str]) -> Iterator[Batch]:
    """Lines that begin inside the span. One that begins on its last byte goes on beyond it."""
    whole = span.start == 0 and span.stop == file.size
    with open_file(file.name) as raw:
        part = _Part(raw, span.start, span.stop, exact=file.format == "csv")
        source = from_stream(raw if whole else io.BufferedReader(part, 1 << 16), file.name)
        bad = _Noted()
        # The header is in the first span.
        columns = header(file, reading) if file.format in ("csv", "tsv") and span.start else None
        rows = rows_of(
            source, bad, format=file.format, encoding=reading.encoding, columns=columns, delimiter=reading.delimiter
        )
        numbered = enumerate(_with_bad(rows, bad))
        while some := list(islice(numbered, BATCH_ROWS)):
            batch, errors = _batch([row for _, row in some], schema, file, asked)
            yield Batch(batch, errors, file, some[0][0], span.start)


def _with_bad(rows: Iterable[Row], bad: _Noted) -> Iterator[tuple[Values, DataError | None]]:
    """The values of rows, and in their places errors about lines that are none."""
    for row in rows:
        while bad.waiting:
            yield {}, bad.waiting.pop(0)
        yield row.values, None
    yield from (({}, error) for error in bad.waiting)


def _batch(
    rows: Sequence[tuple[Values, DataError | None]], schema: pa.Schema, file: InputFile, asked: Collection[str]
) -> tuple[pa.RecordBatch, dict[int, str]]:
    import pyarrow as pa

    errors: dict[int, str] = {}
    known = set(schema.names)
    for number, (values, error) in enumerate(rows):
        if error is not None:
            errors[number] = _LINE.sub("", error.cause.removeprefix(file.name)).rstrip(".")
        elif values.keys() - known:
            unknown = sorted(values.keys() - known)[0]
            errors[number] = f"the column {unknown!r} is not among those of the first rows: {', '.join(schema.names)}"
    arrays = [
        _array([values.get(field.name) for values, _ in rows], field, errors, field.name in asked) for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema), errors


def _array(values: list[object], field: pa.Field, errors: dict[int, str], asked: bool) -> pa.Array:
    """A column; a value of another type is left out, and its row noted. Where text is kept, not asked about, any value
    is text: its JSON."""
    import pyarrow as pa

    failures = (pa.ArrowException, TypeError, ValueError, OverflowError)
    try:
        return pa.array(values, type=field.type)
    except failures:
        pass
    kept: list[object] = []
    for number, value in enumerate(values):
        text = value if isinstance(value, str) else None
        if pa.types.is_string(field.type) and not asked and text is None and value is not None:
            value = text = json.dumps(value, ensure_ascii=False)
        try:
            kept.append(pa.scalar(value, type=field.type).as_py())
        except UnicodeEncodeError:
            errors.setdefault(number, f"the column {field.name!r} is not UTF-8: it has a lone surrogate")
            kept.append(None if text is None else text.encode("utf-8", "replace").decode())
        except failures:
            shown = f"{type(value).__name__} {str(value)[:40]}"
            errors.setdefault(number, f"the column {field.name!r} holds {shown}; in the first rows it is {field.type}")
            kept.append(None)
    return pa.array(kept, type=field.type)


class _Part(io.RawIOBase):
    """The lines of a file that begin at a byte from `start` on and before `stop`; `exact`: the bytes between alone."""

    def __init__(self, file: IO[bytes], start: int, stop: int, *, exact: bool) -> None:
        self._file = file
        # A line that is cut in the middle belongs to the span in which it begins.
        self._at = start if exact or not start else self._line_end(start - 1)
        self._end = stop if exact else self._line_end(stop - 1)
        file.seek(self._at)

    def _line_end(self, place: int) -> int:
        """Where the line ends that the byte at `place` is in: after its line break, or at the file's end."""
        self._file.seek(place)
        while chunk := self._file.read(1 << 16):
            found = chunk.find(b"\n")
            if found >= 0:
                return place + found + 1
            place += len(chunk)
        return place

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        place = memoryview(buffer).cast("B")
        wanted = min(len(place), max(0, self._end - self._at))
        data = self._file.read(wanted) if wanted else b""
        place[: len(data)] = data
        self._at += len(data)
        return len(data)


def texts_of(column: pa.Array) -> list[object]:
    """The values of a column of text; of a column of bytes, those that are UTF-8 as text."""
    values = column.to_pylist()
    return values if _is_text(column.type) else [_decoded(value) for value in values]


def is_all_text(column: pa.Array) -> bool:
    """Whether every row has a text, told without looking at each."""
    return _is_text(column.type) and not column.null_count


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _decoded(value: bytes | None) -> str | bytes | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return value
