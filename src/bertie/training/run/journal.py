"""A run's numbers and what people see of them: a bar or lines on the terminal, metrics.jsonl, TensorBoard.

metrics.jsonl has one JSON object per line: `{"step": 20, "kind": "train", "loss": …}` at logging steps and
`{"step": 100, "kind": "dev", "accuracy": …}` at evaluations. A resumed run takes away what was written after the
checkpoint it goes on from, so that every step is there once.
"""

from __future__ import annotations

import contextlib
import json
import math
import operator
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any

from torch import Tensor

from bertie.config import BertConfig
from bertie.errors import CheckpointError, MissingExtra
from bertie.files import replace_file
from bertie.training.run.checkpoint import how_to_go_on
from bertie.training.run.stopping import stop_if_signalled

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID
    from torch.utils.tensorboard import SummaryWriter

LoggedRow = dict[str, Any]  # a line of metrics.jsonl: "step", "kind", and numbers by name

_LINE_EVERY = 2.0  # seconds: in a pipe or a file, lines come no faster than this
_HIDDEN = ("epoch", "grad_norm", "seconds", "skipped", "examples")  # in metrics.jsonl alone
_FORMATS = {"tokens_per_s": ",.0f", "lr": ".2e"}
_STAGES = {"letters": "counting letters", "words": "counting words", "pieces": "merging pieces"}


@dataclass
class Tally:
    """Sums since the last logging step. `loss` is on the device."""

    loss: Tensor
    counts: Tensor  # [units, tokens, examples, Σ length², stop] as float64, on the CPU or (many processes) the device
    since: float = field(default_factory=time.perf_counter)
    extras: dict[str, float] = field(default_factory=dict)


def step_flops(config: BertConfig, *, tokens: float, squares: float, predicted: float = 0.0) -> float:
    """Useful operations of forward and backward: two for each weight a token meets, three times.

    `squares` is Σ length² over the texts (attention), `predicted` the number of tokens that the vocabulary is scored
    for. Nothing is counted twice for recomputing, and nothing for padding.
    """
    width, layers = config.hidden_size, config.num_hidden_layers
    dense = layers * (4 * width**2 + 2 * width * config.intermediate_size)
    attention = layers * 2 * width  # q·kᵀ and probabilities·v, per pair of tokens
    head = width**2 + width * config.vocab_size
    return 6.0 * (tokens * dense + squares * attention + predicted * head)


class Screen:
    """A bar on a terminal, lines elsewhere, or nothing: `show` False is silence, None looks for a terminal."""

    def __init__(self, show: bool | None, *, is_main: bool = True) -> None:
        self.shown = is_main and show is not False
        self.terminal = show if show is not None else sys.stderr.isatty()
        self.bar: Progress | None = None
        self._task: TaskID
        self._last_line = 0.0

    def start(self, what: str, *, total: float, completed: int = 0, counted: bool = True) -> None:
        """Show a bar, where there is a terminal; `counted` shows steps, else a share and the time it took."""
        if not (self.shown and self.terminal):
            return
        from rich import progress
        from rich.console import Console

        middle = progress.MofNCompleteColumn() if counted else None
        columns = [
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            middle,
            progress.TextColumn("{task.fields[numbers]}"),
            None if counted else progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
        ]
        shown = [column for column in columns if column is not None]
        self.bar = progress.Progress(*shown, console=Console(stderr=True), transient=not counted)
        self._task = self.bar.add_task(what, total=total, completed=completed, numbers="")
        self.bar.start()

    def move(self, completed: float | None, *, numbers: str | None = None, what: str | None = None) -> None:
        if self.bar is None:
            return
        if completed is None:  # of what has no known end, the bar goes to and fro
            self.bar.remove_task(self._task)
            self._task = self.bar.add_task(what or "", total=None, numbers=numbers)
            return
        self.bar.update(self._task, completed=completed, description=what)
        if numbers is not None:
            self.bar.update(self._task, numbers=numbers)

    def line(self, text: str, *, at_once: bool = False) -> None:
        """A line where there is no bar, if the last one was long enough ago."""
        if self.shown and self.bar is None and (at_once or time.monotonic() - self._last_line >= _LINE_EVERY):
            self._last_line = time.monotonic()
            print(text, file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """One line for the reader, whatever there is."""
        if self.shown and self.bar is not None:
            self.bar.console.print(text, highlight=False, markup=False)
        elif self.shown:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


class Journal:
    """Where a run's numbers go. Processes other than the main one keep a silent one (`Journal(None)`)."""

    def __init__(
        self, folder: Path | None, *, tensorboard: bool = False, show: bool | None = None, from_step: int = 0
    ) -> None:
        self._file: IO[str] | None = None
        self._board: SummaryWriter | None = None
        self._total = 0
        self._screen = Screen(show, is_main=folder is not None)
        self.say = self._screen.say
        if folder is None:
            return
        if tensorboard:
            self._board = _summary_writer(folder / "tensorboard", purge_step=from_step + 1)
        path = folder / "metrics.jsonl"
        _keep_until(path, from_step)
        self._file = path.open("a", encoding="utf-8")

    def start(self, *, step: int, num_steps: int, what: str) -> None:
        self._total = num_steps
        self._screen.start(what, total=num_steps, completed=step)

    def at(self, step: int) -> None:
        """Steps done so far; moves the bar."""
        self._screen.move(step)

    def log(self, step: int, values: Mapping[str, float], *, left: float | None = None) -> None:
        """Numbers of a logging step. `left` is the time left, in seconds."""
        self._write(step, "train", values)
        shown = _short(values)
        self._screen.move(step, numbers=shown)
        remaining = f"  {duration(left)} left" if left is not None and left >= 1 else ""
        self._screen.line(f"step {step}/{self._total}  {shown}{remaining}", at_once=step >= self._total)

    def evaluated(self, step: int, metrics: Mapping[str, float], *, best: bool) -> None:
        self._write(step, "dev", metrics)
        self.say(f"step {step}  dev: {_short(metrics)}{'  (best so far)' if best else ''}")

    def _write(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        if self._file is not None:
            # JSON has no NaN and no infinity.
            numbers = {name: float(value) if math.isfinite(value) else None for name, value in values.items()}
            try:
                self._file.write(json.dumps({"step": step, "kind": kind, **numbers}) + "\n")
                self._file.flush()
            except OSError as error:
                raise CheckpointError(
                    f"{self._file.name} cannot be written: {error.strerror or error}.",
                    how_to_go_on(Path(self._file.name).parent).replace("before it", "before"),
                    resume=True,
                ) from error
        if self._board is not None:
            for name, value in values.items():
                if math.isfinite(value):
                    self._board.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        self._screen.close()
        if self._file is not None:
            with contextlib.suppress(OSError):  # a disk that refuses was reported when the line was written
                self._file.flush()
                os.fsync(self._file.fileno())
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None
        if self._board is not None:
            self._board.close()
            self._board = None


class Phase:
    """One phase of making text ready for pretraining; `at` and `read` are given to whoever does the work.

    A phase that has nothing to do (all is there already) shows nothing. At its end a line says what was made, and how
    long it took.
    """

    def __init__(self, screen: Screen, what: str, done: str, made: str, *, size: int) -> None:
        self.screen, self.what, self.counted, self.size = screen, what, (done, made), size
        self.numbers: str | None = None  # nothing was done yet
        self._began = time.monotonic()
        screen.start(what, total=1.0, counted=False)

    def at(self, done: int, made: int, share: float) -> None:
        """So much is done, so much was made of it, and that is this share of all."""
        self._show(self.what, f"{done:,} {self.counted[0]}, {made:,} {self.counted[1]}", share)

    def read(self, stage: str, characters: int) -> None:
        """A vocabulary's progress: the text is read twice, then its pieces are merged, of which no share is known."""
        share = None
        if stage != "pieces":
            share = min(1.0, (characters / max(1, self.size) + (stage == "words")) / 2)
        self._show(f"{self.what}: {_STAGES.get(stage, stage)}", f"{characters / 1e6:,.1f} MB read", share)

    def end(self, made: str | None = None) -> None:
        """Say what was made, if anything was."""
        if self.numbers is not None:
            self.screen.close()
            self.screen.say(f"{self.what}: {made or self.numbers}, in {duration(time.monotonic() - self._began)}")
        self.numbers = None

    def _show(self, what: str, numbers: str, share: float | None) -> None:
        stop_if_signalled()
        self.numbers = numbers
        self.screen.move(share, numbers=numbers if share is None else f"{share:4.0%}  {numbers}", what=what)
        self.screen.line(f"{what}: {'' if share is None else f'{share:.0%}, '}{numbers}", at_once=share is None)


@contextlib.contextmanager
def phase(
    what: str, done: str, made: str, *, size: int = 0, show: bool | None = None, is_main: bool = True
) -> Iterator[Phase]:
    """Show a phase: what is going on, and what is counted. `size` is the number of characters there are to read.

    with phase("tokenizing", "documents", "tokens") as shown:
        tokenize_corpus(…, progress=shown.at)
    """
    shown = Phase(Screen(show, is_main=is_main), what, done, made, size=size)
    try:
        yield shown
        shown.end()
    finally:
        shown.screen.close()


def read_metrics(folder: Path) -> list[LoggedRow]:
    """All rows of a run's metrics.jsonl; a line that a kill cut short is left out."""
    path = folder / "metrics.jsonl"
    rows: list[LoggedRow] = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError, TypeError, KeyError):  # not JSON, not an object, or one without a step
            row = json.loads(line)
            rows.append({**row, "step": operator.index(row["step"])})
    return rows


def duration(seconds: float) -> str:
    """`4 s`, `12 min 30 s`, `3 h 05 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _keep_until(path: Path, step: int) -> None:
    """Take away the rows after `step`; at step 0, all of them."""
    if not path.exists():
        return
    rows = [row for row in read_metrics(path.parent) if row["step"] <= step] if step else []
    replace_file(path, "".join(json.dumps(row) + "\n" for row in rows))


def _short(values: Mapping[str, float]) -> str:
    shown = {name: value for name, value in values.items() if name not in _HIDDEN}
    return "  ".join(f"{name} {value:{_FORMATS.get(name, '.4f')}}" for name, value in shown.items())


def check_tensorboard() -> None:
    """Say that it is missing before anything is read, and not when the first number is to be written."""
    if find_spec("tensorboard") is None:
        raise MissingExtra("tensorboard", "train", "Writing TensorBoard files")


def _summary_writer(folder: Path, *, purge_step: int) -> SummaryWriter:
    # The writer's own switch: without this module it imports all of TensorFlow, where that is installed.
    sys.modules.setdefault("tensorboard.compat.notf", ModuleType("tensorboard.compat.notf"))
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingExtra("tensorboard", "train", "Writing TensorBoard files") from None
    return SummaryWriter(str(folder), purge_step=purge_step)
