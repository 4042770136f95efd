"""The SQuAD side of `bertie answer`: questions in, predictions and scores out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict

import click

from bertie.cli.support.show import console, table
from bertie.cli.support.texts import all_of
from bertie.data import Question, RowWriter, read_squad
from bertie.data.source import opened, whole_text
from bertie.data.squad_scoring import score_squad
from bertie.errors import DataError, InputError

_LONGEST = 2**30  # bytes of a context


def given_questions(
    question: str | None,
    context: str | None,
    context_file: str | None,
    files: Sequence[str],
    *,
    marking: bool = False,
    skip_bad: bool = False,
    input_format: str | None = None,
    encoding: str = "utf-8",
    delimiter: str | None = None,
) -> Iterator[Question]:
    """Questions with their contexts; `marking` says that files of them are needed."""
    if files:
        if question is not None or context is not None or context_file is not None:
            raise InputError(
                "A file of questions was given together with a question or a context.",
                "Give -f FILE alone, or QUESTION with -c or --context-file.",
            )
        return all_of(
            *(
                read_squad(file, format=input_format, encoding=encoding, skip_bad=skip_bad, delimiter=delimiter)
                for file in files
            )
        )
    if marking:
        raise InputError("Scores and predictions are for a file of questions.", "Give one: -f dev.json.")
    if skip_bad:
        raise InputError("--skip-bad is for a file of questions.", "A context is read whole: leave --skip-bad out.")
    if question is None:
        raise InputError("No question was given.", 'Ask one: bertie answer "Who …?" -c "a text", or -f dev.json.')
    if (context is None) == (context_file is None):
        raise InputError(
            f"{'No context' if context is None else 'Both -c and --context-file'} was given.",
            "Give the text to answer from: -c TEXT, or --context-file FILE.",
        )
    whole = _whole(context_file, encoding) if context is None else context
    return iter([Question("1", "", question, whole or "", (), False)])


def _whole(file: str | None, encoding: str) -> str:
    """A text file as one text, without the end of its last line."""
    with opened(file or "-") as source:
        text = whole_text(source, encoding=encoding, limit=_LONGEST)
    if not text:
        raise DataError(f"{source.name}: there is nothing in it to work on.", "Give a file with a text in it.")
    return text.replace("\r\n", "\n").removesuffix("\n")


def write_predictions(file: str, texts: Mapping[str, str]) -> None:
    """Answers by question id, as the official evaluation scripts read them."""
    with RowWriter(file, format="txt") as out:
        out.write_line(json.dumps(texts, ensure_ascii=False, indent=1))


def print_score(questions: Iterable[Question], texts: Mapping[str, str], *, as_text: bool) -> None:
    """Exact match and F1 in per cent: a table, or one JSON object."""
    result = asdict(score_squad(questions, texts))
    if not as_text:
        click.echo(json.dumps(result))
        return
    made = table("label", "exact", "F1", "questions")
    made.columns[0].header = ""
    for label, part in (("all", ""), ("with an answer", "has_answer_"), ("without one", "no_answer_")):
        exact, f1, total = (result[part + name] for name in ("exact", "f1", "total"))
        if total:
            made.add_row(label, f"{exact:.2f}", f"{f1:.2f}", str(total))
    console().print(made)
