"""Sentence pairs as Google made them: pieces of a tokenized corpus, and what chance decides about them.

The rules are those of `create_pretraining_data.py` of google-research/bert (Devlin et al. 2019):

- a document's sentences are gathered until they have the target length, which is max_length − 3, or for a share
  `short_seq_prob` of the documents a random one;
- a random number of them is A. B is the rest; or, half of the time and always when there is no rest, B is taken from a
  random place in another document, and the sentences that were not used are put back and come next;
- of a pair that is too long the longer part loses tokens, each from its front or its back as a coin falls;
- the whole corpus is gone through `dupe_factor` times, with other pairs each time.

Chance is decided by (seed, pass, document), so any part of the work can be done anywhere, at any time. **Ours**: the
other document is drawn among the others (Google tries ten times and may take the same one), and so there must be two.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bertie.arguments import whole_number
from bertie.errors import ConfigError

Array = npt.NDArray[Any]

COLUMNS = {"a_start": "<i8", "a_size": "<u4", "b_start": "<i8", "b_size": "<u4", "is_random": "|u1"}
_MASK = 0xFFFFFFFFFFFFFFFF


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
            raise ConfigError("{max_length:is} a pair needs at least 8.", max_length=self.max_length)
        whole_number("dupe_factor", self.dupe_factor, error=ConfigError)
        for name in ("short_seq_prob", "random_next"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{{{name}:is}} it must be a number from 0 to 1.", **{name: getattr(self, name)})


def document_pairs(
    sentences: Sequence[int], document: int, corpus: Bounds, rules: PairRules, chance: random.Random
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


class Bounds:
    """Where sentences and documents begin, and random pieces of other documents.

    Sent to another process it takes its documents along; the sentences, of which there are many more, are mapped there
    from the `file` they lie in.
    """

    def __init__(self, sentences: Array, documents: Array, *, file: str | None = None) -> None:
        self.sentences, self.documents, self.file = sentences, documents, file
        self.num_documents = len(documents) - 1

    def __reduce__(self) -> tuple[object, ...]:
        if self.file is None:
            return Bounds, (self.sentences, self.documents)
        return _mapped, (self.file, self.documents)

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


def _mapped(file: str, documents: Array) -> Bounds:
    return Bounds(np.asarray(np.memmap(file, dtype="<i8", mode="r")), documents, file=file)


def pairs_of_part(part: tuple[int, int], corpus: Bounds, rules: PairRules) -> dict[str, Array]:
    """The pairs of a part of the work, by column. Its numbers go through all documents, pass after pass."""
    pairs: list[Pair] = []
    for work in range(*part):
        repeat, document = divmod(work, corpus.num_documents)
        chance = random.Random(example_key(rules.seed, repeat, document))
        pairs.extend(document_pairs(corpus.of(document), document, corpus, rules, chance))
    columns = zip(*pairs, strict=True) if pairs else [()] * len(COLUMNS)
    return {name: np.asarray(column, dtype=COLUMNS[name]) for name, column in zip(COLUMNS, columns, strict=True)}


def example_key(seed: int, epoch: int, index: int) -> int:
    """64 bits that decide everything random about an example."""
    key = 0
    for part in (seed, epoch, index):
        key = _mixed((key + 0x9E3779B97F4A7C15 + part) & _MASK)
    return key


def _mixed(bits: int) -> int:
    """splitmix64's mixing (Steele, Lea & Flood 2014)."""
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
    return bits ^ (bits >> 31)
