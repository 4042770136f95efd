"""The same work in several processes: results in order, memory bounded, and nobody left behind.

    with closing(in_order(tokenize_documents, pieces, setup=(tokenizer,), processes=8)) as results:
        for result in results: …

A worker runs `function(item, *setup)`; the function's module is all it imports. Workers are started afresh (spawned):
a fork of a process that has threads, Rust's or a GPU's, may hang. And they do not read the program that was started
once more, as Python's own pools do: a script without `if __name__ == "__main__"` would begin anew in each of them.

A worker ends with its pipe: when the results are closed, when an error passes through here, and when this process is
killed.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from bertie.errors import DataError

Result = TypeVar("Result")

_MOST = 8  # processes, where nobody says: more wait for the one that reads and writes
_AHEAD = 2  # items that are under way or wait for their turn, for each worker
_GRACE = 5.0  # seconds in which a worker that was told to end does


def num_processes(wanted: int | None = None, *, worth_it: bool = True) -> int:
    """How many to use: what was asked for, or as many as there are cores, eight at most; 1 where it is not worth it."""
    if wanted is not None and wanted < 1:
        raise DataError(f"processes is {wanted}; it takes a whole number of at least 1.")
    if multiprocessing.current_process().daemon:  # such a process may not start others
        return 1
    if wanted is not None:
        return wanted
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(_MOST, cores) if worth_it else 1


def in_order(
    function: Callable[..., Result], items: Iterable[Any], *, processes: int, setup: tuple[Any, ...] = ()
) -> Generator[Result, None, None]:
    """`function(item, *setup)` for every item, in their order; with fewer than two processes, here.

    Close it (`contextlib.closing`) where an error may leave it unfinished: that ends the workers.
    """
    if processes < 2:
        for item in items:
            yield function(item, *setup)
        return
    workers: list[_Worker] = []
    try:
        with _unseen_program(), _without_interrupts():
            for _ in range(processes):
                workers.append(_start(function, setup))
        yield from _dealt(workers, iter(items))
    finally:
        for worker in workers:
            worker.connection.close()
            worker.process.terminate()
        for worker in workers:
            worker.process.join(_GRACE)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()


class _Worker(NamedTuple):
    process: BaseProcess
    connection: Connection[Any, Any]

    def send(self, item: Any) -> None:
        try:
            self.connection.send(item)
        except ConnectionError:
            raise self._lost() from None

    def receive(self) -> Any:
        try:
            well, value = self.connection.recv()
        except (EOFError, ConnectionError):
            raise self._lost() from None
        if not well:
            raise value
        return value

    def _lost(self) -> DataError:
        self.process.join(_GRACE)
        return DataError(
            f"A process that prepares the text ended before its work did (exit code {self.process.exitcode}).",
            "Memory may have run out. What is finished is kept: go on with fewer, e.g. processes=1 (--processes 1).",
        )


def _start(function: Callable[..., Any], setup: tuple[Any, ...]) -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, function, setup), name="bertie-worker", daemon=True)
    process.start()
    theirs.close()  # the worker's copy is the only one: when it dies, ours ends
    return _Worker(process, ours)


def _dealt(workers: list[_Worker], items: Iterator[Any]) -> Iterator[Any]:
    """Items to whoever is idle, results in the items' order."""
    idle, busy = list(workers), dict[Any, tuple[int, _Worker]]()
    early: dict[int, Any] = {}  # results that wait for one before them
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
            for connection in wait(list(busy), timeout=0 if given in early else None):
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


def _work(connection: Connection[Any, Any], function: Callable[..., Any], setup: tuple[Any, ...]) -> None:
    """A worker's life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started us
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core each
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            item = connection.recv()
            try:
                answer = True, function(item, *setup)
            except Exception as error:
                answer = False, error
            connection.send(answer)


@contextlib.contextmanager
def _unseen_program() -> Iterator[None]:
    """While workers are started: a program with nothing in it, for them to read."""
    program = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = program


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Workers are born deaf to Ctrl-C, so that none of them complains of one while it is still importing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
