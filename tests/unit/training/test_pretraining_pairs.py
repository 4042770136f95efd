"""Google's rules for sentence pairs, with known answers and against the published algorithm over lists of tokens."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.text.corpus.sentence_pairs import Bounds, Pair, PairRules, document_pairs, truncated


def bounds_of(documents: list[list[int]]) -> Bounds:
    """Documents given by the lengths of their sentences; every token is its own place in the corpus."""
    sizes = [size for document in documents for size in document]
    return Bounds(
        np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        np.concatenate([[0], np.cumsum([len(d) for d in documents])]).astype(np.int64),
    )


class Script(random.Random):
    """Chance that was decided beforehand: `random()` and `randint()` give these values, in order."""

    def __init__(self, **values: list[Any]) -> None:
        super().__init__(0)
        self.values = {name: list(given) for name, given in values.items()}

    def random(self) -> float:
        value: float = self.values["random"].pop(0)
        return value

    def randint(self, a: int, b: int) -> int:
        value: int = self.values["randint"].pop(0)
        assert a <= value <= b, (a, value, b)
        return value

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        value: int = self.values["randrange"].pop(0)
        assert (0 if stop is None else start) <= value < (start if stop is None else stop)
        return value

    def getrandbits(self, k: int) -> int:
        value: int = self.values["bits"].pop(0)
        assert value < 1 << k
        return value


def pairs_of(documents: list[list[int]], document: int, rules: PairRules, chance: random.Random) -> list[Pair]:
    bounds = bounds_of(documents)
    return document_pairs(bounds.of(document), document, bounds, rules, chance)


RULES = PairRules(max_length=13, short_seq_prob=0.1)  # ten tokens for A and B


def test_the_rest_of_the_gathered_sentences_is_the_next_one() -> None:
    # Sentences of 4, 3, 5 reach 10; the first of them is A (drawn: 1 of 1…2), a coin above one half keeps B.
    chance = Script(random=[0.5, 0.9], randint=[1], bits=[0b01])
    found = pairs_of([[4, 3, 5], [9]], 0, RULES, chance)
    # 12 tokens are two too many: B (8) is the longer and loses one at its front and one at its back.
    assert found == [Pair(0, 4, 4 + 1, 6, False)]
    assert not any(chance.values.values())


def test_a_random_next_comes_from_another_document_and_unused_sentences_are_put_back() -> None:
    documents = [[4, 3, 5, 2], [6, 1, 7]]
    # First pair: A is sentence 0; a coin below one half draws document 1 (the other), its sentence 1.
    # Sentences 1 and 2 are put back: the second pair gathers 3 + 5 + 2 and is the last of the document.
    chance = Script(random=[0.5, 0.2, 0.7], randint=[1, 2], randrange=[0, 5], bits=[0b00])
    found = pairs_of(documents, 0, RULES, chance)
    # B wants 10 − 4 = 6 tokens: sentences of 1 and 7 tokens from place 20 on, then cut to six at the back.
    assert found == [Pair(0, 4, 20, 6, True), Pair(4, 8, 12, 2, False)]
    assert not any(chance.values.values())


def test_one_sentence_alone_always_has_a_random_next() -> None:
    chance = Script(random=[0.5], randint=[], randrange=[0, 1])
    assert pairs_of([[7], [3, 3, 3]], 0, RULES, chance) == [Pair(0, 7, 7, 3, True)]


def test_a_share_of_documents_has_a_random_shorter_target() -> None:
    # A draw of 0.05 is below short_seq_prob: the target is drawn from 2…10, and 3 is reached after each sentence.
    chance = Script(random=[0.05], randint=[3], randrange=[0, 2, 0, 3])
    found = pairs_of([[4, 3], [2, 2]], 0, RULES, chance)
    # B wants 3 − 4 < 0 tokens and takes one sentence all the same.
    assert found == [Pair(0, 4, 7, 2, True), Pair(4, 3, 9, 2, True)]


def one_by_one(a: list[int], b: list[int], most: int, coins: tuple[list[bool], list[bool]]) -> None:
    """Google's truncation with lists, the coins of A and B in turn."""
    while len(a) + len(b) > most:
        longer, thrown = (a, coins[0]) if len(a) > len(b) else (b, coins[1])
        assert longer
        if thrown.pop():
            del longer[0]
        else:
            longer.pop()


@given(st.integers(1, 60), st.integers(1, 60), st.integers(5, 40), st.integers(0, 2**16))
def test_truncation_equals_taking_tokens_one_by_one(a: int, b: int, most: int, seed: int) -> None:
    thrown: list[list[bool]] = []

    class Recorded(random.Random):
        def getrandbits(self, k: int) -> int:
            bits = super().getrandbits(k)
            thrown.append([bool(bits >> i & 1) for i in range(k)])
            return bits

    new_a, new_b = truncated((0, a), (100, b), most, Recorded(seed))
    left_a, left_b = list(range(a)), list(range(100, 100 + b))
    cut_a = a - new_a[1]
    coins = (thrown[0] if cut_a else [], thrown[-1] if b - new_b[1] else [])
    one_by_one(left_a, left_b, most, ([*coins[0]], [*coins[1]]))
    assert (left_a, left_b) == ([*range(new_a[0], sum(new_a))], [*range(new_b[0], sum(new_b))])


def plain_pairs(documents: list[list[list[int]]], number: int, rules: PairRules, chance: random.Random) -> list[Any]:
    """The published algorithm over lists of tokens, written plainly."""
    document, most = documents[number], rules.max_length - 3
    target = chance.randint(2, most) if chance.random() < rules.short_seq_prob else most
    made, chunk, i = [], [], 0
    while i < len(document):
        chunk.append(document[i])
        if i == len(document) - 1 or sum(map(len, chunk)) >= target:
            a_end = 1 if len(chunk) < 2 else chance.randint(1, len(chunk) - 1)
            a = [token for sentence in chunk[:a_end] for token in sentence]
            b: list[int] = []
            is_random = len(chunk) == 1 or chance.random() < 0.5
            if is_random:
                other = chance.randrange(len(documents) - 1)
                other += other >= number
                before = sum(map(len, documents[:other]))
                place = chance.randrange(before, before + len(documents[other])) - before
                for sentence in documents[other][place:]:
                    b += sentence
                    if len(b) >= target - len(a):
                        break
                i -= len(chunk) - a_end
            else:
                b = [token for sentence in chunk[a_end:] for token in sentence]
            new_a, new_b = truncated((0, len(a)), (0, len(b)), most, chance)
            made.append((a[new_a[0] :][: new_a[1]], b[new_b[0] :][: new_b[1]], is_random))
            chunk = []
        i += 1
    return made


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=12), min_size=2, max_size=5),
    st.integers(8, 30),
    st.integers(0, 2**16),
)
def test_pairs_equal_the_algorithm_over_lists(sizes: list[list[int]], max_length: int, seed: int) -> None:
    rules = PairRules(max_length=max_length, short_seq_prob=0.3)
    begins = iter(np.concatenate([[0], np.cumsum([s for d in sizes for s in d])]).tolist())
    documents = [[list(range(begin, begin + s)) for s, begin in zip(d, begins, strict=False)] for d in sizes]
    for number in range(len(sizes)):
        ours = pairs_of(sizes, number, rules, random.Random(seed))
        plain = plain_pairs(documents, number, rules, random.Random(seed))
        as_tokens = [
            ([*range(p.a_start, p.a_start + p.a_size)], [*range(p.b_start, p.b_start + p.b_size)], p.is_random)
            for p in ours
        ]
        assert as_tokens == plain
        assert all(p.a_size + p.b_size <= max_length - 3 and p.a_size > 0 and p.b_size > 0 for p in ours)
