"""Commands that documents show: whether they exist, with the options they are shown with."""

from __future__ import annotations

import re
import shlex

import click

from bertie.cli.main import cli


def unknown_options(line: str) -> set[str]:
    """What a line `bertie COMMAND …` names that there is not: its command, or options of it."""
    words = shlex.split(re.split(r" [|>] | +#", line)[0])[1:]
    command: click.Command = cli
    while isinstance(command, click.Group) and words:
        found = command.get_command(click.Context(command), words[0])
        if found is None:
            break
        command, words = found, words[1:]
    if command is cli and words:
        return set() if words[0] in ("--help", "--version") else {words[0]}
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return {word for word in words if re.fullmatch(r"--?[a-z][a-z-]*", word)} - known - {"--help"}
