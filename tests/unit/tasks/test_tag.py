"""tag: exact quotations, every label scheme, no entity cut at a seam, batches do not matter, mistakes are explained."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.data.tags import tag_spans
from bertie.errors import BertieError, CheckpointError, InputError
from bertie.running.open import OpenModel
from bertie.tasks.tag import (
    AGGREGATIONS,
    WORD_AGGREGATIONS,
    Entity,
    LabelSet,
    Tagger,
    WordTag,
    WordTagger,
    find_entities,
    judge_words,
    tag,
    tag_words,
)
from bertie.text import split_document
from token_models import (
    HARD_TEXTS,
    LABELS,
    PROSE,
    answering,
    saved,
    small_model,
    small_tokenizer,
    tagging,
)

MODEL = tagging()


def entities_of(text: str, labels: Sequence[str], *, names: Sequence[str], how: Any = "simple") -> list[Entity]:
    """What is found when the tokens of a text have exactly these labels."""
    document = split_document(small_tokenizer(), text)
    assert len(document) == len(labels), [document.quote(i, i) for i in range(len(document))]
    probabilities = np.eye(len(names))[[names.index(label) for label in labels]]
    label_set = LabelSet(dict(enumerate(names)))
    return find_entities(document, probabilities, label_set, aggregation=how, ignored={"O"})


def brief(entities: Sequence[Entity]) -> list[tuple[str, str]]:
    return [(entity.label, entity.text) for entity in entities]


def check(entities: Sequence[Entity], text: str) -> None:
    for entity in entities:
        assert text[entity.start : entity.end] == entity.text
        assert entity.text
        assert 0 < entity.score <= 1
    places = [(entity.start, entity.index) for entity in entities]
    assert places == sorted(places)


@pytest.mark.parametrize("how", AGGREGATIONS)
@pytest.mark.parametrize(
    "text", [*HARD_TEXTS, PROSE, PROSE * 12, "", " \t", "Ada", "[CLS] [SEP]"], ids=lambda t: t[:12]
)
def test_entities_are_exact_quotations(text: str, how: Any) -> None:
    for ignored in (("O",), ()):
        check(tag(text, model=MODEL, aggregation=how, ignore_labels=ignored, max_length=24, stride=6), text)


@settings(max_examples=60)
@given(st.text(st.sampled_from("ab ÄéLondon\t漢😀\u0301\u200d.-'\n"), max_size=60), st.sampled_from(AGGREGATIONS))
def test_entities_of_any_text_are_exact_quotations(text: str, how: Any) -> None:
    everything = tag(text, model=MODEL, aggregation=how, ignore_labels=(), max_length=12, stride=3)
    check(everything, text)
    # Nothing is ignored, so every token is in one entity, and none in two.
    document = split_document(small_tokenizer(), text)
    covered = [i for i, span in enumerate(document.offsets) if any(e.start <= span[0] < e.end for e in everything)]
    assert covered == list(range(len(document)))


FIVE = ["ada", "wrote", "it", "in", "london"]

SCHEMES: list[tuple[str, Sequence[str], str, list[tuple[str, str]]]] = [
    ("BIO", LABELS, "B-PER I-PER O B-LOC B-LOC", [("PER", "ada wrote"), ("LOC", "in"), ("LOC", "london")]),
    ("BIO I after O opens", LABELS, "O I-PER I-PER O I-LOC", [("PER", "wrote it"), ("LOC", "london")]),
    ("BIO I of another type opens", LABELS, "B-PER I-LOC I-LOC O O", [("PER", "ada"), ("LOC", "wrote it")]),
    (
        "IO",
        ("O", "I-PER", "I-LOC"),
        "I-PER I-PER O I-LOC I-PER",
        [("PER", "ada wrote"), ("LOC", "in"), ("PER", "london")],
    ),
    ("IOB1", LABELS, "I-PER I-PER B-PER O O", [("PER", "ada wrote"), ("PER", "it")]),
    (
        "BIOES",
        ("O", "B-PER", "I-PER", "E-PER", "S-PER", "S-LOC", "B-LOC"),
        "B-PER I-PER E-PER S-LOC S-LOC",
        [("PER", "ada wrote it"), ("LOC", "in"), ("LOC", "london")],
    ),
    (
        "BILOU",
        ("O", "B-PER", "I-PER", "L-PER", "U-PER"),
        "B-PER L-PER U-PER U-PER O",
        [("PER", "ada wrote"), ("PER", "it"), ("PER", "in")],
    ),
    (
        "BMES",
        ("O", "B-PER", "M-PER", "E-PER", "S-PER"),
        "B-PER M-PER E-PER S-PER O",
        [("PER", "ada wrote it"), ("PER", "in")],
    ),
    (
        "plain",
        ("NOUN", "VERB", "creative-work", "S-bahn"),
        "NOUN NOUN creative-work S-bahn S-bahn",
        [("NOUN", "ada wrote"), ("creative-work", "it"), ("S-bahn", "in london")],
    ),
    ("odd names", ("O", "B-", "-", ""), "B- B- - O O", [("B-", "ada wrote"), ("-", "it")]),
]


@pytest.mark.parametrize(("names", "labels", "expected"), [case[1:] for case in SCHEMES], ids=[c[0] for c in SCHEMES])
@pytest.mark.parametrize("how", ["simple", "first", "average", "max"])
def test_label_schemes(names: Sequence[str], labels: str, expected: list[tuple[str, str]], how: Any) -> None:
    assert brief(entities_of(" ".join(FIVE), labels.split(), names=names, how=how)) == expected


def test_spans_are_those_of_conlleval() -> None:
    names = ("O", "B-PER", "I-PER", "E-PER", "S-PER", "B-LOC", "I-LOC", "E-LOC", "S-LOC")
    rng = random.Random(3)
    for _ in range(200):
        labels = [rng.choice(names) for _ in FIVE]
        found = entities_of(" ".join(FIVE), labels, names=names)
        expected = [(span.type, " ".join(FIVE[span.start : span.end])) for span in tag_spans(labels)]
        assert brief(found) == expected


def test_none_keeps_labels_and_tokens_apart() -> None:
    found = entities_of("ada wrote it in london", ["B-PER", "I-PER", "O", "B-LOC", "B-LOC"], names=LABELS, how="none")
    assert brief(found) == [("B-PER", "ada"), ("I-PER", "wrote"), ("B-LOC", "in"), ("B-LOC", "london")]
    assert [entity.index for entity in found] == [0, 1, 3, 4]


def test_a_word_has_one_label() -> None:
    document = split_document(small_tokenizer(), "adalondonwho end")
    pieces = [i for i, word in enumerate(document.word_ids) if word == 0]
    assert len(pieces) > 2
    probabilities = np.full((len(document), 5), 0.02)
    probabilities[:, 0] = 0.92  # O
    probabilities[0] = [0.1, 0.6, 0.1, 0.1, 0.1]  # first: B-PER
    probabilities[1:] = [0.3, 0.2, 0.0, 0.5, 0.0]  # the rest: B-LOC ...
    probabilities[pieces[-1]] = [0.05, 0.0, 0.0, 0.0, 0.95]  # ... and the surest I-LOC
    probabilities[len(pieces) :] = [1, 0, 0, 0, 0]
    labels = LabelSet(dict(enumerate(LABELS)))
    mean = probabilities[pieces].mean(axis=0)
    best = int(mean.argmax())
    expected = {"first": ("PER", 0.6), "average": (LABELS[best][2:], mean[best]), "max": ("LOC", 0.95)}
    for how, (label, score) in expected.items():
        (found,) = find_entities(document, probabilities, labels, aggregation=how, ignored={"O"})  # type: ignore[arg-type]
        assert (found.label, found.text) == (label, "adalondonwho")
        assert found.score == pytest.approx(score)


def shown_tokens(ids: Sequence[int]) -> torch.Tensor:
    """Logits of labels by the token alone: what a model would say that looks at nothing around it."""
    return torch.stack([torch.tensor([2.0, 0.0, float(index % 7), 0.0, 0.0]) for index in ids])


class ByTokenAlone:
    """Stands in for a model: a token's label depends on the token only, so seams must not show."""

    def __init__(self) -> None:
        inner = small_model("BertForTokenClassification", id2label=dict(enumerate(LABELS)))
        self.config, self.parameters = inner.config, inner.parameters

    def __call__(self, ids: torch.Tensor, **_: Any) -> Any:
        return type("Output", (), {"logits": shown_tokens(ids.tolist())})()


@pytest.mark.parametrize("how", AGGREGATIONS)
def test_no_entity_is_cut_or_doubled_at_a_seam(how: Any) -> None:
    model = OpenModel(ByTokenAlone(), small_tokenizer())
    text = " ".join([PROSE, *HARD_TEXTS])
    document = split_document(small_tokenizer(), text)
    labels = LabelSet(dict(enumerate(LABELS)))
    probabilities = shown_tokens(document.token_ids).softmax(-1).numpy()
    whole = find_entities(document, probabilities, labels, aggregation=how, ignored={"O"})
    if how != "none":
        assert max(entity.end - entity.start for entity in whole) > 12
    for max_length, stride in ((8, 0), (8, 2), (13, 5), (40, 20), (64, 64)):
        assert tag(text, model=model, aggregation=how, max_length=max_length, stride=stride) == whole


def test_tokens_are_judged_where_they_have_most_context() -> None:
    text = PROSE * 3
    found = tag(text, model=MODEL, aggregation="none", ignore_labels=(), max_length=30, stride=10)
    document = split_document(small_tokenizer(), text, max_length=30, stride=10, keep_words=True)
    assert len(found) == len(document)
    for entity in found[::7]:
        window = document.windows[document.best_windows[entity.index]]
        logits = MODEL.model(torch.tensor([window.input_ids])).logits.detach()[0, entity.index + window.shift]
        assert entity.score == pytest.approx(float(logits.softmax(-1).max()), abs=1e-5)


def test_shapes_and_order() -> None:
    texts = [PROSE, "", "Ada", PROSE * 3, "London"]
    alone = [tag(text, model=MODEL) for text in texts]
    assert all(isinstance(found, list) for found in alone)
    for results in (tag(texts, model=MODEL), tag(tuple(texts), model=MODEL), list(tag(iter(texts), model=MODEL))):
        assert [brief(found) for found in results] == [brief(found) for found in alone]
    assert tag([], model=MODEL) == []
    stream = tag((text for text in iter(lambda: PROSE, None)), model=MODEL)
    assert isinstance(stream, Iterator)
    assert next(stream) == next(stream)


def test_entities_are_the_same_alone_and_in_any_batch() -> None:
    rng = random.Random(7)
    texts = [*HARD_TEXTS, PROSE, PROSE * 4, "", "Ada"]
    for how in AGGREGATIONS:
        alone = {text: tag(text, model=MODEL, aggregation=how) for text in texts}
        for _ in range(6):
            batch = [rng.choice(texts) for _ in range(rng.randint(1, 15))]
            model = dataclasses.replace(MODEL, budget=rng.choice((1, 60, 5000)))
            for text, found in zip(batch, tag(batch, model=model, aggregation=how), strict=True):
                assert [(e.label, e.start, e.end) for e in found] == [(e.label, e.start, e.end) for e in alone[text]]
                for one, other in zip(found, alone[text], strict=True):
                    assert abs(one.score - other.score) <= 1e-5


def test_half_precision_is_finite() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        model = small_model("BertForTokenClassification", id2label=dict(enumerate(LABELS))).to(dtype)
        for text in ("", "Ada", PROSE * 3):
            check(tag(text, model=model, tokenizer=small_tokenizer(), ignore_labels=()), text)


# -- words -----------------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.lists(st.text(st.sampled_from("abÄéLo\t漢😀\u0301\u200d.-' "), max_size=6), max_size=12))
def test_words_have_the_tokens_they_have_alone(words: list[str]) -> None:
    tokenizer = small_tokenizer()
    apart = tokenizer(words, is_split_into_words=True) if words else tokenizer("")
    assert tokenizer(" ".join(words))["input_ids"] == apart["input_ids"]
    tags = tag_words([words], model=MODEL, max_length=14, stride=4)[0]
    assert [tag.word for tag in tags] == words
    for number, found in enumerate(tags):
        has_tokens = bool(words) and number in apart.word_ids()
        assert (found.score > 0) == has_tokens
        assert has_tokens or found == WordTag(words[number], "O", 0.0)


def test_words_take_the_label_of_their_first_token() -> None:
    words = ["Ada", "adalondonwho", "O'Brien", "", "漢字", "London."]
    row = small_tokenizer()(words, is_split_into_words=True)
    probabilities = MODEL.model(torch.tensor([row["input_ids"]])).logits.detach()[0].softmax(-1)
    for how in ("first", "average", "max"):
        for number, found in enumerate(tag_words(words, model=MODEL, aggregation=how)):  # type: ignore[arg-type]
            places = [place for place, word in enumerate(row.word_ids()) if word == number]
            if not places:
                assert found == WordTag("", "O", 0.0)
                continue
            rows = probabilities[places]
            if how == "first":
                best = rows[0]
            else:
                best = rows.mean(0) if how == "average" else rows[int(rows.max(-1).values.argmax())]
            assert found.label == LABELS[int(best.argmax())]
            assert found.score == pytest.approx(float(best.max()), abs=1e-5)


def test_sentences_of_words_in_every_shape() -> None:
    sentences = [["Ada", "wrote"], [], ["it"], PROSE.split() * 4]
    results = tag_words(sentences, model=MODEL)
    assert [[found.word for found in result] for result in results] == sentences
    task = WordTagger(MODEL)
    assert list(task(iter(sentences))) == results
    for sentence, result in zip(sentences, results, strict=True):
        alone = task(sentence)
        assert [found.label for found in alone] == [found.label for found in result]
    assert tag_words([], model=MODEL) == []


# -- mistakes --------------------------------------------------------------------------------------------------------

MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"texts": 5}, "int 5"),
    ({"texts": None}, "None"),
    ({"texts": b"bytes"}, "bytes"),
    ({"texts": ["a", 3.5]}, "Text 1 is float 3.5"),
    ({"texts": ["a", ["b"]]}, "Text 1 is list"),
    (
        {"aggregation": "mean"},
        "'mean' is not known.\nUse one of 'none', 'simple', 'first', 'average', 'max'",
    ),
    ({"stride": -3}, "stride is -3"),
    ({"stride": 1.0}, "stride is 1.0"),
    ({"max_length": 1000}, "at most 64 tokens"),
    ({"max_length": 2}, "leaves no room"),
    ({"ignore_labels": ["O", "PERS"]}, "'PERS', which is no label of the model.\nIt has: .*B-LOC.*LOC.*O"),
]


@pytest.mark.parametrize(("wrong", "message"), MISTAKES, ids=[message[:20] for _, message in MISTAKES])
def test_mistakes_are_explained(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tag(**{"texts": "a", **wrong}, model=MODEL)


def test_mistakes_with_words_are_explained() -> None:
    with pytest.raises(InputError, match="The text is str 'Ada wrote'; it must be a list of words"):
        tag_words("Ada wrote", model=MODEL)
    with pytest.raises(InputError, match="Text 1 is str 'Ada'; it must be a list of words"):
        tag_words([["a"], "Ada"], model=MODEL)
    with pytest.raises(InputError, match="word 1, is None"):
        tag_words(["a", None], model=MODEL)
    with pytest.raises(InputError, match="aggregation='simple' is not known"):
        tag_words(["a"], model=MODEL, aggregation="simple")  # type: ignore[arg-type]


def test_a_model_without_the_head_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="tag needs a token classifier"):
        tag("a", model=saved(tmp_path, small_model("BertModel")))
    with pytest.raises(BertieError, match="tag needs a BertForTokenClassification"):
        tag("a", model=answering())


def test_one_label_to_ignore_may_be_a_string() -> None:
    assert Tagger(MODEL, ignore_labels="PER").ignored == {"PER"}
    assert {entity.label for entity in tag(PROSE, model=MODEL, ignore_labels="PER")} <= {"O", "LOC"}


@given(st.lists(st.sampled_from(["O", "B-A", "I-A", "E-A", "S-A", "B-B", "I-B", "S-B"]), min_size=1, max_size=30))
def test_spans_are_those_of_the_tags(tags: list[str]) -> None:
    names = sorted({*tags, "B-A", "I-A", "B-B", "I-B", "O"})
    labels = LabelSet(dict(enumerate(names)))
    kinds, starts, ends = labels.spans(np.array([names.index(tag) for tag in tags]))
    found = [(labels.types[kind], start, end) for kind, start, end in zip(kinds, starts, ends, strict=True)]
    assert [span for span in found if span[0] != "O"] == [(s.type, s.start, s.end) for s in tag_spans(tags)]
    assert found[0][1] == 0
    assert all(a[2] == b[1] for a, b in itertools.pairwise(found)), "no token is left out"


@given(st.lists(st.integers(1, 4), min_size=1, max_size=12), st.integers(0, 2**31))
def test_words_are_judged_by_their_tokens(sizes: list[int], seed: int) -> None:
    chance = np.random.default_rng(seed)
    rows = chance.integers(0, 4, (sum(sizes), 3)).astype(np.float32) / 4  # with many that are equally sure
    firsts = [0, *np.cumsum(sizes)[:-1].tolist()]
    for aggregation in WORD_AGGREGATIONS:
        judged = judge_words(rows, firsts, aggregation)
        for number, (first, size) in enumerate(zip(firsts, sizes, strict=True)):
            own = rows[first : first + size]
            surest = own[own.max(axis=1).argmax()]
            wanted = {"first": own[0], "average": own.mean(axis=0), "max": surest}[aggregation]
            assert judged.labels[number] == wanted.argmax()
            assert judged.scores[number] == pytest.approx(wanted.max())
            assert (judged.firsts[number], judged.lasts[number]) == (first, first + size - 1)
