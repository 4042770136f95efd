"""The entities of a text, or a label for each of its words, from a `BertForTokenClassification`.

    tag("Ada Lovelace lived in London.", model="my-ner")              list of Entity: .label, .text, .start, .end
    tag_words(["Ada", "lived", "in", "London"], model="my-ner")       list of WordTag, one per word

Texts of any length are read whole, in overlapping windows; each token is judged in the window where it has most
context, and entities are put together afterwards, so none is cut or doubled where two windows meet. What is found is
quoted character by character: `text[entity.start:entity.end] == entity.text`.

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

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import ClassVar, Generic, Literal, NamedTuple, TypeAlias, TypeVar, Unpack, get_args

import numpy as np
from numpy.typing import NDArray

from bertie.answers import Entity, WordTag
from bertie.arguments import one_of, one_or_several, whole_number
from bertie.data.tags import OUTSIDE
from bertie.errors import InputError
from bertie.model import BertForTokenClassification
from bertie.running.open import ModelLike
from bertie.running.rows import Cuts, Row, document_rows
from bertie.running.task import RowTask, RunSettings, TextTask, checked_text, described, function_of
from bertie.text import WindowedDocument

Text = TypeVar("Text", bound=str | tuple[str, ...])
Answer = TypeVar("Answer")
Aggregation: TypeAlias = Literal["none", "simple", "first", "average", "max"]
WordAggregation: TypeAlias = Literal["first", "average", "max"]
Probabilities: TypeAlias = NDArray[np.floating]
Ints: TypeAlias = NDArray[np.int64]

AGGREGATIONS: tuple[Aggregation, ...] = get_args(Aggregation)
WORD_AGGREGATIONS: tuple[WordAggregation, ...] = get_args(WordAggregation)

# BILOU's and BMES's letters for B-I-O-E-S's. All but B and I are believed only beside a B- or I- of the same type, as
# "E-mail" or "S-bahn" may well be a label.
_LETTERS = {"B": "B", "I": "I", "E": "E", "S": "S", "L": "E", "U": "S", "M": "I"}
_STRIDE = 64


class _TokenTask(RowTask[Text, tuple[Text, WindowedDocument], Probabilities, Answer], Generic[Text, Answer]):
    """A task whose model gives every token of a text the probabilities of its labels."""

    def _open(self, model: ModelLike, max_length: int | None, stride: int, settings: RunSettings) -> None:
        whole_number("stride", stride, 0)
        self.open(model, BertForTokenClassification, settings)
        self.labels = LabelSet(self.loaded.config.id2label)
        self.max_length, self.stride = self.loaded.checked_length(max_length), stride

    def tokenized(self, items: list[Text], cuts: Cuts) -> Iterator[tuple[tuple[Text, WindowedDocument], list[Row]]]:
        # BERT's tokenizer splits at every space, so joined words have the tokens they have alone.
        texts = [item if isinstance(item, str) else " ".join(item) for item in items]
        found = document_rows(
            self.loaded.tokenizer, texts, max_length=self.max_length, stride=self.stride, keep_words=True
        )
        return (((item, document), rows) for item, (document, rows) in zip(items, found, strict=True))

    def start(self, rows: list[Row]) -> Callable[[], list[Probabilities]]:
        """The labels' probabilities `[length, labels]` in each row."""
        probabilities = self.loaded.read_later(self.loaded.run(rows).logits.float().softmax(dim=-1))
        return lambda: [part.numpy() for part in self.loaded.split(probabilities(), rows)]


class Tagger(_TokenTask[str, list[Entity]], TextTask[list[Entity]]):
    """The entities of a text, a list of `Entity`; a list of such lists for a list, an iterator for an iterator.

    - `aggregation`: "simple" joins tokens to entities; "first", "average" and "max" give each word one label before
      joining; "none" gives every token with its own label (`B-PER`), joining nothing. The top of this file
      has the details, and where transformers' pipeline does otherwise.
    - `ignore_labels`: types (with "none": labels) that are left out.
    - `max_length`, `stride`: the tokens of a window (default: what the model takes), and how many of them two
      neighbours share. Nothing is truncated; transformers' pipeline truncates unless it is given a stride, and with one
      cuts an entity that is longer than the stride where two windows meet.
    """

    name: ClassVar[str] = "tag"

    def __init__(
        self,
        model: ModelLike,
        *,
        aggregation: Aggregation = "simple",
        ignore_labels: Iterable[str] = (OUTSIDE,),
        max_length: int | None = None,
        stride: int = _STRIDE,
        **settings: Unpack[RunSettings],
    ) -> None:
        one_of("aggregation", aggregation, AGGREGATIONS)
        self.aggregation: Aggregation = aggregation
        self.ignored = frozenset(one_or_several(ignore_labels))
        self._open(model, max_length, stride, settings)
        self.labels.check(self.ignored)

    def decode(self, context: tuple[str, WindowedDocument], judged: list[Probabilities]) -> list[Entity]:
        _, document = context
        probabilities = token_probabilities(document, judged)
        return find_entities(document, probabilities, self.labels, aggregation=self.aggregation, ignored=self.ignored)


class WordTagger(_TokenTask[tuple[str, ...], list[WordTag]]):
    """A label for each word of a sentence that is split already: a list of words gives a list of `WordTag`.

    A list of sentences gives a list of such lists, an iterator of them an iterator. "first", as in CoNLL scoring, takes
    a word's label from its first token; "average" and "max" as for `tag`.
    """

    name: ClassVar[str] = "tag_words"

    def __init__(
        self,
        model: ModelLike,
        *,
        aggregation: WordAggregation = "first",
        max_length: int | None = None,
        stride: int = _STRIDE,
        **settings: Unpack[RunSettings],
    ) -> None:
        one_of("aggregation", aggregation, WORD_AGGREGATIONS)
        self.aggregation: WordAggregation = aggregation
        self._open(model, max_length, stride, settings)

    def is_one(self, given: object) -> bool:
        match given:
            case str():
                return True
            case list() | tuple():
                return bool(given) and isinstance(given[0], str)
        return False

    def checked(self, item: object, where: str) -> tuple[str, ...]:
        match item:
            case list() | tuple():
                return tuple(checked_text(word, f"{where}, word {number},") for number, word in enumerate(item))
        raise InputError(
            f"{where} is {described(item)}; it must be a list of words.",
            "Split it into words first, or use tag(), which takes texts.",
        )

    def decode(self, context: tuple[tuple[str, ...], WindowedDocument], judged: list[Probabilities]) -> list[WordTag]:
        """A word's tokens are those that begin inside it."""
        words, document = context
        probabilities = token_probabilities(document, judged)
        starts = [start for start, _ in document.offsets]
        ends = np.cumsum([1 + len(word) for word in words]) - 1
        bounds = [0, *np.searchsorted(starts, ends).tolist()] if words else [0]
        there = [number for number, (first, after) in enumerate(pairwise(bounds)) if first < after]
        words_judged = judge_words(probabilities, [bounds[number] for number in there], self.aggregation)
        found = dict(
            zip(there, zip(words_judged.labels.tolist(), words_judged.scores.tolist(), strict=True), strict=True)
        )
        names = self.labels.names
        return [
            WordTag(word, names[found[number][0]], found[number][1]) if number in found else WordTag(word, OUTSIDE, 0.0)
            for number, word in enumerate(words)
        ]


tag = function_of(Tagger, "tag")
tag_words = function_of(WordTagger, "tag_words", first="sentences")


# -- from probabilities to entities ------------------------------------------------------------------------------------


class Judged(NamedTuple):
    """Tokens or words of a text with the labels they were given."""

    firsts: Ints  # the first token of each
    lasts: Ints  # and the last one, included
    labels: Ints
    scores: NDArray[np.float64]


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


def judge_words(probabilities: Probabilities, firsts: Sequence[int] | Ints, aggregation: WordAggregation) -> Judged:
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
        judged = judge_words(probabilities, word_starts(document), aggregation)
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
