"""A job on this machine: in this process, or in several, one per GPU or as many as were asked for.

A process that dies over a piece (a crash, the system's memory killer) is replaced; a piece that three processes died
over is set aside. Processes end with the one that started them, however that ends.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from bertie.bulk.work import TRIES, JobStopped, Report, Tick, Worker
from bertie.errors import BertieError, DataError
from bertie.running.stream import started_ahead


def run_here(output: str, pieces: Sequence[int], device: str | None, strict: bool, tick: Tick) -> Iterator[Report]:
    """In this process. On a GPU the next piece is computed while the file of the last one is published."""
    worker = Worker(output, device=device, strict=strict)
    try:
        ahead = 1 if device is not None and device.startswith("cuda") else 0
        yield from started_ahead(pieces, partial(worker.start, tick=tick), ahead)
    finally:
        worker.close()


@dataclass(frozen=True)
class _Seat:
    """A process and the two lines to it: pieces and reports, and one that says that this process lives."""

    process: SpawnProcess
    line: Connection
    alive: Connection


def run_processes(
    output: str, pieces: Sequence[int], devices: Sequence[str | None], strict: bool, tick: Tick
) -> Iterator[Report]:
    """In a process to each of `devices`."""
    waiting, deaths, failed_starts = deque(pieces), Counter[int](), 0
    begun: set[int] = set()  # whose process has its model and begins pieces
    seats = {device_number: _seated(output, device, strict) for device_number, device in enumerate(devices)}
    working: dict[int, int] = {}

    def give(number: int) -> None:
        if waiting:
            working[number] = waiting.popleft()
            seats[number].line.send(working[number])

    try:
        for number in seats:
            give(number)
        while working:
            ready = wait([seats[number].line for number in working])
            for number in [number for number in list(working) if seats[number].line in ready]:
                try:
                    kind, *said = seats[number].line.recv()
                except (EOFError, OSError):
                    piece = working.pop(number)
                    if number in begun:
                        deaths[piece] += 1
                    else:  # no fault of the piece
                        failed_starts += 1
                        if failed_starts == TRIES:
                            raise JobStopped(_no_start(seats[number])) from None
                    begun.discard(number)
                    if deaths[piece] < TRIES:
                        waiting.appendleft(piece)
                    else:
                        seats[number].process.join(5)
                        yield Report(piece, None, f"it ended its process {TRIES} times ({_ending(seats[number])})")
                    _dismissed(seats[number])
                    seats[number] = _seated(output, devices[number], strict)
                    give(number)
                    continue
                if kind == "ready":
                    begun.add(number)
                    failed_starts = 0
                elif kind == "tick":
                    tick(*said)
                elif kind == "stopped":
                    raise JobStopped(said[0])
                else:
                    del working[number]
                    give(number)
                    yield said[0]
    finally:
        for seat in seats.values():
            _dismissed(seat)


def _seated(output: str, device: str | None, strict: bool) -> _Seat:
    context = multiprocessing.get_context("spawn")  # a fork would share CUDA's and OpenMP's state
    ours, theirs = context.Pipe()
    alive, watched = context.Pipe()
    process = context.Process(target=_serve, args=(output, device, strict, theirs, watched), daemon=True)
    process.start()
    theirs.close()
    watched.close()
    return _Seat(process, ours, alive)


def _dismissed(seat: _Seat) -> None:
    seat.line.close()
    seat.process.kill()  # a part that is not whole has no name yet
    seat.process.join(10)
    seat.alive.close()


def _ending(seat: _Seat) -> str:
    code = seat.process.exitcode
    return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"


def _no_start(seat: _Seat) -> DataError:
    seat.process.join(5)
    return DataError(
        f"Processes for the job ended before they could begin, {TRIES} one after the other ({_ending(seat)}).",
        'Their output is above. In a script, call bertie.bulk under `if __name__ == "__main__":`, since each process '
        "imports the script; or do without {workers=}.",
    )


def _serve(output: str, device: str | None, strict: bool, line: Connection, watched: Connection) -> None:
    """The other process: pieces in, reports out."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asked
    threading.Thread(target=_end_with_parent, args=(watched,), daemon=True).start()
    logging.getLogger("bertie.bulk").setLevel(logging.INFO)
    try:
        worker = Worker(output, device=device, strict=strict)
        line.send(("ready",))
        while True:
            number = line.recv()
            report = worker.run(number, lambda rows, tokens: line.send(("tick", rows, tokens)))
            line.send(("report", report))
    except EOFError:
        return
    except JobStopped as stopped:
        line.send(("stopped", stopped.error))
    except BertieError as error:
        line.recv()
        line.send(("stopped", error))


def _end_with_parent(watched: Connection) -> None:
    try:
        watched.recv()
    except (EOFError, OSError):
        os._exit(1)
