"""`bertie`: finds the command, runs it, and turns every user's mistake into one line of cause and one of remedy."""

from __future__ import annotations

import os
import sys
import warnings
from importlib import import_module
from typing import Any

import click

from bertie import __version__
from bertie.errors import BertieError

# name: (module, one line of help); modules are imported only when their command runs or its own help is asked for
COMMANDS: dict[str, tuple[str, str]] = {
    "tokenize": ("bertie.cli.tokenize", "Show how texts are cut into word pieces."),
    "inspect": ("bertie.cli.inspect", "Say what is in a checkpoint, from its headers alone."),
    "verify": ("bertie.cli.verify", "Load a checkpoint, check every tensor, run known inputs, and certify it."),
    "convert": ("bertie.cli.convert", "Turn a checkpoint into another format: hub safetensors or Google TensorFlow."),
    "doctor": ("bertie.cli.doctor", "Show versions, processor, GPU, kernels, and where models are looked for."),
}

EXAMPLES = """\b
Examples:
  bertie inspect ./my-bert
  bertie verify ./my-bert
  bertie convert ./uncased_L-12_H-768_A-12 ./my-bert
"""


class LazyCommands(click.Group):
    """A group whose commands are imported when they are needed."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = import_module(COMMANDS[name][0]).command
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(cls=LazyCommands, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="bertie")
def cli() -> None:
    """BERT, whole: inspect, verify and convert checkpoints."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit code: 0 done, 1 a check failed, 2 a mistake in what was asked."""
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    try:
        result: Any = cli.main(args=arguments, prog_name="bertie", standalone_mode=False)
    except BertieError as error:
        _complain(error.cause, error.remedy)
        return 2
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.ClickException as error:
        hint = "Run 'bertie --help' to see what there is."
        if isinstance(error, click.UsageError) and error.ctx is not None:
            hint = f"Run '{error.ctx.command_path} --help' to see what it takes."
        _complain(error.format_message(), hint)
        return 2
    except (click.Abort, KeyboardInterrupt):
        click.echo("\nstopped", err=True)
        return 130
    except BrokenPipeError:
        # The reader (head, less) has seen enough. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        _complain(f"{error.filename or 'The system'}: {error.strerror or error}.", "Check the path, rights and space.")
        return 2
    return result if isinstance(result, int) else 0


def _complain(cause: str, remedy: str | None) -> None:
    click.echo(f"{click.style('error:', fg='red', bold=True)} {cause}", err=True)
    if remedy:
        click.echo(remedy, err=True)


def _show_warning(message: Warning | str, category: type[Warning], *_: Any) -> None:
    if not issubclass(category, DeprecationWarning | FutureWarning):
        click.echo(f"{click.style('note:', fg='yellow')} {message}", err=True)


def entry() -> None:
    sys.exit(main())
