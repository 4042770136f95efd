"""Raw text for pretraining as Google's BERT takes it: one sentence or paragraph per line, blank lines between texts.

See https://github.com/google-research/bert#pre-training-with-bert. Files are streamed, packed ones too; a document ends
with its file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bertie.data.reading import BadRows, Reader
from bertie.data.source import PathLike, check_readable, is_regular, opened, source_name, text_lines
from bertie.errors import DataError


@dataclass(frozen=True, slots=True)
class Document:
    """The lines of a document without the space around them, the file it is from, and the line it begins at."""

    lines: tuple[str, ...]
    source: str
    line: int


def read_documents(
    paths: PathLike | Iterable[PathLike],
    *,
    encoding: str = "utf-8",
    skip_bad: bool = False,
    max_lines: int = 2**16,
) -> Reader[Document]:
    """The documents of one file or several, in order.

    A document of more than `max_lines` lines is given out in pieces of that many, so that a file without any blank line
    does not fill the memory.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not given:
        raise DataError("No files were given to read documents from.", "Name one file or more.")
    if max_lines < 1:
        raise DataError("{max_lines} should be 1 or more.", max_lines=max_lines)
    for path in given:
        check_readable(path)

    def read(bad: BadRows) -> Iterator[Document]:
        for path in given:
            yield from _documents(path, encoding, max_lines, bad)

    name = source_name(given[0]) if len(given) == 1 else f"{source_name(given[0])} and {len(given) - 1} more"
    return Reader(name, read, skip_bad=skip_bad, once=not all(map(is_regular, given)))


def _documents(path: PathLike, encoding: str, max_lines: int, bad: BadRows) -> Iterator[Document]:
    lines: list[str] = []
    begin = 0
    with opened(path) as source:
        for number, line in text_lines(source, bad, encoding=encoding):
            text = line.strip()
            if lines and (not text or len(lines) == max_lines):
                yield Document(tuple(lines), source.name, begin)
                lines = []
            if text:
                begin = begin if lines else number
                lines.append(text)
        if lines:
            yield Document(tuple(lines), source.name, begin)
