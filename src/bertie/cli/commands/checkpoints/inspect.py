"""`bertie inspect`: what is in a checkpoint, from its headers alone."""

from __future__ import annotations

import json

import click

from bertie.checkpoint.inspect import summarise


@click.command(
    "inspect",
    epilog="\b\nExamples:\n  bertie inspect ./my-bert\n  bertie inspect bertie-mini\n"
    "  bertie inspect ./my-bert --json | jq .parameters\n"
    "  bertie inspect ./uncased_L-12_H-768_A-12/bert_model.ckpt --tensors",
)
@click.argument("source")
@click.option("--tensors", is_flag=True, help="List every tensor with its shape and type.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def command(source: str, tensors: bool, as_json: bool) -> None:
    """Say what is in SOURCE: architecture, sizes, types, vocabulary, heads, parameters.

    SOURCE is a folder, a file of weights, a TensorFlow prefix, a hub name, bertie-mini or all-MiniLM-L6-v2. Only
    headers are read, so the size of the checkpoint does not matter.
    """
    summary = summarise(source)
    if as_json:
        click.echo(json.dumps(summary.as_dict(with_tensors=tensors), indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title=summary.title, title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in summary.rows():
        table.add_row(name, value)
    console.print(table)
    if tensors:
        listing = Table("tensor", "shape", "type", title=f"{len(summary.tensors)} tensors", title_justify="left")
        for tensor in summary.tensors:
            listing.add_row(tensor.name, " × ".join(map(str, tensor.shape)) or "scalar", tensor.dtype)
        console.print(listing)
    for note in summary.notes:
        console.print(f"[yellow]note:[/] {note}")
