"""Logits of many items: in order whatever the batches, tokenized in a thread that ends, mistakes where they belong."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
import torch
from torch import Tensor

from bertie.errors import TokenizerError
from bertie.running import stream
from bertie.running.open import OpenModel
from bertie.running.rows import Cuts, Reading, Row, TextOrPair, readings
from bertie.running.stream import Tokenizing, answered, run_groups
from bertie.running.task import ScoringTask
from bertie.tasks.classify import averaged
from tiny_models import SENTENCES, TEXTS, tiny, tokenizer

MIXED: list[TextOrPair] = [
    (text, SENTENCES[n % len(SENTENCES)]) if n % 3 == 0 else f"{text} {SENTENCES[n % 5]}"
    for n, text in enumerate(TEXTS * 40)
]


@pytest.fixture(scope="module")
def loaded() -> OpenModel:
    return OpenModel(tiny("BertForSequenceClassification", num_labels=3), tokenizer(), budget=100)


class Logits(ScoringTask[TextOrPair, Tensor, Tensor]):
    """The logits themselves."""

    def __init__(self, loaded: OpenModel) -> None:
        self.loaded, self.long, self.stride = loaded, "truncate", 4

    def start(self, rows: list[Row]) -> Callable[[], list[Tensor]]:
        return self.loaded.row_logits(rows)

    def decode(self, context: Reading, judged: list[Tensor]) -> Tensor:
        return averaged(torch.stack(judged), context.weights)


def ours() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("bertie-ahead")}


@pytest.mark.parametrize("threads", [1, 3])
def test_items_keep_their_order(loaded: OpenModel, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "tokenizing_beside", lambda device: Tokenizing(texts=16, calls=4, threads=threads))
    found = torch.stack(list(Logits(loaded).stream(MIXED)))
    alone = torch.stack([logits for item in MIXED for logits in Logits(loaded).stream([item])])
    assert found.shape == (len(MIXED), 3)
    assert torch.allclose(found, alone, atol=1e-5)
    assert len({tuple(row) for row in alone.tolist()}) > 20, "items differ, so that order shows"
    assert torch.equal(torch.stack(list(Logits(loaded).stream(iter(MIXED)))), found)
    assert ours() == set()


def test_nothing_gives_nothing(loaded: OpenModel) -> None:
    assert list(Logits(loaded).stream([])) == []


def test_whoever_stops_reading_leaves_no_thread(loaded: OpenModel) -> None:
    with closing(Logits(loaded).stream(iter(MIXED * 3))) as logits:  # type: ignore[type-var]
        while not ours():
            next(logits)
    assert ours() == set()


def test_a_mistake_in_the_items_and_one_in_the_tokenizer_reach_the_caller(loaded: OpenModel) -> None:
    def items() -> Iterator[TextOrPair]:
        yield from MIXED[:90]
        raise ValueError("the file ends here")

    with pytest.raises(ValueError, match="the file ends here"):
        list(Logits(loaded).stream(items()))

    def only_first(some: list[TextOrPair]) -> list[tuple[Reading, list[Row]]]:
        return list(
            readings(
                loaded.tokenizer,
                some,
                Cuts("truncate", 0),
                max_length=loaded.max_length,
                stride=4,
                strategy="only_first",
            )
        )

    wrong = [*MIXED[:90], ("the", "fox " * 500)]
    with pytest.raises(TokenizerError, match="cannot make a row"):
        list(answered(loaded, wrong, only_first, loaded.row_logits))
    assert ours() == set()


def test_windows_that_are_started_early_are_read_in_order(loaded: OpenModel) -> None:
    """As on a GPU: what is queued is read later, and nothing is lost at the end."""
    task = Logits(loaded)
    wanted = torch.stack(list(task.stream(MIXED)))
    rows = task.tokenized(MIXED, task.cuts())
    found = [task.decode(*one) for one in run_groups(rows, task.start, budget=100, ahead=2)]
    assert torch.equal(torch.stack(found), wanted)
