"""A share of the training data for development, for every task: nothing that belongs together is torn apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fitting import BAD, GOOD, evaluated
from hypothesis import given
from hypothesis import strategies as st

from bertie.errors import ConfigError, DataError
from bertie.training.contract import Examples, hold_out
from bertie.training.registry import TaskOptions, load_task
from bertie.training.token_rows import TokenRows
from tiny_models import SENTENCES, saved


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(tmp_path_factory.mktemp("base"), "BertModel")


def split(base: str, task: str, rows: Any, share: float = 0.3, **options: Any) -> Any:
    made = load_task(task, model=base, train=rows, options=TaskOptions(dev_share=share, **options))
    whole = load_task(task, model=base, train=rows, options=TaskOptions(**options))
    assert made.dev is not None
    assert whole.dev is None
    assert len(made.train) + len(made.dev) == len(whole.train)
    assert made.train.fingerprint() != made.dev.fingerprint()
    assert f"{len(made.dev)} of {len(whole.train)} examples are held out" in made.notes[-1]
    evaluated(made.objective, made.dev)
    made.objective.loss(made.objective.model, made.objective.collate([made.train.get(i, 0) for i in range(2)]))
    return made


def rows_of(examples: Any) -> list[tuple[int, ...]]:
    return [tuple(examples.get(index, 0).row.ids.tolist()) for index in range(len(examples))]


def test_tagged_sentences_are_held_out_whole(base: str) -> None:
    words = [[*sentence.split(), f"{n}"] * 4 for n, sentence in enumerate(SENTENCES)]  # longer than a row: cut in two
    rows = [{"tokens": each, "tags": ["B-X" if word == "dog" else "O" for word in each]} for each in words]
    made = split(base, "tag", rows, max_length=40)
    sentences = [{sentence.tokens for sentence in part.sentences} for part in (made.train, made.dev)]
    assert (len(sentences[0]), len(sentences[1])) == (4, 3)
    assert not sentences[0] & sentences[1]
    for part in (made.train, made.dev):
        assert len(part) > len(part.sentences)
        judged = np.zeros(sum(len(sentence.tokens) for sentence in part.sentences))
        starts = np.cumsum([0, *(len(sentence.tokens) for sentence in part.sentences)])
        for sentence, places in part.places:
            judged[starts[sentence] + places] += 1
        assert (judged == 1).all()  # every word of every sentence is in exactly one row
        for index in range(len(part)):
            row, labels = part.get(index, 0)
            assert len(row.ids) == len(labels)


def test_no_context_is_in_both_halves(base: str) -> None:
    contexts = [f"{text} the dog sleeps" for text in GOOD]
    rows: list[dict[str, Any]] = [
        {"id": f"{c} {question}", "question": question, "context": context, "answers": [answer]}
        for c, context in enumerate(contexts)
        for question in BAD[: 2 + c % 2]
        for answer in [{"text": "dog", "answer_start": context.index("dog")}]
    ]
    made = split(base, "answer", rows, max_length=18, stride=4)
    halves = [{question.context for question in part.questions} for part in (made.train, made.dev)]
    assert not halves[0] & halves[1]
    assert halves[0] | halves[1] == set(contexts)
    for part in (made.train, made.dev):
        assert len(part.owners) == len(part)
        assert set(part.owners.tolist()) == set(range(len(part.questions)))
        names = {question.id for question in part.questions}
        own = [row for row in rows if row["id"] in names]
        again = load_task("answer", model=base, train=own, options=TaskOptions(max_length=18, stride=4)).train
        assert rows_of(part) == rows_of(again)
        assert part.spans.tolist() == again.spans.tolist()  # type: ignore[attr-defined]


@pytest.mark.parametrize("scored", [False, True])
def test_pairs_of_one_anchor_stay_together(base: str, scored: bool) -> None:
    rows = [
        {"sentence1": a, "sentence2": b, **({"score": float(n)} if scored else {})}
        for a in GOOD
        for n, b in enumerate(BAD[:3])
    ]
    made = split(base, "embed", rows)
    anchors = []
    for part in (made.train, made.dev):
        texts = [tuple(part.texts[index].ids.tolist()) for index in range(len(part.texts))]
        assert set(part.table.flatten().tolist()) == set(range(len(texts)))  # no text that no pair needs
        anchors.append({texts[anchor] for anchor in part.table[:, 0]})
        assert (part.scores is not None) == scored
        if scored:
            assert part.scores.tolist() == [0.0, 0.5, 1.0] * (len(part) // 3)
    assert (len(anchors[0]), len(anchors[1])) == (3, 2)
    assert not anchors[0] & anchors[1]


def test_shares_that_cannot_be_held_out(base: str) -> None:
    row = {"question": "who?", "context": "the dog sleeps", "answers": [{"text": "dog", "answer_start": 4}]}
    with pytest.raises(DataError, match="is one piece"):
        load_task("answer", model=base, train=[row, row], options=TaskOptions(dev_share=0.5))
    with pytest.raises(ConfigError, match=r"dev_share is 1\.0"):
        TaskOptions(dev_share=1.0)


class Things(Examples[Any]):
    def __init__(self, groups: list[int]) -> None:
        self._groups = groups

    def groups(self) -> list[int]:
        return self._groups

    def take(self, things: Any) -> Any:
        return things.tolist()


@given(st.lists(st.integers(0, 6), min_size=2, max_size=40), st.floats(0.01, 0.99), st.integers(0, 99))
def test_whole_groups_are_held_out_and_nothing_is_lost(groups: list[int], share: float, seed: int) -> None:
    if len(set(groups)) < 2:
        return
    both: Any = hold_out(Things(groups), share, seed=seed)
    rest, held = both
    assert sorted(rest + held) == list(range(len(groups)))
    assert rest
    assert held
    assert not {groups[k] for k in rest} & {groups[k] for k in held}
    largest = max(groups.count(group) for group in set(groups))
    assert len(held) < share * len(groups) + largest
    assert (rest, held) == hold_out(Things(groups), share, seed=seed)


@given(st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=8), st.data())
def test_rows_are_taken_as_they_are(rows: list[list[int]], data: st.DataObject) -> None:
    table = TokenRows.of((row, [0] * (len(row) // 2) + [1] * (len(row) - len(row) // 2)) for row in rows)
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=6))
    taken = table.take(np.asarray(chosen, dtype=np.int64))
    assert [taken[k].ids.tolist() for k in range(len(taken))] == [rows[k] for k in chosen]
    assert taken.splits.tolist() == [len(rows[k]) // 2 for k in chosen]
