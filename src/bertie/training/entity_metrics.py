"""Precision, recall and F1 of entities: an entity is right when its type and both its ends are.

Two readings of tags, those of `seqeval` (Nakayama 2018), which the tests compare with:

- default, conlleval's: an `I-` that continues nothing begins an entity;
- strict: only what the scheme allows is an entity. BIO: `B- I-*`. BIOES: `S-`, or `B- I-* E-`. All of one type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from bertie.data.tags import TagSpan, split_tag, tag_spans
from bertie.errors import InputError

StrictScheme = Literal["BIO", "BIOES"]


@dataclass(frozen=True, slots=True)
class EntityScore:
    """Of one type, or over all of them; `support` counts the true entities."""

    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True, slots=True)
class EntityScores:
    """Over all entities (micro), by type, and the plain mean of the types' F1 (macro)."""

    micro: EntityScore
    macro_f1: float
    by_type: dict[str, EntityScore]


def entity_scores(
    predicted: Iterable[Sequence[str]], gold: Iterable[Sequence[str]], *, strict: StrictScheme | None = None
) -> EntityScores:
    """Score sentences of tags, e.g. `[["B-PER", "I-PER", "O"]]`."""
    right: Counter[str] = Counter()
    found: Counter[str] = Counter()
    wanted: Counter[str] = Counter()
    for number, (ours, theirs) in enumerate(zip(predicted, gold, strict=True)):
        if len(ours) != len(theirs):
            raise InputError(f"Sentence {number} has {len(theirs)} tags, and {len(ours)} were predicted.")
        spans = [set(tag_spans(tags) if strict is None else strict_spans(tags, strict)) for tags in (ours, theirs)]
        found.update(span.type for span in spans[0])
        wanted.update(span.type for span in spans[1])
        right.update(span.type for span in spans[0] & spans[1])
    by_type = {kind: _score(right[kind], found[kind], wanted[kind]) for kind in sorted({*found, *wanted})}
    macro = sum(score.f1 for score in by_type.values()) / len(by_type) if by_type else 0.0
    return EntityScores(_score(right.total(), found.total(), wanted.total()), macro, by_type)


def strict_spans(tags: Sequence[str], scheme: StrictScheme) -> list[TagSpan]:
    """The entities that are written exactly as the scheme says.

    >>> strict_spans(["I-PER", "B-PER", "I-PER", "I-LOC"], "BIO")
    [TagSpan(type='PER', start=1, end=3)]
    """
    split = [split_tag(tag) for tag in tags]
    spans: list[TagSpan] = []
    index = 0
    while index < len(split):
        prefix, kind = split[index]
        start = index
        index += 1
        if prefix == "S" and scheme == "BIOES":
            spans.append(TagSpan(kind, start, index))
        elif prefix == "B":
            while index < len(split) and split[index] == ("I", kind):
                index += 1
            if scheme == "BIO":
                spans.append(TagSpan(kind, start, index))
            elif index < len(split) and split[index] == ("E", kind):
                index += 1
                spans.append(TagSpan(kind, start, index))
    return spans


def _score(right: int, found: int, wanted: int) -> EntityScore:
    precision = right / found if found else 0.0
    recall = right / wanted if wanted else 0.0
    f1 = 2 * precision * recall / (precision + recall) if right else 0.0
    return EntityScore(precision, recall, f1, wanted)
