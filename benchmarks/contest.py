"""Contestants in processes of their own, asked in turn: how every comparison is made.

Each contestant sits in its own process (`Seat`), so that two OpenMP libraries, allocators or crashes never meet; only
the one that is asked works, the others sleep. A round asks each for one pass over the same rows, in an order that
rotates, so that slow moments of the machine hit all alike; the figure is the median over rounds. What is timed, and
what is prepared before the clock starts, is in `Worker`, the same lines for everyone.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers import make
from benchmarks.peers.batches import Rows, Setting

# Idle threads of OpenMP and ONNX Runtime spin for up to a fifth of a second; nobody starts before they sleep.
_PAUSE = 0.25


class Failed(Exception):
    """A contestant could not do what it was asked; the message is its error line."""


@dataclass(frozen=True)
class Settings:
    """What tuning found best: for batches sorted by length, and for texts as they come."""

    sorted: Setting
    stream: Setting


class Worker:
    """What a seat does with its contestant. Every method is one question and its answer."""

    def __init__(self, name: str) -> None:
        self.contestant = make(name)

    def prepare(self, folder: str, workdir: str, threads: int) -> str:
        """Ready to run, with the first of its settings."""
        contestant = self.contestant
        note = contestant.prepare(Path(folder), Path(workdir), threads)
        variant, lanes = contestant.ways[0]
        self.best = Settings(
            Setting(contestant.sizes[0], lanes, variant), Setting(contestant.stream_sizes[0], lanes, variant)
        )
        return note

    def load(self, rows: Rows, sample: Rows) -> None:
        """The rows to be timed, and the few that settings are tried on."""
        self.rows, self.sample = rows, sample

    def tune(self) -> Settings:
        """The fastest way (variant and lanes), then the fastest batch size with it, for both kinds of run."""
        contestant = self.contestant

        def seconds(setting: Setting, job: Callable[[], float]) -> float:
            contestant.choose(setting)
            return min(job(), job())  # the first warms it up

        ways = [Setting(contestant.sizes[0], lanes, variant) for variant, lanes in contestant.ways]
        tried = {setting: seconds(setting, self._sorted_sample) for setting in ways}
        best = min(tried, key=lambda s: tried[s])
        for size in contestant.sizes[1:]:
            other = Setting(size, best.lanes, best.variant)
            tried[other] = seconds(other, self._sorted_sample)
        best = min(tried, key=lambda s: tried[s])
        streams = {}
        for size in contestant.stream_sizes:
            other = Setting(size, best.lanes, best.variant)
            streams[other] = seconds(other, self._stream_sample)
        self.best = Settings(best, min(streams, key=lambda s: streams[s]))
        return self.best

    def warm(self) -> None:
        """Whatever compiles, allocates or packs on first use does it now."""
        for setting in (self.best.sorted, self.best.stream):
            self.contestant.choose(setting)
            self._sorted_sample()
            self._stream_sample()

    def sorted_pass(self) -> float:
        """Seconds for all rows, batches of neighbours in length made beforehand."""
        self.contestant.choose(self.best.sorted)
        return self._run(self.rows)

    def stream_pass(self) -> float:
        """Seconds for all rows as they come, from lists of ids to vectors in order."""
        self.contestant.choose(self.best.stream)
        started = time.perf_counter()
        found = self.contestant.stream(self.rows)
        seconds = time.perf_counter() - started
        assert len(found) == len(self.rows)
        return seconds

    def vectors(self, rows: Rows) -> NDArray[np.float32]:
        """Unit vectors in the rows' order."""
        contestant = self.contestant
        contestant.choose(self.best.sorted)
        batches: Any = contestant.batches(rows)
        found = contestant.run(batches)
        places = [place for batch in batches for place in batch.places]
        together = np.concatenate(found)
        answer = np.empty_like(together)
        answer[places] = together
        return answer

    def latencies(self, rows: Rows) -> list[float]:
        """Seconds for each row by itself, all threads on it."""
        way = self.best.sorted
        self.contestant.choose(Setting(way.size, 1, way.variant))
        batches: list[Any] = [self.contestant.batches([row]) for row in rows]
        for batch in batches[:3]:  # some compile anew for a batch of one
            self.contestant.run(batch)
        found = []
        for batch in batches:
            started = time.perf_counter()
            self.contestant.run(batch)
            found.append(time.perf_counter() - started)
        return found

    def embed_pass(self, texts: list[str]) -> float:
        """Seconds from texts to vectors."""
        way = self.best.sorted
        self.contestant.choose(Setting(way.size, 1, way.variant))
        started = time.perf_counter()
        found = self.contestant.embed(texts)
        seconds = time.perf_counter() - started
        assert len(found) == len(texts)
        return seconds

    def seconds_for(self, rows: Rows, repeats: int) -> float:
        """The median over `repeats` of the time for these rows, batches made beforehand."""
        self.contestant.choose(self.best.sorted)
        self._run(rows)
        return float(np.median([self._run(rows) for _ in range(repeats)]))

    def _run(self, rows: Rows) -> float:
        batches: Any = self.contestant.batches(rows)
        started = time.perf_counter()
        self.contestant.run(batches)
        return time.perf_counter() - started

    def _sorted_sample(self) -> float:
        return self._run(self.sample)

    def _stream_sample(self) -> float:
        started = time.perf_counter()
        self.contestant.stream(self.sample)
        return time.perf_counter() - started


class Seat:
    """A contestant's process, from here."""

    def __init__(self, name: str, *, threads: int, log: Path) -> None:
        self.name, self.log = name, log
        log.parent.mkdir(parents=True, exist_ok=True)
        for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[variable] = str(threads)
        os.environ["TOKENIZERS_PARALLELISM"] = "true"
        os.environ["HF_HUB_OFFLINE"] = "1"
        context = multiprocessing.get_context("spawn")
        self._line, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(name, theirs, str(log)), daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, question: str, *arguments: Any) -> Any:
        """Call a method of the seat's `Worker`."""
        try:
            self._line.send((question, arguments))
            answered, answer = self._line.recv()
        except (EOFError, OSError):
            self._process.join(5)
            raise Failed(f"its process ended with code {self._process.exitcode} (see {self.log})") from None
        if not answered:
            raise Failed(answer)
        return answer

    def leave(self) -> None:
        self._line.close()
        self._process.join(10)
        if self._process.is_alive():
            self._process.terminate()


def _serve(name: str, line: Connection, log: str) -> None:
    """The seat's process: answer until nobody asks; what libraries print goes to the log."""
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(out, stream.fileno())
    worker: Worker | None = None
    while True:
        try:
            question, arguments = line.recv()
        except EOFError:
            return
        try:
            worker = worker or Worker(name)
            line.send((True, getattr(worker, question)(*arguments)))
        except Exception as error:
            traceback.print_exc()
            lines = [text.strip() for text in str(error).splitlines() if text.strip()]
            line.send((False, f"{type(error).__name__}: {(lines or [''])[0][:200]}"))


def rounds_of(
    seats: Sequence[Seat],
    question: str,
    *arguments: Any,
    rounds: int,
    show: Callable[[str], None],
    failed: Callable[[Seat, str], None],
    came: Callable[[Seat, Any], None],
) -> dict[str, list[Any]]:
    """Every seat's answers to one question, asked in rounds; `came` is told each, and `failed` who is out."""
    answers: dict[str, list[Any]] = {seat.name: [] for seat in seats}
    out: set[str] = set()
    for number in range(rounds):
        turn = number % max(1, len(seats))
        for seat in [*seats[turn:], *seats[:turn]]:
            if seat.name in out:
                continue
            show(f"{question.replace('_', ' ')}, round {number + 1} of {rounds}: {seat.name}")
            time.sleep(_PAUSE)
            try:
                answers[seat.name].append(seat.ask(question, *arguments))
                came(seat, answers[seat.name][-1])
            except Failed as error:
                out.add(seat.name)
                failed(seat, str(error))
    return {name: found for name, found in answers.items() if name not in out}
