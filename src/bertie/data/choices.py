"""Multiple choice: CommonsenseQA's json lines (Talmor et al. 2019), the same as `datasets` flattens it, SWAG's columns.

SWAG (Zellers et al. 2018) begins a second sentence, and each of its endings completes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bertie.data.lists import as_rows
from bertie.data.reading import Reader, bad_row, converted
from bertie.data.rows import Row, read_rows
from bertie.data.source import PathLike
from bertie.errors import DataError
from bertie.json_values import fields, items, text, texts

_ENDING = re.compile(r"ending\d+")


@dataclass(frozen=True, slots=True)
class ChoiceQuestion:
    """A question, its choices with the labels they go by, and the index of the right one (None if untold)."""

    id: str
    question: str
    choices: tuple[str, ...]
    labels: tuple[str, ...]
    answer: int | None


def read_choices(path: PathLike, *, skip_bad: bool = False) -> Reader[ChoiceQuestion]:
    """The questions of a file of any row format."""
    return choice_rows(read_rows(path, skip_bad=skip_bad))


def choice_rows(rows: object) -> Reader[ChoiceQuestion]:
    """Questions out of rows.

    >>> rows = [{"question": "2 + 2?", "choices": ["3", "4"], "answer": 1}]
    >>> next(iter(choice_rows(rows))).answer
    1
    """

    def begin(first: Row) -> Callable[[Row], ChoiceQuestion]:
        wanted: int | None = None

        def checked(row: Row) -> ChoiceQuestion:
            nonlocal wanted
            question = _question(row)
            count = len(question.choices)
            if count != (wanted or count):
                raise bad_row(f"{row.where}: {count} choices; the rows before have {wanted}.")
            wanted = count
            return question

        return checked

    return converted(as_rows(rows), begin)


def _question(row: Row) -> ChoiceQuestion:
    values: dict[str, object] = dict(row.values)
    if inner := fields(values.get("question")):  # CommonsenseQA
        del values["question"]
        values = {**inner, "question": inner.get("stem"), **values}
    if "sent1" in values and "ending0" in values:  # SWAG
        endings = sorted((name for name in values if _ENDING.fullmatch(name)), key=lambda name: int(name[6:]))
        values["question"] = values["sent1"]
        values["choices"] = [f"{values.get('sent2') or ''} {values[name]}".strip() for name in endings]
    question = text(values.get("question"))
    if question is None:
        raise DataError(
            f"{row.where}: no question; there are: {', '.join(row.values)}.",
            'A row is {"question": …, "choices": […], "answer": …}.',
        )
    choices, labels = _choices(values.get("choices"), row)
    identity = str(values.get("id", row.line))
    return ChoiceQuestion(identity, question, choices, labels, _answer(values, labels, row))


def _choices(raw: object, row: Row) -> tuple[tuple[str, ...], tuple[str, ...]]:
    given = fields(raw)
    if given:  # as `datasets` has it: {"label": [...], "text": [...]}
        found, labels = texts(given.get("text")), texts(given.get("label"))
    elif all(map(fields, items(raw) or ())):  # CommonsenseQA's, an object to a choice
        found = texts([fields(choice).get("text") for choice in items(raw) or ()])
        labels = texts([fields(choice).get("label") for choice in items(raw) or ()])
    else:
        found = texts(raw)
        labels = [str(index) for index in range(len(items(raw) or ()))]
    if found is None or labels is None or len(found) < 2 or len(labels) != len(found):
        raise bad_row(f"{row.where}: 'choices' should be two texts or more, and is {raw!r:.60}.")
    return tuple(found), tuple(labels)


def _answer(values: Mapping[str, object], labels: tuple[str, ...], row: Row) -> int | None:
    key = next((name for name in ("answerKey", "answer", "label") if values.get(name) not in (None, "")), None)
    if key is None:
        return None
    answer = str(values[key])
    if answer in labels:
        return labels.index(answer)
    raise bad_row(f"{row.where}: the {key} {answer!r} is not one of the choices: {', '.join(labels)}.")
