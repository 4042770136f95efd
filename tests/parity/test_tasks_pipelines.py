"""Tasks beside transformers' pipelines and sentence-transformers' CrossEncoder, all reading the same folders."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from bertie.tasks.classify import classify
from bertie.tasks.features import features
from bertie.tasks.fill import fill
from bertie.tasks.generate import generate
from bertie.tasks.next_sentence import next_sentence
from bertie.tasks.rerank import rerank
from bertie.tasks.zero_shot import zero_shot
from tiny_models import SENTENCES, TEXTS, saved, tiny, tokenizer

TOLERANCE = 1e-5
# An empty second text is left out: transformers keeps it in a batch, and drops it, [SEP] and all, when called with one.
PAIRS = [pair for pair in zip(TEXTS, reversed(TEXTS), strict=True) if pair[1]]


def pipeline(task: str, folder: str) -> Any:
    return transformers.pipeline(task, model=folder, tokenizer=folder, device="cpu")


def check_labels(theirs: list[dict[str, Any]], ours: Any) -> None:
    assert [entry["label"] for entry in theirs] == [label for label, _ in ours.labels]
    wanted = [entry["score"] for entry in theirs]
    assert [score for _, score in ours.labels] == pytest.approx(wanted, abs=TOLERANCE)


@pytest.mark.parametrize(
    "config",
    [
        {"num_labels": 4},
        {"id2label": {0: "bad", 1: "good"}, "problem_type": "single_label_classification"},
        {"num_labels": 3, "problem_type": "multi_label_classification"},
        {"num_labels": 1},
        {"num_labels": 1, "problem_type": "regression"},
        {"num_labels": 2, "problem_type": "regression"},
    ],
    ids=["softmax", "named", "multi-label", "one-label", "regression", "regressions"],
)
def test_classify_equals_the_pipeline(tmp_path: Path, config: dict[str, Any]) -> None:
    folder = saved(tmp_path, "BertForSequenceClassification", **config)
    theirs = pipeline("text-classification", folder)
    for text, ours in zip(TEXTS, classify(TEXTS, model=folder, top_k=None), strict=True):
        check_labels(theirs(text, top_k=None, truncation=True), ours)
    for text, ours in zip(TEXTS, classify(TEXTS, model=folder, top_k=2), strict=True):
        check_labels(theirs(text, top_k=2, truncation=True), ours)
    assert theirs(TEXTS[0])[0]["label"] == classify(TEXTS[0], model=folder).label
    for pair, ours in zip(PAIRS, classify(PAIRS, model=folder, top_k=None), strict=True):
        check_labels(theirs({"text": pair[0], "text_pair": pair[1]}, top_k=None, truncation=True), ours)
    for function in ("softmax", "sigmoid", "none"):
        ours = classify(TEXTS[0], model=folder, top_k=None, function=function)
        check_labels(theirs(TEXTS[0], top_k=None, function_to_apply=function), ours)


@pytest.mark.parametrize(
    "labels",
    [
        {0: "contradiction", 1: "neutral", 2: "entailment"},
        {0: "ENTAILMENT", 1: "NEUTRAL", 2: "CONTRADICTION"},
        {0: "entailment", 1: "not_entailment"},
    ],
    ids=["mnli", "entailment-first", "two"],
)
def test_zero_shot_equals_the_pipeline(tmp_path: Path, labels: dict[int, str]) -> None:
    folder = saved(tmp_path, "BertForSequenceClassification", id2label=labels)
    theirs = pipeline("zero-shot-classification", folder)
    for topics in (["sports", "the film", "politics"], ["a dog"], "sports, politics"):
        for several in (False, True):
            for text, ours in zip(TEXTS, zero_shot(TEXTS, topics, model=folder, multi_label=several), strict=True):
                if not text:
                    continue  # the pipeline refuses an empty text
                wanted = theirs(text, topics, multi_label=several)
                assert wanted["labels"] == [label for label, _ in ours.labels]
                assert [score for _, score in ours.labels] == pytest.approx(wanted["scores"], abs=TOLERANCE)
    ours = zero_shot(TEXTS[0], ["x", "y"], model=folder, hypothesis="It is about {}!")
    wanted = theirs(TEXTS[0], ["x", "y"], hypothesis_template="It is about {}!")
    assert [score for _, score in ours.labels] == pytest.approx(wanted["scores"], abs=TOLERANCE)


def test_zero_shot_finds_contradiction_by_name_where_the_pipeline_takes_the_first(tmp_path: Path) -> None:
    folder = saved(
        tmp_path, "BertForSequenceClassification", id2label={0: "neutral", 1: "entailment", 2: "contradiction"}
    )
    theirs = pipeline("zero-shot-classification", folder)(TEXTS[0], ["a dog"], multi_label=True)["scores"][0]
    ours = zero_shot(TEXTS[0], ["a dog"], model=folder).score
    pair = (TEXTS[0], "This example is a dog.")
    logits = dict(classify(pair, model=folder, top_k=None, function="none").labels)
    plain = {name: torch.tensor(value, dtype=torch.float64).exp().item() for name, value in logits.items()}
    assert ours == pytest.approx(plain["entailment"] / (plain["entailment"] + plain["contradiction"]), abs=TOLERANCE)
    assert theirs == pytest.approx(plain["entailment"] / (plain["entailment"] + plain["neutral"]), abs=TOLERANCE)


def check_candidates(theirs: list[dict[str, Any]], ours: Any) -> None:
    assert [entry["token"] for entry in theirs] == [one.id for one in ours]
    assert [entry["token_str"] for entry in theirs] == [one.token for one in ours]
    assert [one.score for one in ours] == pytest.approx([entry["score"] for entry in theirs], abs=TOLERANCE)


MASKED = ["[MASK]", "the [MASK] jumps over the lazy dog.", "Paris is the capital of [MASK]", "漢字 [MASK]! 😀 Köln"]


def written(text: str, word: str) -> str:
    before, after = text.split("[MASK]")
    return before.rstrip() + word[2:] + after if word.startswith("##") else before + word + after


def test_fill_equals_the_pipeline(tmp_path: Path) -> None:
    folder = saved(tmp_path, "BertForMaskedLM")
    theirs = pipeline("fill-mask", folder)
    for top_k in (5, 1, 40):
        for text, ours in zip(MASKED, fill(MASKED, model=folder, top_k=top_k), strict=True):
            wanted = theirs(text, top_k=top_k)
            check_candidates(wanted, ours.candidates)
            # The pipeline shows the text as the tokenizer read it, lower-cased; ours is the user's own text.
            assert [one.text for one in ours.candidates] == [written(text, one.token) for one in ours.candidates]
            if text == MASKED[1]:
                shown = [(entry["sequence"], one) for entry, one in zip(wanted, ours.candidates, strict=True)]
                assert all(text == one.text for text, one in shown if one.token.isalpha())
            assert [one.text for one in ours.fillings] == [one.text for one in ours.candidates]
    for targets in (["dog", "fox", "the"], ["Dog"], "##s", ["dog", "dog", "fox"]):
        wanted = theirs(MASKED[1], targets=targets, top_k=2)
        check_candidates(wanted, fill(MASKED[1], model=folder, targets=targets, top_k=2).candidates)
    two = "the [MASK] dog [MASK]."
    for wanted, ours in zip(theirs(two), fill(two, model=folder).masks, strict=True):
        check_candidates(wanted, ours)
        # The pipeline shows [CLS] and [SEP] as soon as there are two masks; ours shows the text.
        shown = [entry["sequence"].removeprefix("[CLS] ").removesuffix(" [SEP]") for entry in wanted]
        assert [text for text, one in zip(shown, ours, strict=True) if one.token.isalpha()] == [
            one.text for one in ours if one.token.isalpha()
        ]


def test_fill_scores_a_target_of_several_pieces_whole_where_the_pipeline_takes_the_first(tmp_path: Path) -> None:
    folder = saved(tmp_path, "BertForMaskedLM")
    target = "frogs"
    pieces = tokenizer().encode(target, add_special_tokens=False)
    assert len(pieces) > 2
    (theirs,) = pipeline("fill-mask", folder)("the [MASK] dog", targets=[target])
    assert theirs["token"] == pieces[0]
    (ours,) = fill("the [MASK] dog", model=folder, targets=[target]).candidates
    model = transformers.BertForMaskedLM.from_pretrained(folder).eval()
    ids = tokenizer().encode("the " + "[MASK] " * len(pieces) + "dog")
    product = 1.0
    for place, piece in enumerate(pieces, start=2):
        with torch.no_grad():
            product *= model(torch.tensor([ids])).logits[0, place].softmax(-1)[piece].item()
        ids[place] = piece
    assert (ours.token, ours.ids, ours.id) == ("frogs", tuple(pieces), None)
    assert ours.score == pytest.approx(product, rel=1e-4)
    assert ours.text == "the frogs dog"


def test_next_sentence_equals_the_model(tmp_path: Path) -> None:
    folder = saved(tmp_path, "BertForNextSentencePrediction")
    theirs = transformers.BertForNextSentencePrediction.from_pretrained(folder).eval()
    read = transformers.BertTokenizerFast.from_pretrained(folder)
    for (first, second), ours in zip(PAIRS, next_sentence(PAIRS, model=folder), strict=True):
        inputs = read(first, second, return_tensors="pt", truncation="longest_first", max_length=48)
        with torch.no_grad():
            wanted = theirs(**inputs).logits.softmax(-1)[0, 0].item()
        assert ours.probability == pytest.approx(wanted, abs=TOLERANCE)


def test_features_equal_the_models_hidden_states(tmp_path: Path) -> None:
    folder = saved(tmp_path, "BertForMaskedLM")  # no pooler in it, and none is needed
    theirs = transformers.BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    read = transformers.BertTokenizerFast.from_pretrained(folder)
    for text, ours in zip(TEXTS, features(TEXTS, model=folder, layers=(-1, 0, 1)), strict=True):
        inputs = read(text, return_tensors="pt", truncation=True, max_length=48)
        with torch.no_grad():
            states = theirs(**inputs, output_hidden_states=True).hidden_states
        assert [token.token for token in ours.tokens] == read.convert_ids_to_tokens(inputs["input_ids"][0])
        for layer, wanted in ((-1, states[-1]), (0, states[1]), (1, states[2])):
            found = torch.stack([torch.from_numpy(token.vector(layer)) for token in ours.tokens])
            assert (found - wanted[0]).abs().max() <= TOLERANCE


def test_generate_equals_their_generate(tmp_path: Path) -> None:
    folder = saved(tmp_path, "BertLMHeadModel", is_decoder=True)
    theirs = transformers.BertLMHeadModel.from_pretrained(folder, is_decoder=True).eval()
    read = tokenizer()
    for text, ours in zip(SENTENCES, generate(SENTENCES, model=folder, max_new_tokens=8), strict=True):
        ids = torch.tensor([[read.cls_token_id, *read.encode(text, add_special_tokens=False)]])
        wanted = theirs.generate(ids, max_new_tokens=8, do_sample=False, eos_token_id=read.sep_token_id, pad_token_id=0)
        assert list(ours.ids) == [token for token in wanted[0, ids.shape[1] :].tolist() if token != read.sep_token_id]


@pytest.mark.parametrize(
    "activation", [None, "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Sigmoid"]
)
def test_rerank_equals_cross_encoder(tmp_path: Path, activation: str | None) -> None:
    cross_encoder = pytest.importorskip("sentence_transformers").CrossEncoder
    extra = {} if activation is None else {"sbert_ce_default_activation_function": activation}
    folder = saved(tmp_path / "plain", "BertForSequenceClassification", num_labels=1, **extra)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = cross_encoder(folder, device="cpu")
        query = "what is the dog doing?"
        ranked = theirs.rank(query, TEXTS, show_progress_bar=False)
        theirs.save_pretrained(str(tmp_path / "theirs"))
    for source in (folder, str(tmp_path / "theirs")):
        ours = rerank(query, TEXTS, model=source, long="truncate")
        # Two of the documents are the same to the tokenizer, and which of them comes first is the last bit's choice.
        wanted = {entry["corpus_id"]: float(entry["score"]) for entry in ranked}
        assert {one.index: one.score for one in ours} == pytest.approx(wanted, abs=TOLERANCE)
        assert [one.score for one in ours] == sorted((one.score for one in ours), reverse=True)


def test_the_models_are_not_trivial() -> None:
    """Tiny random models could agree on anything if they answered everything alike."""
    model = tiny("BertForSequenceClassification", num_labels=4)
    answers = classify(SENTENCES, model=model, tokenizer=tokenizer(), top_k=None)
    values = [dict(answer.labels)["LABEL_0"] for answer in answers]
    assert max(values) - min(values) > 0.02
