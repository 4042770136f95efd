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
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from bertie.answers import Entity
from bertie.errors import InputError
from bertie.text import WindowedDocument

Aggregation: TypeAlias = Literal["none", "simple", "first", "average", "max"]
WordAggregation: TypeAlias = Literal["first", "average", "max"]
Probabilities: TypeAlias = npt.NDArray[np.floating[Any]]
Ints: TypeAlias = npt.NDArray[np.int64]

AGGREGATIONS: tuple[Aggregation, ...] = get_args(Aggregation)
WORD_AGGREGATIONS: tuple[WordAggregation, ...] = get_args(WordAggregation)

# BILOU's and BMES's letters for B-I-O-E-S's. All but B and I are believed only beside a B- or I- of the same type, as
# "E-mail" or "S-bahn" may well be a label.
_LETTERS = {"B": "B", "I": "I", "E": "E", "S": "S", "L": "E", "U": "S", "M": "I"}


class Judged(NamedTuple):
    """Tokens or words of a text with the labels they were given."""

    firsts: Ints  # the first token of each
    lasts: Ints  # and the last one, included
    labels: Ints
    scores: npt.NDArray[np.float64]


class LabelSet:
    """A model's labels, and what each says about spans."""

    def __init__(self, id2label: Mapping[int, str]) -> None:
        self.names = [id2label[index] for index in range(len(id2label))]
        known = set(self.names)
        split = [_split(name, known) for name in self.names]
        self.types = sorted({kind for _, kind in split})
        self._type_of = np.array([self.types.index(kind) for _, kind in split])
        self._opens = np.array([letter in "BS" for letter, _ in split])
        self._closes = np.array([letter in "ES" for letter, _ in split])

    def spans(self, labels: Ints) -> tuple[Ints, Ints, Ints]:
        """Types, starts and ends of neighbouring labels that belong together; "O" is a type like any other.

        As `bertie.data.tags.tag_spans` reads them: a span begins where the type changes, at B- and S-, and after E- and
        S-.
        """
        kinds = self._type_of[labels]
        begins = np.ones(len(labels), dtype=bool)
        begins[1:] = (kinds[1:] != kinds[:-1]) | self._opens[labels[1:]] | self._closes[labels[:-1]]
        starts = np.flatnonzero(begins)
        return kinds[starts], starts, np.append(starts, len(labels))[1:]

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
    if len(windows) == 1:
        shift = document.windows[0].shift
        return windows[0][shift : shift + len(document)]
    best = np.asarray(document.best_windows, dtype=np.int64)
    whole = np.zeros((len(document), windows[0].shape[-1]), dtype=windows[0].dtype)
    for window, probabilities in zip(document.windows, windows, strict=True):
        tokens = window.start + np.flatnonzero(best[window.start : window.end] == window.index)
        whole[tokens] = probabilities[tokens + window.shift]
    return whole


def judge_tokens(probabilities: Probabilities) -> Judged:
    """Every token by itself."""
    tokens = np.arange(len(probabilities))
    return _judged(tokens, tokens, probabilities)


def judge_words(probabilities: Probabilities, firsts: Sequence[int], aggregation: WordAggregation) -> Judged:
    """One label for each word, which is the tokens from its first one to the next word's; the first is token 0."""
    starts = np.asarray(firsts, dtype=np.int64)
    ends = np.append(starts, len(probabilities))[1:]
    if aggregation == "first" or not len(starts):
        rows = probabilities[starts]
    elif aggregation == "average":
        rows = np.add.reduceat(probabilities, starts, axis=0) / (ends - starts)[:, None].astype(probabilities.dtype)
    else:  # the row of the token that is surest, the first of several
        surest = probabilities.max(axis=-1)
        is_best = surest == np.repeat(np.maximum.reduceat(surest, starts), ends - starts)
        places = np.flatnonzero(is_best)
        rows = probabilities[places[np.searchsorted(places, starts)]]
    return _judged(starts, ends - 1, rows)


def _judged(firsts: Ints, lasts: Ints, rows: Probabilities) -> Judged:
    labels = rows.argmax(axis=-1)
    return Judged(firsts, lasts, labels, rows[np.arange(len(rows)), labels].astype(np.float64))


def word_starts(document: WindowedDocument) -> Ints:
    """The first token of each of the tokenizer's words."""
    words = np.asarray(document.word_ids, dtype=np.int64)
    begins = np.ones(len(words), dtype=bool)
    begins[1:] = words[1:] != words[:-1]
    return np.flatnonzero(begins)


def find_entities(
    document: WindowedDocument,
    probabilities: Probabilities,
    labels: LabelSet,
    *,
    aggregation: Aggregation,
    ignored: Collection[str],
) -> list[Entity]:
    """The entities of a document, by its tokens' probabilities `[tokens, labels]`, in the order of the text."""
    if not len(probabilities):
        return []
    if aggregation == "none" or aggregation == "simple":
        judged = judge_tokens(probabilities)
    else:
        judged = judge_words(probabilities, word_starts(document), aggregation)  # type: ignore[arg-type]
    if aggregation == "none":
        names, kinds, starts = labels.names, judged.labels, np.arange(len(judged.labels))
        ends = starts + 1
    else:
        names, (kinds, starts, ends) = labels.types, labels.spans(judged.labels)
    scores = np.add.reduceat(judged.scores, starts) / (ends - starts)
    wanted = np.array([name not in ignored for name in names])[kinds]  # most of a text is "O": left out before Python
    firsts, lasts = judged.firsts[starts[wanted]], judged.lasts[ends[wanted] - 1]
    entities = []
    for kind, first, last, score in zip(
        kinds[wanted].tolist(), firsts.tolist(), lasts.tolist(), scores[wanted].tolist(), strict=True
    ):
        start, end = document.span(first, last)
        entities.append(Entity(names[kind], document.text[start:end], start, end, score, first))
    return entities
