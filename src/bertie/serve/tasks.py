"""The tasks a server can do, each declared once: who serves it, what runs it, and its own route where it has one.

models.py opens models by `TASKS`. routes/rows.py makes the routes, and with them the OpenAPI document, of all tasks
that turn items into rows (`ROW_ROUTES`). A task without an entry here, which is only in `bertie.answers.TASK_ROUTES`
(its path, the type of its answers), is served as its class says: the constructor's options are those of its route.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, defstruct

from bertie import tasks
from bertie.answers import (
    TASK_ROUTES,
    AnswerResult,
    Entity,
    Features,
    SentFeatures,
    SentLayer,
    SentToken,
    TokenFeatures,
)
from bertie.errors import BertieError
from bertie.model import BertForSequenceClassification
from bertie.running.open import OpenModel, open_model
from bertie.running.task import RowTask
from bertie.serve.bodies import LABEL_BYTES, NUMBER_BYTES, encode
from bertie.serve.embedding import EmbedRunner
from bertie.serve.explore import ExploreRunner
from bertie.serve.failures import invalid
from bertie.serve.models import Place, Runner, ServedTask, Source
from bertie.serve.routes.embed import SparseRunner
from bertie.serve.routes.fill import FillRunner
from bertie.serve.routes.rows import AnyTask, Options, RowRoute, RowRunner
from bertie.serve.routes.scores import LogitsRunner
from bertie.serve.schemas import Request, TextOrPairIn, Texts, Word, as_item, as_list
from bertie.tasks.answer import Answerer
from bertie.tasks.features import FeatureExtractor
from bertie.tasks.rerank import relevant_label
from bertie.tasks.tag import Tagger
from bertie.tasks.zero_shot import ZeroShotClassifier, inference_labels

# -- our own requests, and what is sent for them ---------------------------------------------------------------------


class TagRequest(Request):
    inputs: Texts
    aggregation: Literal["none", "simple", "first", "average", "max"] = "simple"
    ignore_labels: Annotated[list[Word], Meta(max_length=100)] | None = None


class QuestionIn(Struct, kw_only=True):
    question: str
    context: str


class AnswerRequest(Request):
    question: str | None = None
    context: str | None = None
    inputs: list[QuestionIn] | None = None
    n_best: Annotated[int, Meta(ge=1, le=100)] = 1
    max_answer_tokens: Annotated[int, Meta(ge=1, le=512)] = 30
    no_answer: bool | None = None
    threshold: float = 0.0


class FeaturesRequest(Request):
    inputs: str | list[TextOrPairIn]
    layers: Annotated[list[Annotated[int, Meta(ge=-1000, le=1000)]], Meta(min_length=1, max_length=100)] | None = None
    long: Literal["truncate", "windows"] = "truncate"


def _questions(body: AnswerRequest) -> list[tuple[str, str]]:
    if body.inputs is not None:
        return [(one.question, one.context) for one in body.inputs]
    if body.question is None or body.context is None:
        raise invalid("Send `question` and `context`, or `inputs`: a list of objects with both.")
    return [(body.question, body.context)]


def _tuples(**options: Sequence[object] | None) -> dict[str, object]:
    """Those that were given; the task has defaults for the others."""
    return {name: tuple(value) for name, value in options.items() if value is not None}


def _show_features(one: Features) -> SentFeatures:
    def layers(token: TokenFeatures) -> list[SentLayer]:
        return [SentLayer(index, vector.tolist()) for index, vector in token.layers]

    return SentFeatures([SentToken(token.token, layers(token)) for token in one.tokens])


def _feature_bytes(task: FeatureExtractor, tokens: int) -> int:
    numbers: int = len(task.layers) * task.loaded.model.config.hidden_size
    return tokens * (numbers * NUMBER_BYTES + LABEL_BYTES)


# -- what runs them ---------------------------------------------------------------------------------------------------


def rows_by(
    name: str,
    kind: type[AnyTask],
    *,
    apart: Callable[[Options], object] | None = None,
    warm: str | tuple[str, str] | None = None,
) -> Callable[[Source, Place], Runner]:
    """Opens a task whose constructor takes a model first."""
    make: Callable[..., AnyTask] = kind

    def opened(source: Source, place: Place) -> Runner:
        task = make(source, device=place.device, dtype=place.dtype)
        return RowRunner(name, task.loaded, make, run=None if apart else task.run, apart=apart, warm=warm)

    return opened


def _open_zero_shot(source: Source, place: Place) -> Runner:
    def make(loaded: OpenModel, *, labels: Sequence[str], **options: Any) -> ZeroShotClassifier:
        return ZeroShotClassifier(labels, loaded, **options)

    loaded = open_model(source, BertForSequenceClassification, task="zero_shot", device=place.device, dtype=place.dtype)
    return RowRunner(
        "zero_shot",
        loaded,
        make,
        run=lambda rows: loaded.row_logits(rows)(),
        repeats=lambda options: len(options["labels"]),
    )


def _infers(loaded: OpenModel) -> bool:
    try:
        inference_labels(loaded.model.config)
    except BertieError:
        return False
    return True


def _open_rerank(source: Source, place: Place) -> Runner:
    runner = LogitsRunner("rerank", source, place)
    _ = runner.rank_rule  # a classifier whose labels do not mean relevance is refused here
    return runner


def _ranks(judges: LogitsRunner) -> tuple[str, ...]:
    return () if relevant_label(judges.names) is None else ("rerank",)


_MASKED, _BARE, _BOTH = "BertForMaskedLM", "BertModel", "BertForPreTraining"
_CLASSIFIER = "BertForSequenceClassification"
_DECLARED = [
    ServedTask("embed", EmbedRunner, (_BARE, _BOTH, _MASKED), head="none"),
    ServedTask("embed_sparse", SparseRunner, (_MASKED,), head="words"),
    ServedTask("classify", partial(LogitsRunner, "classify"), (_CLASSIFIER,), head="classifier", also=_ranks),
    ServedTask("zero_shot", _open_zero_shot, (_CLASSIFIER,), head="classifier", fits=_infers),
    ServedTask("rerank", _open_rerank, head="classifier"),
    ServedTask("tag", rows_by("tag", Tagger, warm="warm up"), ("BertForTokenClassification",)),
    ServedTask("answer", rows_by("answer", Answerer, warm=("warm", "up")), ("BertForQuestionAnswering",)),
    ServedTask("fill", FillRunner, (_BOTH, _MASKED), head="words"),
    ServedTask("next", partial(LogitsRunner, "next"), (_BOTH, "BertForNextSentencePrediction")),
    ServedTask(
        "features",
        rows_by("features", FeatureExtractor, apart=lambda options: options.get("layers", ()), warm="warm up"),
        (_BARE, _BOTH, _MASKED),
        head="none",
    ),
    ServedTask("explore", ExploreRunner, late=True),
]
TASKS: dict[str, ServedTask] = {task.name: task for task in _DECLARED}
AnyRowRoute = RowRoute[Any, Any]
ROW_ROUTES: dict[str, AnyRowRoute] = {
    "tag": RowRoute[TagRequest, list[Entity]](
        summary="Entities, and where they are in the text.",
        request=TagRequest,
        items=lambda body: as_list(body.inputs),
        options=lambda body: {"aggregation": body.aggregation} | _tuples(ignore_labels=body.ignore_labels),
        remedy="Send fewer texts at once.",
        examples={"one": {"inputs": "Ada Lovelace lived in London."}},
    ),
    "answer": RowRoute[AnswerRequest, AnswerResult](
        summary="Answers quoted from a text.",
        request=AnswerRequest,
        items=_questions,
        options=lambda body: {
            "n_best": body.n_best,
            "max_answer_tokens": body.max_answer_tokens,
            "no_answer": body.no_answer,
            "threshold": body.threshold,
        },
        remedy="Send fewer questions at once, or lower n_best.",
        examples={"one": {"question": "Who wrote it?", "context": "It was written by Ada."}},
    ),
    "features": RowRoute[FeaturesRequest, Features](
        summary="A vector for every token from chosen layers.",
        request=FeaturesRequest,
        items=lambda body: list(map(as_item, as_list(body.inputs))),
        options=lambda body: {"long": body.long} | _tuples(layers=body.layers),
        show=_show_features,
        answer_bytes=_feature_bytes,
        remedy="Send less, or ask for fewer layers.",
        examples={"last layer": {"inputs": "A text.", "layers": [-1]}},
    ),
}


# -- tasks that only their class declares -----------------------------------------------------------------------------

# Parameters of a task's constructor that a server fills in itself; mostly they are its `**settings`.
_OURS = {"model", "tokenizer", "device", "dtype", "progress"}
# A lane is kept for options of at most so many bytes.
_MOST_KEPT = 1024


def _kept_apart(options: Options) -> object:
    """What `run` gives may depend on any option, so requests share a batch only where all options are the same."""
    found = encode(options)
    return found if len(found) <= _MOST_KEPT else None


def route_of(name: str, kind: type[AnyTask]) -> AnyRowRoute:
    """A route that takes texts or pairs, and the constructor's options with their types and defaults."""
    parameters = inspect.signature(kind, eval_str=True).parameters.values()
    options = [one for one in parameters if one.name not in _OURS and one.kind is not one.VAR_KEYWORD]
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = [("inputs", str | list[TextOrPairIn])]
    for one in options:
        field = one.name, one.annotation
        fields.append(field if one.default is one.empty else (*field, one.default))
    title = name.title().replace("_", "")
    return RowRoute(
        summary=(inspect.getdoc(kind) or title).partition("\n")[0],
        request=defstruct(f"{title}Request", fields, bases=(Request,), kw_only=True),
        items=lambda body: list(map(as_item, as_list(body.inputs))),
        options=lambda body: {one.name: getattr(body, one.name) for one in options},
        remedy="Send fewer texts at once.",
        examples={"one": {"inputs": "A text."}},
    )


def class_of(name: str) -> type[AnyTask]:
    """The class of that `name` in `bertie.tasks`, in the module of that name."""
    for kind in vars(getattr(tasks, name)).values():
        if isinstance(kind, type) and issubclass(kind, RowTask) and vars(kind).get("name") == name:
            return kind
    raise TypeError(f"bertie.tasks.{name} has no RowTask with the name {name!r}, and serve/tasks.py no entry for it.")


for _name in [name for name in TASK_ROUTES if name not in TASKS]:
    _kind = class_of(_name)
    TASKS[_name] = ServedTask(_name, rows_by(_name, _kind, apart=_kept_apart), TASK_ROUTES[_name].checkpoints)
    ROW_ROUTES[_name] = route_of(_name, _kind)
