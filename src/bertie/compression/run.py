"""`bertie.compress(…)`: a fine-tuned model and a file in, a smaller and faster model out, with what that cost.

    bertie.compress("my-sentiment", task="classify", data="dev.tsv", speedup=2, output="my-fast-sentiment")

The steps: observe what heads and neurons contribute to the answers (importance.py), measure what they cost
(cost.py), choose (search.py), fit what is left to the original's states (refit.py), measure speed and score again, and
where there is training data learn from the original (learning.py). Everything is written at once at the
end, so a folder is whole or not there.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bertie.arguments import number, one_of, whole_number
from bertie.checkpoint.inspect import summarise
from bertie.compression.cost import ENGINES
from bertie.compression.folders import copy_folder, load_whole, save, stored_dtype, trim_tables
from bertie.compression.layers import Sizes
from bertie.compression.layers import dense as plain_sizes
from bertie.compression.learning import Lesson, distilled
from bertie.compression.report import Point, Report, write_report
from bertie.compression.targets import open_target
from bertie.compression.work import Work
from bertie.errors import CheckpointError, InputError
from bertie.files import new_files
from bertie.text import BertTokenizer
from bertie.training.task import TaskOptions


@dataclass(frozen=True)
class Result:
    """What came of it. `point` is what was chosen; `frontier` is all that was tried, the original first."""

    output: Path
    point: Point
    frontier: tuple[Point, ...]
    report: str
    seconds: float


def compress(
    model: str | os.PathLike[str],
    *,
    output: str | os.PathLike[str],
    task: str | None = None,
    data: object | None = None,
    speedup: float | None = None,
    size: float | None = None,
    keep: float | None = None,
    on: str = "cpu",
    train: object | None = None,
    epochs: float | None = None,
    vocab_from: object | None = None,
    positions: int | None = None,
    dense: bool = False,
    frontier: bool = False,
    options: TaskOptions | None = None,
    say: Callable[[str], None] | None = None,
    command: str | None = None,
) -> Result:
    """Write a smaller model of `model` into the new folder `output`.

    One target: `speedup` (times as fast `on` "cpu", "cpu-int8" or "cuda"), `size` (share of the parameters), or `keep`
    (share of the score). `data` is what the task is judged by: labelled rows for the tasks of `finetune`, plain texts
    for "embed" and "fill". With `train`, parts are chosen by it instead of by half of `data`, and the smaller model
    learns from the original for this many `epochs` (1 by default, 0 for none). `vocab_from` (texts) removes the
    tokens that these never use, `positions` the positions beyond this many. `dense` writes plain sizes with zeros.
    These three need no target. `frontier` writes every model that was tried, in folders of `output`: 1.5x, 2x, or with
    a `size` size-0.6. Weights are stored in the model's dtype: float16 stays float16. `options` are the task's own
    (`TaskOptions`), `say` is called with lines of progress, and `command` is shown in the report as what was run.
    """
    started = time.monotonic()
    asked = _check(task, data, speedup, size, keep, on, train, epochs, vocab_from, positions, dense, frontier)
    _check_output(output)
    tell = say or (lambda line: None)
    source = os.fspath(model)
    weights = sum(length for _, length in summarise(source).files)
    with tempfile.TemporaryDirectory(prefix="bertie-compress-") as scratch:
        tables, trimmed = source, 0
        if vocab_from is not None or positions is not None:
            tables = os.path.join(scratch, "tables")
            trimmed = trim_tables(source, Path(tables), vocab_from, positions, options, tell)
        if not asked:
            report = _plain_report(source, tables, os.fspath(output), weights, dense, command)
            page = _write(Path(output), lambda place: copy_folder(tables, place, whole=dense), report)
            return Result(Path(output), report.points[-1], report.points, page, time.monotonic() - started)
        assert task is not None  # _check
        tokenizer = BertTokenizer.from_pretrained(tables)
        target = open_target(task, tables, data, train, tokenizer, options)
        work = Work(target, on, tell, trimmed, stored_dtype(tables))
        points, made = work.reach(speedup, size, keep, careful=frontier)
        chosen = made[-1]
        if train is not None and epochs != 0 and chosen.model is not target.model:
            lesson = Lesson(task, tables, data, train, epochs or 1.0, options)
            chosen = work.better(chosen, distilled(target, chosen.model, lesson, scratch, tell), lesson.epochs)
            made, points = [*made[:-1], chosen], (*points[:-1], chosen.point)

        def folder_of(point: Point) -> str:
            """Where a model goes in `output`; empty for the folder itself."""
            return "" if not frontier else f"{point.asked:g}x" if size is None else f"size-{point.asked:g}"

        report = Report(
            source=source, task=task, labelled=target.labelled, metric=target.metric,
            meaning=target.meaning, on=on, engine=work.engine, original=work.full,
            heads=target.model.config.num_attention_heads, neurons=target.model.config.intermediate_size,
            points=tuple(points), chosen=points.index(chosen.point), seconds=time.monotonic() - started,
            output=os.fspath(output), folder=folder_of(chosen.point), weights=weights, dense=dense, command=command,
            asked=asked, wanted_speed=speedup,
        )  # fmt: skip

        def fill(place: Path) -> None:
            for one in made if frontier else [chosen]:
                save(target, one.model, place / folder_of(one.point), on=on, whole=dense, dtype=work.stored)

        tell(f"writing {os.fspath(output)}")
        page = _write(Path(output), fill, report)
    return Result(Path(output), chosen.point, tuple(points), page, time.monotonic() - started)


def _plain_report(source: str, tables: str, output: str, weights: int, whole: bool, command: str | None) -> Report:
    given, trimmed = (load_whole(path) for path in (source, tables))
    models = [given, plain_sizes(trimmed) if whole else trimmed]
    points = tuple(Point(1.0, 1.0, 1.0, model.num_parameters(), Sizes.of(model)) for model in models)
    before, after = (model.config for model in models)
    return Report(
        source=source, task=None, labelled=False, metric="", meaning="", on="", engine="", original=points[0].sizes,
        heads=after.num_attention_heads, neurons=after.intermediate_size, points=points, chosen=1, seconds=0.0,
        output=output, folder="", weights=weights, dense=False, command=command,
        asked=f"{after.vocab_size:,} of {before.vocab_size:,} tokens and {after.max_input_length:,} of "
        f"{before.max_input_length:,} positions" + (", in plain sizes with zeros for what was cut" if whole else ""),
    )  # fmt: skip


def _write(output: Path, fill: Callable[[Path], None], report: Report) -> str:
    """Everything appears at once. Gives the page."""
    with new_files(output, obsolete=lambda name: False) as place:
        fill(place)
        return write_report(report, place)


# -- checks ------------------------------------------------------------------------------------------------------------


def _check(
    task: str | None, data: object | None, faster: float | None, size: float | None, kept: float | None, on: str,
    train: object | None, epochs: float | None, vocab_from: object | None, positions: int | None, whole: bool,
    frontier: bool,
) -> str:  # fmt: skip
    """What is asked for in words; empty where only tables are trimmed."""
    one_of("on", on, ENGINES)
    given = {name: value for name, value in (("speedup", faster), ("size", size), ("keep", kept)) if value is not None}
    if len(given) > 1:
        first, second = list(given)[:2]
        raise InputError(f"Both {{{first}}} and {{{second}}} were given.", "Give one target.", **given)
    if faster is not None:
        number("speedup", faster, least=1)
    for name, share in (("size", size), ("keep", kept)):
        if share is not None:
            number(name, share, above=0, most=1)
    if epochs is not None:
        number("epochs", epochs, least=0)
        if train is None:
            raise InputError(
                "{epochs:is} there is nothing to learn from.", "Name a file: {train}.", epochs=epochs, train=...
            )
    if positions is not None:
        whole_number("positions", positions, least=4)
    if not given:
        if vocab_from is None and positions is None and not whole:
            raise InputError(
                "Nothing was asked for.",
                "Give a target: {speedup}, {size} or {keep}; or {vocab_from}, {positions}, {dense}.",
                speedup=2, size=0.5, keep=0.99, vocab_from=..., positions=..., dense=True,
            )  # fmt: skip
        for name, value in (("train", train), ("frontier", frontier or None)):
            if value is not None:
                raise InputError(
                    f"{{{name}}} needs a target.", "Give one: {speedup}, {size} or {keep}.",
                    speedup=2, size=0.5, keep=0.99, **{name: ... if name == "train" else True},
                )  # fmt: skip
        return ""
    for name, value in (("task", task), ("data", data)):
        if value is None:
            raise InputError(
                f"{{{next(iter(given))}}} needs {{{name}}}: what is cut depends on what the model is for.",
                "Name the task, and a file with rows of it.",
                **given,
                **{name: ...},
            )
    words = {"speedup": "{:g} times the speed", "size": "{:g} of the parameters", "keep": "{:g} of the score"}
    return ", ".join(words[name].format(value) for name, value in given.items())


def _check_output(output: str | os.PathLike[str]) -> None:
    place = Path(output)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise CheckpointError(f"{place} exists already and is not an empty folder.", "Give a new folder.")
    above = next(one for one in place.absolute().parents if one.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise CheckpointError(f"{place} cannot be made: {above} is no folder that you may write to.", "Give another.")
