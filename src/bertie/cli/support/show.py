"""How answers go out: neat on a terminal, clean for machines in a pipe or a file."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TextIO, TypeVar

import click

from bertie.data import RowWriter
from bertie.data.writing import told_format
from bertie.errors import DataError, InputError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

Answer = TypeVar("Answer")
Rows = Mapping[str, object] | Iterable[Mapping[str, object]]
FORMATS = ("text", "json", "jsonl", "csv", "tsv", "parquet", "npy", "npz")

_BAR = 10
_EIGHTHS = " ▏▎▍▌▋▊▉"
_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")
# What a text may not do to the terminal it is shown on. One character for one, so that offsets still hold.
_CONTROLS = dict.fromkeys((*range(9), 11, 12, *range(14, 32), 127, *range(128, 160)), 65533) | {13: 32, 27: 0x241B}


def check_place(place: Path) -> None:
    """Reject a file that cannot be written, and say if it will be replaced."""
    if not place.parent.is_dir():
        raise DataError(f"{place}: there is no folder {place.parent}.", f"Make it first: mkdir -p {place.parent}")
    if place.is_file() and place.stat().st_size:
        click.echo(f"{click.style('note:', fg='yellow')} {place} exists; it will be replaced.", err=True)


@dataclass(frozen=True)
class Out:
    """How and where answers are written. A place that cannot be written to is refused before any work is done."""

    format_: str | None
    output: str | None
    as_json: bool = False

    def __post_init__(self) -> None:
        if self.as_json and self.format_ not in (None, "json"):
            raise InputError(f"--json and --format {self.format_} were both given.", "Leave one of them out.")
        if self.output is not None and self.output != "-":
            check_place(Path(self.output))

    @property
    def kind(self) -> str | None:
        """The format that was asked for."""
        return "json" if self.as_json else self.format_

    @property
    def is_text(self) -> bool:
        """For people to read: asked for, or by default on a terminal and in .txt files."""
        if self.kind is not None:
            return self.kind == "text"
        if self.output is None or self.output == "-":
            return _on_terminal()
        return _told_by(self.output) == "txt"

    @property
    def progress(self) -> bool | None:
        """Whether tasks show a bar: not where the answers themselves appear on the terminal."""
        return False if self.is_text and self.output is None else None

    def emit(
        self, answers: Iterable[Answer], row: Callable[[Answer], Rows], text: Callable[[Answer], RenderableType]
    ) -> None:
        """Write every answer as soon as it is there.

        `row` turns an answer into one row (or several) of a machine format; `text` into something rich can print.
        """
        if self.is_text:
            self._print(answers, text)
            return
        place = self.output or "-"
        if self.kind in ("parquet", "npy", "npz") and place == "-" and _on_terminal():
            raise InputError(
                f"{self.kind} is no format for a terminal.", f"Write it to a file: -o answers.{self.kind}."
            )
        with RowWriter(place, format=self.kind) as writer:
            for answer in answers:
                rows = row(answer)
                for values in [rows] if isinstance(rows, Mapping) else rows:
                    writer.write(values)
                if writer.reader_gone:
                    return

    def _print(self, answers: Iterable[Answer], text: Callable[[Answer], RenderableType]) -> None:
        if self.output is None or self.output == "-":
            screen = console()
            for answer in answers:
                screen.print(text(answer), highlight=False)
            return
        lines = io.StringIO()
        page = console(lines, width=120)
        with RowWriter(self.output, format="txt") as writer:
            for answer in answers:
                page.print(text(answer), highlight=False)
                writer.write_line(lines.getvalue().removesuffix("\n"))
                lines.seek(0)
                lines.truncate()


def _told_by(output: str) -> str | None:
    """The format that an output's name tells, compressed or not; None for pipes and devices."""
    place = Path(output)
    try:
        found = told_format(output)
    except DataError:
        found = None
    if found is None and (place.is_file() or not place.exists()):
        raise InputError(
            f"{output}: its format cannot be recognized by its name.",
            f"Give it with --format: one of {', '.join(FORMATS)}.",
        )
    return found


def _on_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()  # there is none where it was closed: >&-


def console(file: TextIO | None = None, *, width: int | None = None) -> Console:
    """A rich console that lets main() deal with a reader who has left."""
    from rich.console import Console

    class Quiet(Console):
        def on_broken_pipe(self) -> NoReturn:
            raise BrokenPipeError

    return Quiet(file=file, width=width)


def number(value: float) -> str:
    """A score as people read it.

    >>> number(0.98765)
    '0.988'
    """
    return f"{value:.3f}"


def bar(value: float) -> str:
    """A score from 0 to 1 as a bar of ten places; empty for anything else.

    >>> bar(0.55)
    '█████▌    '
    """
    if not 0 <= value <= 1.001:
        return " " * _BAR
    eighths = round(min(value, 1.0) * _BAR * 8)
    whole, part = divmod(eighths, 8)
    return ("█" * whole + (_EIGHTHS[part] if part else "")).ljust(_BAR)


def scored(value: float) -> Text:
    """A score with its bar."""
    from rich.text import Text

    return Text.assemble((number(value).ljust(7), "bold"), (bar(value), "cyan"))


def columns(*cells: Text) -> Table:
    """Cells side by side, the last one wrapped below itself."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    for place in range(len(cells)):
        grid.add_column(no_wrap=place < len(cells) - 1, overflow="fold")
    grid.add_row(*cells)
    return grid


def plain_text(text: str) -> str:
    """A text without the characters that would steer a terminal, of the same length."""
    return text.translate(_CONTROLS)


def clipped(text: str, size: int = 240, *, style: str = "") -> Text:
    """The beginning of a text, on one line."""
    from rich.text import Text

    line = plain_text(text).replace("\n", " ")
    return Text(line if len(line) <= size else line[: size - 1].rstrip() + "…", style=style)


def marked(text: str, spans: Iterable[tuple[int, int, str]], *, around: int | None = None) -> Text:
    """A text with spans `(start, end, label)` highlighted and each label behind its span.

    `around` leaves out what is further away from the spans than that many characters.
    """
    from rich.text import Text

    shown, line, at = plain_text(text), Text(), 0
    ordered = sorted(spans)
    stop = len(shown)
    if around is not None and ordered:
        at, stop = _piece(shown, ordered[0][0], ordered[-1][1], around)
    line.append("… " if at else "", style="dim")
    for start, end, label in ordered:
        if start < at:  # spans that overlap are listed, not nested
            continue
        colour = _COLOURS[sum(label.partition(":")[0].encode()) % len(_COLOURS)]
        line.append(shown[at:start])
        line.append(shown[start:end], style=f"bold {colour}")
        line.append(f" [{label}]", style=colour)
        at = end
    line.append(shown[at:stop])
    line.append(" …" if stop < len(shown) else "", style="dim")
    return line


def table(*columns: str, words: bool = False) -> Table:
    """A table in the one style we use; numbers to the right, text folded at the end. `words`: all of it is text."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    for name in columns:
        text = words or name in ("text", "label", "document")
        made.add_column(name, justify="left" if text or name == "score" else "right", no_wrap=not text, overflow="fold")
    return made


def _piece(text: str, first: int, last: int, around: int) -> tuple[int, int]:
    """From `around` characters before `first` to as many after `last`, ending at spaces where there are some."""
    start, stop = max(first - around, 0), min(last + around, len(text))
    if start:
        start = max(start, text.find(" ", start, first) + 1)
    if stop < len(text):
        space = text.rfind(" ", last, stop)
        stop = space if space >= 0 else stop
    return start, stop
