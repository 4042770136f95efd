"""The tasks of a bulk job: which columns of the input each reads, and the typed columns that its answers become.

The types are those of `bertie.answers`, told from its annotations: a `list[Entity]` is a column of lists of structs,
whose fields have an Entity's names. Vectors are lists of one fixed size, as databases want them.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np

from bertie import tasks
from bertie.answers import (
    AnswerResult,
    Candidate,
    Classification,
    Entity,
    Features,
    Filled,
    Filling,
    FoundAnswer,
    Prediction,
)
from bertie.arguments import one_of
from bertie.bulk.manifest import Settings
from bertie.data.columns import choose_pair, choose_text
from bertie.errors import DataError, InputError
from bertie.running.open import OpenModel
from bertie.running.precision import NEED_RANGES, Numbers, quantize
from bertie.running.rows import Cuts, TextOrPair

if TYPE_CHECKING:
    import pyarrow as pa

Item = TypeVar("Item")
Answer = TypeVar("Answer")
Answers = TypeVar("Answers")
Answer_co = TypeVar("Answer_co", covariant=True)
Pair = tuple[str, str]

TOKEN_BYTES = 5  # of text to a token, about


class Block(Protocol):
    """Answers that came together: a list, or an array whose rows they are."""

    def __len__(self) -> int: ...

    def __getitem__(self, some: slice, /) -> Block: ...


class Question(Protocol[Item, Answers]):
    """A task with its model, ready for the rows of a job."""

    refuses: bool  # whether single items may be refused, and are to be checked before they are answered
    loaded: OpenModel

    def cuts(self) -> Cuts:
        """A new account of texts that are longer than the model."""

    def check(self, items: list[Item]) -> None:
        """Raise what answering one of these items would raise."""

    def blocks(self, items: Iterator[Item], cuts: Cuts) -> Iterator[Answers]:
        """The answers, in order, some at a time."""

    def fields(self) -> list[pa.Field]:
        """The columns of the answers."""

    def arrays(self, answers: Sequence[Answers]) -> list[pa.Array]:
        """The columns of these answers."""


AnyQuestion = Question[Any, Any]  # a job's: which task it is, only its folder says


@dataclass(frozen=True)
class BulkTask:
    """A task as the table below has it: what makes it, whether it reads pairs, its columns, and bytes of an answer."""

    make: Callable[[Settings], AnyQuestion]
    takes: Callable[..., object]  # the class whose settings it takes
    columns: Callable[[Settings], tuple[str, ...]]
    answer_bytes: Callable[[Settings, int, float], float]  # settings, the model's hidden size, bytes of text
    paired: bool | None = False  # None: if two columns are named


# -- typed columns -----------------------------------------------------------------------------------------------------


def arrow_type(annotation: object) -> pa.DataType:
    """The column type of what an annotation says: of a dataclass a struct of its fields, of a tuple or list a list."""
    import pyarrow as pa

    plain: dict[object, pa.DataType] = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    if annotation in plain:
        return plain[annotation]
    if dataclasses.is_dataclass(annotation):
        hints = typing.get_type_hints(annotation)
        return pa.struct([(field.name, arrow_type(hints[field.name])) for field in dataclasses.fields(annotation)])
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (tuple, list):
        return pa.list_(arrow_type(arguments[0]))
    if origin is types.UnionType:
        (inside,) = (one for one in arguments if one is not type(None))
        return arrow_type(inside)
    raise TypeError(f"no column type for {annotation}")


def _fields(named: Mapping[str, object]) -> list[pa.Field]:
    import pyarrow as pa

    return [pa.field(name, arrow_type(annotation)) for name, annotation in named.items()]


def _plain(answer: object) -> object:
    """Dataclasses as dicts, all the way down; `dataclasses.asdict` would copy every string."""
    if dataclasses.is_dataclass(answer):
        return {field.name: _plain(getattr(answer, field.name)) for field in dataclasses.fields(answer)}
    return [_plain(one) for one in answer] if isinstance(answer, tuple | list) else answer


def _vectors(values: Numbers) -> pa.Array:
    """`[n, d]` as a column of lists of `d`, without a copy."""
    import pyarrow as pa

    flat = np.ascontiguousarray(values)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), flat.shape[1])


def _joined(blocks: Sequence[Numbers]) -> pa.Array:
    """Blocks `[some, d]` as one column. Its memory is Arrow's: blocks of several MB leave holes in Python's heap."""
    import pyarrow as pa

    count, kind = sum(map(len, blocks)), blocks[0].dtype
    buffer = pa.allocate_buffer(count * blocks[0].shape[1] * kind.itemsize)
    values = np.frombuffer(buffer, kind).reshape(count, blocks[0].shape[1])
    np.concatenate(blocks, out=values)
    flat = pa.Array.from_buffers(pa.from_numpy_dtype(kind), values.size, [None, buffer])
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


# -- the tasks ---------------------------------------------------------------------------------------------------------


class EmbedQuestion:
    """Vectors."""

    def __init__(self, settings: Settings) -> None:
        given = dict(settings)
        call = {name: given.pop(name, None) for name in ("prompt", "prompt_name")}
        self.long = given.pop("long", "truncate")
        self.precision = given.pop("precision", "float32")
        if self.precision in NEED_RANGES:
            raise InputError(
                "{precision} needs the least and greatest values of all vectors, and a job never has all of them.",
                "Use float32, binary or ubinary, and round later.",
                precision=self.precision,
            )
        self.embedder = tasks.Embedder(**given)
        self.loaded = self.embedder.loaded
        self.cutting = self.embedder.cutting(**call, long=self.long)
        self.refuses = self.long == "error"

    def cuts(self) -> Cuts:
        return Cuts(self.long, self.embedder.max_length)

    def check(self, items: list[str]) -> None:
        self.cutting.pieces(items, self.cuts())

    def blocks(self, items: Iterator[str], cuts: Cuts) -> Iterator[Numbers]:
        stream = self.embedder.vector_stream(dataclasses.replace(self.cutting, cuts=cuts))
        return (quantize(block, self.precision) for block in stream.vectors(items))

    def fields(self) -> list[pa.Field]:
        import pyarrow as pa

        # Not told from an array: to make one of NumPy's, pyarrow imports pandas, which is 20 MB and half a second.
        empty = self._empty()
        return [pa.field("embedding", pa.list_(pa.from_numpy_dtype(empty.dtype), empty.shape[1]))]

    def arrays(self, answers: Sequence[Numbers]) -> list[pa.Array]:
        return [_joined(answers or [self._empty()])]

    def _empty(self) -> Numbers:
        return quantize(np.empty((0, self.embedder.dimension), np.float32), self.precision)


class ValueQuestion(Generic[Answer]):
    """A task whose answers become values one by one. `named` has the columns' annotations, `values` gives a row."""

    def named(self) -> dict[str, object]:
        raise NotImplementedError

    def values(self, answer: Answer) -> tuple[object, ...]:
        raise NotImplementedError

    def fields(self) -> list[pa.Field]:
        return _fields(self.named())

    def arrays(self, answers: Sequence[Sequence[Answer]]) -> list[pa.Array]:
        import pyarrow as pa

        rows = [self.values(answer) for answer in chain.from_iterable(answers)]
        columns = zip(*rows, strict=True) if rows else [()] * len(self.named())
        return [
            pa.array([_plain(value) for value in column], type=field.type)
            for column, field in zip(columns, self.fields(), strict=True)
        ]


class Rows(Protocol[Item, Answer_co]):
    """What a question asks of a `RowTask`."""

    loaded: OpenModel

    def cuts(self) -> Cuts: ...

    def tokenized(self, items: list[Item], cuts: Cuts) -> Iterable[object]: ...

    def counted(self, items: Iterable[Item], cuts: Cuts) -> Iterator[Answer_co]: ...


class RowQuestion(ValueQuestion[Answer], Generic[Item, Answer]):
    """Such a task that judges rows."""

    def __init__(self, rows: Rows[Item, Answer], *, refuses: bool) -> None:
        self.rows, self.refuses, self.loaded = rows, refuses, rows.loaded

    def cuts(self) -> Cuts:
        return self.rows.cuts()

    def check(self, items: list[Item]) -> None:
        list(self.rows.tokenized(items, self.cuts()))

    def blocks(self, items: Iterator[Item], cuts: Cuts) -> Iterator[Sequence[Answer]]:
        return ([answer] for answer in self.rows.counted(items, cuts))


class ClassifyQuestion(RowQuestion[TextOrPair, Classification]):
    def __init__(self, settings: Settings) -> None:
        self.task = tasks.Classifier(**settings)
        super().__init__(self.task, refuses=settings.get("long") == "error")

    def named(self) -> dict[str, object]:
        single: dict[str, object] = {"label": str, "score": float}
        return single if self.task.top_k == 1 else {**single, "labels": list[Prediction]}

    def values(self, answer: Classification) -> tuple[object, ...]:
        best = answer.label, answer.score
        return best if self.task.top_k == 1 else (*best, [Prediction(*one) for one in answer.labels])


class TagQuestion(RowQuestion[str, list[Entity]]):
    def __init__(self, settings: Settings) -> None:
        super().__init__(tasks.Tagger(**settings), refuses=settings.get("long") == "error")

    def named(self) -> dict[str, object]:
        return {"entities": list[Entity]}

    def values(self, answer: list[Entity]) -> tuple[object, ...]:
        return (answer,)


class AnswerQuestion(RowQuestion[Pair, AnswerResult]):
    def __init__(self, settings: Settings) -> None:
        self.task = tasks.Answerer(**settings)
        super().__init__(self.task, refuses=True)  # a question that leaves no room for its context

    def named(self) -> dict[str, object]:
        verdict: dict[str, object] = {"answer": str, "score": float, "start": int, "end": int, "no_answer_score": float}
        return verdict if self.task.rules.n_best == 1 else {**verdict, "candidates": list[FoundAnswer]}

    def values(self, answer: AnswerResult) -> tuple[object, ...]:
        best, none = answer.best, answer.no_answer_score
        verdict: tuple[object, ...] = (None, none, None, None, none)
        if best is not None:
            verdict = (best.text, best.score, best.start, best.end, none)
        return verdict if self.task.rules.n_best == 1 else (*verdict, answer.candidates)


class RerankQuestion(ValueQuestion[tuple[float, bool]]):
    """Every row is a query and a document, and gets the document's score; sorting is for whoever reads the answers."""

    def __init__(self, settings: Settings) -> None:
        reranker = tasks.Reranker(**settings)
        self.scorer, self.loaded = reranker.scorer, reranker.loaded
        self.refuses = settings.get("long") == "error"

    def named(self) -> dict[str, object]:
        return {"score": float}

    def values(self, answer: tuple[float, bool]) -> tuple[object, ...]:
        return (answer[0],)

    def cuts(self) -> Cuts:
        return self.scorer.cuts()

    def check(self, items: list[Pair]) -> None:
        self.scorer.check(items)

    def blocks(self, items: Iterator[Pair], cuts: Cuts) -> Iterator[Sequence[tuple[float, bool]]]:
        return ([answer] for answer in self.scorer.counted(items, cuts))


class FillQuestion(ValueQuestion[Filled]):
    refuses = True  # a text without [MASK]

    def __init__(self, settings: Settings) -> None:
        self.task = tasks.MaskFiller(**settings)
        self.loaded = self.task.loaded

    def named(self) -> dict[str, object]:
        return {"filled": str, "masks": list[list[Candidate]], "fillings": list[Filling]}

    def values(self, answer: Filled) -> tuple[object, ...]:
        return answer.text, answer.masks, answer.fillings

    def cuts(self) -> Cuts:
        return Cuts("windows", 0)

    def check(self, items: list[str]) -> None:
        for item in items:
            self.task.plan(self.task.checked(item, "The text"))

    def blocks(self, items: Iterator[str], cuts: Cuts) -> Iterator[Sequence[Filled]]:
        return ([answer] for answer in self.task.stream(items))


class FeaturesQuestion(RowQuestion[TextOrPair, Features]):
    """A column `tokens`: for each token its text, and its vector in each layer."""

    def __init__(self, settings: Settings) -> None:
        self.task = tasks.FeatureExtractor(**settings)
        super().__init__(self.task, refuses=settings.get("long") == "error")

    def fields(self) -> list[pa.Field]:
        import pyarrow as pa

        return [pa.field("tokens", self.arrays([])[0].type)]

    def arrays(self, answers: Sequence[Sequence[Features]]) -> list[pa.Array]:
        import pyarrow as pa

        found = list(chain.from_iterable(answers))
        tokens = [token for one in found for token in one.tokens]
        layers = [pair for token in tokens for pair in token.layers]
        hidden = self.task.loaded.config.hidden_size
        vectors = np.stack([vector for _, vector in layers]) if layers else np.empty((0, hidden), np.float32)
        of_layers = pa.StructArray.from_arrays(
            [pa.array([index for index, _ in layers], type=pa.int64()), _vectors(vectors)], ["index", "vector"]
        )
        places = pa.array(np.arange(len(tokens) + 1, dtype=np.int32) * len(self.task.layers))
        of_tokens = pa.StructArray.from_arrays(
            [
                pa.array([token.token for token in tokens], type=pa.string()),
                pa.ListArray.from_arrays(places, of_layers),
            ],
            ["token", "layers"],
        )
        ends = np.cumsum([0, *(len(one.tokens) for one in found)], dtype=np.int32)
        return [pa.ListArray.from_arrays(pa.array(ends), of_tokens)]

    def blocks(self, items: Iterator[TextOrPair], cuts: Cuts) -> Iterator[Sequence[Features]]:
        return super().blocks((self.task.checked(item, "The text") for item in items), cuts)


def _embedding_bytes(settings: Settings, hidden: int, text: float) -> float:
    numbers = settings.get("truncate_dim") or hidden
    return float(numbers / 8 if settings.get("precision", "float32").endswith("binary") else 4 * numbers)


TASKS: dict[str, BulkTask] = {
    "embed": BulkTask(EmbedQuestion, tasks.Embedder, lambda settings: ("embedding",), _embedding_bytes),
    "classify": BulkTask(
        ClassifyQuestion,
        tasks.Classifier,
        lambda settings: ("label", "score") if settings.get("top_k", 1) == 1 else ("label", "score", "labels"),
        lambda settings, hidden, text: 16 * (settings.get("top_k", 1) or 8),
        None,
    ),
    "tag": BulkTask(
        TagQuestion, tasks.Tagger, lambda settings: ("entities",), lambda settings, hidden, text: 64 + text / 4
    ),
    "answer": BulkTask(
        AnswerQuestion,
        tasks.Answerer,
        lambda settings: (
            ("answer", "score", "start", "end", "no_answer_score")
            + (() if settings.get("n_best", 1) == 1 else ("candidates",))
        ),
        lambda settings, hidden, text: 64 * settings.get("n_best", 1),
        True,
    ),
    "rerank": BulkTask(
        RerankQuestion, tasks.Reranker, lambda settings: ("score",), lambda settings, hidden, text: 8, True
    ),
    "fill": BulkTask(
        FillQuestion,
        tasks.MaskFiller,
        lambda settings: ("filled", "masks", "fillings"),
        lambda settings, hidden, text: (2 * text + 32) * settings.get("top_k", 5),
    ),
    "features": BulkTask(
        FeaturesQuestion,
        tasks.FeatureExtractor,
        lambda settings: ("tokens",),
        lambda settings, hidden, text: text / TOKEN_BYTES * len(settings.get("layers") or (1, 2, 3, 4)) * hidden * 4,
        None,
    ),
}
_EMBED_CALL = {"prompt": None, "prompt_name": None, "precision": "float32", "long": "truncate"}
_NOT_SETTINGS = ("model", "tokenizer", "device", "progress")


def own_settings(task: str, settings: Settings) -> dict[str, Any]:
    """The settings that are not the task's defaults. One that it does not have is refused, before anything is read."""
    one_of("task", task, tuple(TASKS))
    parameters = inspect.signature(TASKS[task].takes).parameters
    known = {name: one.default for name, one in parameters.items() if name not in _NOT_SETTINGS}
    known |= _EMBED_CALL if task == "embed" else {}
    for name in settings:
        if name not in known:
            raise InputError(f"{task} has no setting {name!r}.", f"It has: {', '.join(sorted(known))}.")
    return {name: value for name, value in settings.items() if value != known[name]}


def chosen_columns(
    task: str, schema: pa.Schema, column: str | None, columns: Sequence[str] | None, source: str
) -> tuple[str, ...]:
    """The columns that hold what is asked about: one of text, or the two of a pair."""
    paired = TASKS[task].paired
    if column is not None and (columns is not None or paired):
        raise InputError(f"{task} reads two columns.", "Name both with {columns=}.")
    if columns is not None and paired is False:
        raise InputError(f"{task} reads one column.", "Name it with {column=}.")
    if columns is not None and len(columns) != 2:
        raise InputError("{columns:is} a pair is two columns.", "Name two.", columns=tuple(columns))
    names: tuple[str, ...]
    if paired or columns is not None:
        names = choose_pair(schema.names, given=None if columns is None else (columns[0], columns[1]), source=source)
    else:
        names = (choose_text(schema.names, given=column, source=source),)
    for name in names:
        _check_text(schema.field(name), source)
    return names


def _check_text(field: pa.Field, source: str) -> None:
    import pyarrow as pa

    of_text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    if not any(is_kind(field.type) for is_kind in of_text):
        raise DataError(
            f"{source}: the column {field.name!r} should be text, and is {field.type}.", "Name another with {column=}."
        )
