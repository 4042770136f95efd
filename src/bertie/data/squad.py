"""Extractive questions: SQuAD 1.1 and 2.0 json, and flat rows of the same (Rajpurkar et al. 2016, 2018).

An answer is a text and the character it starts at, and the two must agree: `context[start:start + len(text)] == text`.
Where they do not, strict reading names the question. `repair=True` moves the answer to the nearest place where its text
does occur, leaves out one that occurs nowhere if the question has another, and counts both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bertie.data.lists import as_rows
from bertie.data.reading import BadRows, Reader, bad_row, converted
from bertie.data.rows import MAX_JSON_BYTES, Row, known_format, parse_json, read_rows
from bertie.data.source import Opened, PathLike, check_readable, is_regular, read_source, whole_text
from bertie.errors import DataError
from bertie.json_values import fields, items, text, whole


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer's text and the character of the context it starts at."""

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a context. Unlabelled questions have no answers and are not `is_impossible`."""

    id: str
    title: str
    question: str
    context: str
    answers: tuple[Answer, ...]
    is_impossible: bool


class QuestionReader(Reader[Question]):
    """Questions; `repaired` counts the answers that were moved, `dropped` those left out, in the latest iteration."""

    repaired: int = 0
    dropped: int = 0


def read_squad(
    path: PathLike,
    *,
    repair: bool = False,
    format: str | None = None,  # noqa: A002  (as in read_rows)
    encoding: str = "utf-8",
    skip_bad: bool = False,
    delimiter: str | None = None,
) -> QuestionReader:
    """The questions of a SQuAD json file, or of a jsonl, csv or parquet file of flat rows (see `question_rows`).

    The format is told by the extension, or by the caller.
    """
    check_readable(path)
    known = known_format(path, format) if is_regular(path) or format is not None else None
    if known not in ("json", None):
        rows = read_rows(path, format=known, encoding=encoding, skip_bad=skip_bad, delimiter=delimiter)
        return question_rows(rows, repair=repair)

    def placed(source: Opened, bad: BadRows) -> Iterator[_Placed]:
        document = parse_json(whole_text(source, encoding=encoding, limit=MAX_JSON_BYTES), source.name)
        flat = items(document)
        if flat is None:
            yield from _nested(document, source.name)
        for number, raw in enumerate(flat or (), start=1):
            yield _placed_row(Row(fields(raw), number, source.name, "item"))

    return _question_reader(read_source(path, placed, skip_bad=skip_bad), repair)


def question_rows(rows: object, *, repair: bool = False) -> QuestionReader:
    """Questions out of rows with `question`, `context` and optionally `id`, `title` and `answers`.

    `answers` is a list of `{"text", "answer_start"}`, or, as `datasets` has it, `{"text": […], "answer_start": […]}`.
    """
    placed = converted(as_rows(rows), lambda first: _placed_row)
    return _question_reader(placed, repair)


def _placed_row(row: Row) -> _Placed:
    return row.where, {"id": str(row.line), **row.values}, {}


# Where a question is, the question itself, and what it has from its paragraph and article.
_Placed = tuple[str, Mapping[str, object], Mapping[str, object]]


def _question_reader(placed: Reader[_Placed], repair: bool) -> QuestionReader:
    def read(bad: BadRows) -> Iterator[Question]:
        reader.repaired = reader.dropped = 0
        seen: set[str] = set()
        for where, raw, shared in placed.reading(bad):
            try:
                question, moved, dropped = _question(where, raw, shared, repair)
                if question.id in seen:
                    raise bad_row(f"{where}: a second question with the id {question.id!r}.")
            except DataError as error:
                bad.report(error)
                continue
            seen.add(question.id)
            reader.repaired += moved
            reader.dropped += dropped
            yield question

    reader = QuestionReader(placed.name, read, skip_bad=placed.skip_bad, once=placed.once)
    return reader


def _nested(document: object, name: str) -> Iterator[_Placed]:
    articles = _list(document, "data", name, "a SQuAD file")
    for a, article in enumerate(articles):
        paragraphs = _list(article, "paragraphs", f"{name}, data[{a}]", "an article")
        for p, paragraph in enumerate(paragraphs):
            where = f"{name}, data[{a}].paragraphs[{p}]"
            for q, raw in enumerate(_list(paragraph, "qas", where, "a paragraph")):
                shared = {"title": fields(article).get("title", ""), "context": fields(paragraph).get("context")}
                yield f"{where}.qas[{q}]", fields(raw), shared


def _list(value: object, key: str, where: str, what: str) -> list[object]:
    found = items(fields(value).get(key))
    if found is not None:
        return found
    keys = ", ".join(map(repr, list(fields(value))[:6])) or ("nothing" if value == {} else type(value).__name__)
    raise DataError(
        f"{where}: {what} has a list called {key!r}; this has: {keys}.",
        'SQuAD is {"data": [{"paragraphs": [{"context": …, "qas": […]}]}]}.',
    )


def _question(
    where: str, raw: Mapping[str, object], shared: Mapping[str, object], repair: bool
) -> tuple[Question, int, int]:
    values = {**shared, **raw}
    identity = values.get("id")
    if not isinstance(identity, str | int):
        raise bad_row(f"{where}: no 'id'.")
    where = f"{where} (question {identity})"
    asked, context = (_text(values, key, where) for key in ("question", "context"))
    impossible = bool(values.get("is_impossible", False))
    answers = []
    lost: list[DataError] = []
    moved = 0
    for words, start in _answers(values.get("answers"), where):
        if impossible:
            raise bad_row(f"{where}: marked impossible, and yet it has the answer {words[:40]!r}.")
        try:
            answer = _placed_answer(words, start, context, where, repair)
        except DataError as error:
            lost.append(error)
            continue
        moved += answer.start != start
        answers.append(answer)
    if lost and not (repair and answers):
        raise lost[0]
    title = str(values.get("title") or "")
    question = Question(str(identity), title, asked, context, tuple(answers), impossible)
    return question, moved, len(lost)


def _text(values: Mapping[str, object], key: str, where: str) -> str:
    found = text(values.get(key))
    if found is None:
        raise bad_row(f"{where}: {key!r} should be text, and is {values.get(key)!r:.40}.")
    return found


def _answers(raw: object, where: str) -> list[tuple[str, int]]:
    given = items(raw)
    match raw:
        case None:
            return []
        case Mapping():
            all_words, starts = items(raw.get("text")), items(raw.get("answer_start"))
            if all_words is None or starts is None or len(all_words) != len(starts):
                raise bad_row(f"{where}: 'text' and 'answer_start' should be lists of one length.")
            given = [{"text": words, "answer_start": start} for words, start in zip(all_words, starts, strict=True)]
    if given is None:
        raise bad_row(f"{where}: 'answers' should be a list, and is {type(raw).__name__}.")
    pairs = []
    for answer in given:
        words, start = text(fields(answer).get("text")), whole(fields(answer).get("answer_start"))
        if not words or start is None:
            raise bad_row(f"{where}: an answer is a text and a whole answer_start; got {answer!r:.80}.")
        pairs.append((words, start))
    return pairs


def _placed_answer(text: str, start: int, context: str, where: str, repair: bool) -> Answer:
    if start >= 0 and context.startswith(text, start):
        return Answer(text, start)
    nearest = _nearest(text, start, context)
    if repair and nearest is not None:
        return Answer(text, nearest)
    got = context[max(start, 0) : max(start, 0) + len(text)]
    there = f"the nearest is at {nearest}" if nearest is not None else "it is nowhere in the context"
    cause = f"{where}: at character {start} expected the answer {text[:60]!r}, got {got[:60]!r}; {there}."
    if nearest is None:
        raise bad_row(cause)
    remedy = "Correct answer_start (in characters, not bytes), or move answers to the nearest place: {repair}."
    raise DataError(cause, remedy, repair=True)


def _nearest(text: str, start: int, context: str) -> int | None:
    """The occurrence of `text` that begins nearest to `start`; the earlier of two as near."""
    start = min(max(start, 0), len(context))
    before = context.rfind(text, 0, start + len(text))
    after = context.find(text, start)
    found = [place for place in (before, after) if place >= 0]
    return min(found, key=lambda place: abs(place - start)) if found else None
