"""Rows of a corpus as an index stores them: which columns hold the text and the id, and a row as one line of JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from itertools import chain

from bertie.data import Row, RowReader, choose_text, text_of
from bertie.errors import DataError

_ID_COLUMNS = ("id", "_id", "doc_id", "docid", "document_id", "pid", "guid")


class IndexRows:
    """Iterates over (text, line). The columns are settled by the first row: those given, else the index's usual ones.

    Without an id column rows are numbered, from `first_number` on.
    """

    def __init__(
        self,
        reader: RowReader,
        *,
        text_column: str | None,
        id_column: str | None,
        usual: tuple[str | None, str | None],
        first_number: int,
    ) -> None:
        self._reader = reader
        self._given = text_column, id_column
        self._usual = usual
        self._number = first_number
        self._rows = iter(reader)
        self._first = next(self._rows, None)
        self.text_column, self.id_column = usual
        if self._first is not None:
            self.text_column, self.id_column = self._choose(list(self._first.values))

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        if self._first is None or self.text_column is None:
            return
        for row in chain((self._first,), self._rows):
            try:
                text, identity = text_of(row, self.text_column), self._id_of(row)
            except DataError as error:
                self._reader.bad.report(error)
                continue
            yield text, line_of(identity, text)
            self._number += 1

    def _choose(self, columns: Sequence[str]) -> tuple[str, str | None]:
        (text, identity), (usual_text, usual_id) = self._given, self._usual
        chosen = choose_text(
            columns, given=text or (usual_text if usual_text in columns else None), source=self._reader.name
        )
        if identity is not None and identity not in columns:
            raise DataError(
                f"{self._reader.name}: there is no column {identity!r} for the ids; there are: {', '.join(columns)}.",
                "Name one of these with id_column=, or leave it out to number the rows.",
            )
        if identity is None and usual_id in columns:
            identity = usual_id
        return chosen, identity or next((name for name in _ID_COLUMNS if name in columns), None)

    def _id_of(self, row: Row) -> str:
        if self.id_column is None:
            return str(self._number)
        value = row.values.get(self.id_column)
        if value is None or isinstance(value, list | dict):
            raise DataError(
                f"{row.where}: the id in column {self.id_column!r} is {value!r:.40}.", "Give every row an id."
            )
        return str(value)


def line_of(identity: str, text: str) -> bytes:
    """One line of JSON."""
    values = {"id": identity, "text": text}
    try:
        return json.dumps(values, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can spell and UTF-8 cannot
        return json.dumps(values).encode() + b"\n"


def linked(rows_hash: str, line: bytes) -> str:
    """The hash of all rows so far, given that of those before and the next one."""
    return hashlib.blake2b(rows_hash.encode() + line, digest_size=16).hexdigest()
