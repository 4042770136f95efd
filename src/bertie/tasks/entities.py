"""From label probabilities of tokens to entities: words are judged, labels read as spans, spans quoted.

The five aggregations are those of the hub's token-classification pipeline:

| name    | what is judged | label and score                                             |
|---------|----------------|-------------------------------------------------------------|
| none    | every token    | its own, `B-` and `I-` kept, nothing joined                 |
| simple  | every token    | its own; tokens joined to entities                          |
| first   | every word     | those of its first token; words joined to entities          |
| average | every word     | the best of its tokens' mean probabilities; joined          |
| max     | every word     | those of the token that is surest; joined                   |

An entity's score is the mean over what was joined. **Ours**, where transformers 4.57.6 does otherwise:

- Words are the tokenizer's own. Theirs are guessed by comparing lengths of token and text, and a word that lost an
  accent or an invisible character inside it in tokenizing ("nai\\u0308ve") is glued to the word before it.
- B-I-O-E-S, BILOU and BMES are read: B- opens, E-/L- closes, S-/U- stands alone, M- is I-. Theirs knows B- and I-, cuts
  off every E- and joins every S- to its neighbour.
- A label without a prefix is kept whole. Theirs cuts "creative-work" to "work".
- Spans follow conlleval (`bertie.data.tags`): an I- that continues nothing begins an entity, equal labels without
  prefix side by side are one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from bertie.data.tags import tag_spans
from bertie.errors import InputError
from bertie.text import WindowedDocument

Aggregation: TypeAlias = Literal["none", "simple", "first", "average", "max"]
WordAggregation: TypeAlias = Literal["first", "average", "max"]
Probabilities: TypeAlias = npt.NDArray[np.floating[Any]]

AGGREGATIONS: tuple[Aggregation, ...] = get_args(Aggregation)
WORD_AGGREGATIONS: tuple[WordAggregation, ...] = get_args(WordAggregation)

# BILOU's and BMES's letters for B-I-O-E-S's. All but B and I are believed only beside a B- or I- of the same type, as
# "E-mail" or "S-bahn" may well be a label.
_LETTERS = {"B": "B", "I": "I", "E": "E", "S": "S", "L": "E", "U": "S", "M": "I"}


@dataclass(frozen=True, slots=True)
class Entity:
    """A labelled piece of a text: `text_it_is_from[start:end] == text`.

    `index` is the number of its first token in the text, special tokens not counted.
    """

    label: str
    text: str
    start: int
    end: int
    score: float
    index: int


@dataclass(frozen=True, slots=True)
class Judged:
    """Tokens `first` to `last`, both included, with the label they were given."""

    first: int
    last: int
    label: int
    score: float


class LabelSet:
    """A model's labels, and what each says about spans."""

    def __init__(self, id2label: Mapping[int, str]) -> None:
        self.names = [id2label[index] for index in range(len(id2label))]
        known = set(self.names)
        split = [_split(name, known) for name in self.names]
        self.types = sorted({kind for _, kind in split})
        numbers = {kind: number for number, kind in enumerate(self.types)}
        # Types are numbered, since what a model calls them may not be writable as a tag.
        self._tags = [f"{letter}-{numbers[kind]}" for letter, kind in split]

    def spans(self, labels: Sequence[int]) -> list[tuple[str, int, int]]:
        """(type, start, end) of neighbouring labels that belong together; "O" is a type like any other."""
        found = tag_spans([self._tags[label] for label in labels])
        return [(self.types[int(span.type)], span.start, span.end) for span in found]

    def check(self, ignored: Collection[str]) -> None:
        """A label that is to be ignored has to exist, except "O", which plain labels do without."""
        known = {*self.names, *self.types, "O"}
        for label in ignored:
            if label not in known:
                raise InputError(
                    f"ignore_labels has {label!r}, which is no label of the model.",
                    f"It has: {', '.join(sorted(known))}.",
                )


def _split(name: str, known: Collection[str]) -> tuple[str, str]:
    """The letter and the type of a label; one without a letter is I-, so that equal neighbours are joined."""
    letter, dash, kind = name.partition("-")
    if not dash or not kind or letter not in _LETTERS:
        return "I", name
    if letter not in "BI" and f"B-{kind}" not in known and f"I-{kind}" not in known:
        return "I", name
    return _LETTERS[letter], kind


def token_probabilities(document: WindowedDocument, windows: Sequence[Probabilities]) -> Probabilities:
    """`[tokens, labels]` of a document out of `[length, labels]` of its windows: each token as judged where it has most
    context."""
    best = np.asarray(document.best_windows, dtype=np.int64)
    whole = np.zeros((len(document), windows[0].shape[-1]), dtype=windows[0].dtype)
    for window, probabilities in zip(document.windows, windows, strict=True):
        tokens = window.start + np.flatnonzero(best[window.start : window.end] == window.index)
        whole[tokens] = probabilities[tokens + window.shift]
    return whole


def judge_tokens(probabilities: Probabilities) -> list[Judged]:
    """Every token by itself."""
    labels = probabilities.argmax(axis=-1)
    return [Judged(i, i, int(label), float(probabilities[i, label])) for i, label in enumerate(labels)]


def judge_words(
    probabilities: Probabilities, words: Sequence[tuple[int, int]], aggregation: WordAggregation
) -> list[Judged]:
    """One label for each word, which is its tokens (first, last), both included."""
    judged = []
    for first, last in words:
        row = _word_row(probabilities[first : last + 1], aggregation)
        label = int(row.argmax())
        judged.append(Judged(first, last, label, float(row[label])))
    return judged


def _word_row(rows: Probabilities, aggregation: WordAggregation) -> Probabilities:
    if aggregation == "first":
        return np.asarray(rows[0])
    if aggregation == "average":
        return np.asarray(rows.mean(axis=0))
    return np.asarray(rows[rows.max(axis=-1).argmax()])


def word_tokens(document: WindowedDocument) -> list[tuple[int, int]]:
    """The tokens (first, last) of each of the tokenizer's words."""
    words = document.word_ids
    starts = [token for token in range(len(words)) if token == 0 or words[token] != words[token - 1]]
    return [(first, following - 1) for first, following in pairwise([*starts, len(words)])]


def find_entities(
    document: WindowedDocument,
    probabilities: Probabilities,
    labels: LabelSet,
    *,
    aggregation: Aggregation,
    ignored: Collection[str],
) -> list[Entity]:
    """The entities of a document, by its tokens' probabilities `[tokens, labels]`, in the order of the text."""

    def entity(label: str, parts: Sequence[Judged]) -> Entity:
        start, end = document.span(parts[0].first, parts[-1].last)
        score = sum(part.score for part in parts) / len(parts)
        return Entity(label, document.text[start:end], start, end, score, parts[0].first)

    if aggregation == "none" or aggregation == "simple":
        judged = judge_tokens(probabilities)
    else:
        judged = judge_words(probabilities, word_tokens(document), aggregation)
    if aggregation == "none":
        entities = [entity(labels.names[token.label], [token]) for token in judged]
    else:
        spans = labels.spans([part.label for part in judged])
        entities = [entity(kind, judged[start:end]) for kind, start, end in spans]
    return [found for found in entities if found.label not in ignored]
