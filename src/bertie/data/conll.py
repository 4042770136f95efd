"""CoNLL columns: a token and its tag to a line, a blank line between sentences (Tjong Kim Sang & De Meulder 2003).

Two to four columns, between tabs or else spaces; the token is the first and the tag the last. `-DOCSTART-` lines and
lines of nothing but tabs and spaces (WNUT17 has them) end a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from bertie.data.lists import as_rows
from bertie.data.reading import BadRows, Reader, bad_row, converted
from bertie.data.rows import Row
from bertie.data.source import Opened, PathLike, read_source, text_lines
from bertie.data.tags import Sentence, split_tag
from bertie.errors import DataError
from bertie.json_values import items

_DOCUMENT_START = "-DOCSTART-"
# Not `str.split()`, which also splits at characters that occur as tokens, such as U+00A0.
_SPACES = re.compile(r"[ \t]+")


def read_conll(
    path: PathLike,
    *,
    tagged: bool = True,
    check_prefixes: bool = False,
    encoding: str = "utf-8",
    skip_bad: bool = False,
) -> Reader[Sentence]:
    """The sentences of a file. One bad line makes a bad sentence.

    `tagged=False` takes the first column only, and one column will do. `check_prefixes` refuses tags that are not O or
    a prefix and a type, naming the line; `tag_scheme` says more about them.
    """

    def read(source: Opened, bad: BadRows) -> Iterator[Sentence]:
        building = _Building(source.name)
        width: int | None = None
        for number, line in text_lines(source, bad, encoding=encoding):
            if not line.strip(" \t") or line.startswith(_DOCUMENT_START):
                yield from building.finish(bad)
                continue
            fields = line.split("\t") if "\t" in line else _SPACES.split(line.strip(" "))
            where = f"{source.name}, line {number}"
            try:
                token, tag = _token(fields, where, tagged, width)
                if check_prefixes and tagged:
                    split_tag(tag, where=where)
            except DataError as error:
                building.error = building.error or error
                continue
            width = width or len(fields)
            building.add(token, tag, number)
        yield from building.finish(bad)

    return read_source(path, read, skip_bad=skip_bad)


def tagged_rows(rows: object, *, tokens: str | None = None, tags: str | None = None) -> Reader[Sentence]:
    """The same out of rows with a list of tokens and a list of tags each (jsonl, parquet, `datasets.Dataset`).

    >>> next(iter(tagged_rows([{"tokens": ["Bonn", "."], "ner_tags": ["B-LOC", "O"]}]))).tags
    ('B-LOC', 'O')
    """

    def sentence(row: Row) -> Sentence:
        words = _strings(row, (tokens,) if tokens else ("tokens", "words"))
        marks = _strings(row, (tags,) if tags else ("tags", "ner_tags", "labels"))
        if len(words) != len(marks):
            raise bad_row(f"{row.where}: {len(words)} tokens and {len(marks)} tags.")
        return Sentence(words, marks, (row.line,) * len(words), row.source)

    return converted(as_rows(rows), lambda first: sentence)


@dataclass(slots=True)
class _Building:
    """The sentence being read."""

    source: str
    tokens: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    error: DataError | None = None

    def add(self, token: str, tag: str, line: int) -> None:
        self.tokens.append(token)
        self.tags.append(tag)
        self.lines.append(line)

    def finish(self, bad: BadRows) -> Iterator[Sentence]:
        tokens, tags, lines, error = self.tokens, self.tags, self.lines, self.error
        self.tokens, self.tags, self.lines, self.error = [], [], [], None
        if error is not None:
            bad.report(error)
        elif tokens:
            yield Sentence(tuple(tokens), tuple(tags) if any(tags) else (), tuple(lines), self.source)


def _token(fields: list[str], where: str, tagged: bool, width: int | None) -> tuple[str, str]:
    if not tagged:
        if not fields[0]:
            raise bad_row(f"{where}: no token in the first column.")
        return fields[0], ""
    if len(fields) == 1:
        raise DataError(
            f"{where}: one column, {fields[0][:40]!r}; expected a token and a tag.",
            "Put a tab or a space between the two; for a file without tags: tagged=False.",
        )
    if len(fields) > 4 or (width is not None and len(fields) != width):
        wanted = "2 to 4" if width is None else f"{width}, as in the lines before"
        raise bad_row(f"{where}: {len(fields)} columns; expected {wanted}.")
    token, tag = fields[0], fields[-1].strip(" ")
    if not token or not tag:
        raise bad_row(f"{where}: no {'token' if not token else 'tag'} in {len(fields)} columns.")
    return token, tag


def _strings(row: Row, columns: tuple[str, ...]) -> tuple[str, ...]:
    column = next((name for name in columns if name in row.values), None)
    if column is None:
        wanted = " or ".join(map(repr, columns))
        raise bad_row(f"{row.where}: no column {wanted}; there are: {', '.join(row.values)}.")
    given = items(row.values[column])
    found = [each for each in given or () if isinstance(each, str | int)]
    if given is None or len(found) != len(given):
        raise bad_row(f"{row.where}: the column {column!r} should be a list of strings.")
    return tuple(map(str, found))
