"""What a job is, and how much of it is done: the files beside its answers, and the only state there is.

    OUTPUT/part-000012.parquet   the answers of piece 12; it is there whole or not at all, and then piece 12 is done
    OUTPUT/_job/job.json         the job: files, model, task, settings, schema, pieces; written once, before any work
    OUTPUT/_job/done.json        rows and errors of the pieces that are done, so that nobody has to open them all

A piece is done when its part is there. `done.json` is an account of that and may be behind: what it does not know is
read from the part's own footer, which has the fingerprint of its job. So a job may be killed between any two writes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from bertie import __version__
from bertie.bulk.inputs import InputFile, Piece, Reading, Span
from bertie.bulk.stores import Found, files_below, joined, make_folder, open_file, read_small, remove, write_small
from bertie.checkpoint.open_checkpoint import open_checkpoint
from bertie.errors import DataError
from bertie.files import sha256

FOLDER = "_job"
FOOTER = b"bertie.bulk"
FORMAT = "bertie-bulk"
VERSION = 1
_PART = re.compile(r"part-([0-9]{6})\.parquet")
_MODULE = re.compile(r"[0-9]+_")  # folders of sentence-transformers: 1_Pooling, 2_Dense


Settings = Mapping[str, Any]  # of a task, by name: each has a type of its own


class Same(TypedDict):
    """What has to be the same in every run of a job."""

    task: str
    files: tuple[InputFile, ...]
    model_hash: str
    settings: Settings
    prefix: str
    reading: Reading
    version: str


class Wanted(Same):
    """The same with what a first look at the files decides, where it is not said."""

    columns: tuple[str, ...]
    piece_rows: int


@dataclass(frozen=True)
class Job:
    """All that decides what the answers are, and how they are cut into files."""

    task: str
    model: str | None
    model_hash: str
    settings: Settings
    columns: tuple[str, ...]
    prefix: str
    files: tuple[InputFile, ...]
    reading: Reading
    schema: str
    piece_rows: int
    pieces: tuple[Piece, ...]
    version: str = __version__

    @property
    def rows(self) -> int:
        return sum(piece.rows for piece in self.pieces)

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps(_as_json(self), sort_keys=True).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Done:
    """A piece that is done: its rows, those with an error, texts that were cut, tokens, and the bytes of its part."""

    rows: int
    errors: int
    truncated: int = 0
    tokens: int = 0
    size: int = 0


@dataclass(frozen=True)
class State:
    """How far a job is."""

    done: dict[int, Done] = field(default_factory=dict)

    def left(self, job: Job) -> list[int]:
        return [number for number in range(len(job.pieces)) if number not in self.done]


def part_name(number: int) -> str:
    return f"part-{number:06d}.parquet"


def model_hash(model: str) -> str:
    """A hash over the files of a model: its weights, configuration, vocabulary, and sentence-transformers' modules."""
    folder = open_checkpoint(model, with_companions=True).folder
    digest = hashlib.sha256()
    for path in sorted(_model_files(folder)):
        digest.update(f"{path.relative_to(folder)} {sha256(path)}\n".encode())
    return digest.hexdigest()[:32]


def _model_files(folder: Path) -> Iterable[Path]:
    for path in folder.iterdir():
        if path.is_file() and not path.name.startswith("."):
            yield path
        elif path.is_dir() and _MODULE.match(path.name):
            yield from (inner for inner in path.iterdir() if inner.is_file())


# -- job.json ----------------------------------------------------------------------------------------------------------


def read_job(output: str) -> Job | None:
    """The job of a folder; None where there is none."""
    name = joined(output, f"{FOLDER}/job.json")
    text = read_small(name)
    if text is None:
        return None
    try:
        values = json.loads(text)
        if values["format"] != FORMAT or values["format_version"] != VERSION:
            raise ValueError(f"format {values['format']!r}, version {values['format_version']}")
        return _from_json(values)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise DataError(
            f"{name}: this is no job that this version of Bertie can read ({error}).",
            "Name another {output}, or remove the folder.",
            output=...,
        ) from None


def write_job(output: str, job: Job) -> None:
    make_folder(joined(output, FOLDER))
    about = {"format": FORMAT, "format_version": VERSION}
    write_small(joined(output, f"{FOLDER}/job.json"), json.dumps(about | _as_json(job)))


def remove_job(output: str) -> None:
    remove(joined(output, f"{FOLDER}/job.json"))


def check_dtype(output: str, job: Job, dtype: str) -> None:
    """Refuse to continue in other numbers: if no dtype was asked for, a GPU's is not the CPU's."""
    name = joined(output, f"{FOLDER}/dtype")
    there, _, begun_in = (read_small(name) or b"").decode().partition(" ")
    if there != job.fingerprint:  # it is new
        write_small(name, f"{job.fingerprint} {dtype}")
    elif begun_in != dtype:
        raise DataError(
            f"{output} was begun in {begun_in}; here the model would compute in {dtype}.",
            "Continue on a machine like the first, or start again: another {output}, and a {dtype} for all machines.",
            output=...,
            dtype=...,
        )


def _as_json(job: Job) -> dict[str, object]:
    values = {name: value for name, value in vars(job).items() if name not in ("files", "pieces", "reading")}
    values |= {"settings": dict(job.settings), "columns": list(job.columns), "reading": asdict(job.reading)}
    values["files"] = [[one.name, one.size, one.format] for one in job.files]
    # One list to a piece, not an object: there may be a hundred thousand.
    values["pieces"] = [[one.rows, *([s.file, s.start, s.stop] for s in one.spans)] for one in job.pieces]
    return values


def _from_json(values: dict[str, Any]) -> Job:
    pieces = tuple(Piece(tuple(Span(*span) for span in spans), rows) for rows, *spans in values["pieces"])
    files = tuple(InputFile(*one) for one in values["files"])
    names = ("task", "model", "model_hash", "settings", "prefix", "schema", "piece_rows", "version")
    return Job(
        **{name: values[name] for name in names},
        columns=tuple(values["columns"]),
        reading=Reading(**values["reading"]),
        files=files,
        pieces=pieces,
    )


def check_same(there: Job, wanted: Wanted, output: str) -> None:
    """Refuse to continue a job that is not the one asked for, and say what differs."""
    for name, value in wanted.items():
        old = getattr(there, name)
        if old != value:
            raise DataError(
                f"{output} holds another job: {_differs(name, there, wanted)}.",
                "Name another {output}, or run the same job again to continue it.",
                output=...,
            )


def _differs(name: str, there: Job, wanted: Wanted) -> str:
    if name == "files":
        return _files_differ(there.files, wanted["files"])
    if name == "settings":
        old, new = there.settings, wanted["settings"]
        names = sorted(one for one in {*old, *new} if old.get(one) != new.get(one))
        return "; ".join(f"{one} was {_setting(one, old)}, and now it is {_setting(one, new)}" for one in names)
    words = {
        "model_hash": "the files of its model are not those of the model named now",
        "version": f"it was begun by Bertie {there.version}, and this is {wanted['version']}",
        "reading": f"it reads {_as_read(there.reading)}, and now it should read {_as_read(wanted['reading'])}",
        "piece_rows": f"its pieces have {there.piece_rows:,} rows, and now they should have {wanted['piece_rows']:,}",
        "columns": f"it reads {', '.join(there.columns)}, and now it should read {', '.join(wanted['columns'])}",
    }
    was_now = f"is {getattr(there, name)!r}, now it is {dict(wanted)[name]!r}"
    return words.get(name, f"its {name.replace('_', ' ')} {was_now}")


def _setting(name: str, settings: Settings) -> str:
    return repr(settings[name]) if name in settings else "the default"


def _as_read(reading: Reading) -> str:
    delimiter = "" if reading.delimiter is None else f" with the delimiter {reading.delimiter!r}"
    return f"{reading.encoding}{delimiter}"


def _files_differ(old: Sequence[InputFile], new: Sequence[InputFile]) -> str:
    was, now = {one.name: one for one in old}, {one.name: one for one in new}
    gone, come = [name for name in was if name not in now], [name for name in now if name not in was]
    changed = [name for name, one in was.items() if name in now and now[name] != one]
    parts = [
        f"{len(names)} {'file was' if len(names) == 1 else 'files were'} {word} since it began ({names[0]})"
        for word, names in (("removed", gone), ("added", come), ("changed", changed))
        if names
    ]
    return "; ".join(parts) or "its files are in another order"


# -- how far it is -----------------------------------------------------------------------------------------------------


def read_state(output: str, job: Job) -> State:
    """Which pieces are done: those whose parts are there. Parts that another job wrote are refused."""
    parts = {int(name[1]): file for file in _parts(output) if (name := _PART.fullmatch(file.name.rpartition("/")[2]))}
    known: dict[str, list[int]] = {}
    with contextlib.suppress(ValueError, KeyError, TypeError):
        values = json.loads(read_small(joined(output, f"{FOLDER}/done.json")) or b"{}")
        known = values["pieces"] if values["fingerprint"] == job.fingerprint else {}
    state = State()
    for number, file in sorted(parts.items()):
        noted = Done(*known[str(number)]) if str(number) in known else None
        found = noted if noted is not None and noted.size == file.size else _read_part(file, number, job)
        if found is not None and number < len(job.pieces):
            state.done[number] = found
    return state


def write_state(output: str, job: Job, state: State) -> None:
    pieces = {str(number): list(vars(done).values()) for number, done in sorted(state.done.items())}
    text = json.dumps({"fingerprint": job.fingerprint, "pieces": pieces})
    write_small(joined(output, f"{FOLDER}/done.json"), text)


def is_free(output: str) -> bool:
    """Whether nothing lies in a folder that could be taken for answers."""
    return not any(_PART.fullmatch(file.name.rpartition("/")[2]) for file in _parts(output))


def _parts(output: str) -> list[Found]:
    return files_below(output, recursive=False)


def _read_part(file: Found, number: int, job: Job) -> Done | None:
    """What a part says of itself; None for one that is not whole, as a put that was cut short may leave it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open_file(file.name) as source, pq.ParquetFile(source) as table:
            about = json.loads((table.metadata.metadata or {}).get(FOOTER, b"{}"))
            rows = table.metadata.num_rows
    except (pa.ArrowException, OSError, ValueError):
        return None
    if about.get("job") != job.fingerprint or about.get("piece") != number:
        raise DataError(
            f"{file.name} is there, and this job did not write it.",
            "Name another {output}, or move it away.",
            output=...,
        )
    return Done(rows, about["errors"], about["truncated"], about["tokens"], file.size)
