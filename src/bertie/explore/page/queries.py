"""What the page asks of a session, by name: JSON, or bytes where there are many numbers.

The server's routes and a saved page give the same answers, because both come from here. A map is S·S bytes (a weight is
(byte / 255)²), and all thumbnails together are one array of bytes: nothing of the size of a map travels as JSON.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypedDict

from bertie.errors import InputError
from bertie.explore.answers import Answer
from bertie.explore.attribution import Method
from bertie.explore.page.walk import walk
from bertie.explore.patching import Part
from bertie.explore.session import Session
from bertie.explore.switches import Switches

if TYPE_CHECKING:
    from bertie.explore.ranking import Importance

Json: TypeAlias = dict[str, object]
Report: TypeAlias = Callable[[int, int, object], None]  # done, of how many, what there is so far

_DIGITS = 5
_MOST_TARGETS = 40
LENS_TOKENS = 64
_IMPORTANCE_TASKS = ("fill", "next", "classify", "tag", "answer", "choice")


class Off(TypedDict, total=False):
    """What is off, as JSON has it: heads are [layer, head]."""

    heads: Sequence[tuple[int, int]]
    layers: Sequence[int]
    feed_forward: Sequence[int]


def answered(found: Answer) -> Json:
    return {"text": found.text, "top": [[label, _number(score)] for label, score in found.top]}


def opened(session: Session) -> Json:
    """The model, and the text as it reads it. Nothing is run for this, so that the page is there at once."""
    config, tokenizer = session.config, session.tokenizer
    views = set(session.views)
    unknown = [id_ for row in session.rows for id_ in row.ids if id_ == tokenizer.unk_token_id]
    return {
        "model": session.name,
        "architecture": config.architectures[0] if config.architectures else type(session.model).__name__,
        "task": session.task,
        "tasks": list(session.tasks),
        "views": sorted(views | ({"importance"} if session.task in _IMPORTANCE_TASKS else set())),
        "num_layers": session.num_layers,
        "num_heads": session.num_heads,
        "heads": [list(session.heads[layer]) for layer in range(session.num_layers)],
        "hidden_size": config.hidden_size,
        "max_length": session.reading.loaded.max_length,
        "mask": tokenizer.mask_token,
        "rows": [
            {
                "tokens": [{"text": token.text, "id": token.id, "special": token.special} for token in row.tokens],
                "segments": list(row.segments),
            }
            for row in session.rows
        ],
        "truncated": session.truncated,
        "unknown": [len(unknown), tokenizer.unk_token],
    }


def answer(session: Session) -> Json:
    """What the model says, or why there is nothing to say."""
    try:
        return {"answer": answered(session.answer()), "no_answer": None}
    except InputError as error:
        return {"answer": None, "no_answer": [error.cause, error.remedy]}


def targets(session: Session) -> Json:
    """What can be explained, the model's own answer first."""
    session.need("attribute")
    return {"targets": [target.label for target in session.targets()[:_MOST_TARGETS]]}


# -- attention ---------------------------------------------------------------------------------------------------------


def thumbnails(session: Session, *, row: int = 0, size: int = 32) -> bytes:
    return session.thumbnails(size, row).tobytes()


def statistics(session: Session, *, row: int = 0) -> Json:
    columns = session.head_statistics(row).columns()
    return {name: _numbers(values) for name, values in columns.items()}


def attention_map(session: Session, *, layer: int, head: int, row: int = 0) -> bytes:
    return session.map_bytes(layer, head, row)


def neurons(session: Session, *, layer: int, head: int, query: int, key: int, row: int = 0) -> Json:
    found = session.neuron_view(layer, head, query, key, row)
    lists: Json = {name: _numbers(getattr(found, name)) for name in ("q", "k", "product")}
    return lists | {
        "score": _number(found.score),
        "relative": _number((found.relative_query + found.relative_key) * found.scale),
        "weight": _number(found.weight),
    }


# -- ablation, the layers' own words -----------------------------------------------------------------------------------


def switch(session: Session, *, off: Off) -> Json:
    """The answer with parts off. `session.ablate` also scores the old answer, which takes the model two more runs; the
    page shows what became of it among the best."""
    session.need("ablate")
    before, after = session.answer(), session.switch(session.off | switches_of(off)).answer()
    return {"before": answered(before), "after": answered(after)}


def switches_of(off: Off) -> Switches:
    return Switches(
        heads={(layer, head) for layer, head in off.get("heads", ())},
        layers=set(off.get("layers", ())),
        feed_forward=set(off.get("feed_forward", ())),
    )


def lens(session: Session, *, row: int = 0, first: int = 0) -> Json:
    """Of `LENS_TOKENS` tokens from the first on: the head's scores of a long text take seconds, and fill in."""
    session.check_place(first, row, "first")
    found = session.lens(row=row, places=range(first, min(first + LENS_TOKENS, len(session.rows[row]))))
    return {"words": found.words, "probabilities": [[_numbers(k) for k in layer] for layer in found.probabilities]}


def drift(session: Session, *, row: int = 0) -> Json:
    found = session.drift(row=row)
    return {name: [_numbers(layer) for layer in getattr(found, name)] for name in ("to_first", "to_last")}


def match(session: Session) -> Json:
    return {"weights": [_numbers(row) for row in session.match().weights]}


# -- what takes long ---------------------------------------------------------------------------------------------------


def attribution(session: Session, report: Report, *, method: Method, target: int = 0, steps: int | None = None) -> Json:
    report(0, 1, None)
    chosen = session.targets()[target : target + 1]
    found = session.attribute(
        method,
        chosen[0] if chosen else None,
        steps=steps,
        progress=lambda done, total: report(done, total, None),
    )
    return {
        "scores": [_numbers(scores) for scores in found.scores],
        "error": None if found.error is None else _number(found.error),
        "score": _number(found.score),
        "baseline_score": None if found.baseline_score is None else _number(found.baseline_score),
    }


def patching(session: Session, report: Report, *, other: Session, part: Part = "state") -> Json:
    """Layer by layer, so that the page can show what there is so far."""
    places = list(range(len(session.rows[0])))
    layers = list(range(0 if part == "state" else 1, session.num_layers + 1))
    effect: list[list[float | None]] = []
    shown: Json = {
        "clean": answered(session.answer()),
        "corrupted": answered(other.answer()),
        "layers": layers,
        "places": places,
        "effect": effect,
    }
    for done, layer in enumerate(layers):
        report(done, len(layers), shown)
        found = session.patch(
            other, layers=[layer], part=part, progress=lambda *_: report(len(effect), len(layers), shown)
        )
        effect.append(_numbers(found.effect[0]))
    return shown


def measured(found: Importance) -> Json:
    values = found.values if found.values.ndim == 2 else found.values[:, None]
    return {
        "of": found.of,
        "values": [[None if math.isnan(value) else float(value) for value in layer] for layer in values],
        "loss": _number(found.baseline),
        "num_examples": found.num_examples,
        "notes": list(found.notes),
    }


QUERIES: Mapping[str, Callable[..., Json | bytes]] = {
    "open": opened,
    "answer": answer,
    "targets": targets,
    "thumbnails": thumbnails,
    "statistics": statistics,
    "map": attention_map,
    "neurons": neurons,
    "switch": switch,
    "walk": walk,
    "lens": lens,
    "drift": drift,
    "match": match,
}


def _number(value: float) -> float:
    return round(float(value), _DIGITS)


def _numbers(values: Iterable[float]) -> list[float | None]:
    """JSON knows no NaN: what there is nothing to say about is null."""
    return [None if math.isnan(value) else _number(value) for value in values]
