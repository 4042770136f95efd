"""Answer retrieval: ReQA's json, questions beside the sentences that may answer them (Ahmad et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

from bertie.data.rows import MAX_JSON_BYTES, parse_json
from bertie.data.source import PathLike, opened, source_name, whole_text
from bertie.errors import DataError


@dataclass(frozen=True, slots=True)
class AnswerRetrieval:
    """Questions, candidate sentences, and for each question the indices of the candidates that answer it."""

    questions: tuple[str, ...]
    candidates: tuple[str, ...]
    relevant: tuple[tuple[int, ...], ...]


def read_answer_retrieval(path: PathLike, *, encoding: str = "utf-8") -> AnswerRetrieval:
    """ReQA's json: `questions` with `candidates` and `ground_truths`, or with an answer each in `answers`."""
    name = source_name(path)
    with opened(path) as source:
        document = parse_json(whole_text(source, encoding=encoding, limit=MAX_JSON_BYTES), name)
    fields: dict[str, object] = document if isinstance(document, dict) else {}
    questions = fields.get("questions")
    candidates = fields.get("candidates", fields.get("answers"))
    if not _texts(questions) or not _texts(candidates):
        raise DataError(
            f"{name}: wanted lists of texts, 'questions' and 'candidates' or 'answers'; got: {', '.join(fields)}.",
            "Check that this is a ReQA file.",
        )
    relevant = fields.get("ground_truths", [[index] for index in range(len(candidates))])
    count = len(relevant) if isinstance(relevant, list) else 0
    if not isinstance(relevant, list) or count != len(questions):
        raise DataError(f"{name}: {len(questions)} questions, and the answers of {count}.", "Write it again.")
    for question, indices in enumerate(relevant):
        if not isinstance(indices, list) or not all(type(i) is int and 0 <= i < len(candidates) for i in indices):
            raise DataError(
                f"{name}, ground_truths[{question}]: {indices!r:.60} are not indices of {len(candidates)} candidates.",
                "Write it again.",
            )
    return AnswerRetrieval(tuple(questions), tuple(candidates), tuple(map(tuple, relevant)))


def _texts(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)
