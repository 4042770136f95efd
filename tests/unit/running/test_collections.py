"""Tables, series, columns and sets as texts: a column's texts or an error that names the columns, never their names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bertie
from bertie.data.lists import listed
from bertie.errors import InputError
from bertie.running.open import OpenModel
from tiny_models import tiny, tokenizer

TEXTS = ["the first text", "a second one", "and the third"]
ROWS: dict[str, Any] = {"id": [1, 2, 3], "review": TEXTS}


def tables(package: str, columns: dict[str, Any]) -> Any:
    module = pytest.importorskip(package)
    if package == "pyarrow":
        return module.table(columns)
    if package == "datasets":
        return module.Dataset.from_dict(columns)
    return module.DataFrame(columns)


PACKAGES = ["pandas", "polars", "pyarrow", "datasets"]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_table_with_one_text_column_is_that_column(package: str) -> None:
    assert listed(tables(package, ROWS)) == TEXTS


@pytest.mark.parametrize("package", PACKAGES)
def test_a_table_with_several_text_columns_is_refused_with_their_names(package: str) -> None:
    with pytest.raises(InputError, match=r"columns of text: 'title', 'review'\.\nPass one of them: table\['title'\]"):
        listed(tables(package, {**{"title": TEXTS}, **ROWS}))
    with pytest.raises(InputError, match="no column of text among 'id'"):
        listed(tables(package, {"id": [1, 2]}))


@pytest.mark.parametrize("package", PACKAGES)
def test_a_column_is_its_texts(package: str) -> None:
    assert listed(tables(package, ROWS)["review"]) == TEXTS


def test_lists_tuples_arrays_and_keys_keep_their_order() -> None:
    for given in (TEXTS, tuple(TEXTS), np.array(TEXTS), dict.fromkeys(TEXTS).keys()):
        assert listed(given) == TEXTS


@pytest.mark.parametrize("given", [{"a", "b"}, frozenset(["a"])])
def test_a_set_has_no_order_and_is_refused_everywhere(given: Any) -> None:
    for call in (
        lambda: bertie.embed(given),
        lambda: bertie.fill(given),
        lambda: bertie.rerank("query", given),
        lambda: bertie.features(given),
        lambda: bertie.similarity(given),
        lambda: bertie.Client("http://127.0.0.1:9").embed(given),
    ):
        with pytest.raises(InputError, match="has no order"):
            call()


@pytest.mark.parametrize("package", PACKAGES)
def test_tasks_answer_a_table_as_they_answer_its_column(package: str) -> None:
    table = tables(package, ROWS)
    assert np.array_equal(bertie.embed(table), bertie.embed(TEXTS))
    assert np.array_equal(bertie.similarity(table), bertie.similarity(TEXTS))
    assert np.array_equal(bertie.similarity("text", table["review"]), bertie.similarity("text", TEXTS))
    assert bertie.rerank("second", table) == bertie.rerank("second", TEXTS)
    assert bertie.rerank(table["review"], TEXTS[:2]) == bertie.rerank(TEXTS, TEXTS[:2])
    masked = tables(package, {"text": ["The [MASK] ran.", "A [MASK]."]})
    assert bertie.fill(masked) == bertie.fill(["The [MASK] ran.", "A [MASK]."])
    found, wanted = bertie.features(table), bertie.features(TEXTS)
    assert [len(one.tokens) for one in found] == [len(one.tokens) for one in wanted]


@pytest.mark.parametrize("package", PACKAGES)
def test_pairs_come_from_two_columns_that_are_named_as_a_pair(package: str) -> None:
    first, second = ["It rains.", "It snows."], ["It is wet.", "It is hot."]
    table = tables(package, {"premise": first, "hypothesis": second, "n": [1, 2]})
    pairs = list(zip(first, second, strict=True))
    assert bertie.next_sentence(table) == bertie.next_sentence(pairs)
    assert bertie.next_sentence(table["premise"], table["hypothesis"]) == bertie.next_sentence(pairs)
    model = OpenModel(tiny("BertForSequenceClassification"), tokenizer())
    assert bertie.classify(table, model=model) == bertie.classify(pairs, model=model)


def test_a_missing_text_is_refused_by_its_number() -> None:
    pandas = pytest.importorskip("pandas")
    with pytest.raises(InputError, match="Text 1 is "):
        bertie.embed(pandas.Series(["a", None]))


def test_a_lazy_table_is_to_be_computed_first() -> None:
    polars = pytest.importorskip("polars")
    with pytest.raises(InputError, match=r"frame\.collect\(\)"):
        bertie.embed(polars.LazyFrame(ROWS))
