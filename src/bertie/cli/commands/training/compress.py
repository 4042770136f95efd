"""`bertie compress`: make a model smaller and faster, and say what that cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import bertie
from bertie import training
from bertie.cli.support.options import columns_option, delimiter_option, encoding_option, files_option
from bertie.cli.support.training_options import command_line

EXAMPLES = """\b
Examples:
  bertie compress -m mine --task classify --data dev.tsv --speedup 2 -o fast
  bertie compress -m mine --vocab-from corpus.txt -o trimmed
"""


@click.command("compress", epilog=EXAMPLES)
@click.option("-m", "--model", metavar="MODEL", required=True, help="Folder or hub name.")
@click.option("-o", "--output", metavar="DIR", required=True, type=click.Path(), help="A new folder.")
@click.option("--task", metavar="NAME", help="A task of finetune, embed or fill. Needed for a target.")
@files_option("--data", shown="Rows to judge by. Needed for a target.")
@click.option("--speedup", type=float, metavar="X", help="Target: this many times as fast. [default: none]")
@click.option("--size", type=float, metavar="X", help="Target: this share of the parameters. [default: none]")
@click.option("--keep", type=float, metavar="X", help="Target: fastest with this share of the score. [default: none]")
@click.option(
    "--on", metavar="ENGINE", default="cpu", show_default=True, help="Where speed is measured: cpu, cpu-int8, cuda."
)
@files_option("--train", shown="Rows to choose by and to learn from. [default: none]")
@click.option("--epochs", type=float, metavar="X", help="Times through --train; 0 only chooses by it. [default: 1]")
@files_option("--vocab-from", shown="Keep only tokens of these texts. [default: all]")
@click.option("--positions", type=int, metavar="N", help="Keep only the first N positions. [default: all]")
@click.option("--dense", is_flag=True, help="Write plain sizes with zeros, for other programs.")
@click.option("--frontier", is_flag=True, help="Write every model that is tried, in folders of DIR.")
@click.option("--column", metavar="NAME", help="Column of the text. [default: by its name]")
@columns_option
@click.option("--label", metavar="NAME", help="Column of the label. [default: by its name]")
@click.option("--glue", metavar="TASK", help="Read as this GLUE task. [default: by the folder]")
@encoding_option
@delimiter_option
@click.option("--skip-bad", is_flag=True, help="Skip rows that cannot be used, and count them.")
@click.option("--max-length", type=int, metavar="N", help="Longest text in tokens. [default: the model's]")
@click.option("--metric", "best_metric", metavar="NAME", help="Metric to judge by. [default: the task's own]")
def command(**values: Any) -> None:
    """Make a model smaller and faster, and say what that cost.

    Heads, feed-forward neurons and whole blocks go where they cost the answers least, until the target is met on this
    machine. What is left is fitted to the original's states, without training; with --train it then learns from the
    original. DIR is a model like any other, with a report (compress.md).
    """
    files = {name: _one_or_all(values.pop(name)) for name in ("data", "train", "vocab_from")}
    columns = training.Columns(
        text=values.pop("column"), pair=values.pop("columns"), label=values.pop("label"), glue=values.pop("glue"),
        encoding=values.pop("encoding"), delimiter=values.pop("delimiter"),
    )  # fmt: skip
    options = training.TaskOptions(
        columns=columns, **{name: values.pop(name) for name in ("skip_bad", "max_length", "best_metric")}
    )
    result = bertie.compress(
        **values, **files, options=options, say=lambda line: click.echo(line, err=True), command=command_line()
    )
    click.echo(result.report)
    click.echo(f"{result.output}: compress.md has this page", err=True)


def _one_or_all(files: tuple[str, ...]) -> Any:
    # Paths: a list of strings would be texts.
    return None if not files else files[0] if len(files) == 1 else [Path(file) for file in files]
