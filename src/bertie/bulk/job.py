"""A job over many files, asked for in one call: prepared, run or gone on with, and reported.

    bertie.bulk("embed", "texts/*.parquet", "vectors", model="all-MiniLM-L6-v2")

Asked for again, a job continues where it stopped; asked for after its end, it does nothing. A folder that holds another
job (other files, another model, other settings) is refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from bertie import __version__
from bertie.arguments import number as checked_number
from bertie.arguments import whole_number
from bertie.bulk import local
from bertie.bulk.inputs import InputFile, Look, Reading, common_schema, cut, find_files, finds, look_at, schema_text
from bertie.bulk.manifest import (
    FOLDER,
    Job,
    Same,
    Settings,
    State,
    check_same,
    is_free,
    model_hash,
    part_name,
    read_job,
    read_state,
    remove_job,
    write_job,
    write_state,
)
from bertie.bulk.progress import Progress
from bertie.bulk.questions import TASKS, chosen_columns, own_settings
from bertie.bulk.stores import full_name, is_address, joined, look_up, make_folder
from bertie.bulk.work import ERROR, ROW_GROUP, JobStopped, Report, named_model
from bertie.checkpoint.open_checkpoint import open_checkpoint
from bertie.errors import BertieError, DataError, InputError
from bertie.files import Busy, Lock

PART_BYTES = 128 << 20
_LEAST_ROWS, _MOST_ROWS = 256, 4 * ROW_GROUP
_SAVED_EVERY = 20  # pieces, between two accounts of what is done


@dataclass(frozen=True)
class Prepared:
    """A job that may begin or go on, and how far it is."""

    job: Job
    output: str
    state: State
    is_new: bool
    part_bytes: float  # a part of the whole, about

    @property
    def left(self) -> list[int]:
        """Numbers of the pieces that are still to be done."""
        return self.state.left(self.job)

    @property
    def rows_done(self) -> int:
        """How many rows are answered."""
        return sum(done.rows for done in self.state.done.values())

    @property
    def rows_left(self) -> int:
        """How many rows are still to be answered."""
        return sum(self.job.pieces[number].rows for number in self.left)


@dataclass(frozen=True)
class BulkReport:
    """How a job ended. `rows`, `errors` (rows with an error) and `truncated` (texts that were cut) are of all its runs.

    `set_aside` has the pieces that could not be done, with the reasons; asked for again, the job tries them again.
    """

    output: str
    rows: int
    errors: int
    truncated: int
    pieces: int
    pieces_done: int
    computed: int  # pieces of this run
    seconds: float
    rows_per_second: float
    tokens_per_second: float
    cost_per_million: float | None = None
    set_aside: Mapping[str, str] = field(default_factory=dict)


def prepare(
    task: str,
    input: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],  # noqa: A002  # what every command calls it
    output: str | os.PathLike[str],
    model: str | os.PathLike[str] | None = None,
    *,
    column: str | None = None,
    columns: Sequence[str] | None = None,
    prefix: str = "",
    format: str | None = None,  # noqa: A002  # likewise
    encoding: str = "utf-8",
    delimiter: str | None = None,
    piece_rows: int | None = None,
    **settings: Any,
) -> Prepared:
    """The job that is asked for, new or as it was left. Nothing is written, and no model is loaded.

    `task`, `input`, `output`, `model`, `column`, `columns`, `prefix`, `format`, `encoding`, `delimiter` and
    `piece_rows` are those of `bulk`.
    """
    given = own_settings(task, {name: _json_value(value) for name, value in settings.items()})
    whole_number("piece_rows", piece_rows, or_none="as many as fit a file of 128 MB")
    place = full_name(output)
    names = [os.fspath(one) for one in ([input] if isinstance(input, str | os.PathLike) else input)]
    _check_apart(names, place)
    files = find_files(names, format=format)
    if not files:
        raise DataError(f"{', '.join(names)}: all files are empty.", "There is nothing to do.")
    named = None if model is None else _named(os.fspath(model))
    reading = Reading(encoding, delimiter)
    same: Same = {
        "task": task,
        "files": tuple(files),
        "model_hash": model_hash(named_model(task, named)),
        "settings": given,
        "prefix": prefix,
        "reading": reading,
        "version": __version__,
    }
    if look_up(place)[0] is not None:
        raise DataError(f"{output} is a file.", "Name a folder as {output}: the answers are several files.", output=...)
    there = read_job(place)
    if there is not None:
        asked = tuple(columns) if columns is not None else (column,) if column is not None else there.columns
        rows = there.piece_rows if piece_rows is None else piece_rows
        check_same(there, {**same, "columns": asked, "piece_rows": rows}, str(output))
        return Prepared(there, place, read_state(place, there), False, 0.0)
    if not is_free(place):
        raise DataError(
            f"{output} has files in it that are named as answers are, and no job.",
            "Name another {output}, or move them away.",
            output=...,
        )
    looks = look_at(files, reading)
    schema = common_schema(files, looks)
    source = files[0].name if len(files) == 1 else f"{files[0].name} and {len(files) - 1} more"
    chosen = chosen_columns(task, schema, column, columns, source)
    _check_names(task, schema.names, given, prefix)
    row_bytes = _row_bytes(task, files, looks, given, named)
    size = piece_rows or _fitting_rows(row_bytes)
    pieces = cut(files, looks, size)
    if not pieces:
        raise DataError(f"{source}: there are no rows.", "There is nothing to do.")
    job = Job(**same, model=named, columns=chosen, schema=schema_text(schema), piece_rows=size, pieces=tuple(pieces))
    return Prepared(job, place, State(), True, row_bytes * min(size, job.rows))


def bulk(
    task: str,
    input: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],  # noqa: A002  # what every command calls it
    output: str | os.PathLike[str],
    model: str | os.PathLike[str] | None = None,
    *,
    ray: str | None = None,
    gpus_per_worker: float | None = None,
    cpus_per_worker: float | None = None,
    workers: int | None = None,
    device: str | None = None,
    strict: bool = False,
    price: float | None = None,
    progress: bool | None = None,
    **asked: Any,
) -> BulkReport:
    """Answer every row of many files, and write parquet files with all columns of the input and those of the answers.

    - `task`: embed, classify, tag, answer, rerank, fill or features; further keywords are that task's settings.
    - `model`: a folder or a hub name; by default the task's own, where it has one.
    - `input`: files, folders or patterns, on this machine or in a store (`s3://`, `gs://`, `hdfs://`): parquet, Arrow,
      jsonl, csv, tsv, txt. `output`: a folder, there or in a store.
    - `column` (or two `columns`, for tasks about pairs) hold what is asked about; found by their names otherwise.
      `prefix` goes before the names of the answers' columns. `format`, `encoding`, `delimiter` as for `read_rows`.
    - A row that cannot be answered has an `error` and no answer; with `strict` the first one ends the job.
    - `workers`: processes on this machine; by default this one, or one per GPU. `ray="auto"` or an address: a Ray
      cluster does it, each worker with `gpus_per_worker` or `cpus_per_worker`, `workers` of them at most.
    - `piece_rows`: rows of a piece, whose answers are one file; by default as many as make 128 MB, 262,144 at most.
    - `device`: "cpu", "cuda" …; by default a GPU if PyTorch finds one.
    - `price` of an hour (of one worker, in any currency) adds what a million rows cost.
    - `progress`: True shows a progress bar, False hides it.

    Run again, the job continues; nothing is computed twice but pieces that were not finished.
    """
    whole_number("workers", workers, or_none="one, or one per GPU")
    if price is not None:
        checked_number("price", price, least=0)
    prepared = prepare(task, input, output, model, **asked)
    return run(
        prepared, ray=ray, gpus_per_worker=gpus_per_worker, cpus_per_worker=cpus_per_worker, workers=workers,
        device=device, strict=strict, price=price, progress=progress,
    )  # fmt: skip


def run(
    prepared: Prepared,
    *,
    ray: str | None = None,
    gpus_per_worker: float | None = None,
    cpus_per_worker: float | None = None,
    workers: int | None = None,
    device: str | None = None,
    strict: bool = False,
    price: float | None = None,
    progress: bool | None = None,
    stopped: Callable[[BulkReport], None] = lambda report: None,
) -> BulkReport:
    """Do what is left of the job that is `prepared`. When it is interrupted, `stopped` is given how far it came.

    `ray`, `gpus_per_worker`, `cpus_per_worker`, `workers`, `device`, `strict`, `price` and `progress` are those of
    `bulk`.
    """
    for name, value in (("gpus_per_worker", gpus_per_worker), ("cpus_per_worker", cpus_per_worker)):
        if value is not None and ray is None:
            raise InputError(f"{{{name}}} is for Ray's workers.", "Add {ray=auto}, or leave it out.", **{name: value})
    job, output, state = prepared.job, prepared.output, prepared.state
    devices = [device]
    if ray is None:
        devices = _devices(device, workers, job.settings.get("dtype"))
    meter = Progress(
        job.rows,
        before=prepared.rows_done,
        price=None if price is None else price * (1 if ray else len(devices)),
        show=bool(progress),
    )
    aside: dict[int, str] = {}
    left = prepared.left
    computed = 0
    with ExitStack() as stack:
        if left:
            make_folder(joined(output, FOLDER))
            if not is_address(output):
                stack.enter_context(_locked(output))
            if prepared.is_new:
                write_job(output, job)
        try:
            for report in _reports(
                prepared, left, ray, gpus_per_worker, cpus_per_worker, workers, devices, strict, meter
            ):
                if report.done is None:
                    aside[report.piece] = report.reason
                    continue
                state.done[report.piece] = report.done
                computed += 1
                if computed % _SAVED_EVERY == 0:
                    write_state(output, job, state)
        except JobStopped as error:
            _stopped_at(prepared, meter, may_go=ray is None)  # on a cluster, others are at work for a moment more
            raise error.error from None
        except BertieError:
            _stopped_at(prepared, meter, may_go=True)
            raise
        except BaseException:
            _stopped_at(prepared, meter)
            stopped(_report(prepared, aside, computed, meter))
            raise
        meter.close()
        if computed:
            write_state(output, job, state)
    return _report(prepared, aside, computed, meter)


def _reports(
    prepared: Prepared,
    left: Sequence[int],
    ray: str | None,
    gpus: float | None,
    cpus: float | None,
    workers: int | None,
    devices: Sequence[str | None],
    strict: bool,
    meter: Progress,
) -> Iterator[Report]:
    if not left:
        return iter(())
    if ray is not None:
        from bertie.bulk.ray import run_on_ray

        return run_on_ray(
            prepared.output, left, address=ray, gpus=gpus, cpus=cpus, workers=workers, strict=strict, meter=meter
        )
    if len(devices) == 1:
        return local.run_here(prepared.output, left, devices[0], strict, meter.tick)
    return local.run_processes(prepared.output, left, devices[: len(left)], strict, meter.tick)


def _stopped_at(prepared: Prepared, meter: Progress, *, may_go: bool = False) -> None:
    """Write how far the job is. One that an error ended before it had an answer goes: nobody has to continue it."""
    meter.close()
    with suppress(DataError):  # a full disk, where the parts themselves say that they are done
        if may_go and prepared.is_new and is_free(prepared.output):
            remove_job(prepared.output)
        else:
            write_state(prepared.output, prepared.job, prepared.state)


def _report(prepared: Prepared, aside: Mapping[int, str], computed: int, meter: Progress) -> BulkReport:
    job, done = prepared.job, prepared.state.done.values()
    return BulkReport(
        output=prepared.output,
        rows=sum(one.rows for one in done),
        errors=sum(one.errors for one in done),
        truncated=sum(one.truncated for one in done),
        pieces=len(job.pieces),
        pieces_done=len(done),
        computed=computed,
        seconds=meter.seconds,
        rows_per_second=meter.rows / meter.seconds,
        tokens_per_second=meter.tokens / meter.seconds,
        cost_per_million=meter.cost,
        set_aside={described(job, number): reason for number, reason in sorted(aside.items())},
    )


def described(job: Job, number: int) -> str:
    """A piece, for people: which rows of which files."""
    spans = job.pieces[number].spans
    first, last = spans[0], spans[-1]
    unit = "rows" if job.files[first.file].format in ("parquet", "arrow") else "bytes"
    name = f"piece {number}: {job.files[first.file].name}, {unit} {first.start:,} to {first.stop:,}"
    return name if first is last else f"{name}, and {len(spans) - 1} more, up to {job.files[last.file].name}"


def _devices(device: str | None, workers: int | None, dtype: object) -> list[str | None]:
    """Where the processes of this machine compute."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() and dtype != "int8" else 0
    if device is not None:
        return [device] * (workers or 1)
    if gpus:
        return [f"cuda:{number % gpus}" for number in range(workers or gpus)] if (workers or gpus) > 1 else ["cuda"]
    return ["cpu"] * (workers or 1)


def _locked(output: str) -> Lock:
    try:
        return Lock(Path(output) / FOLDER, "lock")
    except Busy as error:
        raise DataError(f"{output}: {error.holder or 'another process'} is working on it.", "Wait for it.") from None


def _named(model: str) -> str:
    """A folder by its full path, since other machines have other working directories; a hub name as it is."""
    return os.path.abspath(model) if os.path.exists(model) else model


def _json_value(value: object) -> object:
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    return list(value) if isinstance(value, tuple | list) else value


def _check_apart(names: Sequence[str], output: str) -> None:
    for name in map(full_name, names):
        if finds(name, joined(output, part_name(0))):
            raise DataError(
                f"The answers would go to {output}, which is inside the input {name}.",
                "Name another {output}: its files would be the next run's input.",
                output=...,
            )


def _check_names(task: str, names: Sequence[str], settings: Settings, prefix: str) -> None:
    """All columns of the input are kept, so the answers' need other names."""
    for name in (*TASKS[task].columns(settings), ERROR):
        if prefix + name in names:
            raise DataError(
                f"The input has a column {prefix + name!r}, and the answers would have one too.",
                "Give theirs other names: {prefix} goes before them.",
                prefix=f"{prefix or 'bertie'}_",
            )
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise DataError(f"Two columns are called {doubled[0]!r}.", "Give each column its own name.")


def _row_bytes(
    task: str, files: Sequence[InputFile], looks: Sequence[Look], settings: Settings, model: str | None
) -> float:
    """Bytes of a row with its answer in a part, about."""
    rows = sum(look.rows for look in looks)
    text = sum(look.rows * look.row_bytes for look in looks) / max(1, rows)
    hidden = int(open_checkpoint(named_model(task, model)).config.get("hidden_size", 768))
    # Text is compressed to about half of itself.
    return text / 2 + TASKS[task].answer_bytes(settings, hidden, text)


def _fitting_rows(row_bytes: float) -> int:
    """Rows of a part of 128 MB: whole row groups, where it has several."""
    rows = int(min(_MOST_ROWS, max(_LEAST_ROWS, PART_BYTES / max(1.0, row_bytes))))
    return rows - rows % ROW_GROUP if rows > ROW_GROUP else rows
