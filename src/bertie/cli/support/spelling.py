"""Settings as one types them: `learning_rate=0.0` of Python is `--lr 0` on a command line.

Settings have the same names in Python and as parameters of a command, so the command's own options are the whole
table. One that the command has no option for is left as Python has it.
"""

from __future__ import annotations

import shlex
from dataclasses import astuple, is_dataclass

import click

from bertie.errors import Speller, in_python

# What other rooms call an option.
_ALIASES = {
    "distillation": "distil",
    "do_sample": "sample",
    "format": "input_format",
    "num_beams": "beams",
    "num_layers": "student_layers",
    "num_return_sequences": "count",
}


def named_command(root: click.Group, arguments: list[str]) -> tuple[click.Command, str]:
    """The command that a line of arguments asks for, as far as it can be told, and how it is typed."""
    command: click.Command = root
    context = click.Context(root)
    path = ["bertie"]
    for argument in arguments:
        found = command.get_command(context, argument) if isinstance(command, click.Group) else None
        if found is None:
            break
        command = found
        path.append(argument)
    return command, " ".join(path)


def see_help(path: str) -> str:
    return f"Run '{path} --help' to see what it takes."


def typed(command: click.Command) -> Speller:
    """How the user of a command writes settings."""
    options = {one.name: one for one in command.params if isinstance(one, click.Option) and one.name}

    def spelled(name: str, value: object, *, judged: bool) -> str:
        option = options.get(name) or options.get(_ALIASES.get(name, ""))
        if option is None:
            return in_python(name, value, judged=judged)
        return _with_value(option, value) + (":" if judged else "")

    return spelled


def _with_value(option: click.Option, value: object) -> str:
    name = max(option.opts, key=len)
    if value is ... or (value is True and option.is_flag):
        return name
    if value is False and option.secondary_opts:
        return option.secondary_opts[0]
    if value is None or value is False:
        return f"no {name}"
    return f"{name} {_plain(value, ' ' if option.nargs > 1 else ',')}"


def _plain(value: object, between: str) -> str:
    if is_dataclass(value) and not isinstance(value, type):
        value = astuple(value)
    match value:
        case float():
            return f"{value:g}"
        case list() | tuple():
            return between.join(_plain(part, between) for part in value)
        case _:
            return shlex.quote(str(value).replace("\t", r"\t"))  # as options take a tab
