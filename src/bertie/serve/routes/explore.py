"""/explore/…: what the page asks about one text, and what it asks to be computed over a longer time.

Every body names the text again: the server keeps the sessions used last, and opens others again, so that a page works
after the server was restarted, too. Maps are bytes (`explore/page/queries.py`).
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

import msgspec
from msgspec import Meta

from bertie.errors import BertieError
from bertie.explore.page import queries
from bertie.explore.page.queries import Report
from bertie.explore.session import Session
from bertie.serve.bodies import encode_answer
from bertie.serve.explore import ExploreRunner
from bertie.serve.failures import InferenceFailed, Refusal, invalid, is_told
from bertie.serve.models import ServedModel
from bertie.serve.schemas import Request, Word, as_list
from bertie.serve.service import AnyRoute, Call, Route

B = TypeVar("B", bound=Request)
Number = Annotated[int, Meta(ge=0, le=1_000_000)]
Json = dict[str, Any]
_BYTES = "application/octet-stream"
_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LONGEST_NAME = 200
_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".txt")


class Subject(Request, kw_only=True):
    """What every question is about."""

    text: str
    second: str | Annotated[list[str], Meta(min_length=1, max_length=32)] | None = None
    task: Word | None = None


class RowRequest(Subject, kw_only=True):
    row: Number = 0


class LensRequest(RowRequest, kw_only=True):
    first: Number = 0


class ThumbnailsRequest(RowRequest, kw_only=True):
    size: Annotated[int, Meta(ge=1, le=128)] = 32


class HeadRequest(RowRequest, kw_only=True):
    layer: Number
    head: Number


class NeuronsRequest(HeadRequest, kw_only=True):
    query: Number
    key: Number


class WalkRequest(RowRequest, kw_only=True):
    place: Number


class Off(msgspec.Struct, kw_only=True):
    """What is off; heads as [layer, head]."""

    heads: Annotated[list[tuple[Number, Number]], Meta(max_length=10_000)] = []
    layers: Annotated[list[Number], Meta(max_length=1000)] = []
    feed_forward: Annotated[list[Number], Meta(max_length=1000)] = []


class SwitchRequest(Subject, kw_only=True):
    off: Off


class PruneRequest(Subject, kw_only=True):
    off: Off
    name: Word


class AttributionRequest(Subject, kw_only=True):
    method: Literal["integrated_gradients", "gradient_x_input", "occlusion", "rollout"] = "integrated_gradients"
    target: Number = 0


class PatchingRequest(Subject, kw_only=True):
    other: str
    part: Literal["state", "attention", "feed_forward"] = "state"


class ImportanceRequest(Subject, kw_only=True):
    name: Word
    content: str
    method: Literal["gradient", "leave_one_out"] = "gradient"
    of: Literal["heads", "layers", "feed_forward"] = "heads"
    skip_bad: bool = False


class ModelRequest(Request, kw_only=True):
    pass


class JobRequest(Request, kw_only=True):
    job: Word
    cancel: bool = False


class ModelAnswer(msgspec.Struct):
    task: str


class JobStarted(msgspec.Struct):
    job: str


class JobState(msgspec.Struct, omit_defaults=True):
    done: int
    total: int
    partial: Any = None
    result: Any = None


class Pruned(msgspec.Struct):
    folder: str


_SUBJECT_FIELDS = frozenset(Subject.__struct_fields__)


async def run(call: Call, body: Subject, question: Callable[[Session], object]) -> bytes:
    """Ask a session in the explorer's queue; the answer in JSON, or as the bytes it is."""
    model, runner = _runner(call, body)

    def ask() -> object:
        found = question(_session(runner, body))
        return found if isinstance(found, bytes) else encode_answer(found)

    tokens = max(8, min(call.characters // 3, model.loaded.max_length))
    (found,) = await call.compute(model, runner.lane, [ask], [tokens], queue=model.explorer)
    return cast("bytes", found)  # a lane carries all kinds of answers


def _runner(call: Call, body: Subject) -> tuple[ServedModel, ExploreRunner]:
    texts = [body.text, *([] if body.second is None else as_list(body.second))]
    call.check_texts(texts, what="text")
    return call.find("explore", body.model, ExploreRunner)


def _session(runner: ExploreRunner, body: Subject, *, text: str | None = None) -> Session:
    second = tuple(body.second) if isinstance(body.second, list) else body.second
    return runner.session(body.text if text is None else text, second, body.task)


def _options(body: Subject) -> Json:
    """The fields that are the question's own."""
    own = [name for name in body.__struct_fields__ if name not in _SUBJECT_FIELDS]
    return {name: msgspec.to_builtins(getattr(body, name)) for name in own}


def _query(name: str) -> Callable[[Call, Subject], Awaitable[object]]:
    async def handler(call: Call, body: Subject) -> object:
        return await run(call, body, partial(queries.QUERIES[name], **_options(body)))

    handler.__name__ = f"explore_{name}"
    return handler


# -- handlers that do more ---------------------------------------------------------------------------------------------


async def explore_model(call: Call, body: ModelRequest) -> ModelAnswer:
    _, runner = call.find("explore", body.model, ExploreRunner)
    return ModelAnswer(await call.aside(runner.task))


async def explore_open(call: Call, body: Subject) -> bytes:
    name, writes = call.service.models.find("explore", body.model).name, call.service.settings.prune_folder is not None
    return await run(call, body, lambda session: queries.opened(session) | {"model": name, "writes": writes})


async def explore_prune(call: Call, body: PruneRequest) -> Pruned:
    """A checkpoint without the heads that are off, where the server was started to write such."""
    parent = call.service.settings.prune_folder
    if parent is None:
        raise Refusal(403, "Forbidden", "This server does not write files.", remedy="Start it with `bertie explore`.")
    if not _FOLDER.fullmatch(body.name):
        raise invalid("The folder's name must be of letters, digits, dots, dashes and underscores.")
    folder = Path(parent) / body.name
    if folder.exists():
        raise Refusal(409, "Validation", f"{folder} is there already.", remedy="Choose another name.")
    if not body.off.heads:
        raise invalid("No head is off, so there is nothing to prune.")
    heads: dict[int, list[int]] = {}
    for layer, head in body.off.heads:
        heads.setdefault(layer, []).append(head)
    _, runner = _runner(call, body)
    await call.aside(runner.save_pruned, heads, folder)
    return Pruned(str(folder))


def _start(call: Call, body: Subject, work: Callable[[Session, ExploreRunner, Report], object]) -> JobStarted:
    _, runner = _runner(call, body)
    return JobStarted(runner.jobs.start(lambda report: work(_session(runner, body), runner, report), call.who).name)


async def explore_attribution(call: Call, body: AttributionRequest) -> JobStarted:
    options = _options(body)
    return _start(call, body, lambda session, _, report: queries.attribution(session, report, **options))


async def explore_patching(call: Call, body: PatchingRequest) -> JobStarted:
    def work(session: Session, runner: ExploreRunner, report: Report) -> object:
        other = _session(runner, body, text=body.other)
        return queries.patching(session, report, other=other, part=body.part)

    call.check_texts([body.other], what="other")
    return _start(call, body, work)


def _in_json(name: str, value: object, *, judged: bool) -> str:
    said = name if value is ... else f'"{name}": {json.dumps(value, default=str)}'
    return f"{said};" if judged else said


async def explore_importance(call: Call, body: ImportanceRequest) -> JobStarted:
    """The file comes along as text and is read as one of its name would be."""
    name = Path(body.name.replace("\\", "/")).name
    if Path(name).suffix.lower() not in _SUFFIXES:
        raise invalid(f"Bertie cannot read a file of this kind; use one of {', '.join(_SUFFIXES)}.")
    if not name.isprintable() or len(name.encode()) > _LONGEST_NAME:
        raise invalid(f"A file's name must be of printable characters, at most {_LONGEST_NAME} bytes.")

    def work(session: Session, runner: ExploreRunner, report: Report) -> object:
        from bertie.explore.ranking import importance  # with all of training: only whoever asks waits for it

        with tempfile.TemporaryDirectory(prefix="bertie-") as folder:
            file = Path(folder) / name
            file.write_text(body.content, encoding="utf-8")
            try:
                found = importance(
                    file,
                    model=session.reading.loaded,
                    task=session.task,
                    method=body.method,
                    of=body.of,
                    skip_bad=body.skip_bad,
                    progress=lambda done, total: report(done, total, None),
                )
            except BertieError as error:  # in the words of the one who sent the file
                cause, remedy = error.said(_in_json)
                raise Refusal(422, "Validation", cause.replace(f"{folder}/", ""), remedy=remedy) from None
        return queries.measured(found)

    return _start(call, body, work)


async def explore_job(call: Call, body: JobRequest) -> JobState:
    """How far a long computation is; its result, once, when it is done."""
    runners = [model.get("explore", ExploreRunner) for model in call.service.models.all]
    found = ((runner.jobs, runner.jobs.find(body.job)) for runner in runners if runner is not None)
    jobs, job = next(((jobs, job) for jobs, job in found if job is not None), (None, None))
    if jobs is None or job is None:
        raise Refusal(404, "NotFound", "There is no such computation.", remedy="Start it again.")
    if body.cancel:
        jobs.stop(job)
        return JobState(job.done, job.total)
    if job.error is not None:
        raise job.error if is_told(job.error) else InferenceFailed(str(job.error))
    if job.stopped:
        raise Refusal(409, "Validation", "The computation was stopped.", remedy="Start it again.")
    return JobState(job.done, job.total, None if job.result is not None else job.partial, job.result)


_ABOUT: Json = {"text": "He drank a cup of [MASK]."}
_HEAD: Json = {**_ABOUT, "layer": 0, "head": 0}
_OFF: Json = {**_ABOUT, "off": {"heads": [[0, 0]]}}


def _route(
    path: str,
    handler: Callable[[Call, B], Awaitable[object]],
    summary: str,
    body: type[B],
    example: Json,
    answer: object = Json,
    media: str = "",
) -> Route[B]:
    return Route(
        f"/explore/{path}",
        handler,
        summary,
        "explore",
        body,
        answer=None if media else answer,
        media_type=media or "application/json",
        examples={"one": example},
        errors=(400, 403, 404, 409, 413, 415, 422, 424, 429, 503),
    )


ROUTES: list[AnyRoute] = [
    _route("model", explore_model, "The task a model is explored as.", ModelRequest, {}, ModelAnswer),
    _route("open", explore_open, "A text as the model reads it.", Subject, _ABOUT),
    _route("answer", _query("answer"), "The model's answer to it.", Subject, _ABOUT),
    _route("targets", _query("targets"), "The answers that can be explained.", Subject, _ABOUT),
    _route(
        "thumbnails",
        _query("thumbnails"),
        "All heads' maps in small, as bytes.",
        ThumbnailsRequest,
        _ABOUT,
        media=_BYTES,
    ),
    _route("statistics", _query("statistics"), "What each head looks at, in numbers.", RowRequest, _ABOUT),
    _route("map", _query("map"), "One head's map, as bytes.", HeadRequest, _HEAD, media=_BYTES),
    _route(
        "neurons", _query("neurons"), "Query, key and their product.", NeuronsRequest, {**_HEAD, "query": 0, "key": 1}
    ),
    _route("switch", _query("switch"), "The answer with parts of the model off.", SwitchRequest, _OFF),
    _route("walk", _query("walk"), "A token's way through the model.", WalkRequest, {**_ABOUT, "place": 1}),
    _route("lens", _query("lens"), "What the model would say after each layer.", LensRequest, _ABOUT),
    _route("drift", _query("drift"), "How far states are from their first and last.", RowRequest, _ABOUT),
    _route(
        "match",
        _query("match"),
        "Which token of two texts goes with which.",
        Subject,
        {"text": "One.", "second": "Two."},
    ),
    _route(
        "attribution",
        explore_attribution,
        "Start: the tokens an answer comes from.",
        AttributionRequest,
        _ABOUT,
        JobStarted,
    ),
    _route(
        "patching",
        explore_patching,
        "Start: states of one text in another.",
        PatchingRequest,
        {**_ABOUT, "other": "She drank a cup of [MASK]."},
        JobStarted,
    ),
    _route(
        "importance",
        explore_importance,
        "Start: what a file needs of the model.",
        ImportanceRequest,
        {**_ABOUT, "name": "a.jsonl", "content": ""},
        JobStarted,
    ),
    _route("job", explore_job, "How far a long computation is.", JobRequest, {"job": "0"}, JobState),
    _route(
        "prune",
        explore_prune,
        "Write a checkpoint without the heads that are off.",
        PruneRequest,
        {**_OFF, "name": "pruned"},
        Pruned,
    ),
]
