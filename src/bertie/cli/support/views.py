"""Answers as rows for machines and as pictures for people: a view per task, for its command and `bertie client`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from bertie.cli.support.show import Rows, clipped, columns, marked, number, plain_text, scored, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from bertie.answers import (
        AnswerResult,
        Classification,
        Entity,
        Features,
        Filled,
        Generated,
        Hit,
        NextSentence,
        Ranked,
        Representation,
    )
    from bertie.data import Question
    from bertie.running.precision import Numbers

Answer = TypeVar("Answer")
_NUMBERS = 6  # of a vector on a terminal
_NUMBERS_OF_A_TOKEN = 5


class View(NamedTuple, Generic[Answer]):
    """`row` turns an answer into one row (or several) of a machine format; `text` into something rich can print."""

    row: Callable[[Answer], Rows]
    text: Callable[[Answer], RenderableType]


def _vector(answer: tuple[str, Numbers]) -> RenderableType:
    from rich.text import Text

    text, vector = answer
    shown = "  ".join(f"{x:.4f}" if vector.dtype.kind == "f" else str(x) for x in vector[:_NUMBERS].tolist())
    more = "  …" if len(vector) > _NUMBERS else ""
    return Text.assemble(clipped(text, style="bold"), f"\n{len(vector)} numbers  ", (shown + more, "cyan"))


EMBEDDED: View[tuple[str, Numbers]] = View(lambda answer: {"text": answer[0], "embedding": answer[1]}, _vector)


def _representation(answer: tuple[str, Representation]) -> RenderableType:
    from rich.text import Text

    text, found = answer
    parts = [] if found.dense is None else [f"{len(found.dense)} numbers"]
    parts += [] if found.sparse is None else [f"{len(found.sparse)} weighted words"]
    parts += [] if found.multi is None else [f"{len(found.multi)} vectors of {found.multi.shape[1]}"]
    return Text.assemble(clipped(text, style="bold"), "\n", (", ".join(parts), "cyan"))


def _representation_row(answer: tuple[str, Representation]) -> Rows:
    text, found = answer
    sparse = None if found.sparse is None else [{"id": index, "weight": w} for index, w in found.sparse.items()]
    multi = None if found.multi is None else found.multi.tolist()
    forms = {"dense": found.dense, "sparse": sparse, "multi": multi}
    return {"text": text, **{name: form for name, form in forms.items() if form is not None}}


REPRESENTED: View[tuple[str, Representation]] = View(_representation_row, _representation)


def _label_row(answer: tuple[str | tuple[str, str], Classification]) -> Rows:
    item, found = answer
    text = {"text": item} if isinstance(item, str) else {"text_a": item[0], "text_b": item[1]}
    row = {**text, "label": found.label, "score": found.score}
    if len(found.labels) > 1:
        return row | {"labels": [{"label": label, "score": score} for label, score in found.labels]}
    return row


def _labels(answer: tuple[str | tuple[str, str], Classification]) -> RenderableType:
    from rich.console import Group

    item, found = answer
    text = item if isinstance(item, str) else " ↔ ".join(item)
    if len(found.labels) == 1:
        return columns(scored(found.score), clipped(found.label, style="bold green"), clipped(text))
    made = table("score", "label")
    made.show_header = False
    for label, score in found.labels:
        made.add_row(scored(score), clipped(label))
    return Group(clipped(text, style="bold"), made, "")


CLASSIFIED: View[tuple[str | tuple[str, str], Classification]] = View(_label_row, _labels)


def _entity_row(answer: tuple[str, list[Entity]]) -> Rows:
    return {"text": answer[0], "entities": [asdict(entity) for entity in answer[1]]}


def _entities(answer: tuple[str, list[Entity]]) -> RenderableType:
    text, entities = answer
    return marked(text, [(one.start, one.end, f"{one.label}:{one.score:.2f}") for one in entities])


TAGGED: View[tuple[str, list[Entity]]] = View(_entity_row, _entities)


def answered(*, several: bool) -> View[tuple[Question, AnswerResult]]:
    """The verdict on a question; with `several`, rows list the other quotations too."""

    def row(answer: tuple[Question, AnswerResult]) -> Rows:
        asked, found = answer
        best = found.best
        values = {
            "id": asked.id,
            "question": asked.question,
            "answer": None if best is None else best.text,
            "score": found.no_answer_score if best is None else best.score,
            "start": None if best is None else best.start,
            "end": None if best is None else best.end,
            "no_answer_score": found.no_answer_score,
        }
        return values | {"candidates": [asdict(one) for one in found.candidates]} if several else values

    return View(row, _quotation)


def _quotation(answer: tuple[Question, AnswerResult]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    asked, found = answer
    lines: list[RenderableType] = [clipped(asked.question, style="bold")]
    if found.best is None:
        lines.append(Text.assemble(scored(found.no_answer_score), "  ", ("no answer", "yellow")))
    else:
        spot = (found.best.start, found.best.end, number(found.best.score))
        lines.append(marked(asked.context, [spot], around=300))
    if len(found.candidates) > 1:
        made = table("score", "text")
        for one in found.candidates:
            made.add_row(scored(one.score), clipped(one.text))
        lines.append(made)
    return Group(*lines, "")


def _filled_row(answer: tuple[str, Filled]) -> Rows:
    text, found = answer
    return {
        "text": text,
        "filled": found.text,
        "fillings": [{"tokens": one.tokens, "score": one.score, "text": one.text} for one in found.fillings],
        "masks": [[{"token": one.token, "score": one.score} for one in mask] for mask in found.masks],
    }


def _fillings(answer: tuple[str, Filled]) -> RenderableType:
    from rich.console import Group

    text, found = answer
    made = table("score", "label", "text")
    made.show_header = False
    for one in found.fillings:
        made.add_row(scored(one.score), clipped(" · ".join(one.tokens), style="bold green"), clipped(one.text))
    return Group(clipped(text, style="bold"), made, "")


FILLED: View[tuple[str, Filled]] = View(_filled_row, _fillings)


def _next_row(answer: tuple[tuple[str, str], NextSentence]) -> Rows:
    (first, second), found = answer
    return {"first": first, "second": second, "probability": found.probability, "follows": found.follows}


def _follows(answer: tuple[tuple[str, str], NextSentence]) -> RenderableType:
    from rich.text import Text

    (first, second), found = answer
    verdict = ("follows", "bold green") if found.follows else ("does not follow", "bold yellow")
    arrow = (" → ", "dim")
    return Text.assemble(scored(found.probability), "  ", verdict, "\n", clipped(first), arrow, clipped(second))


NEXT: View[tuple[tuple[str, str], NextSentence]] = View(_next_row, _follows)


def _token_vectors(found: Features) -> RenderableType:
    made = table("label", "layer", "numbers", f"the first {_NUMBERS_OF_A_TOKEN}")
    for token in found.tokens:
        for place, (layer, vector) in enumerate(token.layers):
            shown = " ".join(f"{value:8.4f}" for value in vector[:_NUMBERS_OF_A_TOKEN].tolist())
            made.add_row("" if place else clipped(token.token), str(layer), str(len(vector)), shown)
    made.columns[0].header = "token"
    return made


FEATURES: View[Features] = View(lambda found: found.to_google_json(), _token_vectors)


def _ranking_rows(answer: tuple[str, list[Ranked]]) -> Rows:
    query, ranking = answer
    return [
        {"query": query, "rank": rank, "index": one.index, "score": one.score, "text": one.text}
        for rank, one in enumerate(ranking, start=1)
    ]


def _ranking(answer: tuple[str, list[Ranked]]) -> RenderableType:
    made = table("", "score", "document")
    for rank, one in enumerate(answer[1], start=1):
        made.add_row(str(rank), scored(one.score), clipped(one.text))
    return made


RANKED: View[tuple[str, list[Ranked]]] = View(_ranking_rows, _ranking)


def _hit_rows(answer: tuple[str, list[Hit]]) -> Rows:
    query, hits = answer
    return [
        {"query": query, "rank": rank, "id": hit.id, "score": hit.score, "text": hit.text}
        for rank, hit in enumerate(hits, start=1)
    ]


def _hits(answer: tuple[str, list[Hit]]) -> RenderableType:
    from rich.console import Group

    query, hits = answer
    made = table("", "score", "id", "text")
    for rank, hit in enumerate(hits, start=1):
        made.add_row(str(rank), scored(hit.score), clipped(hit.id, 24), clipped(hit.text))
    return Group(clipped(query, style="bold"), made, "")


FOUND: View[tuple[str, list[Hit]]] = View(_hit_rows, _hits)


def _generated_row(found: Generated) -> Rows:
    row: dict[str, object] = {"prompt": found.prompt, "text": found.text}
    return row | {"alternatives": [one.text for one in found.alternatives]} if found.alternatives else row


def _continuations(found: Generated) -> RenderableType:
    from rich.text import Text

    lines = [
        Text.assemble((plain_text(found.prompt), "dim"), " ", (plain_text(one.text), "bold"))
        for one in (found, *found.alternatives)
    ]
    return Text("\n").join(lines)


GENERATED: View[Generated] = View(_generated_row, _continuations)
