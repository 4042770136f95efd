"""The same work in several processes: results in order, memory bounded, and nobody left behind.

    with closing(in_order(tokenize_documents, pieces, setup=(tokenizer,), processes=8)) as results:
        for result in results: …

A worker runs `function(item, *setup)`; the function's module is all it imports. Workers are new Pythons: a fork of a
process that has threads, Rust's or a GPU's, may hang. They know this module and nothing of the program that was
started: Python's own pools read that once more, and a script without `if __name__ == "__main__"` would start again in
each of them. They are a process group of their own, which Ctrl-C on a terminal does not reach.

A worker ends with its pipe: when the results are closed, when an error passes through here, and when this process is
killed.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from multiprocessing.connection import Connection, Pipe, wait
from typing import TypeVar, cast

from bertie.arguments import whole_number
from bertie.errors import DataError

Result = TypeVar("Result")

_MOST = 8  # processes, where nobody says: more wait for the one that reads and writes
_AHEAD = 2  # items that are under way or wait for their turn, for each worker
_GRACE = 5.0  # seconds a worker has to end after it was asked to
_PROGRAM = """\
import sys
sys.path[:] = sys.argv[2:]
from bertie.text.corpus.processes import work
work(int(sys.argv[1]))
"""


def num_processes(wanted: int | None = None, *, worth_it: bool = True) -> int:
    """How many to use: what was asked for, or as many as there are cores, eight at most; 1 where it is not worth it."""
    if wanted is not None:
        whole_number("processes", wanted, error=DataError)
    if multiprocessing.current_process().daemon:  # one of many already, in somebody's pool
        return 1
    if wanted is not None:
        return wanted
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(_MOST, cores) if worth_it else 1


def in_order(
    function: Callable[..., Result], items: Iterable[object], *, processes: int, setup: tuple[object, ...] = ()
) -> Generator[Result, None, None]:
    """`function(item, *setup)` for every item, in their order; with fewer than two processes, and on Windows, here.

    Close it (`contextlib.closing`) where an error may leave it unfinished: that ends the workers.
    """
    if processes < 2 or os.name == "nt":  # Windows gives a process no pipe by its number
        for item in items:
            yield function(item, *setup)
        return
    workers: list[_Worker] = []
    try:
        for _ in range(processes):
            workers.append(_Worker())
            workers[-1].send((function, setup))
        yield from cast("Iterator[Result]", _dealt(workers, iter(items)))
    finally:
        for worker in workers:
            worker.connection.close()
            worker.process.terminate()
        for worker in workers:
            if worker.exit_code() is None:
                worker.process.kill()
                worker.process.wait()


class _Worker:
    """Another Python, at the other end of a pipe."""

    def __init__(self) -> None:
        self.connection: Connection[object, tuple[bool, object]]
        self.connection, theirs = Pipe()
        with theirs:  # the worker's copy is the only one: when it dies, ours ends
            handle = theirs.fileno()
            self.process = subprocess.Popen(
                [sys.executable, *(f"-W{one}" for one in sys.warnoptions), "-c", _PROGRAM, str(handle), *sys.path],
                stdin=subprocess.DEVNULL,
                env=os.environ | {"TOKENIZERS_PARALLELISM": "false"},  # one core each
                pass_fds=[handle],
                process_group=0,
            )

    def send(self, item: object) -> None:
        try:
            self.connection.send(item)
        except ConnectionError:
            raise self._lost() from None

    def receive(self) -> object:
        try:
            well, value = self.connection.recv()
        except (EOFError, ConnectionError):
            raise self._lost() from None
        if not well:
            raise cast(Exception, value)
        return value

    def exit_code(self) -> int | None:
        """That of a worker that is about to end; None where it does not."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_GRACE)
        return self.process.returncode

    def _lost(self) -> DataError:
        return DataError(
            f"A process that prepares the text ended before its work did (exit code {self.exit_code()}).",
            "Memory may have run out. What is finished is kept: continue with fewer, e.g. {processes}.",
            processes=1,
        )


def _dealt(workers: list[_Worker], items: Iterator[object]) -> Iterator[object]:
    """Items to whoever is idle, results in the items' order."""
    idle, busy = list(workers), dict[object, tuple[int, _Worker]]()
    early: dict[int, object] = {}  # results that wait for one before them
    sent = given = 0
    ended, failure = False, None
    while True:
        while idle and not ended and sent - given < _AHEAD * len(workers):
            try:
                item = next(items)
            except StopIteration:
                ended = True
            except Exception as error:  # what comes before it is still wanted
                ended, failure = True, error
            else:
                worker = idle.pop()
                worker.send(item)
                busy[worker.connection] = (sent, worker)
                sent += 1
        if busy:
            waiting = [worker.connection for _, worker in busy.values()]
            for connection in wait(waiting, timeout=0 if given in early else None):
                number, worker = busy.pop(connection)
                early[number] = worker.receive()
                idle.append(worker)
        if given in early:
            yield early.pop(given)
            given += 1
        elif ended and not busy:
            if failure is not None:
                raise failure
            return


def work(handle: int) -> None:
    """A worker's life."""
    connection: Connection[tuple[bool, object], object] = Connection(handle)
    with contextlib.suppress(EOFError, ConnectionError):
        function, setup = cast("tuple[Callable[..., object], tuple[object, ...]]", connection.recv())
        while True:
            item = connection.recv()
            try:
                answer = True, function(item, *setup)
            except Exception as error:
                answer = False, error
            connection.send(answer)
