"""`bertie verify`: load a checkpoint, check every tensor, and certify it."""

from __future__ import annotations

import json

import click


@click.command(
    "verify", epilog="\b\nExamples:\n  bertie verify ./my-bert\n  bertie verify ./my-bert --json > certificate.json"
)
@click.argument("source")
@click.option("--json", "as_json", is_flag=True, help="Print the certificate as JSON.")
def command(source: str, as_json: bool) -> int:
    """Load SOURCE, check every tensor, run known inputs, and say which numerics apply.

    Exits with 0 when everything holds and 1 when a check fails.
    """
    from bertie.certificate import certify

    certificate = certify(source)
    if as_json:
        click.echo(json.dumps(certificate.as_dict(), indent=2))
        return 0 if certificate.passed else 1
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("check", "result", "", title=f"{certificate.model} from {source}", title_justify="left")
    for check in certificate.checks:
        mark = "[green]ok[/]" if check.passed else "[red]failed[/]"
        table.add_row(check.name, mark, check.detail)
    console.print(table)
    for line in certificate.numerics:
        console.print(line)
    verdict = "[green]every check passed[/]" if certificate.passed else "[red]some checks failed[/]"
    console.print(f"{verdict} in {certificate.seconds:.1f} s")
    return 0 if certificate.passed else 1
