"""Rows out: jsonl, json, csv, tsv, txt, parquet, and vectors as npy or npz, to a file or to standard output.

A file appears whole or not at all, when the writer closes without an error. Standard output is flushed row by row; when
its reader has gone (`| head`), `reader_gone` says so and the rest is dropped without noise. NumPy and torch values
become plain ones, NaN and infinities null (JSON has no word for them); in csv and tsv, lists are JSON strings. tsv and
txt have no way to hold a tab or line break, so these become spaces.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, is_dataclass
from datetime import date, time
from functools import singledispatch
from pathlib import Path
from typing import IO, Any, cast

from bertie.data.arrays import ArrayRows
from bertie.data.arrow import ParquetRows
from bertie.data.rows import FORMATS, known_format
from bertie.data.source import PathLike, reason_of
from bertie.errors import DataError
from bertie.files import NewFile

STANDARD_OUTPUT = "-"
_QUOTABLE = re.compile(r'[",\r\n]')
_ARRAYS = ("npy", "npz")
WRITABLE = (*(name for name in FORMATS if name != "arrow"), *_ARRAYS)


def plain(value: object) -> Any:
    """`value` as JSON's own types.

    >>> plain({"score": float("nan"), "spans": ((0, 4),)})
    {'score': None, 'spans': [[0, 4]]}
    """
    kind = type(value)
    if kind in _JSON_TYPES:
        return value
    # What rows are made of goes the short way; what derives from it, and all the rest, by its type.
    return _plain_dict(value) if kind is dict else _plain_list(value) if kind is list else _plain(value)


_JSON_TYPES = {str, int, bool, type(None)}


def _plain_dict(value: Any) -> dict[str, Any]:
    return {str(key): plain(each) for key, each in value.items()}


def _plain_list(value: Any) -> list[Any]:
    return [plain(each) for each in value]


@singledispatch
def _plain(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if hasattr(value, "tolist"):  # NumPy arrays and scalars, torch tensors
        return _plain_array(value.tolist())
    raise DataError(f"A value of type {type(value).__name__} cannot be written.", "Turn it into text or numbers first.")


@_plain.register
def _(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


_plain.register(str, lambda value: value)
_plain.register(int, int)  # enumerations of numbers derive from it
_plain.register(Mapping, _plain_dict)
_plain.register(os.PathLike, os.fspath)
for _sequence in (list, tuple, set, frozenset):
    _plain.register(_sequence, _plain_list)
for _moment in (date, time):
    _plain.register(_moment, lambda value: value.isoformat())


def _plain_array(values: object) -> Any:
    # A vector is of one type, so its first number speaks for all, and its sum for their being finite.
    if isinstance(values, list) and values and type(values[0]) in (int, float) and math.isfinite(sum(values)):
        return values
    return plain(values)


class RowWriter:
    """Writes rows, as a context manager:

        with RowWriter("answers.jsonl") as out:
            out.write({"text": "…", "score": 0.9})

    `columns` settles the order and choice of columns of csv, tsv and parquet; otherwise the first row does.
    """

    def __init__(
        self,
        path: PathLike,
        *,
        format: str | None = None,  # noqa: A002  (what every command and user calls it)
        columns: Sequence[str] | None = None,
    ) -> None:
        self.name = "standard output" if os.fspath(path) == STANDARD_OUTPUT else os.fspath(path)
        self.count = 0
        kind = _writable_format(path, format)
        self._place = _Place(path)
        self._line = _LINES.get(kind, _json_value)
        self._columns = list(columns) if columns is not None else None
        self._strict_columns = kind in ("csv", "tsv", "parquet", *_ARRAYS)
        self._json_list = kind == "json"
        self._header_due = kind in ("csv", "tsv")
        self._binary: ParquetRows | ArrayRows | None = None
        try:
            if kind == "parquet":
                self._binary = ParquetRows(self._place.stream, self.name)
            elif kind in _ARRAYS:
                self._binary = ArrayRows(self._place.stream, self.name, kind)
            if self._json_list:
                self._place.put("[")
        except BaseException:
            self._place.discard()
            raise

    @property
    def reader_gone(self) -> bool:
        """Whether whoever read our standard output has stopped; what is written from then on is dropped."""
        return self._place.reader_gone

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def write(self, values: Mapping[str, object]) -> None:
        """Write one row."""
        if self._columns is None:
            self._columns = list(values)
        if self._strict_columns and (extra := [name for name in values if name not in self._columns]):
            raise DataError(
                f"{self.name}, row {self.count + 1}: a column {extra[0]!r} that earlier rows do not have.",
                f"Give every row the same columns, or name all with columns=; so far: {', '.join(self._columns)}.",
            )
        if self._binary is not None:
            if not self.reader_gone:
                with self._place.guarded():
                    self._binary.write({name: _arrow_value(value) for name, value in values.items()}, self._columns)
        else:
            self._head()
            if self._json_list:
                self._place.put(",\n" if self.count else "\n")
            self._place.put(self._line(values, self._columns))
        self.count += 1

    def write_all(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Write rows until there are no more, or nobody reads them any longer."""
        for values in rows:
            if self.reader_gone:
                return
            self.write(values)

    def write_line(self, line: str) -> None:
        """Write a line of a txt file as it is, for formats that are lines of their own."""
        self._place.put(line + "\n")
        self.count += 1

    def close(self) -> None:
        """Finish and put the file in its place."""
        if self._place.closed:
            return
        try:
            self._head()
            if self._json_list:
                self._place.put("\n]\n" if self.count else "]\n")
            if self._binary is not None:
                with self._place.guarded():
                    if not self.reader_gone:
                        self._binary.close()
                if self.reader_gone:
                    self._binary.discard()
        except BaseException:
            self.discard()
            raise
        self._place.keep()

    def discard(self) -> None:
        """Give up: a file that was there before stays as it was, and of the new one nothing is left."""
        if self._binary is not None:
            self._binary.discard()
        self._place.discard()

    def _head(self) -> None:
        if self._header_due and self._columns is not None:
            self._header_due = False
            self._place.put(self._line({name: name for name in self._columns}, self._columns))


class _Place:
    """Where bytes go: a new file for its final place, a pipe or device as it is, or standard output."""

    def __init__(self, path: PathLike) -> None:
        self.reader_gone = False
        self.closed = False
        self._new: NewFile | None = None
        self._standard = os.fspath(path) == STANDARD_OUTPUT
        self._name = "standard output" if self._standard else os.fspath(path)
        self._packed: IO[bytes] | None = None
        if self._standard:
            stream: IO[bytes] | None = getattr(sys.stdout, "buffer", None)
            if stream is None:
                raise DataError("standard output: there is none to write to.", "Give a file.")
            sys.stdout.flush()
            self._file = stream
        else:
            # Through a link to the file it names: renaming onto the link would part the two.
            self._final = Path(os.path.realpath(path))
            self._file = self._create()
            self._packed = _compressor(Path(path).suffix.lower(), self._file)
        self.stream = self._packed or self._file

    def put(self, text: str) -> None:
        # Lone surrogates cannot be UTF-8; the JSON formats have escaped them by now.
        data = text.encode("utf-8", "replace")
        if self.reader_gone:
            return
        with self.guarded():
            self.stream.write(data)
            if self._standard:
                self.stream.flush()

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """A reader who has left is noted; any other failure to write is a `DataError`."""
        try:
            yield
        except BrokenPipeError:
            self._leave()
        except OSError as error:
            raise self._failure(error) from error

    def keep(self) -> None:
        self.closed = True
        try:
            if self._packed is not None:
                self._packed.close()
            if self._new is not None:
                self._new.keep()
            elif not self.reader_gone:
                self._file.flush()
            if not self._standard:
                self._file.close()
        except BrokenPipeError:
            self._leave()
        except OSError as error:
            self.discard()
            raise self._failure(error) from error

    def discard(self) -> None:
        """Forget what was written; the file that was there before stays."""
        self.closed = True
        if self._new is not None:
            self._new.discard()
        elif not self._standard:
            with suppress(OSError):
                self._file.close()

    def _create(self) -> IO[bytes]:
        try:
            if self._final.exists() and not self._final.is_file():
                if self._final.is_dir():
                    raise DataError(f"{self._name}: a folder.", "Give the name of a file in it.")
                return open(self._final, "wb")
            self._new = NewFile(self._final)
            return self._new.stream
        except DataError:
            raise
        except (OSError, ValueError) as error:
            raise self._failure(error) from None

    def _failure(self, error: Exception) -> DataError:
        match error:
            case FileNotFoundError():
                cause, remedy = f"there is no folder {self._final.parent}", "Make it first: mkdir -p."
            case PermissionError():
                cause, remedy = "permission denied", "Write somewhere else, or make the folder writable."
            case _:
                cause, remedy = f"cannot be written: {reason_of(error)}", "Check the disk; what was there is unchanged."
        return DataError(f"{self._name}: {cause}.", remedy)

    def _leave(self) -> None:
        self.reader_gone = True
        if not self._standard:
            return
        # At exit Python flushes standard output once more; into nothing, so that it does not complain.
        with suppress(OSError, ValueError):
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self._file.fileno())
            os.close(nothing)


def told_format(path: PathLike, given: str | None = None) -> str | None:
    """The format an output is written in: the one given, or told by the name; None for pipes and devices."""
    told = given or Path(path).suffix[1:].lower()
    return told if told in _ARRAYS else known_format(path, given)


def _writable_format(path: PathLike, given: str | None) -> str:
    name = os.fspath(path)
    found = told_format(path, given)
    if found is None and (name == STANDARD_OUTPUT or Path(name).exists()):
        return "jsonl"
    if found not in WRITABLE:
        raise DataError(
            f"{name}: " + ("arrow files are not written." if found else "its format cannot be recognized by its name."),
            f"Give it with format= (--format): one of {', '.join(WRITABLE)}.",
        )
    return found


def _compressor(suffix: str, file: IO[bytes]) -> IO[bytes] | None:
    if suffix == ".gz":
        # No name and no time inside: the same rows give the same bytes.
        return cast(IO[bytes], gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0))
    if suffix == ".xz":
        return lzma.LZMAFile(file, "wb")
    if suffix == ".bz2":
        return bz2.BZ2File(file, "wb")
    return None


def _json_value(values: Mapping[str, object], columns: Sequence[str]) -> str:
    row = plain(values)
    text = json.dumps(row, ensure_ascii=False, allow_nan=False)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(row, allow_nan=False)
    return text


def _cell(value: object) -> str:
    value = plain(value)
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _one_line(text: str) -> str:
    return text.replace("\r\n", " ").replace("\n", " ").replace("\r", " ")


def _csv_line(values: Mapping[str, object], columns: Sequence[str]) -> str:
    # By hand: the csv module leaves a lone carriage return unquoted when lines end in "\n", and then cannot read it.
    cells = [_cell(values.get(name)) for name in columns]
    quoted = ['"' + cell.replace('"', '""') + '"' if _QUOTABLE.search(cell) else cell for cell in cells]
    return (",".join(quoted) if len(cells) > 1 or quoted != [""] else '""') + "\n"


def _tsv_line(values: Mapping[str, object], columns: Sequence[str]) -> str:
    return "\t".join(_one_line(_cell(values.get(name))).replace("\t", " ") for name in columns) + "\n"


def _txt_line(values: Mapping[str, object], columns: Sequence[str]) -> str:
    name = "text" if "text" in values else next(iter(values), "text")
    if len(values) > 1 and name != "text":
        raise DataError(
            f"A txt file holds one text per line, and the row has {', '.join(values)}.", "Write jsonl, csv or tsv."
        )
    return _one_line(_cell(values.get(name))) + "\n"


def _arrow_value(value: object) -> object:
    # Vectors stay NumPy's: their type (float32, int8) becomes the column's, at a fraction of the cost of a list.
    if getattr(value, "ndim", None) == 1 and type(value).__module__ == "numpy":
        return value
    return value if isinstance(value, bytes) else plain(value)


_LINES: dict[str, Callable[[Mapping[str, object], Sequence[str]], str]] = {
    "csv": _csv_line,
    "tsv": _tsv_line,
    "txt": _txt_line,
    "json": _json_value,
    "jsonl": lambda values, columns: _json_value(values, columns) + "\n",
}
