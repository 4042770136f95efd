"""Texts to vectors with the tokenizer beside the model: order, early answers, errors, and threads that end."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from bertie.engine.fast import FastBert, Runner
from bertie.errors import InputError, TokenizerError
from bertie.ops.packing import Packing
from bertie.running.open import OpenModel
from bertie.running.stream import filled, growing, map_ahead, text_chunks, windows
from bertie.tasks.embed import Embedder
from bertie.text import BertTokenizer
from tiny_models import SENTENCES, TEXTS, tiny, tokenizer

MANY = [f"{SENTENCES[number % 7]} {number}" for number in range(1500)]


class Stub(Runner):
    """A runner that asks the reference, and keeps count."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.device, self.dtype, self.token_budget = model.device, model.dtype, 400
        self.batches: list[int] = []

    def __call__(
        self, ids: Tensor, type_ids: Tensor | None, positions: Tensor | None, packing: Packing, *, all_states: bool
    ) -> list[Tensor]:
        assert positions is None  # each text's own
        self.batches.append(packing.num_texts)
        return [self.model(ids, cu_seqlens=packing.cu_seqlens).last_hidden_state]

    def describe(self) -> str:
        return "a stub"


def ours() -> set[str]:
    """The pipeline's threads that are alive."""
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("bertie-ahead")}


@pytest.fixture
def fast() -> Embedder:
    model = tiny("BertModel")
    return Embedder(OpenModel(FastBert(model, lambda _: Stub(model)), tokenizer(), budget=400))


@pytest.fixture
def plain() -> Embedder:
    return Embedder(tiny("BertModel"), tokenizer=tokenizer())


# -- the same answers --------------------------------------------------------------------------------------------------


def test_the_engine_gives_what_the_reference_gives(fast: Embedder, plain: Embedder) -> None:
    texts = TEXTS + MANY[:300]
    for long in ("truncate", "windows"):
        wanted = plain.embed(texts, long=long)
        assert np.abs(fast.embed(texts, long=long) - wanted).max() <= 1e-5
        stream = np.stack(list(fast.embed(iter(texts), long=long)))
        assert np.abs(stream - wanted).max() <= 1e-5
        assert np.abs(np.stack([fast.embed(text, long=long) for text in TEXTS]) - wanted[: len(TEXTS)]).max() <= 1e-5
    assert len(fast.loaded.model.runner.batches) > 20
    assert ours() == set()


def test_prompts_and_stages_go_the_same_way(fast: Embedder, plain: Embedder) -> None:
    for settings in ({"pooling": "weightedmean"}, {"normalize": True, "truncate_dim": 7}, {"max_length": 9}):
        one = Embedder(fast.loaded, **settings)  # type: ignore[arg-type]
        other = Embedder(plain.loaded, **settings)  # type: ignore[arg-type]
        for prompt in (None, "dog : "):
            assert np.abs(one.embed(TEXTS, prompt=prompt) - other.embed(TEXTS, prompt=prompt)).max() <= 1e-5


def test_ids_that_the_model_does_not_know_are_refused(fast: Embedder) -> None:
    grown = BertTokenizer([*tokenizer().get_vocab(), "zebra"])
    strange = Embedder(OpenModel(fast.loaded.model, grown))
    with pytest.raises(InputError, match="input_ids holds 262"):
        strange.embed("a zebra")
    with pytest.raises(InputError, match="input_ids holds 262"):
        strange.embed(["a zebra", "a dog"])


def test_flat_ids_are_the_ids() -> None:
    for limit in (None, 10):
        ids, lengths = tokenizer().encode_flat(TEXTS, max_length=limit)
        rows = tokenizer().encode_ids(TEXTS, max_length=limit)
        assert lengths.tolist() == [len(row) for row in rows]
        assert ids.tolist() == [token for row in rows for token in row]
    assert [len(column) for column in tokenizer().encode_flat([])] == [0, 0]


# -- streams -----------------------------------------------------------------------------------------------------------


def test_a_stream_answers_soon_however_large_the_budget() -> None:
    model = tiny("BertModel")
    embedder = Embedder(OpenModel(FastBert(model, lambda _: Stub(model)), tokenizer(), budget=1024))
    taken = 0

    def texts() -> Iterator[str]:
        nonlocal taken
        for text in MANY:
            taken += 1
            yield text

    stream = embedder.embed(texts())
    next(stream)
    assert taken <= 32
    read_ahead = []
    for number, _ in enumerate(stream, start=2):
        read_ahead.append(taken - number)
    assert number == len(MANY)
    # A batch of rows, and the tokenizer's chunks under way.
    assert max(read_ahead) <= 1024 / 15 + 4 * 256


def test_windows_grow_from_small_to_sixteen_batches() -> None:
    sizes = [sum(window) for window in windows([10] * 5000, budget=200, length=lambda item: item)]
    assert sizes[:6] == [30, 50, 100, 200, 400, 800]
    assert next(windows([10] * 5000, budget=200, length=lambda item: item, soon=False)) == [10] * 20
    assert max(sizes) == 16 * 200
    assert sum(sizes) == 50_000


def test_runs_of_rows_are_filled_to_the_brim_and_texts_stay_together(plain: Embedder) -> None:
    texts = [SENTENCES[0] * 20, "dog", SENTENCES[1] * 9, "", *MANY[:300]]
    for long, slack in (("truncate", 48), ("windows", 48 * 12)):
        cutting = plain.cutting(long=long)
        chunks = [cutting.pieces(texts[start : start + 50]) for start in range(0, len(texts), 50)]
        runs = list(filled(chunks, growing(800, 800, soon=True)))
        sizes = [len(run.ids) for run in runs]
        assert np.array_equal(np.concatenate([run.ids for run in runs]), np.concatenate([c.ids for c in chunks]))
        assert all(run.firsts[0] and run.lasts[-1] for run in runs)
        for size, wanted in zip(sizes[:-1], [100, 200, 400, *[800] * 100], strict=False):
            assert size > wanted - slack
            assert size <= wanted or long == "windows"
    assert list(filled([], growing(8, 8, soon=True))) == []


def test_chunks_are_bounded_in_texts_and_characters() -> None:
    sizes = [len(chunk) for chunk in text_chunks(["a"] * 1000, 256)]
    assert sizes == [16, 32, 64, 128, 256, 256, 248]
    assert [len(chunk) for chunk in text_chunks(["a" * 200_000] * 7, 256)] == [3, 3, 1]


# -- errors and threads ------------------------------------------------------------------------------------------------


def test_mapping_ahead_keeps_order_and_ends_its_thread() -> None:
    names = set()

    def slow_first(number: int) -> int:
        names.add(threading.current_thread().name.split("_")[0])
        time.sleep(0.002 if number % 2 else 0)
        return number * number

    assert list(map_ahead(slow_first, range(50), depth=5)) == [n * n for n in range(50)]
    assert list(map_ahead(slow_first, range(50), depth=5, threads=3)) == [n * n for n in range(50)]
    assert names == {"MainThread", "bertie-ahead"}
    assert ours() == set()
    assert list(map_ahead(slow_first, [])) == []


def test_one_chunk_starts_no_thread(fast: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **settings: Any) -> None:
        raise AssertionError("a thread for a few texts")

    monkeypatch.setattr("bertie.running.stream.ThreadPoolExecutor", refuse)
    assert fast.embed("a dog").shape == (32,)
    assert fast.embed(SENTENCES).shape == (7, 32)
    assert len(list(fast.embed(iter(SENTENCES)))) == 7


def test_what_goes_wrong_in_the_thread_reaches_the_caller(fast: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = BertTokenizer.encode_flat

    def broken(self: BertTokenizer, texts: Sequence[str], *args: Any, **settings: Any) -> Any:
        if any(text.endswith(" 900") for text in texts):
            assert threading.current_thread() is not threading.main_thread()
            raise TokenizerError("The tokenizer is on fire.", "Put it out.")
        return whole(self, texts, *args, **settings)

    monkeypatch.setattr(BertTokenizer, "encode_flat", broken)
    with pytest.raises(TokenizerError, match=r"on fire\.\nPut it out"):
        fast.embed(MANY)
    assert ours() == set()
    answered: list[Any] = []
    with pytest.raises(TokenizerError, match="on fire"):
        answered.extend(fast.embed(iter(MANY)))
    assert 16 <= len(answered) <= 900
    assert ours() == set()


@pytest.mark.parametrize("how", ["closed", "forgotten"])
def test_a_stream_left_early_leaves_no_thread(fast: Embedder, how: str) -> None:
    stream: Any = fast.embed(text for text in MANY)
    for _ in range(200):
        next(stream)
    assert len(ours()) == 1
    if how == "closed":
        stream.close()
    else:
        del stream
        gc.collect()
    assert ours() == set()


@pytest.mark.parametrize("raised", [KeyboardInterrupt, ValueError])
def test_an_interrupt_between_texts_ends_everything(fast: Embedder, raised: type[BaseException]) -> None:
    def texts() -> Iterator[str]:
        yield from MANY[:700]
        raise raised("stop")

    with pytest.raises(raised, match="stop"):
        list(fast.embed(texts()))
    assert ours() == set()


def test_an_interrupt_in_the_model_ends_everything(plain: Embedder) -> None:
    calls = 0

    class Interrupted(Stub):
        def __call__(self, *args: Any, **settings: Any) -> list[Tensor]:
            nonlocal calls
            calls += 1
            if calls == 5:
                raise KeyboardInterrupt
            return super().__call__(*args, **settings)

    model = plain.loaded.model
    embedder = Embedder(OpenModel(FastBert(model, lambda _: Interrupted(model)), tokenizer(), budget=400))
    with pytest.raises(KeyboardInterrupt) as kept:  # with its traceback, which holds on to every frame
        embedder.embed(MANY)
    assert ours() == set()
    assert kept.tb is not None
    assert embedder.embed(MANY[:50]).shape == (50, 32)


def test_threads_may_share_an_embedder(fast: Embedder) -> None:
    wanted = fast.embed(MANY[:200])
    found: list[Any] = [None] * 4

    def work(number: int) -> None:
        found[number] = fast.embed(MANY[:200])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in found:
        assert np.array_equal(one, wanted)
