"""The pages of the command line: what `--help` prints, for every command."""

from __future__ import annotations

from collections.abc import Iterator

import click

from bertie.cli.main import FILES, cli

INTRODUCTION = """# The command line

`bertie COMMAND --help` prints these pages. Texts are arguments, a file (`-f`) or standard input. Answers are tables on
a terminal and JSON lines in a pipe.
"""


def command_pages() -> list[tuple[str, str]]:
    """(page name, Markdown): a first page with the sections of `bertie --help`, and one page for each command."""
    context = click.Context(cli, info_name="bertie", max_content_width=80)
    first = INTRODUCTION
    pages, names = [], []
    for title, files in FILES.items():
        first += f"\n## {title}\n\n| command | what it does |\n|---|---|\n"
        for name in files:
            command = cli.get_command(context, name)
            assert command is not None
            first += f"| [bertie {name}]({name}.md) | {escaped(command.get_short_help_str(limit=200))} |\n"
            pages.append((f"cli/commands/{name}", "\n\n".join(sections(name, command, context))))
            names.append(name)
    first = first.replace("](", "](commands/")
    first += "\n```{toctree}\n:hidden:\n\n" + "\n".join(f"commands/{name}" for name in names) + "\n```\n"
    return [("cli/index", first), *pages]


def sections(name: str, command: click.Command, parent: click.Context, *, depth: int = 1) -> Iterator[str]:
    """A command's help under its own heading, then that of its subcommands."""
    context = click.Context(command, info_name=name, parent=parent, max_content_width=80, terminal_width=80)
    yield f"{'#' * depth} {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            below = command.get_command(context, each)
            if below is not None and not below.hidden:
                yield from sections(each, below, context, depth=2)


def escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("[", "\\[").replace("<", "&lt;")
