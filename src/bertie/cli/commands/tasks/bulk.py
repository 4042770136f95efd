"""`bertie bulk`: the same answers for every row of many files, on one machine or a Ray cluster."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bertie.cli.commands.tasks.features import layer_numbers
from bertie.cli.support.options import (
    Chosen,
    columns_option,
    delimiter_option,
    encoding_option,
    listed,
    long_option,
    model_options,
    with_options,
)
from bertie.errors import DataError

if TYPE_CHECKING:
    from bertie.bulk import BulkReport, Prepared

EXAMPLES = """\b
Examples:
  bertie bulk embed texts.txt vectors --plan
  bertie bulk embed texts.txt vectors
  bertie bulk classify reviews.csv labels -m ./my-sentiment --column review
  bertie bulk embed "doc*.txt" more-vectors --piece-rows 1000
"""
_FORMATS = ("parquet", "arrow", "jsonl", "csv", "tsv", "txt")
_JOB = ("column", "columns", "prefix", "encoding", "delimiter", "piece_rows")
_RUN = ("ray", "gpus_per_worker", "cpus_per_worker", "workers", "strict", "price")


@click.group("bulk", epilog=EXAMPLES)
def command() -> None:
    """Answer every row of many files, exactly once, and write parquet files with all columns and the answers.

    A job that was stopped continues when the same command is run again; only unfinished pieces are computed twice. Rows
    that cannot be answered have an error in their row. Exit code 3: some pieces were set aside.
    """


def _job_options(function: Callable[..., object]) -> Callable[..., object]:
    return with_options(
        function,
        click.argument("input", nargs=-1, metavar="INPUT..."),
        click.argument("output"),
        click.option("--column", metavar="NAME", help="Column that holds the text. [default: found by its name]"),
        columns_option,
        click.option("--prefix", default="", metavar="TEXT", help="Put this before the names of the answers' columns."),
        click.option(
            "--input-format", type=click.Choice(_FORMATS), help="Format of the files. [default: by the ending]"
        ),
        encoding_option,
        delimiter_option,
        click.option("--strict", is_flag=True, help="Stop at the first row that cannot be answered."),
        click.option(
            "--piece-rows",
            type=click.IntRange(min=1),
            metavar="N",
            help="Rows of a piece, whose answers are one file. [default: what makes 128 MB, at most 262144]",
        ),
        click.option(
            "--workers",
            type=click.IntRange(min=1),
            metavar="N",
            help="Processes on this machine, or at most on Ray. [default: one, or one per GPU; on Ray as many as fit]",
        ),
        click.option(
            "--ray", metavar="ADDRESS", help="Use a Ray cluster: auto on one of its machines, or its address."
        ),
        click.option(
            "--gpus-per-worker",
            type=click.FloatRange(min=0, min_open=True),
            metavar="N",
            help="GPUs of a worker, with --ray; at 0.5, two share one. [default: none]",
        ),
        click.option(
            "--cpus-per-worker",
            type=click.FloatRange(min=0, min_open=True),
            metavar="N",
            help="Cores of a worker, with --ray. [default: 1]",
        ),
        click.option(
            "--price",
            type=click.FloatRange(min=0),
            metavar="X",
            help="Of a worker's hour: says what a million rows cost.",
        ),
        click.option("--plan", is_flag=True, help="Say what would be done, and do nothing."),
        click.option("--json", "as_json", is_flag=True, help="Print the report as JSON."),
    )


def _task(name: str, summary: str, *options: Callable[[Any], Any], default: str | None = None, needs: str = "") -> None:
    """Add a command for a task; what is neither of the job nor of the run is a setting of the task."""

    def run(chosen: Chosen, **values: Any) -> int:
        return _run(name, chosen, values)

    run.__doc__ = summary
    made = _job_options(model_options(default=default, needs=needs)(with_options(run, *options)))
    # The list of commands has room for what is before the columns only.
    command.add_command(click.command(name, short_help=f"{summary.partition(':')[0]}.")(made))


def _layers(context: click.Context, parameter: click.Parameter, value: str | None) -> list[int] | None:
    return layer_numbers(value)


_top_k = click.option("-k", "--top-k", type=click.IntRange(min=1), metavar="K", help="How many to give.")
_split = click.option("--targets", metavar="A,B", callback=lambda c, p, value: listed(value), help="Only these words.")
_task(
    "embed",
    "Vectors of texts: a column `embedding`, a list of numbers of one size.",
    click.option("--pooling", metavar="MODE", callback=lambda c, p, value: listed(value), help="mean, cls, max, …"),
    click.option("--normalize/--no-normalize", default=None, help="Vectors of length 1, or as they are."),
    click.option("--truncate-dim", type=click.IntRange(min=1), metavar="N", help="Keep the first N numbers."),
    click.option("--precision", type=click.Choice(["float32", "binary", "ubinary"]), help="Type of the numbers."),
    click.option("--prompt-name", metavar="NAME", help="A prompt of the model: query, document, …"),
    click.option("--prompt", metavar="TEXT", help="Put this text before every text."),
    long_option("truncate"),
    default="all-MiniLM-L6-v2",
)
_task(
    "classify",
    "Labels for texts or pairs: columns `label` and `score`; with --top-k also `labels`.",
    _top_k,
    click.option("--multi-label/--one-label", default=None, help="Whether several labels may hold at once."),
    long_option("truncate"),
    needs="a text classifier (BertForSequenceClassification)",
)
_task(
    "tag",
    "Entities of texts: a column `entities`, a list for each row.",
    click.option(
        "--aggregation",
        type=click.Choice(["none", "simple", "first", "average", "max"]),
        help="How tokens become entities. [default: simple]",
    ),
    needs="a token classifier (BertForTokenClassification)",
)
_task(
    "answer",
    "Answers to questions by quoting contexts: `answer`, `score`, `start`, `end`, `no_answer_score`.",
    click.option("--n-best", type=click.IntRange(min=1), help="Quotations to give, in a column `candidates`."),
    click.option("--threshold", type=float, help="How much better 'no answer' has to be. [default: 0]"),
    needs="an answer model (BertForQuestionAnswering)",
)
_task(
    "rerank",
    "How well documents answer queries: a column `score`, for the two columns of each row.",
    click.option("--relevant", metavar="LABEL", help="The label to rank by, where there are several."),
    long_option("windows"),
    default="all-MiniLM-L6-v2, by cosine",
)
_task("fill", "Words for [MASK]: columns `filled`, `masks` and `fillings`.", _top_k, _split, default="bertie-mini")
_task(
    "features",
    "A vector for every token from chosen layers: a column `tokens`.",
    click.option(
        "--layers", metavar="N,N", callback=_layers, help="0 is the first, -1 the last. [default: the last 4]"
    ),
    long_option("truncate"),
    default="bertie-mini",
)


def _run(task: str, chosen: Chosen, values: dict[str, Any]) -> int:
    if not values["input"]:
        raise click.UsageError(f"{values['output']!r} is the only name: the input comes first, the output last.")
    for name in values["input"]:
        # Patterns and addresses are looked up by the job; a plain path is checked before torch is imported.
        if not re.search(r"://|[*?[]", name) and not Path(name).exists():
            raise DataError(f"{name}: there is no such file or folder.", "Check the path.")
    from bertie.bulk import prepare, run  # with torch, which help does without

    plan, as_json = values.pop("plan"), values.pop("as_json")
    job = {name: values.pop(name) for name in _JOB}
    how = {name: values.pop(name) for name in _RUN}
    prepared = prepare(
        task,
        list(values.pop("input")),
        values.pop("output"),
        chosen.model,
        format=values.pop("input_format"),
        **job,
        **{name: value for name, value in {**values, "dtype": chosen.dtype}.items() if value is not None},
    )
    if plan:
        _say_plan(prepared, as_json=as_json)
        return 0
    if not as_json:
        _say_begin(prepared)
    device = None if how["ray"] else chosen.settings["device"]
    # Ray writes about machines that died to standard output, which is for the report.
    with redirect_stdout(sys.stderr) if how["ray"] else nullcontext():
        report = run(prepared, **how, device=device, progress=not as_json, stopped=_say_stopped)
    if as_json:
        click.echo(json.dumps(asdict(report)))
    else:
        _say_end(report)
    return 3 if report.set_aside else 0


def _say_plan(prepared: Prepared, *, as_json: bool) -> None:
    job = prepared.job
    plan: Mapping[str, object] = {
        "task": job.task,
        "model": job.model or "the task's own",
        "reads": ", ".join(map(repr, job.columns)),
        "files": f"{len(job.files):,}, {sum(file.size for file in job.files):,} bytes",
        "rows": f"about {job.rows:,}",
        "pieces": f"{len(job.pieces):,} of {min(job.piece_rows, job.rows):,} rows",
        "done": f"{_many(len(prepared.state.done), 'piece')}, {_many(prepared.rows_done, 'row')}",
        "left": f"{_many(len(prepared.left), 'piece')}, about {_many(prepared.rows_left, 'row')}",
        "output": prepared.output,
    }
    if prepared.part_bytes:
        plan = {**plan, "a file has": f"about {math.ceil(prepared.part_bytes / 2**20):,} MB"}
    if as_json:
        click.echo(json.dumps(plan))
        return
    for name, value in plan.items():
        click.echo(f"{name:<10}  {value}")


def _say_begin(prepared: Prepared) -> None:
    left, pieces = len(prepared.left), len(prepared.job.pieces)
    if not left:
        click.echo("Nothing is left to do: the job was finished before.", err=True)
    elif not prepared.is_new:
        click.echo(f"The job continues: {pieces - left:,} of {pieces:,} pieces are done.", err=True)
    else:
        counts = _many(len(prepared.job.files), "file"), _many(prepared.job.rows, "row"), _many(pieces, "piece")
        click.echo("{}, about {}, {}.".format(*counts), err=True)


def _say_stopped(report: BulkReport) -> None:
    done = f"{report.pieces_done:,} of {report.pieces:,} pieces are done"
    click.echo(f"\n{done}. Run the same command again to continue.", err=True)


def _say_end(report: BulkReport) -> None:
    click.echo(f"{_many(report.rows, 'row')} in {_many(report.pieces_done, 'file')} in {report.output}")
    if report.computed:
        cost = "" if report.cost_per_million is None else f", {report.cost_per_million:,.2f} per million rows"
        click.echo(f"{report.rows_per_second:,.0f} rows/s, {report.tokens_per_second:,.0f} tokens/s{cost}")
    if report.errors:
        errors = _many(report.errors, "row")
        click.echo(f"{_note()} {errors} could not be answered: see the column 'error'.", err=True)
    if report.truncated:
        cut = _many(report.truncated, "text")
        click.echo(f"{_note()} {cut} were longer than the model's limit and were truncated: see --long.", err=True)
    for piece, reason in report.set_aside.items():
        click.echo(f"{click.style('set aside:', fg='red')} {piece}: {reason}", err=True)
    if report.set_aside:
        aside = _many(len(report.set_aside), "piece")
        click.echo(f"{aside} could not be done. Run the same command to try again.", err=True)


def _many(count: int, what: str) -> str:
    """
    >>> _many(1, "row"), _many(2000, "row")
    ('1 row', '2,000 rows')
    """
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _note() -> str:
    return click.style("note:", fg="yellow")
