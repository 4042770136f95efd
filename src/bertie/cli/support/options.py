"""Options that many commands share, so that they are spelled and explained the same everywhere.

Each group of options reaches its command as one value: `given` (where texts come from), `chosen` (the model and where
it runs) and `out` (how answers are written).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from typing import Literal, TypedDict, TypeVar, cast

import click

from bertie.cli.support.show import FORMATS, Out
from bertie.cli.support.texts import Given
from bertie.data.source import check_readable
from bertie.errors import InputError

F = TypeVar("F", bound=Callable[..., object])
Long = Literal["truncate", "windows", "error"]

DEFAULT_MODEL = "all-MiniLM-L6-v2"
_READABLE = ("txt", "jsonl", "json", "csv", "tsv", "parquet", "arrow")
_DTYPES = ("float32", "bfloat16", "bf16", "float16", "fp16", "int8", "fp8")


class ModelSettings(TypedDict):
    """As the tasks take them."""

    model: str | None
    device: str | None
    dtype: str | None


class NamedModelSettings(TypedDict):
    """The same, for tasks that have no model of their own."""

    model: str
    device: str | None
    dtype: str | None


@dataclass(frozen=True)
class Chosen:
    """The model that was named, and where it is to run."""

    model: str | None
    device: str | None
    dtype: str | None

    @property
    def settings(self) -> ModelSettings:
        """A device that is not there is refused here, before anything is loaded."""
        if self.device is not None:
            check_device(self.device)
        return {"model": self.model, "device": self.device, "dtype": self.dtype}

    @property
    def required(self) -> NamedModelSettings:
        return cast(NamedModelSettings, self.settings)  # model_options() has refused a line without one


def model_options(*, default: str | None = None, needs: str = "") -> Callable[[F], F]:
    """--model, --device, --dtype as `chosen`.

    `default` names what is used when no model is; where there is none, `needs` says in words what kind is wanted.
    """
    shown = f"[default: {default}]" if default else f"Needed: {needs}."

    def choose(model: str | None, device: str | None, dtype: str | None) -> Chosen:
        if model is None and default is None:
            raise InputError(
                f"No model was named. This needs {needs}.", "Name its folder or its hub name: -m ./my-model."
            )
        return Chosen(model, device, dtype)

    return _bundled(
        "chosen",
        Chosen,
        choose,
        click.option("-m", "--model", metavar="MODEL", help=f"Folder or hub name of the model. {shown}"),
        click.option("--device", metavar="DEVICE", help="cpu, cuda, cuda:1 … [default: cuda if available]"),
        choice_option(
            "--dtype",
            *_DTYPES,
            shown="What the model computes in; int8 is for a CPU, fp8 for a GPU. [default: float32; half on a GPU]",
        ),
    )


def input_options(texts: str = "[TEXT]...", *, what: str = "texts") -> Callable[[F], F]:
    """The arguments, --file and how it is read, --column, --skip-bad as `given`. `what` they are, in the help."""
    return _bundled(
        "given",
        Given,
        Given,
        click.argument("texts", nargs=-1, metavar=texts),
        files_option("-f", "--file", "files", shown=f"Read {what} from a file; - is standard input. May be repeated."),
        input_format_option,
        encoding_option,
        delimiter_option,
        click.option(
            "--column", metavar="NAME", help="Column of the file that holds the text. [default: found by its name]"
        ),
        click.option("--skip-bad", is_flag=True, help="Skip rows that cannot be read, and count them."),
    )


def files_option(*names: str, shown: str, required: bool = False) -> Callable[[F], F]:
    """An option for files that are read. One that is not there is refused before torch is imported."""

    def there(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
        for file in value:
            if "RANK" not in os.environ and not os.path.isdir(file):  # of several processes, one tells it later
                check_readable(file)
        return value

    return click.option(*names, multiple=True, callback=there, metavar="FILE", help=shown, required=required)


def input_format_option(function: F) -> F:
    """--input-format: of the file that is read."""
    return choice_option("--input-format", *_READABLE, shown="Format of the file. [default: by its ending]")(function)


def encoding_option(function: F) -> F:
    """--encoding: of the files that are read."""

    def known(context: click.Context, parameter: click.Parameter, value: str) -> str:
        try:
            "\n".encode(value)
        except (LookupError, ValueError):
            raise click.BadParameter(f"{value!r} is none of utf-8, utf-16, latin-1, cp1252, gb18030 …") from None
        return value

    shown = "Encoding of the files: latin-1, utf-16 …"
    return click.option("--encoding", metavar="NAME", default="utf-8", show_default=True, callback=known, help=shown)(
        function
    )


def delimiter_option(function: F) -> F:
    """--delimiter: between the columns of a csv or tsv file."""

    def one(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
        # A tab is hard to type in a shell.
        found = "\t" if value == "\\t" else value
        if found is not None and (len(found) != 1 or found in '"\r\n'):
            raise click.BadParameter(f"{value!r} is not one character, like ';' or '\\t'.")
        return found

    shown = "What separates the columns of csv and tsv. [default: a comma, a tab]"
    return click.option("--delimiter", metavar="CHAR", callback=one, help=shown)(function)


def output_options(function: F) -> F:
    """--format, --json, --output as `out`."""
    group = _bundled(
        "out",
        Out,
        Out,
        click.option(
            "--format",
            "format_",
            type=click.Choice(FORMATS),
            help="How answers are written. [default: text on a terminal, jsonl in a pipe, a file's by its ending]",
        ),
        click.option("--json", "as_json", is_flag=True, help="The same as --format json: one list of all answers."),
        single_option("-o", "--output", metavar="FILE", shown="Write to a file instead of standard output."),
    )
    return group(function)


def long_option(default: str) -> Callable[[F], F]:
    """--long: what happens to a text that is longer than the model takes."""
    shown = "For texts longer than the model's limit: read the beginning, all of it in windows, or stop with an error."
    return choice_option("--long", "truncate", "windows", "error", default=default, shown=shown)


def choice_option(
    name: str, *choices: str, shown: str, default: str | None = None, metavar: str | None = None
) -> Callable[[F], F]:
    """An option that takes one of a few words."""
    kind = click.Choice(choices)
    return click.option(name, type=kind, metavar=metavar, default=default, show_default=default is not None, help=shown)


def single_option(*names: str, shown: str, metavar: str, required: bool = False) -> Callable[[F], F]:
    """An option for one file. Given twice it is refused: the first would be dropped silently."""

    def one(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> str | None:
        if len(value) > 1:
            raise click.BadParameter(f"{names[-1]} takes one file; {len(value)} were given: {', '.join(value)}.")
        return value[0] if value else None

    return click.option(*names, multiple=True, callback=one, help=shown, metavar=metavar, required=required)


def columns_option(function: F) -> F:
    """--columns: the two columns of a pair."""

    def two(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, str] | None:
        parts = listed(value)
        if parts is not None and len(parts) != 2:
            raise click.BadParameter(f"{value!r} is not two names with a comma, like premise,hypothesis.")
        return None if parts is None else (parts[0], parts[1])

    shown = "The two columns of a pair. [default: found by their names]"
    return click.option("--columns", metavar="A,B", callback=two, help=shown)(function)


def listed(value: str | None) -> list[str] | None:
    """`a, b,c` as a list; None stays None."""
    return None if value is None else [part.strip() for part in value.split(",") if part.strip()]


def _bundled(
    name: str, kind: type[Chosen | Given | Out], make: Callable[..., object], *options: Callable[[F], F]
) -> Callable[[F], F]:
    """The values of `options` as one argument called `name`; they are the fields of `kind`."""
    names = [field.name for field in fields(kind) if field.init]

    def decorate(function: F) -> F:
        @wraps(function)
        def collected(**values: object) -> object:
            own = {key: values.pop(key) for key in names}
            return function(**{name: make(**own)}, **values)

        return with_options(cast(F, collected), *options)

    return decorate


def with_options(function: F, *options: Callable[[F], F]) -> F:
    """A command's function with its options, the first of them first in the help."""
    for option in reversed(options):
        function = option(function)
    return function


def check_device(device: str) -> None:
    """Refuse a device that is not there."""
    import torch

    from bertie.checkpoint.load_weights import usable_device

    kind, _, number = device.partition(":")
    if kind not in ("cpu", "cuda", "mps") or (number and not number.isdigit()):
        raise InputError(f"There is no device {device!r}.", "Use cpu, cuda, or cuda:1 for the second GPU.")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        found = torch.cuda.device_count()
        raise InputError(
            f"Device {device!r} was requested, but PyTorch finds {f'only {found}' if found else 'no'} CUDA GPU here.",
            "Leave --device out, or use --device cpu; `bertie doctor` shows what there is.",
        )
    if kind != "cuda":
        usable_device(device)
