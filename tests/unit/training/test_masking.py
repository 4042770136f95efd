"""Masking: Google's rules one by one, and that chance belongs to the example and not to the batch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.errors import ConfigError
from bertie.text import BertTokenizer
from bertie.training.pretraining.masking import MaskRules, example_key, mask_tokens

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij", *(f"##{c}" for c in "klmno")]
TOKENIZER = BertTokenizer(VOCABULARY, check_case=False)
CLS, SEP, MASK = 2, 3, 4
WORDS, PIECES = range(5, 15), range(15, 20)


def masked(rows: list[list[int]], rules: MaskRules, *, seed: int = 1, epoch: int = 0, first: int = 0):  # type: ignore[no-untyped-def]
    ids = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
    lengths = np.asarray([len(row) for row in rows])
    keys = np.asarray([example_key(seed, epoch, first + i) for i in range(len(rows))], dtype=np.uint64)
    return ids, mask_tokens(ids, lengths, keys, rules)


def random_row(chance: np.random.Generator, length: int, *, pieces: bool = False) -> list[int]:
    middle = int(length / 2)
    row = [CLS, *chance.choice([*WORDS, *(PIECES if pieces else ())], size=length).tolist(), SEP]
    return [*row[:middle], SEP, *row[middle:]]


@pytest.mark.parametrize(
    ("length", "most", "expected"),
    [
        (128, 20, 19),
        (128, None, 19),
        (200, 20, 20),
        (3, 20, 1),
        (10, None, 2),
        (30, None, 4),
        (50, None, 8),
        (512, 76, 76),
    ],
    ids=str,
)
def test_how_many_words_are_predicted(length: int, most: int | None, expected: int) -> None:
    """max(1, round(n · 0.15)), special tokens counted; halves go to the even number, as in Python."""
    rules = MaskRules.of(TOKENIZER, max_predictions=most)
    row = [CLS, *[5] * (length - 2), SEP]
    assert len(masked([row], rules)[1].positions) == expected


def test_eighty_ten_ten_within_statistical_bounds() -> None:
    chance = np.random.default_rng(0)
    rows = [random_row(chance, 126) for _ in range(2000)]
    _, found = masked(rows, MaskRules.of(TOKENIZER))
    seen = found.ids[found.positions]
    number = len(seen)
    assert number > 35_000
    as_mask = (seen == MASK).mean()
    kept = (seen == found.labels).mean()
    # Of 20 tokens a random one is [MASK] or the word itself now and then.
    for share, expected in ((as_mask, 0.8 + 0.1 / 20), (kept, 0.1 + 0.1 / 20)):
        assert abs(share - expected) < 4 * (expected * (1 - expected) / number) ** 0.5
    others = seen[(seen != MASK) & (seen != found.labels)]
    counts = np.bincount(others, minlength=20)
    allowed = np.delete(counts, MASK)  # any token of the vocabulary, special ones too
    assert counts[MASK] == 0
    assert allowed.min() > 0
    expected_share = 0.1 / 20
    bound = 5 * (expected_share * (1 - expected_share) / number) ** 0.5
    for token in range(3):
        assert abs(allowed[token] / number - expected_share) < bound
    # Every place of a sequence is chosen as often as any other.
    places = np.bincount(found.positions % 129, minlength=129)
    inner = np.delete(places, [0, 63, 128])
    assert (places[0], places[63], places[128]) == (0, 0, 0)
    assert abs(inner - inner.mean()).max() < 5 * inner.mean() ** 0.5


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_a_sequence_is_masked_alike_alone_and_in_a_batch(seed: int, whole_words: bool) -> None:
    chance = np.random.default_rng(seed)
    rows = [random_row(chance, int(chance.integers(1, 40)), pieces=True) for _ in range(int(chance.integers(1, 9)))]
    rules = MaskRules.of(TOKENIZER, whole_words=whole_words, probability=0.3)
    _, together = masked(rows, rules, seed=seed)
    begin = 0
    for index, row in enumerate(rows):
        ids, alone = masked([row], rules, seed=seed, first=index)
        inside = (together.positions >= begin) & (together.positions < begin + len(row))
        assert (together.positions[inside] - begin).tolist() == alone.positions.tolist()
        assert together.ids[begin : begin + len(row)].tolist() == alone.ids.tolist()
        assert alone.labels.tolist() == ids[alone.positions].tolist()
        unchanged = np.setdiff1d(np.arange(len(row)), alone.positions)
        assert alone.ids[unchanged].tolist() == ids[unchanged].tolist()
        assert not {CLS, SEP} & {*alone.labels.tolist()}
        begin += len(row)


def words_of(row: npt.NDArray[np.int64]) -> list[list[int]]:
    """Places of the words of a row, spelled out."""
    words: list[list[int]] = []
    for place, token in enumerate(row.tolist()):
        if token in (CLS, SEP):
            continue
        continues = token in PIECES and place > 0 and row[place - 1] not in (CLS, SEP)
        if continues:
            words[-1].append(place)
        else:
            words.append([place])
    return words


@settings(max_examples=80)
@given(st.integers(0, 2**32 - 1))
def test_whole_words_are_hidden_whole_or_not_at_all(seed: int) -> None:
    chance = np.random.default_rng(seed)
    row = random_row(chance, int(chance.integers(2, 60)), pieces=True)
    rules = MaskRules.of(TOKENIZER, whole_words=True, probability=0.25)
    ids, found = masked([row], rules, seed=seed)
    chosen = {*found.positions.tolist()}
    words = words_of(ids)
    left_out = [word for word in words if not chosen & {*word}]
    assert all({*word} <= chosen for word in words if word not in left_out)
    budget = max(1, round(len(row) * 0.25))
    assert len(chosen) <= budget
    # A word is passed over only where it would have been too many.
    assert all(len(word) > budget - len(chosen) for word in left_out)


def test_words_are_passed_over_when_they_do_not_fit() -> None:
    """[CLS] a ##k ##l ##m ##n [SEP]: one word of five pieces does not fit into a budget of one; `b` does."""
    rules = MaskRules.of(TOKENIZER, whole_words=True)
    _, none = masked([[CLS, 5, 15, 16, 17, 18, SEP]], rules)
    assert none.positions.tolist() == []
    for seed in range(20):
        _, found = masked([[CLS, 5, 15, 16, 17, 18, 6, SEP]], rules, seed=seed)
        assert found.positions.tolist() == [6]


def test_epochs_mask_differently_and_repeatably() -> None:
    row = [CLS, *[5, 6, 7, 8, 9] * 20, SEP]
    rules = MaskRules.of(TOKENIZER)
    first, again, later = (masked([row], rules, epoch=epoch)[1] for epoch in (0, 0, 1))
    assert first.ids.tolist() == again.ids.tolist()
    assert first.positions.tolist() != later.positions.tolist()


def test_keys_differ_by_every_part() -> None:
    keys = {example_key(seed, epoch, index) for seed in range(12) for epoch in range(12) for index in range(12)}
    assert len(keys) == 12**3


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"probability": 0.0}, "^probability is 0.0; it must be above 0 and less than 1"),
        ({"max_predictions": 0}, "max_predictions is 0"),
        ({"mask_share": 0.9, "random_share": 0.2}, "exceed 1 together"),
    ],
    ids=["share", "most", "shares"],
)
def test_rules_that_cannot_be(setting: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MaskRules.of(TOKENIZER, **setting)  # type: ignore[arg-type]
