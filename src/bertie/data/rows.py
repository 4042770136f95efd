"""Rows of users' files: a `Row` per line of a txt, jsonl, csv or tsv file, per record of a json, parquet or arrow one.

All but json are streamed: memory does not grow with the file. The format is told by the extension (before `.gz`, `.xz`
or `.bz2`), or by the caller; what comes through a pipe is looked at, and is plain text unless it plainly is not.

- txt: one text per line, blank lines included, so that answers stay beside their texts.
- jsonl: one object per line, or a string.    - json: a list of those.
- csv: RFC 4180, with a header.    - tsv: IANA text/tab-separated-values, with a header; quotes are ordinary characters.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bertie.data import arrow
from bertie.data.reading import BadRows, Reader, bad_row
from bertie.data.source import (
    COMPRESSIONS,
    MAX_LINE_BYTES,
    Opened,
    PathLike,
    check_readable,
    is_regular,
    read_source,
    source_name,
    text_lines,
    whole_text,
)
from bertie.errors import DataError
from bertie.json_values import fields, items

FORMATS = ("txt", "jsonl", "json", "csv", "tsv", "parquet", "arrow")
MAX_JSON_BYTES = 2**30

_EXTENSIONS = {f".{name}": name for name in FORMATS} | {
    ".text": "txt", ".ndjson": "jsonl", ".tab": "tsv", ".pq": "parquet", ".feather": "arrow", ".ipc": "arrow",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """The values of one row by column, and where it was found (`line` counts from 1)."""

    values: Mapping[str, Any]
    line: int
    source: str
    unit: str = "line"

    @property
    def where(self) -> str:
        return f"{self.source}, {self.unit} {self.line}"

    def __getitem__(self, column: str) -> Any:
        return self.values[column]


RowReader = Reader[Row]


@dataclass(frozen=True, slots=True)
class _Options:
    encoding: str
    columns: Sequence[str] | None
    delimiter: str | None


def read_rows(
    path: PathLike,
    *,
    format: str | None = None,  # noqa: A002  (what every command and user calls it)
    encoding: str = "utf-8",
    skip_bad: bool = False,
    columns: Sequence[str] | None = None,
    delimiter: str | None = None,
) -> RowReader:
    """Read the rows of a file; `-` is standard input.

    `columns` names the columns of a csv or tsv file that has no header. `delimiter` is for csv files that are separated
    by something else than commas.
    """
    check_readable(path)
    read = partial(
        rows_of,
        format=known_format(path, format),
        path=path,
        encoding=encoding,
        columns=columns,
        delimiter=delimiter,
    )
    return read_source(path, read, skip_bad=skip_bad)


def estimated_rows(path: PathLike) -> int:
    """About how many rows a file has, for a progress bar: its lines, or what a parquet file says; 0 is unknown."""
    suffix = Path(path).suffix.lower()
    found = _EXTENSIONS.get(suffix)
    if not is_regular(path) or found in (None, "json", "arrow"):
        return 0
    if found == "parquet":
        return arrow.parquet_rows(path)
    with open(path, "rb") as file:
        lines = sum(block.count(b"\n") for block in iter(partial(file.read, 2**20), b""))
    return lines - (found in ("csv", "tsv"))


def joined_rows(readers: Sequence[RowReader]) -> RowReader:
    """The rows of several files as those of one, in order. Each row still knows its file and line."""

    def read(bad: BadRows) -> Iterator[Row]:
        for reader in readers:
            yield from reader.reading(bad)

    return RowReader(
        ", ".join(reader.name for reader in readers),
        read,
        skip_bad=any(reader.skip_bad for reader in readers),
        once=any(reader.once for reader in readers),
    )


def rows_of(
    source: Opened,
    bad: BadRows,
    *,
    format: str | None,  # noqa: A002  (as above)
    path: PathLike | None = None,
    encoding: str = "utf-8",
    columns: Sequence[str] | None = None,
    delimiter: str | None = None,
) -> Iterator[Row]:
    """The rows of an open source. `format=None` looks at how it begins; `path` spares parquet a copy."""
    found = format or _sniff(source.head)
    if found in ("parquet", "arrow"):
        plain_file = path if path is not None and is_regular(path) else None
        for number, values in enumerate(arrow.read_batches(source, kind=found, path=plain_file), start=1):
            yield Row(values, number, source.name, "row")
    else:
        yield from _TEXT_FORMATS[found](source, _Options(encoding, columns, delimiter), bad)


def header_of(source: Opened, *, format: str, encoding: str = "utf-8", delimiter: str | None = None) -> list[str]:  # noqa: A002
    """The columns of an open csv or tsv source, as its header names them."""
    options, bad = _Options(encoding, None, delimiter), BadRows(skip=True)
    return _header(_RECORDS[format](source, options, bad), source.name, options, bad)


def known_format(path: PathLike, given: str | None) -> str | None:
    """The format given, or told by the extension; None for pipes, which are to be looked at."""
    if given is not None:
        found = given if given in FORMATS else _EXTENSIONS.get(f".{given.lstrip('.').lower()}")
        if found is None:
            raise DataError("{format} is not known.", f"Use one of: {', '.join(FORMATS)}.", format=given)
        return found
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    found = _EXTENSIONS.get(suffixes[-1]) if suffixes else None
    if found is None and is_regular(path):
        raise DataError(
            f"{source_name(path)}: its format cannot be recognized by its name.",
            f"Give it with {{format=}}: one of {', '.join(FORMATS)}.",
        )
    return found


def _sniff(head: bytes) -> str:
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
        return "arrow"
    # A text may begin with a bracket ("[MASK] is …"), hardly with a bracket and then an object.
    if re.match(rb'(\xef\xbb\xbf)?\s*\{\s*"', head):
        return "jsonl"
    if re.match(rb"(\xef\xbb\xbf)?\s*\[\s*\{", head):
        return "json"
    return "txt"


def _txt(source: Opened, options: _Options, bad: BadRows) -> Iterator[Row]:
    for number, line in text_lines(source, bad, encoding=options.encoding):
        yield Row({"text": line}, number, source.name)


def _jsonl(source: Opened, options: _Options, bad: BadRows) -> Iterator[Row]:
    yield from _json_rows(text_lines(source, bad, encoding=options.encoding), source.name, bad)


def _json_rows(lines: Iterator[tuple[int, str]], name: str, bad: BadRows) -> Iterator[Row]:
    for number, line in lines:
        if not line.strip():
            continue
        try:
            value = parse_json(line, f"{name}, line {number}", one_line=True)
        except DataError as error:
            bad.report(error)
            continue
        yield from _object_row(value, number, name, "line", bad)


def _object_row(value: object, number: int, name: str, unit: str, bad: BadRows) -> Iterator[Row]:
    match value:
        case str():
            yield Row({"text": value}, number, name, unit)
        case dict():
            yield Row(value, number, name, unit)
        case _:
            got = type(value).__name__
            bad.report(bad_row(f'{name}, {unit} {number}: expected an object like {{"text": …}}, got {got}.'))


def _json(source: Opened, options: _Options, bad: BadRows) -> Iterator[Row]:
    text = whole_text(source, encoding=options.encoding, limit=MAX_JSON_BYTES)
    try:
        document = parse_json(text, source.name)
    except DataError:
        # Many files called .json hold JSON lines; then the first line is an object by itself.
        first, _, rest = text.lstrip().partition("\n")
        if not (first.startswith("{") and first.rstrip().endswith("}") and rest.strip()):
            raise
        yield from _json_rows(enumerate(text.split("\n"), start=1), source.name, bad)
        return
    rows = items(fields(document).get("data"))
    if rows and "paragraphs" in fields(rows[0]):
        raise DataError(
            f"{source.name}: a SQuAD file, not a list of rows.",
            "Its questions are for read_squad, or for `bertie answer -f`.",
        )
    rows = items(document) if rows is None else rows
    if rows is None:
        raise DataError(
            f"{source.name}: expected a list of objects, got {_json_type(document)}.",
            "Write it as [{…}, {…}], or as JSON lines (jsonl).",
        )
    for number, value in enumerate(rows, start=1):
        yield from _object_row(value, number, source.name, "item", bad)


def _json_type(value: object) -> str:
    if keys := ", ".join(map(repr, list(fields(value))[:6])):
        return f"an object with the keys {keys}"
    return "an empty object" if value == {} else type(value).__name__


def parse_json(text: str, where: str, *, one_line: bool = False) -> object:
    """`json.loads` whose every failure is a `DataError` that says where."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        if not text.strip():
            raise DataError(f"{where}: is empty.", "Nothing was written to it; write it again.") from None
        at = f"column {error.colno}" if one_line else f"line {error.lineno}, column {error.colno}"
        raise bad_row(f"{where}: not JSON: {error.msg} at {at}.") from None
    except RecursionError:
        raise bad_row(f"{where}: JSON nested too deeply.") from None
    except ValueError as error:  # an integer of more digits than Python takes
        raise bad_row(f"{where}: not JSON that can be read: {error}.") from None


def _csv_records(source: Opened, options: _Options, bad: BadRows) -> Iterator[tuple[int, list[str]]]:
    # A process-wide setting of the csv module, 128 KB at first: too little for a document. It is only ever raised.
    csv.field_size_limit(max(MAX_LINE_BYTES, csv.field_size_limit()))
    if options.delimiter is not None and (len(options.delimiter) != 1 or options.delimiter in '"\r\n'):
        raise DataError(
            "{delimiter} cannot separate the columns of a csv file.",
            "It is one character, such as ';', and no quote or line end.",
            delimiter=options.delimiter,
        )
    lines = _Counted(text_lines(source, bad, encoding=options.encoding, keep_ends=True))
    reader = csv.reader(lines, delimiter=options.delimiter or ",", strict=True)
    while True:
        begin = lines.number + 1
        try:
            yield begin, next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            cause = str(error).partition(" - do you need")[0]
            spanned = f" to {lines.number}" if lines.number > begin else ""
            bad.report(
                DataError(
                    f"{source.name}, line {begin}{spanned}: not csv: {cause}.",
                    "Double each quote inside a quoted field and close the field, "
                    "or read it as tsv if quotes mean nothing in it.",
                )
            )


def _tsv_records(source: Opened, options: _Options, bad: BadRows) -> Iterator[tuple[int, list[str]]]:
    for number, line in text_lines(source, bad, encoding=options.encoding):
        yield number, line.split(options.delimiter or "\t") if line else []


def _table(kind: str, source: Opened, options: _Options, bad: BadRows) -> Iterator[Row]:
    name, records = source.name, _RECORDS[kind](source, options, bad)
    header = list(options.columns) if options.columns is not None else _header(records, name, options, bad)
    width = len(header)
    for number, cells in records:
        if not cells:
            if width > 1:
                continue
            cells = [""]
        if len(cells) != width:
            named = ", ".join(header[:8]) + (" …" if width > 8 else "")
            bad.report(bad_row(f"{name}, line {number}: {len(cells)} columns; expected {width} ({named})."))
            continue
        yield Row(dict(zip(header, cells, strict=True)), number, name)


def _header(records: Iterator[tuple[int, list[str]]], name: str, options: _Options, bad: BadRows) -> list[str]:
    already_bad = bad.count
    header = next((cells for _, cells in records if cells), None)
    if header is None:
        raise DataError(f"{name}: is empty: not even a header line.", "The first line should name the columns.")
    if bad.count > already_bad:
        # Skipping it would make a header of the first row.
        raise DataError(f"{name}: the header line cannot be read: {bad.first[-1].cause}", bad.first[-1].remedy)
    doubled = sorted({column for column in header if header.count(column) > 1})
    if doubled:
        raise DataError(f"{name}, line 1: two columns are called {doubled[0]!r}.", "Give each column its own name.")
    if len(header) == 1 and options.delimiter is None:
        for other in (";", "\t", "|"):
            if other in header[0]:
                raise DataError(
                    f"{name}, line 1: the header {header[0]!r} is one column, with {other!r} in it.",
                    "If that separates the columns: {delimiter}.",
                    delimiter=other,
                )
    return header


class _Counted(Iterator[str]):
    """Lines, and the number of the last one: csv.reader counts wrongly where lines were left out."""

    def __init__(self, lines: Iterator[tuple[int, str]]) -> None:
        self._lines = lines
        self.number = 0

    def __next__(self) -> str:
        self.number, line = next(self._lines)
        return line


_RECORDS: dict[str, Callable[[Opened, _Options, BadRows], Iterator[tuple[int, list[str]]]]] = {
    "csv": _csv_records,
    "tsv": _tsv_records,
}
_TEXT_FORMATS: dict[str, Callable[[Opened, _Options, BadRows], Iterator[Row]]] = {
    "txt": _txt,
    "jsonl": _jsonl,
    "json": _json,
    "csv": partial(_table, "csv"),
    "tsv": partial(_table, "tsv"),
}
