"""Search collections: documents, queries, and judgements of which answers which.

Documents and queries come as TREC's tagged text (`<DOC><DOCNO>…`, `<top><num>…<title>…`), as BEIR's json lines
(`_id`, `title`, `text`), or as lines of an id, a tab and a text. Judgements are TREC's `query 0 document relevance`, or
BEIR's three columns. ReQA's json holds questions beside answer sentences (Ahmad et al. 2019).
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from bertie.data.reading import SKIP_REMEDY, BadRows, Reader
from bertie.data.rows import MAX_JSON_BYTES, Row, known_format, parse_json, rows_of
from bertie.data.source import (
    MAX_LINE_BYTES,
    Opened,
    PathLike,
    check_readable,
    is_regular,
    opened,
    source_name,
    text_lines,
    whole_text,
)
from bertie.errors import DataError

_RECORD_START = re.compile(r"<(doc|top)>", re.IGNORECASE)
_RECORD_END = re.compile(r"</(doc|top)>", re.IGNORECASE)
_FIELD = re.compile(r"<(\w+)>(.*?)</\1\s*>", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(r"</?\w+>")


@dataclass(frozen=True, slots=True)
class Passage:
    """A document or a query of a collection."""

    id: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """How relevant a document is to a query; 0 is not at all."""

    query: str
    document: str
    relevance: int


@dataclass(frozen=True, slots=True)
class AnswerRetrieval:
    """Questions, candidate sentences, and for each question the indices of the candidates that answer it."""

    questions: tuple[str, ...]
    candidates: tuple[str, ...]
    relevant: tuple[tuple[int, ...], ...]


def read_collection(path: PathLike, *, skip_bad: bool = False) -> Reader[Passage]:
    """The documents of a collection, streamed."""
    return _passages(path, skip_bad, ("docno", "doc", "id"), ("text",))


def read_queries(path: PathLike, *, renumber: bool = False, skip_bad: bool = False) -> Reader[Passage]:
    """The queries of a collection; what they ask is their `text`.

    `renumber` counts them from 1 in place of their own ids, as Cranfield's judgements do.
    """
    queries = _passages(path, skip_bad, ("num", "id"), ("title", "text"))
    if not renumber:
        return queries

    def read(bad: BadRows) -> Iterator[Passage]:
        for number, query in enumerate(queries.reading(bad), start=1):
            yield replace(query, id=str(number))

    return Reader(queries.name, read, skip_bad=skip_bad, once=queries.once)


def read_judgements(path: PathLike, *, skip_bad: bool = False) -> Reader[Judgement]:
    """The judgements (qrels) of a collection."""
    check_readable(path)
    name = source_name(path)

    def read(bad: BadRows) -> Iterator[Judgement]:
        with opened(path) as source:
            for number, line in text_lines(source, bad):
                fields = line.split()
                if not fields or (number == 1 and fields[0] in ("query-id", "query_id", "qid")):
                    continue
                try:
                    yield _judgement(fields, f"{name}, line {number}")
                except DataError as error:
                    bad.report(error)

    return Reader(name, read, skip_bad=skip_bad, once=not is_regular(path))


def read_answer_retrieval(path: PathLike, *, encoding: str = "utf-8") -> AnswerRetrieval:
    """ReQA's json: `questions` with `candidates` and `ground_truths`, or with an answer each in `answers`."""
    name = source_name(path)
    with opened(path) as source:
        document = parse_json(whole_text(source, encoding=encoding, limit=MAX_JSON_BYTES), name)
    fields: dict[str, Any] = document if isinstance(document, dict) else {}
    questions: Any = fields.get("questions")
    candidates: Any = fields.get("candidates", fields.get("answers"))
    if not _texts(questions) or not _texts(candidates):
        raise DataError(
            f"{name}: wanted lists of texts, 'questions' and 'candidates' or 'answers'; got: {', '.join(fields)}.",
            "Check that this is a ReQA file.",
        )
    relevant = fields.get("ground_truths", [[index] for index in range(len(candidates))])
    if not isinstance(relevant, list) or len(relevant) != len(questions):
        raise DataError(f"{name}: {len(questions)} questions, and the answers of {len(relevant)}.", "Write it again.")
    for question, indices in enumerate(relevant):
        if not isinstance(indices, list) or not all(type(i) is int and 0 <= i < len(candidates) for i in indices):
            raise DataError(
                f"{name}, ground_truths[{question}]: {indices!r:.60} are not indices of {len(candidates)} candidates.",
                "Write it again.",
            )
    return AnswerRetrieval(tuple(questions), tuple(candidates), tuple(map(tuple, relevant)))


def _passages(
    path: PathLike, skip_bad: bool, id_fields: tuple[str, ...], text_fields: tuple[str, ...]
) -> Reader[Passage]:
    check_readable(path)
    name = source_name(path)

    def read(bad: BadRows) -> Iterator[Passage]:
        seen: set[str] = set()
        with opened(path) as source:
            rows = _tagged(source, bad) if source.head.lstrip().startswith(b"<") else _rows(path, source, bad)
            for row in rows:
                try:
                    passage = _passage(row, id_fields, text_fields)
                    if passage.id in seen:
                        raise DataError(f"{row.where}: a second one with the id {passage.id!r}.", SKIP_REMEDY)
                except DataError as error:
                    bad.report(error)
                    continue
                seen.add(passage.id)
                yield passage

    return Reader(name, read, skip_bad=skip_bad, once=not is_regular(path))


def _passage(row: Row, id_fields: tuple[str, ...], text_fields: tuple[str, ...]) -> Passage:
    values: Mapping[str, Any] = row.values
    identity = next((values[key] for key in ("_id", *id_fields) if values.get(key) not in (None, "")), None)
    text = next((values[key] for key in text_fields if isinstance(values.get(key), str)), None)
    if text is None and isinstance(values.get("text"), str):
        text = values["text"]
    if identity is None or text is None:
        raise DataError(
            f"{row.where}: no {'id' if identity is None else 'text'}; there are: {', '.join(values)}.", SKIP_REMEDY
        )
    title = values.get("title") if text_fields == ("text",) else ""
    return Passage(str(identity), str(title or ""), text)


def _rows(path: PathLike, source: Opened, bad: BadRows) -> Iterator[Row]:
    if is_regular(path) and known_format(path, None) == "tsv":
        # MS MARCO's files have no header: an id, a tab and a text from the first line on.
        headed = source.head.split(b"\t")[0].strip() in (b"id", b"_id", b"qid", b"docno")
        yield from rows_of(source, bad, format="tsv", columns=None if headed else ("id", "text"))
    else:
        yield from rows_of(source, bad, format=known_format(path, None), path=path)


def _tagged(source: Opened, bad: BadRows) -> Iterator[Row]:
    """TREC's records. They look like XML without being it (no root, bare text), so only their tags are looked at."""
    record: list[str] = []
    begin = size = 0
    for number, line in text_lines(source, bad):
        if _RECORD_START.search(line):
            if record:
                bad.report(DataError(f"{source.name}, line {begin}: a record that is not closed.", SKIP_REMEDY))
            record, begin, size = [], number, 0
        if begin:
            record.append(line)
            size += len(line)
            if size > MAX_LINE_BYTES:
                raise DataError(f"{source.name}, line {begin}: a record that is not closed.", "Check the file.")
        if begin and _RECORD_END.search(line):
            yield Row(_fields("\n".join(record)), begin, source.name)
            record, begin = [], 0
    if record:
        bad.report(DataError(f"{source.name}, line {begin}: a record that is not closed.", SKIP_REMEDY))


def _fields(record: str) -> dict[str, str]:
    body = _RECORD_END.sub("", _RECORD_START.sub("", record, count=1))
    fields = {match[1].lower(): _clean(match[2]) for match in _FIELD.finditer(body)}
    # Vaswani's documents are bare text after the number.
    if "text" not in fields and "title" not in fields:
        fields["text"] = _clean(_FIELD.sub(" ", body))
    return fields


def _clean(text: str) -> str:
    return " ".join(html.unescape(_TAG.sub(" ", text)).split())


def _judgement(fields: list[str], where: str) -> Judgement:
    if len(fields) not in (3, 4):
        raise DataError(f"{where}: {len(fields)} columns; wanted query, 0, document, relevance.", SKIP_REMEDY)
    try:
        relevance = int(fields[-1])
    except ValueError:
        raise DataError(f"{where}: the relevance {fields[-1]!r} is not a whole number.", SKIP_REMEDY) from None
    return Judgement(fields[0], fields[-2], relevance)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)
