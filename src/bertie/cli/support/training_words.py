"""Errors of a training command in the words of its user: `learning_rate is 0` is `--lr 0` on a command line.

Settings have the same names in Python and as parameters of the command, so the command's own options are the whole
table. What is said of a setting comes in few forms:

    NAME is VALUE; …          --lr 0: …
    NAME=VALUE, NAME=True     --precision float32, --resume
    Both A and B were given   Both --model and --student-layers were given
    a_name_of_several_words   --micro-batch-tokens

A name of one word (loss, scale, seed …) may be just a word, and is left alone where it has none of these forms.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import click

from bertie.errors import BertieError

_VALUE = r"""('[^']*'|"[^"]*"|\[[^\]]*\]|\([^)]*\)|-?[\w+-]+(?:\.[\w+-]+)*)"""
# What other rooms call an option: the readers of files, and those who cut a student out of its teacher.
_ALIASES = {"format": "input_format", "distillation": "distil", "num_layers": "student_layers"}
_WEIGHTS = {"task": "0.5", "logits": "0.5", "hidden": "0", "attention": "0"}


@contextmanager
def as_typed(context: click.Context) -> Iterator[None]:
    """Whatever error leaves the block names options instead of settings; one without a remedy names the help."""
    command = context.command
    try:
        yield
    except BertieError as error:
        options = {param.name: param for param in command.params if isinstance(param, click.Option) and param.name}
        options |= {alias: options[name] for alias, name in _ALIASES.items() if name in options}
        error.cause = typed(error.cause, options)
        error.remedy = see_help(context) if error.remedy is None else typed(error.remedy, options)
        raise


def see_help(context: click.Context) -> str:
    return f"Run '{context.command_path} --help' to see what it takes."


def typed(text: str, options: Mapping[str, click.Option]) -> str:
    """A sentence or two with options for settings."""
    names = "|".join(sorted(map(re.escape, options), key=len, reverse=True))
    long_names = "|".join(re.escape(name) for name in options if "_" in name)

    def said(found: re.Match[str]) -> str:
        return _said(options[found[1]], found[2])

    def judged(found: re.Match[str]) -> str:
        return said(found) + (": " if found["more"] else "")

    def named(found: re.Match[str]) -> str:
        return _name(options[found[1]])

    def both(found: re.Match[str]) -> str:
        return f"Both {_name(options[found[1]])} and {_name(options[found[2]])}"

    text = re.sub(r"Weights\(([\w=., ]*)\)", _distil, text)
    text = re.sub(rf"\b({names})={_VALUE}(?: \(--[a-z-]+\))?", said, text)
    text = re.sub(rf"\b({names})=(?=[\s.,:;)]|$)(?: \(--[a-z-]+\))?", named, text)
    text = re.sub(rf"(?:^|(?<=[.] ))({names}) is {_VALUE}(?P<more>; )?", judged, text)
    text = re.sub(rf"\bBoth ({names}) and ({names})\b", both, text)
    if long_names:
        text = re.sub(rf"(?<![\w'\"./=-])({long_names})(?![\w'\"/=-])(?!\.\w)", named, text)
    return text


def _distil(found: re.Match[str]) -> str:
    """`Weights(logits=0, hidden=1)` as the four numbers that the option takes."""
    given = dict(part.strip().split("=") for part in found[1].split(","))
    return f"--distil {' '.join((_WEIGHTS | given).values())}"


def _name(option: click.Option) -> str:
    return max(option.opts, key=len)


def _said(option: click.Option, value: str) -> str:
    """An option with a value, as one would have typed it."""
    if value == "True" and option.is_flag:
        return _name(option)
    if value in ("None", "False"):
        return option.secondary_opts[0] if value == "False" and option.secondary_opts else f"no {_name(option)}"
    return f"{_name(option)} {_plain(value, ' ' if option.nargs > 1 else ',')}"


def _plain(value: str, between: str = ",") -> str:
    if value[0] in "[(":
        return between.join(_plain(part.strip()) for part in value[1:-1].split(",") if part.strip())
    if value[0] in "'\"":
        return shlex.quote(value[1:-1])
    try:
        return f"{float(value):g}" if "." in value else value
    except ValueError:
        return value
