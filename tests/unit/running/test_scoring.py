"""Logits of many items: in order whatever the batches, tokenized in a thread that ends, mistakes where they belong."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
import torch

from bertie.errors import TokenizerError
from bertie.running import scoring
from bertie.running.batching import growing_chunks
from bertie.running.inputs import TextOrPair
from bertie.running.long_texts import Cuts
from bertie.running.open import Loaded
from bertie.running.scoring import classifier_logits
from bertie.running.stream import Tokenizing
from tiny_models import SENTENCES, TEXTS, tiny, tokenizer

MIXED: list[TextOrPair] = [
    (text, SENTENCES[n % len(SENTENCES)]) if n % 3 == 0 else f"{text} {SENTENCES[n % 5]}"
    for n, text in enumerate(TEXTS * 40)
]


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return Loaded(tiny("BertForSequenceClassification", num_labels=3), tokenizer(), budget=100)


def cuts() -> Cuts:
    return Cuts("truncate", 0)


def ours() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("bertie-ahead")}


@pytest.mark.parametrize("threads", [1, 3])
def test_items_keep_their_order(loaded: Loaded, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "tokenizing_beside", lambda device: Tokenizing(texts=16, calls=4, threads=threads))
    found = torch.cat(list(scoring.logit_blocks(loaded, MIXED, cuts=cuts())))
    alone = torch.cat([torch.cat(list(scoring.logit_blocks(loaded, [item], cuts=cuts()))) for item in MIXED])
    assert found.shape == (len(MIXED), 3)
    assert torch.allclose(found, alone, atol=1e-5)
    assert len({tuple(row) for row in alone.tolist()}) > 20, "items differ, so that order shows"
    one_by_one = torch.stack(list(classifier_logits(loaded, iter(MIXED), cuts=cuts(), stride=4)))
    assert torch.equal(one_by_one, found)
    assert ours() == set()


def test_nothing_gives_nothing(loaded: Loaded) -> None:
    assert list(scoring.logit_blocks(loaded, [], cuts=cuts())) == []


def test_whoever_stops_reading_leaves_no_thread(loaded: Loaded) -> None:
    with closing(scoring.logit_blocks(loaded, iter(MIXED), cuts=cuts())) as blocks:
        while not ours():
            next(blocks)
    assert ours() == set()


def test_a_mistake_in_the_items_and_one_in_the_tokenizer_reach_the_caller(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def items() -> Iterator[TextOrPair]:
        yield from MIXED[:90]
        raise ValueError("the file ends here")

    with pytest.raises(ValueError, match="the file ends here"):
        list(scoring.logit_blocks(loaded, items(), cuts=cuts()))
    with pytest.raises(TokenizerError, match="cannot make a row"):
        list(scoring.logit_blocks(loaded, [*MIXED[:90], ("the", "fox " * 500)], strategy="only_first", cuts=cuts()))
    assert ours() == set()


def test_windows_that_are_started_early_are_read_in_order(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: what is queued is read later, and nothing is lost at the end."""
    wanted = torch.cat(list(scoring.logit_blocks(loaded, MIXED, cuts=cuts())))
    rows = [
        row
        for chunk in growing_chunks(MIXED, 16)
        for row in scoring.truncated_rows(loaded.tokenizer, chunk, max_length=loaded.max_length)
    ]
    started = [scoring._start(loaded, window) for window in scoring.windows(rows, budget=100, length=len)]
    assert torch.allclose(torch.cat([scoring._read(one) for one in started]), wanted, atol=1e-5)
