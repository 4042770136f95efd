"""What the page asks of a session, by name: JSON, or bytes where there are many numbers.

The server's routes and a saved page give the same answers, because both come from here. A map is S·S bytes (a weight is
(byte / 255)²), and all thumbnails together are one array of bytes: nothing of the size of a map travels as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from bertie.errors import InputError
from bertie.explore.answers import Answer
from bertie.explore.page.walk import walk
from bertie.explore.session import Session
from bertie.explore.switches import Switches

Json: TypeAlias = dict[str, Any]
Report: TypeAlias = Callable[[int, int, object], None]  # done, of how many, what there is so far

_DIGITS = 5
_MOST_TARGETS = 40
_IMPORTANCE_TASKS = ("fill", "next", "classify", "tag", "answer", "choice")


def answered(answer: Answer) -> Json:
    return {"text": answer.text, "top": [[label, _number(score)] for label, score in answer.top]}


def opened(session: Session) -> Json:
    """The model, the text as it reads it, and what it says to it."""
    config = session.config
    views = set(session.views)
    no_answer = None
    if "answer" not in views:
        try:
            session.need("answer")
        except InputError as error:
            no_answer = [error.cause, error.remedy]
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
        "rows": [
            {
                "tokens": [{"text": token.text, "id": token.id, "special": token.special} for token in row.tokens],
                "segments": list(row.segments),
            }
            for row in session.rows
        ],
        "truncated": session.truncated,
        "answer": answered(session.answer()) if "answer" in views else None,
        "no_answer": no_answer,
        "targets": [target.label for target in session.targets()[:_MOST_TARGETS]] if "attribute" in views else [],
    }


# -- attention ---------------------------------------------------------------------------------------------------------


def thumbnails(session: Session, *, row: int = 0, size: int = 32) -> bytes:
    return session.thumbnails(size, row).tobytes()


def statistics(session: Session, *, row: int = 0) -> Json:
    columns = session.head_statistics(row).columns()
    return {name: [_number(value) for value in values] for name, values in columns.items()}


def attention_map(session: Session, *, layer: int, head: int, row: int = 0) -> bytes:
    return session.map_bytes(layer, head, row)


def neurons(session: Session, *, layer: int, head: int, query: int, key: int, row: int = 0) -> Json:
    found = session.neuron_view(layer, head, query, key, row)
    lists = {name: _numbers(getattr(found, name)) for name in ("q", "k", "product")}
    return lists | {"score": found.score, "relative": found.relative, "weight": found.weight}


# -- ablation, the layers' own words -----------------------------------------------------------------------------------


def switch(session: Session, *, off: Mapping[str, Any]) -> Json:
    found = session.ablate(switches_of(off))
    return {
        "before": answered(found.before),
        "after": answered(found.after),
        "effect": _number(found.effect),
        "target": found.target.label if found.target is not None else found.before.text,
    }


def switches_of(off: Mapping[str, Any]) -> Switches:
    return Switches(
        heads={(layer, head) for layer, head in off.get("heads", ())},
        layers=set(off.get("layers", ())),
        feed_forward=set(off.get("feed_forward", ())),
    )


def lens(session: Session, *, row: int = 0) -> Json:
    found = session.lens(row=row)
    return {"words": found.words, "probabilities": [[_numbers(k) for k in layer] for layer in found.probabilities]}


def drift(session: Session, *, row: int = 0) -> Json:
    found = session.drift(row=row)
    return {name: [_numbers(layer) for layer in getattr(found, name)] for name in ("to_first", "to_last")}


def match(session: Session) -> Json:
    return {"weights": [_numbers(row) for row in session.match().weights]}


# -- what takes long ---------------------------------------------------------------------------------------------------


def attribution(session: Session, report: Report, *, method: str, target: int = 0) -> Json:
    chosen = session.targets()[target : target + 1]
    found = session.attribute(
        method=method,
        target=chosen[0] if chosen else None,
        progress=lambda done, total: report(done, total, None),
    )
    return {
        "scores": [_numbers(scores) for scores in found.scores],
        "error": None if found.error is None else _number(found.error),
        "score": _number(found.score),
        "baseline_score": _number(found.baseline_score),
    }


def patching(session: Session, report: Report, *, other: Session, part: str = "state") -> Json:
    """Layer by layer, so that the page can show what there is so far."""
    places = list(range(len(session.rows[0])))
    layers = list(range(session.num_layers + 1)) if part == "state" else list(range(session.num_layers))
    effect: list[list[float]] = []
    shown: Json = {
        "clean": answered(session.answer()),
        "corrupted": answered(other.answer()),
        "layers": layers if part == "state" else [layer + 1 for layer in layers],
        "places": places,
        "effect": effect,
    }
    for done, layer in enumerate(layers):
        report(done, len(layers), shown)
        found = session.patch(other, layers=[layer], part=part)
        effect.append(_numbers(found.effect[0]))
    return shown


QUERIES: Mapping[str, Callable[..., Json | bytes]] = {
    "open": opened,
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


def _numbers(values: Sequence[float]) -> list[float]:
    return [_number(value) for value in values]
