"""classify and zero_shot: shapes, scores by their formula, windows, batches that do not matter, mistakes explained."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bertie.errors import CheckpointError, InputError, TokenizerError
from bertie.running.open import OpenModel
from bertie.running.rows import split_text_or_pair
from bertie.tasks.classify import Classification, Classifier, classify
from bertie.tasks.zero_shot import ZeroShotClassifier, zero_shot
from bertie.text.windows import window_spans
from tiny_models import MAX_LENGTH, SENTENCES, TEXTS, random_batches, saved, tiny, tokenizer

NLI = {0: "contradiction", 1: "neutral", 2: "entailment"}


@pytest.fixture(scope="module")
def loaded() -> OpenModel:
    return OpenModel(tiny("BertForSequenceClassification", id2label=NLI), tokenizer())


def values(answer: Classification) -> dict[str, float]:
    return dict(answer.labels)


def test_one_text_a_list_and_a_stream_are_answered_alike(loaded: OpenModel) -> None:
    one = classify(TEXTS[0], model=loaded)
    assert isinstance(one, Classification)
    assert one.labels == ((one.label, one.score),)
    many = classify(TEXTS, model=loaded)
    assert [type(answer) for answer in many] == [Classification] * len(TEXTS)
    stream = classify(iter(TEXTS), model=loaded)
    assert isinstance(stream, Iterator)
    assert list(stream) == many
    assert many[0].label == one.label
    assert classify((TEXTS[0], TEXTS[1]), model=loaded).label in NLI.values()
    assert classify([[TEXTS[0], TEXTS[1]]], model=loaded) == [classify((TEXTS[0], TEXTS[1]), model=loaded)]
    assert classify([], model=loaded) == []
    assert classify(dict.fromkeys(TEXTS[:2]).keys(), model=loaded) == classify(TEXTS[:2], model=loaded)


def test_a_stream_is_read_a_little_ahead_only(loaded: OpenModel) -> None:
    taken = 0

    def texts() -> Iterator[str]:
        nonlocal taken
        while True:
            taken += 1
            yield "the quick brown fox"

    small = OpenModel(loaded.model, loaded.tokenizer, budget=64)
    stream = classify(texts(), model=small)
    assert taken == 0
    for _ in range(100):
        next(stream)
    assert taken <= 500


def test_a_text_gets_the_same_alone_and_in_random_batches(loaded: OpenModel) -> None:
    items: list[Any] = [*TEXTS, ("the dog", ""), (TEXTS[0], TEXTS[1]), (TEXTS[-1], TEXTS[-2])]
    for long in ("truncate", "windows"):
        alone = [values(classify(item, model=loaded, top_k=None, long=long)) for item in items]
        for batch in random_batches(items, count=25):
            found = classify([items[i] for i in batch], model=loaded, top_k=None, long=long)
            for index, answer in zip(batch, found, strict=True):
                assert values(answer) == pytest.approx(alone[index], abs=1e-5)


def test_scores_are_softmax_sigmoid_or_the_number_itself(loaded: OpenModel) -> None:
    logits = values(classify(TEXTS[0], model=loaded, top_k=None, function="none"))
    plain = {name: torch.tensor(value, dtype=torch.float64) for name, value in logits.items()}
    total = sum(value.exp() for value in plain.values())
    softmax = {name: float(value.exp() / total) for name, value in plain.items()}
    sigmoid = {name: float(1 / (1 + (-value).exp())) for name, value in plain.items()}
    assert values(classify(TEXTS[0], model=loaded, top_k=None)) == pytest.approx(softmax, abs=1e-6)
    assert values(classify(TEXTS[0], model=loaded, top_k=None, multi_label=True)) == pytest.approx(sigmoid, abs=1e-6)
    assert values(classify(TEXTS[0], model=loaded, top_k=None, multi_label=False)) == pytest.approx(softmax, abs=1e-6)
    scores = [score for _, score in classify(TEXTS[0], model=loaded, top_k=None).labels]
    assert scores == sorted(scores, reverse=True)
    assert len(classify(TEXTS[0], model=loaded, top_k=2).labels) == 2
    assert len(classify(TEXTS[0], model=loaded, top_k=9).labels) == 3


def test_windows_are_the_mean_of_their_logits_by_tokens(loaded: OpenModel) -> None:
    text = " ".join(SENTENCES)
    ids = tokenizer().encode(text, add_special_tokens=False)
    spans = window_spans(len(ids), MAX_LENGTH - 2, 10)
    assert len(spans) == 3
    model = loaded.model
    mean, weight = torch.zeros(3), 0
    for start, end in spans:
        row = torch.tensor([[tokenizer().cls_token_id, *ids[start:end], tokenizer().sep_token_id]])
        with torch.no_grad():
            mean += model(row).logits[0] * (end - start)
        weight += end - start
    wanted = dict(zip(NLI.values(), (mean / weight).tolist(), strict=True))
    found = values(classify(text, model=loaded, top_k=None, function="none", long="windows", stride=10))
    assert found == pytest.approx(wanted, abs=1e-5)
    cut = values(classify(text, model=loaded, top_k=None, function="none"))
    assert cut != pytest.approx(wanted, abs=1e-3)
    for short in ("", "dog", SENTENCES[0], ("a", "dog"), ("", "")):
        assert classify(short, model=loaded, long="windows") == classify(short, model=loaded)


@pytest.mark.parametrize(
    "pair", [(TEXTS[-1], "the dog"), ("the dog", TEXTS[-1]), (TEXTS[-1], TEXTS[-2]), ("", TEXTS[-1])]
)
def test_windows_of_a_pair_slide_over_its_longer_text(pair: tuple[str, str]) -> None:
    windows = split_text_or_pair(tokenizer(), pair, max_length=MAX_LENGTH, stride=7)
    a, b = (tokenizer().encode(text, add_special_tokens=False) for text in pair)
    cls, sep = tokenizer().cls_token_id, tokenizer().sep_token_id
    half = (MAX_LENGTH - 3) // 2
    room = MAX_LENGTH - 3 - min(len(a), len(b), half)
    assert list(windows.spans) == window_spans(max(len(a), len(b)), room, 7)
    for row, (start, end) in zip(windows.rows, windows.spans, strict=True):
        first, second = (a[start:end], b[:half]) if len(a) > len(b) else (a[:half], b[start:end])
        assert list(row.ids) == [cls, *first, sep, *second, sep]
        assert row.type_ids == [0] * (len(first) + 2) + [1] * (len(second) + 1)


def test_every_way_to_name_a_model_gives_the_same(tmp_path: Path, loaded: OpenModel) -> None:
    folder = saved(tmp_path, "BertForSequenceClassification", id2label=NLI)
    wanted = classify(TEXTS, model=loaded)
    for model, extra in ((folder, {}), (tmp_path, {}), (loaded.model, {"tokenizer": tokenizer()})):
        found = classify(TEXTS, model=model, **extra)  # by the engine or by the reference
        assert [answer.label for answer in found] == [answer.label for answer in wanted]
        assert [answer.score for answer in found] == pytest.approx([answer.score for answer in wanted], abs=1e-5)
    assert Classifier(folder)(TEXTS) == classify(TEXTS, model=folder)
    half = classify(TEXTS, model=folder, dtype=torch.bfloat16)
    assert [answer.score for answer in half] == pytest.approx([answer.score for answer in wanted], abs=0.05)


def test_zero_shot_is_the_softmax_of_entailment(loaded: OpenModel) -> None:
    topics = ["sports", "dogs", "prices"]
    pairs = [(TEXTS[0], f"About {topic}.") for topic in topics]
    logits = [values(classify(pair, model=loaded, top_k=None, function="none")) for pair in pairs]
    entailed = torch.tensor([one["entailment"] for one in logits]).softmax(0)
    found = zero_shot(TEXTS[0], topics, model=loaded, hypothesis="About {}.")
    assert values(found) == pytest.approx(dict(zip(topics, entailed.tolist(), strict=True)), abs=1e-6)
    assert found.label == topics[int(entailed.argmax())]
    for topic, one in zip(topics, logits, strict=True):
        alone = torch.tensor([one["contradiction"], one["entailment"]]).softmax(0)[1].item()
        several = zero_shot(TEXTS[0], topics, model=loaded, hypothesis="About {}.", multi_label=True)
        assert values(several)[topic] == pytest.approx(alone, abs=1e-6)
        assert zero_shot(TEXTS[0], [topic], model=loaded, hypothesis="About {}.").score == pytest.approx(
            alone, abs=1e-6
        )


def test_zero_shot_streams_and_does_not_depend_on_the_batch(loaded: OpenModel) -> None:
    task = ZeroShotClassifier("sports, dogs", loaded, long="windows", top_k=1)
    alone = [task(text) for text in TEXTS]
    stream = task(iter(TEXTS))
    assert isinstance(stream, Iterator)
    for one, other in zip(alone, stream, strict=True):
        assert one.label == other.label
        assert one.score == pytest.approx(other.score, abs=1e-5)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (5, "The text is int 5; it must be a string or a pair"),
        (None, "The text is None"),
        (b"text", "The text is bytes"),
        (["a", None], "Text 1 is None"),
        (["a", "b", 3.5], "Text 2 is float 3.5"),
        (("a", "b", "c"), "The text is a tuple of 3 .str, str, str.; a pair is two strings"),
        ([("a",)], "Text 0 is a tuple of 1"),
        ([("a", 1)], "Text 0 is a tuple of 2 .str, int."),
        ({"text": "a"}, "The text is dict"),
    ],
)
def test_what_is_no_text_is_named_by_its_place(loaded: OpenModel, texts: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        classify(texts, model=loaded)


def test_a_bad_text_in_a_stream_is_named_when_it_is_reached(loaded: OpenModel) -> None:
    stream = classify(iter(["a", 7]), model=loaded)
    with pytest.raises(InputError, match="Text 1 is int 7"):
        list(stream)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"function": "tanh"}, "function='tanh' is not known.\nUse one of None, 'softmax', 'sigmoid', 'none'"),
        ({"long": "cut"}, "long='cut' is not known.\nUse one of 'truncate', 'windows'"),
        ({"top_k": 0}, "top_k is 0; it must be a whole number of at least 1, or None for all labels"),
        ({"top_k": True}, "top_k is True"),
        ({"function": "softmax", "multi_label": True}, "were both given"),
        ({"long": "windows", "stride": -1}, "stride is -1"),
    ],
)
def test_wrong_options_are_explained(loaded: OpenModel, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        classify("a " * 100, model=loaded, **options)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([], "There are no labels"),
        ("", "There are no labels"),
        ([" "], "Label 0 is str ' '"),
        (["a", 2], "Label 1 is int 2"),
        (["a", "b", "a"], "The label 'a' is given more than once"),
        (7, "labels is int 7"),
    ],
)
def test_wrong_labels_are_explained(loaded: OpenModel, labels: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        zero_shot("a", labels, model=loaded)


def test_a_model_that_cannot_is_refused(tmp_path: Path, loaded: OpenModel) -> None:
    with pytest.raises(InputError, match="hypothesis is 'About it'; it has no place for the label"):
        zero_shot("a", ["b"], model=loaded, hypothesis="About it")
    plain = OpenModel(tiny("BertForSequenceClassification", num_labels=3), tokenizer())
    with pytest.raises(InputError, match="labels are LABEL_0, LABEL_1, LABEL_2"):
        zero_shot("a", ["b"], model=plain)
    with pytest.raises(TokenizerError, match="only_first"):
        zero_shot("a", ["dog " * 60], model=loaded)
    with pytest.raises(InputError, match="classify needs a BertForSequenceClassification; it was given a BertModel"):
        classify("a", model=tiny("BertModel"), tokenizer=tokenizer())
    with pytest.raises(InputError, match=r"given a BertForMaskedLM\.\nIf the checkpoint has that head"):
        classify("a", model=OpenModel(tiny("BertForMaskedLM"), tokenizer()))
    with pytest.raises(InputError, match="without its tokenizer"):
        classify("a", model=tiny("BertForSequenceClassification"))
    with pytest.raises(CheckpointError, match="classify needs a text classifier"):
        classify("a", model=saved(tmp_path, "BertModel"))
