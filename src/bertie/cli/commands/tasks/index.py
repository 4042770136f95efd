"""`bertie index`: embed a collection into a folder, to search in it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

import bertie
from bertie.cli.support.options import (
    DEFAULT_MODEL,
    Chosen,
    delimiter_option,
    encoding_option,
    long_option,
    model_options,
    single_option,
)
from bertie.cli.support.texts import open_files
from bertie.data.rows import joined_rows
from bertie.errors import DataError

EXAMPLES = """\b
Examples:
  bertie index corpus.jsonl -o ./index
  bertie index corpus.csv -o ./index --column body --id-column key
  bertie index more.jsonl -o ./index --add
"""


@click.command("index", epilog=EXAMPLES)
@click.argument("corpus", nargs=-1, required=True, metavar="CORPUS...")
@single_option("-o", "--output", required=True, metavar="FOLDER", shown="Folder of the index: new, or one to continue.")
@click.option("--add", is_flag=True, help="Add the texts to the index that is in the folder.")
@click.option("--column", metavar="NAME", help="Column of the text. [default: found by its name]")
@click.option(
    "--id-column", metavar="NAME", help="Column of the ids. [default: found by its name, or rows are numbered]"
)
@click.option(
    "--vector-column", metavar="NAME", help="Column of vectors that are there already, as `bertie bulk embed` has them."
)
@click.option(
    "--input-format",
    type=click.Choice(["txt", "jsonl", "json", "csv", "tsv", "parquet", "arrow"]),
    help="Format of the corpus. [default: by its ending]",
)
@encoding_option
@delimiter_option
@click.option("--skip-bad", is_flag=True, help="Skip rows that cannot be read, and count them.")
@model_options(default=DEFAULT_MODEL)
@click.option(
    "--store",
    type=click.Choice(["float32", "float16"]),
    default="float32",
    show_default=True,
    help="Type of the stored vectors; float16 takes half the space.",
)
@long_option("truncate")
def command(
    corpus: tuple[str, ...],
    output: str,
    add: bool,
    column: str | None,
    id_column: str | None,
    vector_column: str | None,
    input_format: str | None,
    encoding: str,
    delimiter: str | None,
    skip_bad: bool,
    chosen: Chosen,
    store: str,
    long: str,
) -> None:
    """Embed the texts of the files CORPUS into a folder that `bertie search` answers from.

    Stopped and started again with the same arguments, it continues where it stopped.
    """
    rows = joined_rows(open_files(corpus, input_format, skip_bad=skip_bad, encoding=encoding, delimiter=delimiter))
    started = time.perf_counter()
    with _left_as_it_was(Path(output)) as held:
        if add:
            index = bertie.Index.open(output, **chosen.settings, partial=True)
            index.add(rows, text_column=column, id_column=id_column, vector_column=vector_column, skip_bad=skip_bad)
        else:
            index = bertie.build_index(
                rows, output, **chosen.settings, text_column=column, id_column=id_column, vector_column=vector_column,
                store=store, long=long, skip_bad=skip_bad,
            )  # fmt: skip
        if not len(index):
            raise DataError(f"{rows.name}: there is nothing in it to index.", "Give a file with at least one text.")
    added, seconds = len(index) - held, time.perf_counter() - started
    if summary := rows.bad.summary():
        click.echo(f"{click.style('note:', fg='yellow')} {summary}", err=True)
    if not sys.stdout.isatty():
        facts = {"index": output, "texts": len(index), "added": added, "dimension": index.manifest.dimension}
        click.echo(json.dumps({**facts, "seconds": round(seconds, 3)}, ensure_ascii=False))
        return
    click.echo(f"{added} texts indexed in {seconds:.1f} s; {output} holds {len(index)}.")
    click.echo(f'Search it: bertie search {output} "your question"')


@contextmanager
def _left_as_it_was(folder: Path) -> Iterator[int]:
    """Gives the number of texts that the folder's index holds already. Where there is none, a failure before the first
    texts are saved leaves none behind."""
    from bertie.search.files import MANIFEST, read_manifest, remove_empty

    is_new = not (folder / MANIFEST).is_file()
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        yield 0 if is_new else read_manifest(folder).count
    except BaseException:
        if is_new and folder.is_dir():
            with suppress(DataError, OSError):
                remove_empty(folder)
                for place in missing:
                    place.rmdir()
        raise
