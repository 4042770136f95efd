"""Hostile cases, one after another, in a process that may die of them.

A case is a string, such as `safetensors:17`. A *runner* (`module:function`) turns it into a `Trial`: what to prepare,
what to load, what to check. The worker process loads, measures, and says one line; a worker that dies or goes silent
costs its own case and no other: the case is named, and a new worker goes on with the next.

What the worker measures: seconds of the load alone, less those it waited for a core that others used; and how far the
peak of resident memory rose above what was resident before (Linux resets the peak through /proc/self/clear_refs).
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import select
import subprocess
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
# A backstop for the machine, far above every bar: what no case may reach.
ADDRESS_SPACE_ABOVE_BASELINE = 4 << 30


@dataclass(frozen=True)
class Trial:
    """`load` is measured. A typed error of it is "refused"; otherwise `check` gets what it returned and objects by
    raising. `size` is the hostile file's, in bytes; `harmless` runs after either and objects by raising too."""

    load: Callable[[], Any]
    check: Callable[[Any], None] = lambda loaded: None
    harmless: Callable[[], None] = lambda: None
    size: int = 0


@dataclass(frozen=True)
class Outcome:
    """`verdict` is refused or loaded, which are good, or failed (wrong error, wrong answer), crashed or hung."""

    case: str
    verdict: str
    detail: str = ""
    seconds: float = 0.0
    megabytes: float = 0.0  # resident memory at the peak, above that before
    file_megabytes: float = 0.0

    @property
    def good(self) -> bool:
        return self.verdict in ("refused", "loaded")


def run_isolated(runner: str, cases: Iterable[str], folder: Path, *, limit: float = 20.0) -> Iterator[Outcome]:
    """The outcome of every case. `folder` is the worker's to write in; `limit` is when silence counts as a hang."""
    worker: subprocess.Popen[bytes] | None = None
    try:
        for case in cases:
            if worker is None:
                worker = _start(runner, folder)
            outcome = _ask(worker, case, folder, limit)
            if outcome.verdict in ("crashed", "hung"):
                _stop(worker)
                worker = None
            yield outcome
    finally:
        if worker is not None:
            _stop(worker)


def _start(runner: str, folder: Path) -> subprocess.Popen[bytes]:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        # Allocations that are not freed at once would count for the cases after them.
        "MALLOC_TRIM_THRESHOLD_": "100000",
    }
    with _stderr(folder).open("wb") as stderr:
        worker = subprocess.Popen(
            [sys.executable, "-m", "hostile.isolation", runner, str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=environment, cwd=folder,
        )  # fmt: skip
    if _read_line(worker, limit=120.0) != b"ready":
        _stop(worker)
        raise RuntimeError(f"the worker did not start: {_last_words(folder)}")
    return worker


def _stderr(folder: Path) -> Path:
    return folder / "worker.stderr"  # a pipe nobody reads would fill and stop the worker


def _last_words(folder: Path) -> str:
    return _stderr(folder).read_text("utf-8", "replace")[-2000:]


def _stop(worker: subprocess.Popen[bytes]) -> None:
    worker.kill()
    worker.wait()
    for stream in (worker.stdin, worker.stdout):
        assert stream is not None
        with contextlib.suppress(BrokenPipeError):  # it died with a case unread
            stream.close()


def _ask(worker: subprocess.Popen[bytes], case: str, folder: Path, limit: float) -> Outcome:
    assert worker.stdin is not None
    try:
        worker.stdin.write(case.encode() + b"\n")
        worker.stdin.flush()
        line = _read_line(worker, limit)
    except BrokenPipeError:
        line = b""
    if line is None:
        return Outcome(case, "hung", f"no answer in {limit:g} s", seconds=limit)
    if not line:
        worker.wait()
        return Outcome(case, "crashed", f"exit status {worker.returncode}: {_last_words(folder)}")
    return Outcome(**json.loads(line))


def _read_line(worker: subprocess.Popen[bytes], limit: float) -> bytes | None:
    """One line of the worker's answer: empty when it died, None when it said nothing in time."""
    assert worker.stdout is not None
    end = time.monotonic() + limit
    line = b""
    while not line.endswith(b"\n"):
        if not select.select([worker.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
            return None
        piece = os.read(worker.stdout.fileno(), 65536)
        if not piece:
            return b""
        line += piece
    return line.rstrip(b"\n")


# -- figures ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tally:
    """Many outcomes in one line."""

    verdicts: Counter[str]
    slowest: Outcome
    largest: Outcome
    bad: list[Outcome]

    @classmethod
    def of(cls, outcomes: Iterable[Outcome], *, seconds: float, megabytes: float) -> Tally:
        """`bad` are the wrong ones, and those beyond `seconds` or beyond their file's size and `megabytes`."""
        everything = list(outcomes)
        return cls(
            verdicts=Counter(one.verdict for one in everything),
            slowest=max(everything, key=lambda one: one.seconds),
            largest=max(everything, key=lambda one: one.megabytes - one.file_megabytes),
            bad=[
                one
                for one in everything
                if not one.good or one.seconds > seconds or one.megabytes > megabytes + one.file_megabytes
            ],
        )

    def __str__(self) -> str:
        counts = ", ".join(
            f"{self.verdicts[name]} {name}" for name in ("loaded", "refused", "failed", "crashed", "hung")
        )
        return (
            f"{self.verdicts.total()} cases: {counts}; slowest {self.slowest.seconds:.3f} s ({self.slowest.case:.60}), "
            f"most memory {self.largest.megabytes:.1f} MB ({self.largest.case:.60}); {len(self.bad)} bad"
        )


# -- the worker -------------------------------------------------------------------------------------------------------


def _memory() -> tuple[int, int]:
    """Bytes resident now, and at the peak since it was last reset."""
    with open("/proc/self/status") as status:
        fields = {line.split(":")[0]: line.split()[1] for line in status if line.startswith(("VmRSS", "VmHWM"))}
    return int(fields["VmRSS"]) * 1024, int(fields["VmHWM"]) * 1024


def _reset_peak() -> int:
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")
    return _memory()[0]


def _waited() -> float:
    """Seconds this process was ready to run and another ran instead."""
    with open("/proc/self/schedstat") as file:
        return int(file.read().split()[1]) / 1e9


def _measured(case: str, make: Callable[[str, Path], Trial], folder: Path) -> Outcome:
    from bertie.errors import BertieError

    trial = make(case, folder)
    before = _reset_peak()
    started, waited = time.perf_counter(), _waited()
    loaded = None
    verdict, detail = "loaded", ""
    try:
        loaded = trial.load()
    except BertieError as error:
        verdict, detail = "refused", f"{type(error).__name__}: {error.cause}"
    except BaseException as error:
        verdict, detail = "failed", "".join(traceback.format_exception(error))[-1500:]
    seconds = time.perf_counter() - started - (_waited() - waited)
    megabytes = max(0, _memory()[1] - before) / 2**20
    try:
        trial.harmless()
        if verdict == "loaded":
            trial.check(loaded)
    except BaseException as error:
        verdict, detail = "failed", "".join(traceback.format_exception(error))[-1500:]
    return Outcome(case, verdict, detail, seconds, megabytes, trial.size / 2**20)


def _work(runner: str, folder: Path) -> None:
    module, _, function = runner.partition(":")
    make = getattr(importlib.import_module(module), function)
    warnings.simplefilter("ignore")  # a fresh head is told in a warning; these checkpoints lose theirs all the time
    # Ten thousand cases are ten thousand answers on one pipe; nothing else may write there.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with open("/proc/self/statm") as statm:
        size = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + ADDRESS_SPACE_ABOVE_BASELINE,) * 2)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        outcome = _measured(line.rstrip("\n"), make, folder)
        print(json.dumps(asdict(outcome)), file=answers, flush=True)


if __name__ == "__main__":
    _work(sys.argv[1], Path(sys.argv[2]))
