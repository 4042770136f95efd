"""rerank: order, ids, long documents by their best window, streams in little memory, embedding models by cosine."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bertie.errors import CheckpointError, InputError
from bertie.running.open import OpenModel
from bertie.tasks.classify import classify
from bertie.tasks.rerank import Ranked, Reranker, rerank
from bertie.text.windows import window_spans
from tiny_models import MAX_LENGTH, SENTENCES, TEXTS, saved, tiny, tokenizer

QUERY = "where does the dog sleep?"


@pytest.fixture(scope="module")
def loaded() -> OpenModel:
    return OpenModel(tiny("BertForSequenceClassification", num_labels=1), tokenizer())


def by_index(ranking: list[Ranked]) -> dict[int, float]:
    return {one.index: one.score for one in ranking}


def test_documents_come_best_first_with_their_ids(loaded: OpenModel) -> None:
    found = rerank(QUERY, SENTENCES, model=loaded)
    assert sorted(one.index for one in found) == list(range(len(SENTENCES)))
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    assert all(one.text == SENTENCES[one.index] and one.id == one.index for one in found)
    pairs = classify([(QUERY, text) for text in SENTENCES], model=loaded)
    assert by_index(found) == pytest.approx(dict(enumerate(answer.score for answer in pairs)), abs=1e-6)
    named = rerank(QUERY, SENTENCES, model=loaded, ids=[f"d{i}" for i in range(len(SENTENCES))], top_k=2)
    assert [(one.id, one.index) for one in named] == [(f"d{one.index}", one.index) for one in found[:2]]
    assert rerank(QUERY, [], model=loaded) == []


def test_a_list_of_queries_gives_a_list_of_rankings(loaded: OpenModel) -> None:
    both = rerank([QUERY, "prices"], iter(SENTENCES), model=loaded, top_k=3)
    assert both[0] == rerank(QUERY, SENTENCES, model=loaded, top_k=3)
    assert [one.index for one in both[1]] == [one.index for one in rerank("prices", SENTENCES, model=loaded, top_k=3)]


def test_a_document_counts_as_its_best_window(loaded: OpenModel) -> None:
    text = " ".join(SENTENCES)
    query_ids = tokenizer().encode(QUERY, add_special_tokens=False)
    ids = tokenizer().encode(text, add_special_tokens=False)
    cls, sep = tokenizer().cls_token_id, tokenizer().sep_token_id
    windows = []
    for start, end in window_spans(len(ids), MAX_LENGTH - 3 - len(query_ids), 5):
        row = [cls, *query_ids, sep, *ids[start:end], sep]
        types = [0] * (len(query_ids) + 2) + [1] * (end - start + 1)
        with torch.no_grad():
            logits = loaded.model(torch.tensor([row]), token_type_ids=torch.tensor([types])).logits
        windows.append(logits.sigmoid().item())
    (found,) = rerank(QUERY, [text], model=loaded, stride=5)
    assert len(windows) > 3
    assert found.score == pytest.approx(max(windows), abs=1e-5)
    (cut,) = rerank(QUERY, [text], model=loaded, long="truncate")
    assert cut.score == pytest.approx(windows[0], abs=1e-5)
    (long_query,) = rerank("what " * 200, [text], model=loaded)
    assert 0 < long_query.score < 1


def test_order_of_the_documents_does_not_change_scores(loaded: OpenModel) -> None:
    wanted = by_index(rerank(QUERY, TEXTS, model=loaded))
    chance = random.Random(1)
    for _ in range(20):
        order = chance.sample(range(len(TEXTS)), len(TEXTS))
        found = rerank(QUERY, [TEXTS[i] for i in order], model=loaded)
        assert {order[index]: score for index, score in by_index(found).items()} == pytest.approx(wanted, abs=1e-5)


def test_a_stream_of_documents_is_not_kept(loaded: OpenModel) -> None:
    alive = 0

    class Document(str):
        def __new__(cls, text: str) -> Document:
            nonlocal alive
            alive += 1
            return super().__new__(cls, text)

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    most = 0

    def documents() -> Iterator[str]:
        nonlocal most
        for number in range(3000):
            most = max(most, alive)
            yield Document(f"the dog {number}")

    found = rerank("dog", documents(), model=OpenModel(loaded.model, loaded.tokenizer, budget=64), top_k=3)
    assert len(found) == 3
    assert most < 600


def test_several_labels_rank_by_the_one_that_means_relevant() -> None:
    labels = {0: "relevant", 1: "other", 2: "unknown"}
    loaded = OpenModel(tiny("BertForSequenceClassification", id2label=labels), tokenizer())

    def probability(name: str) -> dict[int, float]:
        answers = classify([(QUERY, text) for text in SENTENCES], model=loaded, top_k=None)
        return {index: dict(answer.labels)[name] for index, answer in enumerate(answers)}

    assert by_index(rerank(QUERY, SENTENCES, model=loaded)) == pytest.approx(probability("relevant"), abs=1e-6)
    found = rerank(QUERY, SENTENCES, model=loaded, relevant="other")
    assert by_index(found) == pytest.approx(probability("other"), abs=1e-6)


@pytest.mark.parametrize("labels", [{0: "negative", 1: "positive"}, {0: "LABEL_0", 1: "LABEL_1"}])
def test_a_classifier_without_a_label_that_means_relevant_is_refused(labels: dict[int, str]) -> None:
    model = OpenModel(tiny("BertForSequenceClassification", id2label=labels), tokenizer())
    shown = f"the labels '{labels[0]}', '{labels[1]}'; none of them means .*relevant='{labels[1]}'"
    with pytest.raises(InputError, match=re.compile(shown, re.DOTALL)):
        rerank(QUERY, SENTENCES, model=model)
    assert Reranker(model, relevant=labels[1]).label == 1


def test_the_checkpoint_says_how_scores_are_made(tmp_path: Path) -> None:
    raw = saved(tmp_path / "raw", "BertForSequenceClassification", num_labels=1)
    named = saved(
        tmp_path / "named",
        "BertForSequenceClassification",
        num_labels=1,
        sentence_transformers={"activation_fn": "torch.nn.modules.linear.Identity"},
    )
    logits = by_index(rerank(QUERY, SENTENCES, model=raw, function="none"))
    assert by_index(rerank(QUERY, SENTENCES, model=named)) == pytest.approx(logits, abs=1e-6)
    assert by_index(rerank(QUERY, SENTENCES, model=raw)) != pytest.approx(logits, abs=1e-2)
    (tmp_path / "named" / "config_sentence_transformers.json").write_text("{broken", encoding="utf-8")
    assert Reranker(named).function == "none"


def test_an_embedding_model_ranks_by_cosine(tmp_path: Path) -> None:
    from bertie.tasks.embed import embed

    folder = saved(tmp_path, "BertModel")
    vectors = torch.nn.functional.normalize(torch.as_tensor(embed([QUERY, *SENTENCES], model=folder)), dim=-1)
    wanted = dict(enumerate((vectors[1:] @ vectors[0]).tolist()))
    assert by_index(rerank(QUERY, SENTENCES, model=folder)) == pytest.approx(wanted, abs=1e-5)
    object_ = rerank(QUERY, iter(SENTENCES), model=tiny("BertModel"), tokenizer=tokenizer(), top_k=2)
    assert [one.index for one in object_] == sorted(wanted, key=lambda index: -wanted[index])[:2]
    with pytest.raises(InputError, match="function='none' is for classifiers"):
        rerank(QUERY, SENTENCES, model=folder, function="none")


@pytest.mark.parametrize(
    ("query", "documents", "options", "message"),
    [
        (5, ["a"], {}, "The query is int 5"),
        (["a", None], ["a"], {}, "Query 1 is None"),
        ("a", "one document", {}, "documents is str 'one document'; it must be a list"),
        ("a", None, {}, "documents is None"),
        ("a", ["a", 3], {}, "Document 1 is int 3"),
        ("a", ["a", "b"], {"ids": ["x"]}, "2 documents and 1 ids"),
        ("a", iter(["a", "b"]), {"ids": iter(["x"])}, "no id for document 1"),
        ("a", iter(["a"]), {"ids": iter(["x", "y"])}, "more ids than documents"),
        ("a", ["a"], {"top_k": 0}, "top_k is 0"),
        ("a", ["a"], {"function": "relu"}, "Use one of None, 'softmax', 'sigmoid', 'none'"),
        ("a", ["a"], {"relevant": "yes"}, "relevant='yes' is not known.\nUse one of 'LABEL_0'"),
        ("a", ["a"], {"long": "no"}, "long='no' is not known"),
    ],
)
def test_mistakes_are_explained(
    loaded: OpenModel, query: Any, documents: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        rerank(query, documents, model=loaded, **options)


def test_another_head_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="rerank needs a text classifier"):
        rerank("a", ["b"], model=saved(tmp_path, "BertForMaskedLM"))
