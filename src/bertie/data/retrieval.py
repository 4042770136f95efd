"""Answer retrieval: ReQA's json, questions beside the sentences that may answer them (Ahmad et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass

from bertie.data.rows import MAX_JSON_BYTES, parse_json
from bertie.data.source import PathLike, opened, source_name, whole_text
from bertie.errors import DataError
from bertie.json_values import fields, items, texts, whole


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
    values = fields(document)
    questions, candidates = texts(values.get("questions")), texts(values.get("candidates", values.get("answers")))
    if questions is None or candidates is None:
        raise DataError(
            f"{name}: expected lists of texts, 'questions' and 'candidates' or 'answers'; got: {', '.join(values)}.",
            "Check that this is a ReQA file.",
        )
    relevant = items(values.get("ground_truths", [[index] for index in range(len(candidates))])) or []
    if len(relevant) != len(questions):
        raise DataError(f"{name}: {len(questions)} questions, and the answers of {len(relevant)}.", "Write it again.")
    indices: list[tuple[int, ...]] = []
    for question, given in enumerate(relevant):
        numbers = items(given)
        found = [each for each in map(whole, numbers or ()) if each is not None and 0 <= each < len(candidates)]
        if numbers is None or len(found) != len(numbers):
            raise DataError(
                f"{name}, ground_truths[{question}]: {given!r:.60} are not indices of {len(candidates)} candidates.",
                "Write it again.",
            )
        indices.append(tuple(found))
    return AnswerRetrieval(tuple(questions), tuple(candidates), tuple(indices))
