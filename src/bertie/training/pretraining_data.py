"""What a model is pretrained on, out of a tokenized corpus: sentence pairs as Google made them, or plain sequences.

`make_pairs` is `create_pretraining_data.py` of google-research/bert (Devlin et al. 2019), rule by rule:

- a document's sentences are gathered until they have the target length, which is max_length − 3, or for a share
  `short_seq_prob` of the documents a random one;
- a random number of them is A. B is the rest; or, half of the time and always when there is no rest, B is taken from a
  random place in another document, and the sentences that were not used are put back and come next;
- of a pair that is too long the longer part loses tokens, each from its front or its back as a coin falls;
- the whole corpus is gone through `dupe_factor` times, with other pairs each time.

A pair is two pieces of the corpus, so five numbers keep it; the ids stay where they are. Masking comes when a batch is
made (masking.py): `masking="static"` masks an example the same way in every epoch, as Google's files do, "dynamic"
anew each time. Chance is decided by (seed, pass, document) and (seed, epoch, index), so a build can be resumed and the
same seed makes the same bytes. **Ours**: the other document is drawn among the others (Google tries ten times and may
take the same one), and so there must be two.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from bertie.errors import ConfigError, DataError
from bertie.text import BertTokenizer
from bertie.training.array_folder import Array, ArrayBuilder, locked, open_arrays
from bertie.training.corpus import Progress, TokenizedCorpus
from bertie.training.masking import example_key
from bertie.training.rows import TokenRow, fingerprint

Masking = Literal["static", "dynamic"]
_COLUMNS = {"a_start": "<i8", "a_size": "<u4", "b_start": "<i8", "b_size": "<u4", "is_random": "|u1"}
_DOCUMENTS_AT_ONCE = 512
_SHORTEST = 5  # a shorter end of a document is not worth a sequence


class PretrainingExample(NamedTuple):
    """A sequence before masking; `key` decides its masks, `is_random` is the next-sentence label (None: no pair)."""

    row: TokenRow
    key: int
    is_random: int | None


class Pair(NamedTuple):
    """A and B as pieces of the corpus's ids."""

    a_start: int
    a_size: int
    b_start: int
    b_size: int
    is_random: bool


@dataclass(frozen=True)
class PairRules:
    """Google's settings, with Google's defaults (for sequences of 128)."""

    max_length: int = 128
    short_seq_prob: float = 0.1
    dupe_factor: int = 10
    random_next: float = 0.5
    seed: int = 12345

    def __post_init__(self) -> None:
        if self.max_length < 8:
            raise ConfigError(f"max_length is {self.max_length}; a pair needs at least 8.")
        if self.dupe_factor < 1:
            raise ConfigError(f"dupe_factor is {self.dupe_factor}; it takes a whole number of at least 1.")
        for name in ("short_seq_prob", "random_next"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it takes a number from 0 to 1.")


def document_pairs(
    sentences: Sequence[int], document: int, corpus: _Bounds, rules: PairRules, chance: random.Random
) -> list[Pair]:
    """The pairs of one document, whose sentences begin at `sentences[i]` (one more entry: the end)."""
    most = rules.max_length - 3  # [CLS] A [SEP] B [SEP]
    target = chance.randint(2, most) if chance.random() < rules.short_seq_prob else most
    number = len(sentences) - 1
    pairs: list[Pair] = []
    first = index = 0  # the sentences gathered so far are first … index
    while index < number:
        if index == number - 1 or sentences[index + 1] - sentences[first] >= target:
            gathered = index + 1 - first
            a_end = first + (chance.randint(1, gathered - 1) if gathered >= 2 else 1)
            a = sentences[first], sentences[a_end] - sentences[first]
            is_random = gathered == 1 or chance.random() < rules.random_next
            if is_random:
                b = corpus.random_piece(document, target - a[1], chance)
                index = a_end - 1  # what was not used comes next
            else:
                b = sentences[a_end], sentences[index + 1] - sentences[a_end]
            a, b = truncated(a, b, most, chance)
            pairs.append(Pair(*a, *b, is_random))
            first = index + 1
        index += 1
    return pairs


def truncated(
    a: tuple[int, int], b: tuple[int, int], most: int, chance: random.Random
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Two pieces (start, size) cut to `most` tokens together: one token at a time, always from the longer (B of two
    equals), from its front or its back. The coins of a piece are thrown in one go.
    """
    extra = a[1] + b[1] - most
    if extra <= 0:
        return a, b
    uneven = abs(a[1] - b[1])
    if extra <= uneven:
        from_a, from_b = (extra, 0) if a[1] > b[1] else (0, extra)
    else:  # first to the same length, then by turns, B first
        rest = extra - uneven
        from_a, from_b = rest // 2, rest - rest // 2
        from_a, from_b = (from_a + uneven, from_b) if a[1] > b[1] else (from_a, from_b + uneven)
    return _cut(a, from_a, chance), _cut(b, from_b, chance)


def _cut(piece: tuple[int, int], number: int, chance: random.Random) -> tuple[int, int]:
    front = chance.getrandbits(number).bit_count() if number else 0
    return piece[0] + front, piece[1] - number


class _Bounds:
    """Where sentences and documents begin, and random pieces of other documents."""

    def __init__(self, corpus: TokenizedCorpus) -> None:
        self.sentences, self.documents = corpus.sentences, corpus.documents
        self.num_documents = corpus.num_documents

    def of(self, document: int) -> list[int]:
        first, last = int(self.documents[document]), int(self.documents[document + 1])
        begins: list[int] = self.sentences[first : last + 1].tolist()
        return begins

    def random_piece(self, document: int, target: int, chance: random.Random) -> tuple[int, int]:
        """Sentences of another document from a random one on, until they have `target` tokens or the document ends."""
        other = chance.randrange(self.num_documents - 1)
        other += other >= document
        first, last = int(self.documents[other]), int(self.documents[other + 1])
        sentence = chance.randrange(first, last)
        start = int(self.sentences[sentence])
        following = self.sentences[sentence + 1 : last + 1]
        end = following[min(int(np.searchsorted(following, start + target)), len(following) - 1)]
        return start, int(end) - start


@dataclass(frozen=True)
class PairExamples:
    """`[CLS] A [SEP] B [SEP]` with a next-sentence label: 0 where B follows A, 1 where it is random."""

    corpus: TokenizedCorpus
    pairs: dict[str, Array]
    rules: PairRules
    cls_id: int
    sep_id: int
    masking: Masking = "static"

    def __len__(self) -> int:
        return len(self.pairs["is_random"])

    def length(self, index: int) -> int:
        return int(self.pairs["a_size"][index]) + int(self.pairs["b_size"][index]) + 3

    def lengths(self) -> Array:
        return np.asarray(self.pairs["a_size"].astype(np.int64) + self.pairs["b_size"] + 3)

    def get(self, index: int, epoch: int) -> PretrainingExample:
        pairs, ids = self.pairs, self.corpus.ids
        a, a_size = int(pairs["a_start"][index]), int(pairs["a_size"][index])
        b, b_size = int(pairs["b_start"][index]), int(pairs["b_size"][index])
        row = np.empty(a_size + b_size + 3, dtype=np.int64)
        row[0], row[a_size + 1], row[-1] = self.cls_id, self.sep_id, self.sep_id
        row[1 : a_size + 1] = ids[a : a + a_size]
        row[a_size + 2 : -1] = ids[b : b + b_size]
        key = example_key(self.rules.seed, epoch if self.masking == "dynamic" else 0, index)
        return PretrainingExample(TokenRow(row, a_size + 2), key, int(pairs["is_random"][index]))

    def fingerprint(self) -> str:
        return fingerprint(self.corpus.fingerprint, vars(self.rules), self.masking)


def make_pairs(
    corpus: TokenizedCorpus,
    tokenizer: BertTokenizer,
    folder: str | os.PathLike[str],
    *,
    rules: PairRules | None = None,
    masking: Masking = "static",
    progress: Progress | None = None,
) -> PairExamples:
    """The pairs of a corpus, from `folder` if they are there."""
    rules = rules or PairRules()
    cls_id, sep_id = _special(tokenizer)
    if corpus.num_documents < 2:
        raise DataError(
            "The corpus has one document; next sentences are drawn from another one.",
            "Put blank lines between documents, or train on masked words alone.",
        )
    key = {"format": "bertie sentence pairs 1", "corpus": corpus.fingerprint, **vars(rules)}
    target = Path(folder)
    with locked(target):
        found = open_arrays(target, key)
        if found is None:
            with ArrayBuilder(target, key, _COLUMNS) as builder:
                _build_pairs(builder, _Bounds(corpus), rules, progress)
            found = open_arrays(target, key)
    if found is None:
        raise DataError(f"{target}: what was written there reads back differently.", "Check the disk.")
    return PairExamples(corpus, found[0], rules, cls_id, sep_id, masking)


def _build_pairs(builder: ArrayBuilder, bounds: _Bounds, rules: PairRules, progress: Progress | None) -> None:
    total = rules.dupe_factor * bounds.num_documents
    for start in range(builder.done, total, _DOCUMENTS_AT_ONCE):
        end = min(start + _DOCUMENTS_AT_ONCE, total)
        pairs: list[Pair] = []
        for work in range(start, end):
            repeat, document = divmod(work, bounds.num_documents)
            chance = random.Random(example_key(rules.seed, repeat, document))
            pairs.extend(document_pairs(bounds.of(document), document, bounds, rules, chance))
        columns = zip(*pairs, strict=True) if pairs else [()] * len(_COLUMNS)
        for name, column in zip(_COLUMNS, columns, strict=True):
            builder.append(**{name: np.asarray(column, dtype=_COLUMNS[name])})
        builder.commit(end)
        if progress is not None:
            progress(end, builder.counts["is_random"])
    builder.finish()


@dataclass(frozen=True)
class SequenceExamples:
    """`[CLS] tokens [SEP]`: every document cut into sequences of `max_length`, for masked words alone."""

    corpus: TokenizedCorpus
    starts: Array
    sizes: Array
    max_length: int
    cls_id: int
    sep_id: int
    seed: int
    masking: Masking = "dynamic"

    @classmethod
    def of(
        cls,
        corpus: TokenizedCorpus,
        tokenizer: BertTokenizer,
        *,
        max_length: int = 128,
        seed: int = 12345,
        masking: Masking = "dynamic",
    ) -> SequenceExamples:
        if max_length < 8:
            raise ConfigError(f"max_length is {max_length}; a sequence needs at least 8.")
        room = max_length - 2
        bounds = corpus.document_bounds()
        sizes = np.diff(bounds)
        counts = -(-sizes // room)
        offsets = (np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)) * room
        starts = np.repeat(bounds[:-1], counts) + offsets
        lengths = np.minimum(room, np.repeat(bounds[1:], counts) - starts)
        kept = (lengths >= _SHORTEST) | (offsets == 0)  # a document that is short altogether stays
        return cls(corpus, starts[kept], lengths[kept], max_length, *_special(tokenizer), seed, masking)

    def __len__(self) -> int:
        return len(self.starts)

    def length(self, index: int) -> int:
        return int(self.sizes[index]) + 2

    def lengths(self) -> Array:
        return np.asarray(self.sizes + 2)

    def get(self, index: int, epoch: int) -> PretrainingExample:
        start, size = int(self.starts[index]), int(self.sizes[index])
        row = np.empty(size + 2, dtype=np.int64)
        row[0], row[-1] = self.cls_id, self.sep_id
        row[1:-1] = self.corpus.ids[start : start + size]
        key = example_key(self.seed, epoch if self.masking == "dynamic" else 0, index)
        return PretrainingExample(TokenRow(row, size + 2), key, None)

    def fingerprint(self) -> str:
        return fingerprint(self.corpus.fingerprint, [self.max_length, self.seed, self.masking])


def _special(tokenizer: BertTokenizer) -> tuple[int, int]:
    cls_id, sep_id = tokenizer.cls_token_id, tokenizer.sep_token_id
    if cls_id is None or sep_id is None:
        raise ConfigError("The vocabulary has no [CLS] or [SEP].", "Pretraining frames its sequences with them.")
    return cls_id, sep_id
