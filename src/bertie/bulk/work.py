"""One piece of a job: read, answered, written, published. The same code in this process, beside it and on Ray.

    reader thread ─▶ batches ─▶ items ─▶ the task's own stream ─▶ answers ─▶ writer thread ─▶ one file, renamed or put

A piece goes through the model by itself, so what shares a batch with a row depends on the piece alone, and a job that
was interrupted gives the same bits as one that was not. While a file is flushed to the disk, the next piece begins.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import IO, TYPE_CHECKING, TypeVar

from bertie.bulk.inputs import read_schema
from bertie.bulk.manifest import FOOTER, Done, check_dtype, model_hash, part_name, read_job
from bertie.bulk.questions import TASKS, AnyQuestion, Block
from bertie.bulk.reading import BATCH_ROWS, Batch, is_all_text, read_piece, texts_of
from bertie.bulk.stores import joined, new_file, unwritable
from bertie.defaults import default_embedding_model, default_language_model
from bertie.errors import BertieError, CheckpointError, DataError
from bertie.running.progress import Meter, metered
from bertie.running.stream import map_ahead

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

ROW_GROUP = 1 << 16
_GROUP_BYTES = 128 << 20  # or fewer rows, where vectors are wide: a row group is held in memory until it is whole
TRIES = 3
ERROR = "error"
# Batches on their way to the file. A GPU computes a hundred thousand rows while a row group is written and synced.
_QUEUED, _QUEUED_BY_GPU = 4, 64
_READ_AHEAD = 2
# Reading, computing and writing are threads: at Python's own 5 ms, the one feeding a GPU waits too long for its turn.
_GPU_SWITCH_SECONDS = 0.0005
_DEFAULT_MODELS: dict[str, Callable[[], str]] = {
    "embed": default_embedding_model,
    "rerank": default_embedding_model,
    "fill": default_language_model,
    "features": default_language_model,
}
logger = logging.getLogger("bertie.bulk")


class JobStopped(Exception):
    """Something that no other piece would do better with: a bad row in a strict job, a full disk, a missing model."""

    def __init__(self, error: BertieError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True)
class Report:
    """What became of a piece: done, or set aside for a reason."""

    piece: int
    done: Done | None
    reason: str = ""


Tick = Callable[[int, int], None]  # so many more rows were answered, and tokens read


def named_model(task: str, model: str | None) -> str:
    """The model of a job: the one named, or the task's own."""
    if model is not None:
        return model
    if task not in _DEFAULT_MODELS:
        raise DataError(f"{task} needs a model.", "Name its folder or its hub name: {model=}.")
    return _DEFAULT_MODELS[task]()


class Worker:
    """A job's model, ready on a device of this machine."""

    def __init__(self, output: str, *, device: str | None = None, strict: bool = False) -> None:
        job = read_job(output)
        if job is None:
            raise DataError(
                f"{output}: {socket.gethostname()} finds no job there.",
                "The output has to be where every worker sees it: a shared folder or a store.",
            )
        self.job, self.output, self.strict = job, output, strict
        self.schema = read_schema(job.schema)
        model = named_model(job.task, job.model)
        found = _hash_here(model)
        if found != job.model_hash:
            raise CheckpointError(
                f"The model {model} on {socket.gethostname()} is not the one that the job began with.",
                "Put the same files there, or name a folder that all machines share.",
            )
        self.question: AnyQuestion = TASKS[job.task].make({"model": model, "device": device, **job.settings})
        check_dtype(output, job, self.question.loaded.dtype)
        self.fields = [one.with_name(job.prefix + one.name) for one in self.question.fields()]
        # One thread makes parquet of the next part while the other waits for the disk.
        self._writer = ThreadPoolExecutor(1, "bertie-bulk-write")
        self._publisher = ThreadPoolExecutor(1, "bertie-bulk-publish")
        on_gpu = (device or "").startswith("cuda")
        self._queued = _QUEUED_BY_GPU if on_gpu else _QUEUED
        self._switch_seconds = sys.getswitchinterval()
        if on_gpu:
            sys.setswitchinterval(_GPU_SWITCH_SECONDS)

    def run(self, number: int, tick: Tick = lambda rows, tokens: None) -> Report:
        """A piece, from its rows to its file. What fails three times is set aside."""
        return self.start(number, tick)()

    def start(self, number: int, tick: Tick = lambda rows, tokens: None) -> Callable[[], Report]:
        """As `run`; the piece is computed, and the call that is given waits until its file is there."""
        reason = ""
        for attempt in range(TRIES):
            logger.info("piece %d begins in process %d%s", number, os.getpid(), f", again: {reason}" if attempt else "")
            try:
                return partial(_ended, number, self._start(number, tick))
            except JobStopped:
                raise
            except Exception as error:
                reason = _reason(error)
        return lambda: Report(number, None, reason)

    def close(self) -> None:
        for threads in (self._writer, self._publisher):
            threads.shutdown(wait=True, cancel_futures=True)
        sys.setswitchinterval(self._switch_seconds)

    def _start(self, number: int, tick: Tick) -> Callable[[], Report]:
        threads = self._writer, self._publisher
        part = _Part(joined(self.output, part_name(number)), self._written_schema(), *threads, self._queued)
        try:
            counts = self._answer(number, part, tick)
        except BaseException:
            part.discard()
            raise
        about = {"job": self.job.fingerprint, "piece": number, **counts}
        kept = part.keep(json.dumps(about))

        def wait() -> Report:
            rows, size = kept()
            return Report(number, Done(rows, counts["errors"], counts["truncated"], counts["tokens"], size))

        return wait

    def _written_schema(self) -> pa.Schema:
        import pyarrow as pa

        return pa.schema([*self.schema, *self.fields, pa.field(self.job.prefix + ERROR, pa.string())])

    def _answer(self, number: int, part: _Part, tick: Tick) -> dict[str, int]:
        """Put every batch of the piece into its part; gives errors, texts that were cut and tokens."""
        waiting: deque[_Asked] = deque()
        piece, meter = self.job.pieces[number], Meter()
        cuts = self.question.cuts()
        errors = told = 0
        source = map(self._asked, read_piece(self.job.files, piece, self.schema, self.job.reading, self.job.columns))

        def items() -> Iterator[object]:
            with closing(map_ahead(lambda _: next(source, None), repeat(None), depth=_READ_AHEAD)) as batches:
                for asked in batches:
                    if asked is None:
                        return
                    waiting.append(asked)
                    yield from asked.items

        def flush(answers: Sequence[Block]) -> None:
            nonlocal errors, told
            asked = waiting.popleft()
            errors += len(asked.errors)
            part.write(partial(self._written, asked, answers))
            tick(asked.batch.rows.num_rows, meter.tokens - told)
            told = meter.tokens

        held = _Held()
        for block in metered(self.question.blocks(items(), cuts), meter):
            held.add(block)
            while waiting and held.count >= len(waiting[0].items):
                flush(held.take(len(waiting[0].items)))
        while waiting:  # rows without a single item to ask about
            flush(held.take(len(waiting[0].items)))
        return {"errors": errors, "truncated": cuts.cut, "tokens": meter.tokens}

    def _asked(self, batch: Batch) -> _Asked:
        """The items of a batch's rows, and what is wrong with the rows that have none."""
        given = [batch.rows.column(name) for name in self.job.columns]
        columns = [texts_of(column) for column in given]
        rows: list[object] = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        if all(map(is_all_text, given)) and not batch.errors and not self._refuses(rows):
            return _Asked(batch, rows, None, {})
        errors = dict(batch.errors)
        items: list[object] = []
        places: list[int] = []
        for place, (row, *texts) in enumerate(zip(rows, *columns, strict=True)):
            wrong = errors.get(place) or self._wrong(row, texts)
            if wrong is None:
                items.append(row)
                places.append(place)
            else:
                errors[place] = f"{batch.where(place)}: {wrong}"
                if self.strict:
                    raise JobStopped(_bad_row(errors[place]))
        return _Asked(batch, items, places, errors)

    def _refuses(self, rows: list[object]) -> bool:
        """Whether the task would refuse one of these rows."""
        if not self.question.refuses or not rows:
            return False
        try:
            self.question.check(rows)
        except BertieError:
            return True
        return False

    def _wrong(self, row: object, texts: Sequence[object]) -> str | None:
        """What is wrong with a row and its texts; None if it can be answered."""
        for name, text in zip(self.job.columns, texts, strict=True):
            if text is None or isinstance(text, bytes):
                return f"the column {name!r} {'is empty' if text is None else 'is not UTF-8'}"
        if self.question.refuses:
            try:
                self.question.check([row])
            except BertieError as error:
                return error.cause.rstrip(".")
        return None

    def _written(self, asked: _Asked, answers: Sequence[Block]) -> pa.RecordBatch:
        """The rows with the columns of their answers, empty where there is an error."""
        import pyarrow as pa

        rows = asked.batch.rows
        found = self.question.arrays(answers)
        if asked.places is not None:
            taken: list[int | None] = [None] * rows.num_rows
            for number, place in enumerate(asked.places):
                taken[place] = number
            index = pa.array(taken, type=pa.int64())
            found = [array.take(index) for array in found]
        said = pa.nulls(rows.num_rows, pa.string())
        if asked.errors:
            said = pa.array([asked.errors.get(place) for place in range(rows.num_rows)], type=pa.string())
        return pa.RecordBatch.from_arrays([*rows.columns, *found, said], schema=self._written_schema())


@dataclass(frozen=True)
class _Asked:
    """A batch, its items, the rows they are of (None: all), and the errors of the other rows."""

    batch: Batch
    items: list[object]
    places: list[int] | None
    errors: Mapping[int, str]


@dataclass
class _Held:
    """Answers that have come, in blocks."""

    blocks: deque[Block] = field(default_factory=deque)
    count: int = 0

    def add(self, block: Block) -> None:
        self.blocks.append(block)
        self.count += len(block)

    def take(self, wanted: int) -> list[Block]:
        taken: list[Block] = []
        self.count -= wanted
        while wanted:
            block = self.blocks.popleft()
            if len(block) > wanted:
                self.blocks.appendleft(block[wanted:])
                block = block[:wanted]
            taken.append(block)
            wanted -= len(block)
        return taken


class _Part:
    """A parquet file that is written in other threads, a row group at a time, and there once it is kept."""

    def __init__(
        self, name: str, schema: pa.Schema, writer: ThreadPoolExecutor, publisher: ThreadPoolExecutor, queued: int
    ) -> None:
        import pyarrow.parquet as pq

        self._name, self._writer, self._publisher, self._queued = name, writer, publisher, queued
        self._failure: BaseException | None = None
        self._pending: deque[Future[None]] = deque()
        self._held: list[pa.RecordBatch] = []
        self._rows = self._held_rows = self._held_bytes = 0
        self._new = self._guarded(lambda: new_file(name))
        leaves = {path: is_vector for one in schema for path, is_vector in _leaves(one.type, one.name)}
        try:
            self._sink = self._guarded(lambda: _sink(self._new.stream))
            # Vectors are noise to a compressor, and nobody asks for the least of their numbers.
            plain = [path for path, is_vector in leaves.items() if not is_vector]
            self._parquet = self._guarded(
                lambda: pq.ParquetWriter(  # which writes four bytes at once
                    self._sink,
                    schema,
                    compression={path: "NONE" if is_vector else "ZSTD" for path, is_vector in leaves.items()},
                    use_dictionary=plain,
                    write_statistics=plain,
                )
            )
        except BaseException:
            self._new.discard()
            raise

    def write(self, make: Callable[[], pa.RecordBatch]) -> None:
        """Have the other thread make a batch and write it; waits if that is behind."""
        self._pending.append(self._writer.submit(self._put, make))
        while len(self._pending) > self._queued or (self._pending and self._pending[0].done()):
            self._pending.popleft().result()

    def keep(self, about: str) -> Callable[[], tuple[int, int]]:
        """Publish it, also in other threads; the call that is given waits for that, and tells rows and bytes."""
        closed = self._writer.submit(self._close, about)
        published = self._publisher.submit(self._publish, closed)

        def wait() -> tuple[int, int]:
            while self._pending:
                self._pending.popleft().result()
            return published.result()

        return wait

    def discard(self) -> None:
        for future in self._pending:
            future.cancel()
        self._writer.submit(self._drop).result()

    def _put(self, make: Callable[[], pa.RecordBatch]) -> None:
        if self._failure is not None:
            return
        try:
            batch = make()
            self._held.append(batch)
            self._held_rows += batch.num_rows
            self._held_bytes += batch.nbytes
            if self._held_rows + BATCH_ROWS > ROW_GROUP or self._held_bytes >= _GROUP_BYTES:
                self._flush()
        except BaseException as error:
            self._failure = error  # whoever asked may hear of it only after the part was to be kept
            raise

    def _flush(self) -> None:
        import pyarrow as pa

        if self._held:
            table = pa.Table.from_batches(self._held)
            self._rows += table.num_rows
            self._held, self._held_rows, self._held_bytes = [], 0, 0
            self._guarded(lambda: self._parquet.write_table(table, row_group_size=ROW_GROUP))

    def _close(self, about: str) -> int:
        """All rows and the footer, on their way to the disk; gives the bytes."""
        if self._failure is not None:
            raise self._failure
        self._flush()
        self._parquet.add_key_value_metadata({FOOTER: about})
        self._guarded(self._parquet.close)
        size: int = self._sink.tell()
        self._guarded(self._sink.close)
        return size

    def _publish(self, closed: Future[int]) -> tuple[int, int]:
        try:
            size = closed.result()
            self._guarded(self._new.keep)
        except BaseException:
            self._drop()
            raise
        return self._rows, size

    def _drop(self) -> None:
        self._held = []
        with suppress(OSError, ValueError):
            self._parquet.close()
        with suppress(OSError, ValueError):
            self._sink.close()
        self._new.discard()

    def _guarded(self, write: Callable[[], T]) -> T:
        """A disk that is full is no fault of the piece."""
        try:
            return write()
        except OSError as error:
            raise JobStopped(unwritable(self._name, error)) from error


def _sink(stream: IO[bytes]) -> pa.NativeFile:
    """The same open file for pyarrow alone: through Python's, each page is copied while no other thread may run."""
    import pyarrow as pa

    again = f"/proc/self/fd/{stream.fileno()}"
    return pa.OSFile(again, "wb") if os.path.exists(again) else pa.PythonFile(stream, "w")


def _leaves(kind: pa.DataType, path: str) -> Iterator[tuple[str, bool]]:
    """Parquet's columns, by path: a struct's fields, a list's elements; and whether they are the numbers of vectors."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        for number in range(kind.num_fields):
            yield from _leaves(kind.field(number).type, f"{path}.{kind.field(number).name}")
    elif pa.types.is_fixed_size_list(kind):
        yield f"{path}.list.element", True
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _leaves(kind.value_type, f"{path}.list.element")
    else:
        yield path, False


def _ended(number: int, wait: Callable[[], Report]) -> Report:
    """A piece whose answers could not be written is set aside too; a disk that is full stops the job."""
    try:
        return wait()
    except JobStopped:
        raise
    except Exception as error:
        return Report(number, None, _reason(error))


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {getattr(error, 'cause', error)}"


def _bad_row(cause: str) -> DataError:
    return DataError(f"{cause}.", "Correct it; or run without {strict}, and it is an error in its row.", strict=True)


def _hash_here(model: str) -> str:
    try:
        return model_hash(model)
    except BertieError as error:
        raise CheckpointError(
            f"On {socket.gethostname()}: {error.cause}",
            f"{error.remedy or ''} Every machine needs the model: a shared folder, or the same path on each.".strip(),
        ) from error
