"""What a job reads: names → files → one schema → pieces.

A piece is a run of rows of the input, in the input's order: some rows of one file, or all rows of several small ones.
Where pieces begin depends on the files alone, so every worker and every later run cuts the same ones. Rows of parquet
and Arrow files are counted in their footers. Lines of jsonl, txt and tsv files are cut at bytes, so nothing is read
for it. A csv file may have line breaks inside its quotes; it is read once to know where rows begin. What is compressed
can only be read from its beginning, and is one piece.
"""

from __future__ import annotations

import base64
import csv
import io
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING, TypeVar

from bertie.bulk.stores import Found, files_below, full_name, look_up, open_file
from bertie.data import BadRows
from bertie.data.rows import header_of, known_format, rows_of
from bertie.data.source import COMPRESSIONS, from_stream, reason_of
from bertie.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
R = TypeVar("R")

FORMATS = ("parquet", "arrow", "jsonl", "csv", "tsv", "txt")
_GLOB = re.compile(r"[*?\[]")
_SAMPLE_BYTES, _SAMPLE_ROWS = 1 << 18, 1000
_THREADS = 16  # files looked at side by side: a store answers each after many milliseconds


@dataclass(frozen=True)
class InputFile:
    """A file, its size, and what it is read as."""

    name: str
    size: int
    format: str


@dataclass(frozen=True)
class Span:
    """Rows `start` to `stop` of a parquet or Arrow file; bytes `start` to `stop` of any other."""

    file: int
    start: int
    stop: int


@dataclass(frozen=True)
class Piece:
    """The unit of work: spans that follow one another. `rows` is exact for parquet, Arrow and csv, else an estimate."""

    spans: tuple[Span, ...]
    rows: int


@dataclass(frozen=True)
class Look:
    """What a first look at a file told: columns with their types, where it may be cut, how much is in a row."""

    schema: pa.Schema
    rows: int
    row_bytes: float
    cuts: Sequence[int] | None = None  # where rows end, after 0; None: at every row, or every line
    whole: bool = False  # it cannot be cut


# -- names → files -----------------------------------------------------------------------------------------------------


def find_files(given: Sequence[str], *, format: str | None = None) -> list[InputFile]:  # noqa: A002
    """The files that names, folders and patterns (`*`, `?`, `[a-z]`, `**`) stand for, each once, in order.

    Of a folder it is every file below it whose ending tells a format; names that begin with `.` or `_` are left out, as
    everywhere among tools that write such folders.
    """
    found: dict[str, InputFile] = {}
    for name in map(full_name, given):
        for file in _matching(name) if is_pattern(name) else _named(name):
            found.setdefault(file.name, _as_input(file, format))
    return [file for file in found.values() if file.size]


def is_pattern(name: str) -> bool:
    """Whether a name stands for several; a file may be called `texts [1].csv`."""
    return _GLOB.search(name) is not None and look_up(name)[0] is None


def finds(name: str, file: str) -> bool:
    """Whether a name of the input, a folder or a pattern, stands for this file."""
    return bool(_regular(name).fullmatch(file)) if is_pattern(name) else file.startswith(f"{name}/")


def _named(name: str) -> list[Found]:
    there, is_folder = look_up(name)
    if there is not None:
        return [there]
    if not is_folder:
        raise DataError(f"{name}: there is no such file or folder.", "Check the path.")
    files = [file for file in files_below(name, recursive=True) if _is_data(file.name, name)]
    if not files:
        raise DataError(
            f"{name}: no file in it ends like data.",
            f"Data files end in one of: {', '.join('.' + f for f in FORMATS)}.",
        )
    return files


def _is_data(name: str, folder: str) -> bool:
    inside = PurePosixPath(name.removeprefix(folder)).parts
    return not any(part.startswith((".", "_")) for part in inside) and _told(name) is not None


def _told(name: str) -> str | None:
    try:
        return known_format(name, None)
    except DataError:
        return None


def _matching(pattern: str) -> list[Found]:
    # The folder before the first part with a wildcard is listed, and what is in it compared.
    at = _GLOB.search(pattern)
    base = pattern[: pattern.rfind("/", 0, at.start() if at else 0)]
    rest = pattern[len(base) + 1 :]
    wanted = _regular(rest)
    found = files_below(base or "/", recursive="/" in rest or "**" in rest)
    files = [file for file in found if wanted.fullmatch(file.name[len(base) :].lstrip("/"))]
    if not files:
        raise DataError(f"{pattern}: no file matches.", "Check the pattern, and put it into quotes in a shell.")
    return files


def _regular(pattern: str) -> re.Pattern[str]:
    """`*` and `?` stay inside a folder, `**/` is any number of folders.

    >>> bool(_regular("**/part-?.csv").fullmatch("a/b/part-1.csv")), bool(_regular("*.csv").fullmatch("a/b.csv"))
    (True, False)
    """
    words = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", pattern)
    return re.compile("".join(words.get(part, part if part[:1] == "[" else re.escape(part)) for part in parts))


def _as_input(file: Found, format: str | None) -> InputFile:  # noqa: A002
    # Outside this machine there is nothing to look at yet, and a name without an ending tells nothing.
    told = known_format(PurePosixPath(file.name).name, format)
    if told is None:
        raise DataError(
            f"{file.name}: its format cannot be recognized by its name.",
            f"Give it with {{format=}}: {', '.join(FORMATS)}.",
        )
    if told not in FORMATS:
        raise DataError(f"{file.name}: {told} cannot be read in pieces.", "Write it as jsonl: one object per line.")
    return InputFile(file.name, file.size, told)


# -- files → one schema and pieces -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """How text files are read."""

    encoding: str = "utf-8"
    delimiter: str | None = None

    @property
    def cuts_lines(self) -> bool:
        """Whether a line ends at the byte 0x0A, and at no other."""
        return "\n".encode(self.encoding) == b"\n"


def look_at(files: Sequence[InputFile], reading: Reading) -> list[Look]:
    """A first look at every file; the first that cannot be read is said before any work is done."""

    def look(file: InputFile) -> Look:
        try:
            return _LOOKS[file.format](file, reading)
        except DataError:
            raise
        except (OSError, ValueError, KeyError) as error:
            raise unreadable(file, error) from error

    return _in_threads(look, files)


def unreadable(file: InputFile, error: Exception) -> DataError:
    reason = (reason_of(error).splitlines() or [type(error).__name__])[0].rstrip(".")
    return DataError(
        f"{file.name}: cannot be read as {file.format}: {reason}.",
        "Write it again, or leave it out: name the other files, or a pattern that does not match it.",
    )


def common_schema(files: Sequence[InputFile], looks: Sequence[Look]) -> pa.Schema:
    """The columns that all files have, each in a type that holds what all of them hold."""
    import pyarrow as pa

    first = looks[0].schema
    fields: dict[str, pa.Field] = {}
    for file, look in zip(files, looks, strict=True):
        # A jsonl row may lack a field, so a file's first rows may too.
        optional = file.format == "jsonl" or files[0].format == "jsonl"
        differing = set(look.schema.names) ^ set(first.names)
        if differing and not optional:
            name = sorted(differing)[0]
            has, lacks = (file, files[0]) if name in look.schema.names else (files[0], file)
            raise DataError(
                f"{has.name} has a column {name!r}, and {lacks.name} has none.",
                "Run a job for each kind of file, or give all files the same columns.",
            )
        for one in look.schema:
            one = one.with_type(_plain_type(one.type))
            known = fields.get(one.name, one)
            try:
                fields[one.name] = known if known.type == one.type else _wider(known, one)
            except (pa.ArrowInvalid, pa.ArrowTypeError):
                raise DataError(
                    f"{file.name}: the column {one.name!r} is {one.type}, and in files before it {known.type}.",
                    "Run a job for each kind of file, or write them with one schema.",
                ) from None
    # Columns of nothing but None become text, the likeliest to come.
    written = [one.with_type(pa.string()) if pa.types.is_null(one.type) else one for one in fields.values()]
    return pa.schema([one.with_nullable(True) for one in written])


def _wider(one: pa.Field, other: pa.Field) -> pa.Field:
    """A column that holds what both hold: int32 and int64, null and text."""
    import pyarrow as pa

    return pa.unify_schemas([pa.schema([one]), pa.schema([other])], promote_options="permissive").field(0)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """What a column is written as: a dictionary as what it stands for, a view as what it looks at."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if pa.types.is_string_view(kind):
        return pa.string()
    return pa.binary() if pa.types.is_binary_view(kind) else kind


def cut(files: Sequence[InputFile], looks: Sequence[Look], piece_rows: int) -> list[Piece]:
    """The input in pieces of about `piece_rows` rows each; exactly so many where rows are counted."""
    pieces: list[Piece] = []
    spans: list[Span] = []
    rows = 0
    for number, (file, look) in enumerate(zip(files, looks, strict=True)):
        for start, stop, held in _parts(file, look, piece_rows, piece_rows - rows):
            spans.append(Span(number, start, stop))
            rows += held
            if rows >= piece_rows:
                pieces.append(Piece(tuple(spans), rows))
                spans, rows = [], 0
    if spans:
        pieces.append(Piece(tuple(spans), rows))
    return pieces


def _parts(file: InputFile, look: Look, size: int, first: int) -> Iterator[tuple[int, int, int]]:
    """(start, stop, rows) of a file: `first` rows to fill up a piece that has begun, then `size` at a time."""
    if look.whole:
        yield 0, file.size, look.rows
        return
    if look.cuts is not None:
        last = len(look.cuts) - 1
        for left, right in pairwise([0, *range(first, last, size), last] if last > 0 else []):
            yield look.cuts[left], look.cuts[right], right - left
        return
    if file.format in ("parquet", "arrow"):
        total, scale = look.rows, 1.0
    else:
        total, scale = file.size, look.row_bytes
    start, stop = 0, min(total, max(1, int(first * scale)))
    while start < total:
        yield start, stop, max(1, round((stop - start) / scale))
        start, stop = stop, min(total, stop + max(1, int(size * scale)))


def schema_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def read_schema(text: str) -> pa.Schema:
    import pyarrow as pa

    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


# -- a first look at each format ---------------------------------------------------------------------------------------


def _look_parquet(file: InputFile, reading: Reading) -> Look:
    import pyarrow.parquet as pq

    with open_file(file.name) as source, pq.ParquetFile(source) as table:
        about = table.metadata
        size = sum(about.row_group(number).total_byte_size for number in range(about.num_row_groups))
        return Look(table.schema_arrow, about.num_rows, size / max(1, about.num_rows))


def _look_arrow(file: InputFile, reading: Reading) -> Look:
    rows = 0
    schema = None
    for schema, batch in arrow_batches(file):  # noqa: B007  # the last one is that of all
        rows += 0 if batch is None else batch.num_rows
    return Look(schema, rows, file.size / max(1, rows))


def arrow_batches(file: InputFile) -> Iterator[tuple[pa.Schema, pa.RecordBatch | None]]:
    """(schema, batch) of an Arrow file of either layout, and first (schema, None)."""
    import pyarrow as pa

    with open_file(file.name) as source:
        if source.read(6) == b"ARROW1":
            source.seek(0)
            with pa.ipc.open_file(source) as reader:
                yield reader.schema, None
                for number in range(reader.num_record_batches):
                    yield reader.schema, reader.get_batch(number)
        else:
            source.seek(0)
            with pa.ipc.open_stream(source) as reader:
                yield reader.schema, None
                for batch in reader:
                    yield reader.schema, batch


def _look_text(file: InputFile, reading: Reading) -> Look:
    import pyarrow as pa

    with open_file(file.name) as raw:
        head: bytes = raw.read(_SAMPLE_BYTES)
        raw.seek(0)
        packed = file.name.lower().endswith(tuple(COMPRESSIONS))
        source = from_stream(io.BytesIO(head) if len(head) == file.size else raw, file.name)
        packed = packed or not head.startswith(source.head[:16])
        if not packed and len(head) < file.size:
            # A line at the end of the sample is not all there.
            source = from_stream(io.BytesIO(head[: head.rfind(b"\n") + 1] or head), file.name)
        rows = rows_of(
            source, BadRows(skip=True), format=file.format, encoding=reading.encoding, delimiter=reading.delimiter
        )
        sample = list(islice(rows, _SAMPLE_ROWS))
    if file.format in ("csv", "tsv"):
        schema = pa.schema([(name, pa.string()) for name in header(file, reading)])
    else:
        names = list(dict.fromkeys(name for row in sample for name in row.values))
        schema = _inferred(names, [row.values for row in sample])
    lines = max(1, sample[-1].line if sample else 1)
    row_bytes = max(1.0, min(len(head), _sampled(head, lines)) / lines)
    if packed or not reading.cuts_lines:
        return Look(schema, max(1, round(file.size / row_bytes)), row_bytes, whole=True)
    if file.format == "csv":
        cuts = _csv_rows(file, reading)
        return Look(schema, len(cuts) - 1, (cuts[-1] - cuts[0]) / max(1, len(cuts) - 1), cuts=cuts)
    return Look(schema, max(1, round(file.size / row_bytes)), row_bytes)


def header(file: InputFile, reading: Reading) -> list[str]:
    """The columns of a csv or tsv file; files of one job may have them in different orders."""
    with open_file(file.name) as raw:
        source = from_stream(raw, file.name)
        return header_of(source, format=file.format, encoding=reading.encoding, delimiter=reading.delimiter)


def _sampled(head: bytes, lines: int) -> int:
    """The bytes of the first lines."""
    at = -1
    for _ in range(lines):
        at = head.find(b"\n", at + 1)
        if at < 0:
            return len(head)
    return at + 1


def _inferred(names: Sequence[str], rows: Sequence[Mapping[str, object]]) -> pa.Schema:
    """The types of JSON's values. A column whose first rows are of several types is text, or numbers."""
    import pyarrow as pa

    fields = []
    for name in names:
        values = [row.get(name) for row in rows]
        try:
            kind = pa.array(values).type
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError):
            numbers = all(isinstance(value, int | float | None) for value in values)
            kind = pa.float64() if numbers else pa.string()
        fields.append(pa.field(name, kind))
    return pa.schema(fields)


def _csv_rows(file: InputFile, reading: Reading) -> Sequence[int]:
    """Where the rows of a csv file end, as the reader reads them, after 0: the first is cut off with the header."""
    csv.field_size_limit(max(1 << 26, csv.field_size_limit()))
    at = 0

    def lines(raw: IO[bytes]) -> Iterator[str]:
        nonlocal at
        for line in raw:
            at += len(line)
            try:
                yield line.decode(reading.encoding)
            except UnicodeDecodeError:
                continue  # the reader leaves it out, and reports it

    found = array("Q")
    with open_file(file.name) as raw:
        reader = csv.reader(lines(io.BufferedReader(raw, 1 << 20)), delimiter=reading.delimiter or ",", strict=True)
        while True:
            try:
                next(reader)
            except StopIteration:
                break
            except csv.Error:
                pass
            found.append(at)
    return array("Q", [0]) + found[1:]


_LOOKS: dict[str, Callable[[InputFile, Reading], Look]] = {
    "parquet": _look_parquet,
    "arrow": _look_arrow,
    "jsonl": _look_text,
    "csv": _look_text,
    "tsv": _look_text,
    "txt": _look_text,
}


def _in_threads(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(function, items))
