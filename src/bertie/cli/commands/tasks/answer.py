"""`bertie answer`: answer questions by quoting a text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import click

from bertie import tasks
from bertie.cli.support.options import (
    Chosen,
    delimiter_option,
    encoding_option,
    input_format_option,
    model_options,
    output_options,
    single_option,
)
from bertie.cli.support.show import Out, check_place
from bertie.cli.support.squad import given_questions, print_score, write_predictions
from bertie.cli.support.texts import beside
from bertie.cli.support.views import answered
from bertie.data import Question
from bertie.errors import DataError

EXAMPLES = """\b
Examples:
  bertie answer -m ./my-squad "Where was Ada?" -c "Ada lived in London."
  bertie answer -m ./my-squad "Who?" --context-file report.txt --always
  bertie answer -m ./my-squad -f dev.json --score
  bertie answer -m ./my-squad -f dev.json --predictions predictions.json
"""
NEEDS = "an answer model (BertForQuestionAnswering), such as one fine-tuned on SQuAD"


@click.command("answer", epilog=EXAMPLES)
@click.argument("question", required=False)
@click.option("-c", "--context", metavar="TEXT", help="The text to answer from.")
@single_option("--context-file", metavar="FILE", shown="Read the text to answer from in a file; - is standard input.")
@click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    metavar="FILE",
    help="Questions with their contexts: SQuAD json, or rows of both. May be repeated.",
)
@input_format_option
@encoding_option
@delimiter_option
@click.option("--skip-bad", is_flag=True, help="With -f: skip questions that cannot be read, and count them.")
@click.option("--score", is_flag=True, help="With -f: print exact match and F1 instead of the answers.")
@single_option("--predictions", metavar="FILE", shown="With -f: write the json that SQuAD's own script scores.")
@click.option("--n-best", type=click.IntRange(min=1), default=1, show_default=True, help="How many quotations to give.")
@click.option("--threshold", type=float, default=0.0, show_default=True, help="How much better 'no answer' has to be.")
@click.option("--always", is_flag=True, help="Always answer: 'no answer' is not a possible verdict.")
@click.option(
    "--max-answer-tokens", type=click.IntRange(min=1), default=30, show_default=True, help="Longest quotation."
)
@model_options(needs=NEEDS)
@output_options
def command(
    question: str | None,
    context: str | None,
    context_file: str | None,
    files: tuple[str, ...],
    input_format: str | None,
    encoding: str,
    delimiter: str | None,
    skip_bad: bool,
    score: bool,
    predictions: str | None,
    n_best: int,
    threshold: float,
    always: bool,
    max_answer_tokens: int,
    chosen: Chosen,
    out: Out,
) -> None:
    """Answer QUESTION by quoting a text, or every question of a SQuAD file."""
    marking = score or predictions is not None
    if predictions is not None:
        check_place(Path(predictions))
    questions = given_questions(
        question, context, context_file, files, marking=marking, skip_bad=skip_bad, input_format=input_format,
        encoding=encoding, delimiter=delimiter,
    )  # fmt: skip
    if score:
        questions = _with_answers(questions, files)
    task = tasks.Answerer(
        **chosen.required, n_best=n_best, threshold=math.inf if always else threshold,
        max_answer_tokens=max_answer_tokens,
    )  # fmt: skip
    answers = beside(
        questions, lambda items: task(((one.question, one.context) for one in items), progress=out.progress)
    )
    if marking:
        kept = list(answers)
        texts = {one.id: found.best.text if found.best else "" for one, found in kept}
        if predictions is not None:
            write_predictions(predictions, texts)
        answers = iter(kept)
        if score:
            print_score([one for one, _ in kept], texts, as_text=Out(out.format_, None).is_text)
            if out.output is None:
                return
    out.emit(answers, *answered(several=n_best > 1))


def _with_answers(questions: Iterator[Question], files: tuple[str, ...]) -> Iterator[Question]:
    """Questions without answers count as unanswerable beside others that have some; alone, they are not labelled."""
    read = list(questions)
    if read and not any(one.answers or one.is_impossible for one in read):
        raise DataError(
            f"{', '.join(files)}: none of the {len(read)} questions has answers, so there is nothing to score against.",
            "Give every row its answers, or mark it: is_impossible; for answers alone leave out --score.",
        )
    return iter(read)
