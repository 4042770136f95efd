"""The tasks a server can do, each declared once: who serves it, what runs it, and its own route where it has one.

models.py opens models by this table. routes/rows.py makes the routes, and with them the OpenAPI document, of all tasks
that turn items into rows (`RowRoute`); so another such task is one more entry here. Its path and the type of its
answers are in `bertie.answers.TASK_ROUTES`, where the client finds them too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Generic, Literal, TypeVar

from msgspec import Meta, Struct

from bertie.answers import (
    AnswerResult,
    Classification,
    Entity,
    Features,
    Prediction,
    SentFeatures,
    SentLayer,
    SentToken,
    TokenFeatures,
)
from bertie.errors import BertieError
from bertie.model import BertForSequenceClassification
from bertie.running.batching import Row
from bertie.running.open import OpenModel, open_model
from bertie.running.rows import TextOrPair
from bertie.running.scoring import row_logits
from bertie.serve.explore import ExploreRunner
from bertie.serve.failures import invalid
from bertie.serve.runners import (
    EmbedRunner,
    FillRunner,
    LogitsRunner,
    Options,
    Place,
    RowRunner,
    Runner,
    Source,
    SparseRunner,
)
from bertie.serve.schemas import Request, TextOrPairIn, Texts, Word, as_item, as_list
from bertie.tasks.answer import Answerer
from bertie.tasks.features import FeatureExtractor
from bertie.tasks.tag import Tagger
from bertie.tasks.zero_shot import ZeroShotClassifier, inference_labels

B = TypeVar("B", bound=Request)
A = TypeVar("A")

# Bytes of JSON, at most, of a number with its label.
LABEL_BYTES = 64
# Of a number in JSON, with its comma: -1.2345678901234567e-308 is the longest.
NUMBER_BYTES = 25


@dataclass(frozen=True, kw_only=True)
class RowRoute(Generic[B, A]):
    """The route of a task that turns items into rows. `show` gives an answer as it is sent.

    The size of an answer is counted before the work where it can be known (`answer_bytes`, from the task and the
    number of tokens), otherwise when it is there; `remedy` is what to do about one that is too large.
    """

    summary: str
    request: type[B]
    items: Callable[[B], Sequence[TextOrPair]]
    options: Callable[[B], Options]
    show: Callable[[A], object] = lambda answer: answer
    answer_bytes: Callable[[Any, int], int] | None = None
    remedy: str
    examples: Mapping[str, object]


@dataclass(frozen=True)
class ServedTask:
    """A task under its name.

    `classes` of checkpoints are served for it when no task is named; `fits` judges whether one of them really can.
    Tasks of one `head` share one copy of the weights.
    """

    name: str
    open: Callable[[Source, Place], Runner]
    classes: tuple[str, ...] = ()
    head: str = ""
    fits: Callable[[OpenModel], bool] = lambda loaded: True
    route: RowRoute[Any, Any] | None = None


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


def _tuples(**options: list[Any] | None) -> dict[str, object]:
    """Those that were given; the task has defaults for the others."""
    return {name: tuple(value) for name, value in options.items() if value is not None}


def _show_features(one: Features) -> SentFeatures:
    def layers(token: TokenFeatures) -> list[SentLayer]:
        return [SentLayer(index, vector.tolist()) for index, vector in token.layers]

    return SentFeatures([SentToken(token.token, layers(token)) for token in one.tokens])


def _feature_bytes(task: FeatureExtractor, tokens: int) -> int:
    numbers: int = len(task.layers) * task.loaded.model.config.hidden_size
    return tokens * (numbers * NUMBER_BYTES + LABEL_BYTES)


def show_labels(one: Classification) -> list[Prediction]:
    return [Prediction(label, score) for label, score in one.labels]


# -- what runs them ---------------------------------------------------------------------------------------------------


def _open_tag(source: Source, place: Place) -> Runner:
    tagger = Tagger(source, device=place.device, dtype=place.dtype)
    return RowRunner("tag", tagger.loaded, Tagger, run=tagger.run, warm="warm up")


def _open_answer(source: Source, place: Place) -> Runner:
    answerer = Answerer(source, device=place.device, dtype=place.dtype)
    return RowRunner("answer", answerer.loaded, Answerer, run=answerer.run, warm=("warm", "up"))


def _open_features(source: Source, place: Place) -> Runner:
    loaded = FeatureExtractor(source, device=place.device, dtype=place.dtype).loaded
    return RowRunner("features", loaded, FeatureExtractor, apart="layers", warm="warm up")


def _open_zero_shot(source: Source, place: Place) -> Runner:
    def make(loaded: OpenModel, *, labels: Sequence[str], **options: Any) -> ZeroShotClassifier:
        return ZeroShotClassifier(labels, loaded, **options)

    loaded = open_model(source, BertForSequenceClassification, task="zero_shot", device=place.device, dtype=place.dtype)
    run: Callable[[list[Row]], Sequence[object]] = partial(row_logits, loaded)
    return RowRunner("zero_shot", loaded, make, run=run, repeats=lambda options: len(options["labels"]))


def _infers(loaded: OpenModel) -> bool:
    try:
        inference_labels(loaded.model.config)
    except BertieError:
        return False
    return True


_MASKED, _BARE, _BOTH = "BertForMaskedLM", "BertModel", "BertForPreTraining"
_CLASSIFIER = "BertForSequenceClassification"
_DECLARED = [
    ServedTask("embed", EmbedRunner, (_BARE, _BOTH, _MASKED), head="none"),
    ServedTask("embed_sparse", SparseRunner, (_MASKED,), head="words"),
    ServedTask("classify", partial(LogitsRunner, "classify"), (_CLASSIFIER,), head="classifier"),
    ServedTask("zero_shot", _open_zero_shot, (_CLASSIFIER,), head="classifier", fits=_infers),
    ServedTask("rerank", partial(LogitsRunner, "rerank"), head="classifier"),
    ServedTask(
        "tag",
        _open_tag,
        ("BertForTokenClassification",),
        route=RowRoute[TagRequest, list[Entity]](
            summary="Entities and where they stand.",
            request=TagRequest,
            items=lambda body: as_list(body.inputs),
            options=lambda body: {"aggregation": body.aggregation} | _tuples(ignore_labels=body.ignore_labels),
            remedy="Send fewer texts at once.",
            examples={"one": {"inputs": "Ada Lovelace lived in London."}},
        ),
    ),
    ServedTask(
        "answer",
        _open_answer,
        ("BertForQuestionAnswering",),
        route=RowRoute[AnswerRequest, AnswerResult](
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
    ),
    ServedTask("fill", FillRunner, (_BOTH, _MASKED), head="words"),
    ServedTask("next", partial(LogitsRunner, "next"), (_BOTH, "BertForNextSentencePrediction")),
    ServedTask(
        "features",
        _open_features,
        (_BARE, _BOTH, _MASKED),
        head="none",
        route=RowRoute[FeaturesRequest, Features](
            summary="A vector for every token from chosen layers.",
            request=FeaturesRequest,
            items=lambda body: list(map(as_item, as_list(body.inputs))),
            options=lambda body: {"long": body.long} | _tuples(layers=body.layers),
            show=_show_features,
            answer_bytes=_feature_bytes,
            remedy="Send less, or ask for fewer layers.",
            examples={"last layer": {"inputs": "A text.", "layers": [-1]}},
        ),
    ),
    # Every model can be looked into; models.py adds this one where no task is named.
    ServedTask("explore", ExploreRunner),
]
TASKS: dict[str, ServedTask] = {task.name: task for task in _DECLARED}
