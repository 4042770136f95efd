"""Text made to be slow takes time in proportion to its length.

The 10 MB version is `tests/scripts/tokenizer_adversarial.py`.
"""

from __future__ import annotations

import time

import pytest

from bertie.text import BertTokenizer, WordPieceTokenizer
from bertie.text.corpus.documents import split_sentences

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##a", "漢", ".", "b"]


def best_of(runs: int, tokenizer: BertTokenizer, text: str) -> float:
    """Processor seconds, which other work on the machine does not stretch much."""
    best = float("inf")
    for _ in range(runs):
        started = time.process_time()
        tokenizer(text, truncation=True, max_length=512, stride=128, return_overflowing_tokens=True)
        best = min(best, time.process_time() - started)
    return best


@pytest.mark.parametrize(
    "unit", ["a", "\u0301", "\u0301\u0323", "漢", "\ud800", ".", " ", "[MASK]", "a\udfffb "], ids=ascii
)
def test_time_grows_linearly(unit: str) -> None:
    tokenizer = BertTokenizer(VOCAB)
    small, large = unit * (40_000 // len(unit)), unit * (320_000 // len(unit))
    # Eight times the text: quadratic time would be 64 times as long. Very short times are all noise.
    assert best_of(3, tokenizer, large) < 32 * max(best_of(3, tokenizer, small), 0.01)


def test_the_reference_is_linear_too() -> None:
    reference = WordPieceTokenizer({token: index for index, token in enumerate(VOCAB)})
    for unit in ("a", "\u0301\u0323", "漢", "\ud800"):
        started = time.process_time()
        reference.tokenize(unit * 20_000)
        assert time.process_time() - started < 3


STRANGE = {
    "stops": "." * 300_000,
    "titles": "Mr. " * 75_000,
    "a word": "x" * 300_000 + ". A",
    "brackets": ". (" * 90_000,
}


@pytest.mark.parametrize("name", STRANGE)
def test_sentences_of_strange_paragraphs_are_found_at_once(name: str) -> None:
    text, began = STRANGE[name], time.perf_counter()
    assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())
    assert time.perf_counter() - began < 5  # by its length squared it would be minutes
