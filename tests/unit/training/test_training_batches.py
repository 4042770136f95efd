"""Which examples each step sees, and how a global batch is cut."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.errors import DataError, InputError
from bertie.training.run.batches import BatchMaker, DataOrder, made_ahead, made_by_processes, split_batch
from training_toy import Toy, ToyExamples, settings


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 128), st.integers(1, 4))
def test_dealing_loses_and_doubles_nothing_and_keeps_to_the_budget(
    lengths: list[int], budget: int, num_processes: int
) -> None:
    hands = split_batch(lengths, budget=budget, num_processes=num_processes)
    assert len({len(process) for process in hands}) == 1, "every process has as many micro-batches"
    assert sorted(row for process in hands for hand in process for row in hand) == list(range(len(lengths)))
    for hand in (hand for process in hands for hand in process):
        assert sum(lengths[row] for row in hand) <= budget or len(hand) == 1


def test_dealing_is_even() -> None:
    lengths = np.random.default_rng(0).integers(5, 512, size=256).tolist()
    totals = [
        sum(lengths[row] for row in hand)
        for process in split_batch(lengths, budget=10**6, num_processes=8)
        for hand in process
    ]
    assert max(totals) <= 1.02 * min(totals)


def test_every_epoch_sees_every_example_once_in_another_order() -> None:
    order = DataOrder(ToyExamples(21), settings(epochs=3, batch_size=8))
    assert order.num_steps == 9
    epochs: list[list[int]] = [[], [], []]
    for step in range(9):
        place = order.place(step)
        epochs[place.epoch] += order.indices(place).tolist()
        assert order.ends_epoch(step) == (step % 3 == 2)
    assert all(sorted(epoch) == list(range(21)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_the_order_depends_on_the_seed_alone() -> None:
    def walk(seed: int) -> list[list[int]]:
        order = DataOrder(ToyExamples(21), settings(seed=seed))
        # backwards: asking for one step must not depend on having asked for another
        return [order.indices(order.place(step)).tolist() for step in reversed(range(order.num_steps))][::-1]

    assert walk(1) == walk(1)
    assert walk(1) != walk(2)


def test_two_threads_may_ask_about_different_epochs() -> None:
    order = DataOrder(ToyExamples(50), settings(epochs=8))
    wanted = [order.indices(order.place(step)).tolist() for step in range(order.num_steps)]
    wrong: list[int] = []

    def ask(steps: range) -> None:
        wrong.extend(
            step for _ in range(20) for step in steps if order.indices(order.place(step)).tolist() != wanted[step]
        )

    halves = (range(0, order.num_steps, 2), range(order.num_steps - 1, 0, -2))
    threads = [threading.Thread(target=ask, args=(steps,)) for steps in halves]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_global_batches_by_tokens_fill_their_budget() -> None:
    examples = ToyExamples(60)
    order = DataOrder(examples, settings(epochs=1, batch_tokens=50))
    sizes = [sum(examples.length(i) for i in order.indices(order.place(s))) for s in range(order.num_steps)]
    assert all(size <= 50 for size in sizes)
    assert all(size > 50 - 12 for size in sizes[:-1])
    assert sum(sizes) == sum(map(examples.length, range(60)))


def test_parts_of_epochs_and_numbers_of_steps() -> None:
    assert DataOrder(ToyExamples(40), settings(epochs=1.5, batch_size=8)).num_steps == 7
    assert DataOrder(ToyExamples(40), settings(epochs=0.01, batch_size=8)).num_steps == 1
    assert DataOrder(ToyExamples(40), settings(max_steps=12, batch_size=8)).num_steps == 12
    assert DataOrder(ToyExamples(40), settings(max_steps=12, batch_size=8)).place(11).epoch == 2
    with pytest.raises(DataError, match="no examples"):
        DataOrder(ToyExamples(0), settings())


def maker_of(budget: int, process: int = 0, num_processes: int = 1, **values: Any) -> BatchMaker[Any]:
    examples = ToyExamples(40)
    return BatchMaker(DataOrder(examples, settings(**values)), examples, Toy(), budget, process, num_processes)


def test_more_processes_than_examples_still_have_equally_much_to_do() -> None:
    examples = ToyExamples(9)
    order = DataOrder(examples, settings(batch_size=8))  # the second step has one example
    shares = [BatchMaker(order, examples, Toy(), 40, process, 3).share(1) for process in range(3)]
    assert [len(share.micro_batches) for share in shares] == [1, 1, 1]
    assert [share.num_examples for share in shares] == [1, 0, 0]
    assert [share.units for share in shares] == [1, 0, 0]
    assert all(len(share.micro_batches[0].tensors["input_ids"]) > 0 for share in shares)


def test_smaller_pieces_hold_the_same_examples() -> None:
    maker = maker_of(1000, 1, 2, batch_size=16)
    whole = maker.share(0)
    maker.pieces = 15
    cut = maker.share(0)
    assert len(whole.micro_batches) == 1 < len(cut.micro_batches)
    assert whole.units == cut.units
    assert whole.squares == cut.squares
    assert sorted(whole.micro_batches[0].tensors["input_ids"].tolist()) == sorted(
        i for batch in cut.micro_batches for i in batch.tensors["input_ids"].tolist()
    )


def test_an_id_the_model_does_not_know_is_refused_before_a_kernel_sees_it() -> None:
    maker = replace(maker_of(1000), vocab_size=20)
    with pytest.raises(InputError, match=r"token id 3\d; the model knows 0 to 19"):
        maker.share(0)


def test_batches_are_prepared_in_a_thread_that_ends() -> None:
    maker = maker_of(40)
    before = threading.active_count()
    feed = made_ahead(maker.share, range(3, 9))
    assert next(feed).place.step == 3
    feed.close()
    assert threading.active_count() == before
    assert [share.place.step for share in made_ahead(maker.share, range(7, 10))] == [7, 8, 9]


def test_an_error_in_the_thread_reaches_the_loop() -> None:
    def make(step: int) -> None:
        raise InputError("row 3 is bad")

    with pytest.raises(InputError, match="row 3 is bad"):
        next(made_ahead(make, range(5)))  # type: ignore[arg-type]


def test_worker_processes_prepare_the_same_batches() -> None:
    maker = maker_of(40)
    here = list(made_ahead(maker.share, range(4)))
    there = list(made_by_processes(maker.share, range(4), workers=2))
    for a, b in zip(here, there, strict=True):
        assert a.place == b.place
        for one, two in zip(a.micro_batches, b.micro_batches, strict=True):
            assert all((one.tensors[name] == two.tensors[name]).all() for name in one.tensors)
