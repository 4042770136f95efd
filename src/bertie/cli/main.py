"""`bertie`: finds the command, runs it, and turns every user's mistake into one line of cause and one of remedy."""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from io import TextIOWrapper
from typing import Any

import click

from bertie import __version__
from bertie.cli.support.spelling import named_command, see_help, typed
from bertie.errors import BertieError, InputError, Spoken

# The sections of `bertie --help`: the folder of commands/ whose modules are its commands, and those listed first.
SECTIONS = {
    "Answers": (
        "tasks",
        "embed similarity rerank index search classify tag answer fill next features generate tokenize bulk",
    ),
    "Training": ("training", "finetune pretrain"),
    "Checkpoints": ("checkpoints", "models inspect verify convert"),
    "Serving": ("serving", "serve client explore"),
    "This machine": ("", "doctor"),
}
EXAMPLES = {
    "Answers": 'bertie similarity "A man plays guitar." "Someone makes music."',
    "Training": "bertie finetune answer -m ./my-bert --train dev.json -o answers --epochs 1",
    "Checkpoints": "bertie inspect ./my-bert",
    "Serving": "bertie serve -m ./my-bert",
    "This machine": "bertie doctor",
}


def _sections() -> dict[str, dict[str, str]]:
    """The commands of each section and the files they are in. (os.path, because importing pathlib would be felt.)"""
    found = {}
    for title, (folder, first) in SECTIONS.items():
        place = os.path.join(os.path.dirname(__file__), "commands", folder)
        modules = [name for name in os.listdir(place) if name.endswith(".py") and not name.startswith("_")]
        files = {name.removesuffix(".py"): os.path.join(place, name) for name in modules}
        order = [*first.split(), *sorted(files)]
        found[title] = {name: files[name] for name in dict.fromkeys(order)}
    return found


FILES = _sections()
COMMANDS = [name for files in FILES.values() for name in files]
_STOP_BY_THEMSELVES = (["serve"], ["finetune"], ["pretrain"])


class LazyCommands(click.Group):
    """A group whose commands are imported when they are needed, and listed in sections."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return COMMANDS

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        folder = next(SECTIONS[title][0] for title, files in FILES.items() if cmd_name in files)
        # Modules are imported only when their command runs or its own help is asked for.
        command: click.Command = import_module(
            ".".join(filter(None, ("bertie.cli.commands", folder, cmd_name)))
        ).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, files in FILES.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), _summary(file)) for name, file in files.items()])
                formatter.write_paragraph()
                formatter.write_text(f"Example: {EXAMPLES[title]}")

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            close = get_close_matches(args[0], COMMANDS, n=2)
            remedy = f"Did you mean {' or '.join(close)}?" if close else "Run 'bertie --help' to see what there is."
            raise InputError(f"No such command {args[0]!r}.", remedy)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # here and not in main(): click would take it for a failure
            _leave_quietly()
            return 0


def _summary(file: str) -> str:
    """What a command does, from the first line of its file: its docstring, after the command's name."""
    with open(file, encoding="utf-8") as lines:
        line = next(lines).partition("`: ")[2].strip().removesuffix('"""')
    return line[:1].upper() + line[1:]


@click.group(
    cls=LazyCommands,
    epilog="Every command explains itself: bertie COMMAND --help.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="bertie")
def cli() -> None:
    """All of BERT: answers from texts, training, checkpoints and serving.

    Texts are arguments, a file (-f) or standard input. Answers are tables on a terminal and JSON lines in a pipe.
    """


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit code: 0 done, 1 a check failed, 2 a mistake in what was asked, 3 in part."""
    given = sys.argv[1:] if arguments is None else arguments
    warnings.showwarning = partial(_show_warning, given)
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # what it retries, our own error says once
    try:
        result: int | None = cli.main(args=arguments, prog_name="bertie", standalone_mode=False)
    except BertieError as error:
        command, path = named_command(cli, given)
        cause, remedy = error.said(typed(command))
        _complain(cause, remedy or see_help(path))
        return 2
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.ClickException as error:
        _complain(error.format_message(), see_help(named_command(cli, given)[1]))
        return 2
    except (click.Abort, KeyboardInterrupt):
        click.echo("\nstopped", err=True)
        return 130
    except OSError as error:
        _complain(f"{error.filename or 'The system'}: {error.strerror or error}.", "Check the path, rights and space.")
        return 2
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and type(error).__name__ != "OutOfMemoryError":
            raise
        _complain("There is not enough memory for this.", "Use --device cpu, --dtype float16, or fewer texts at once.")
        return 2
    return result or 0


def _complain(cause: str, remedy: str) -> None:
    click.echo(f"{click.style('error:', fg='red', bold=True)} {' '.join(cause.split())}", err=True)
    click.echo(" ".join(remedy.split()), err=True)


def _show_warning(given: list[str], message: Warning | str, category: type[Warning], *_: object) -> None:
    if not issubclass(category, DeprecationWarning | FutureWarning):
        said = message.said(typed(named_command(cli, given)[0]))[0] if isinstance(message, Spoken) else str(message)
        click.echo(f"{click.style('note:', fg='yellow')} {said}", err=True)


def entry() -> None:
    for stream in (sys.stdout, sys.stderr):  # a terminal without UTF-8 shows ? for what it has no letter for
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    if sys.argv[1:2] not in _STOP_BY_THEMSELVES:
        signal.signal(signal.SIGTERM, _terminate)
    sys.exit(main())


def _terminate(number: int, frame: object) -> None:
    """Leave through every clean-up, as Ctrl-C does; asked a second time, at once."""
    signal.signal(number, signal.SIG_DFL)
    sys.exit(128 + number)


def _leave_quietly() -> None:
    """The reader (head, less) has seen enough: Python would complain once more when it flushes at exit."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)
