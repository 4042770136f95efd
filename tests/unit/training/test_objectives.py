"""Every objective trains a tiny model on a few examples, evaluates, and saves what the tasks can read again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from fitting import BAD, GOOD, evaluated, fit

import bertie
from bertie.data import Sentence
from bertie.errors import ConfigError, DataError, InputError
from bertie.running.pooling import POOLING_MODES
from bertie.training.registry import Columns, TaskOptions, load_task
from bertie.training.tasks.answer import segment_cross_entropy
from bertie.training.tasks.embed import contrastive_loss, cosent_loss, pool_packed
from tiny_models import SENTENCES, saved, tiny, tokenizer

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A plain encoder, as fine-tuning begins with."""
    folder = tmp_path_factory.mktemp("base")
    return saved(folder, "BertModel", initializer_range=0.05, **NO_DROPOUT)


def finished(prepared: Any, folder: Path) -> str:
    prepared.objective.model.save_pretrained(folder)
    prepared.objective.save_extras(folder)
    return str(folder)


SENTIMENT = [{"text": text, "label": "good"} for text in GOOD * 2] + [
    {"text": text, "label": "bad"} for text in BAD * 2
]


def test_classify_learns_and_answers_with_its_labels(base: str, tmp_path: Path) -> None:
    prepared = load_task("classify", model=base, train=SENTIMENT, dev=SENTIMENT)
    assert prepared.objective.model.config.id2label == {0: "bad", 1: "good"}
    losses = fit(prepared.objective, prepared.train)
    figures = evaluated(prepared.objective, prepared.train)
    assert losses[-1] < 0.1 * losses[0]
    assert figures["accuracy"] == figures["f1"] == figures["matthews"] == 1.0
    folder = finished(prepared, tmp_path / "model")
    assert bertie.classify("a good film", model=folder).label == "good"


def test_pairs_learn(base: str) -> None:
    rows = [
        {"text_a": a, "text_b": b, "label": int((a in GOOD) == (b in GOOD))}
        for a in GOOD + BAD
        for b in GOOD[:2] + BAD[:2]
    ]
    prepared = load_task("pairs", model=base, train=rows[:20])
    fit(prepared.objective, prepared.train, steps=120)
    assert evaluated(prepared.objective, prepared.train)["accuracy"] == 1.0
    assert prepared.objective.model.config.id2label == {0: "0", 1: "1"}


def test_regress_learns(base: str) -> None:
    rows = [{"text": text, "score": 0.2 * number} for number, text in enumerate(GOOD + BAD)]
    prepared = load_task("regress", model=base, train=rows)
    fit(prepared.objective, prepared.train, steps=120)
    figures = evaluated(prepared.objective, prepared.train)
    assert min(figures["spearman"], figures["pearson"]) > 0.98
    assert figures["mse"] < 0.02


def test_several_labels_learn(base: str) -> None:
    rows = [{"text": text, "labels": ["short"] * (len(text) < 15) + ["good"] * (text in GOOD)} for text in GOOD + BAD]
    prepared = load_task("classify", model=base, train=rows * 2)
    assert prepared.objective.model.config.problem_type == "multi_label_classification"
    fit(prepared.objective, prepared.train, steps=120)
    figures = evaluated(prepared.objective, prepared.train)
    assert figures["f1_micro"] > 0.97
    assert figures["accuracy"] > 0.9


def test_tag_learns_and_finds_entities(base: str, tmp_path: Path) -> None:
    lines = [
        "Paris B-LOC",
        "is O",
        "the O",
        "capital O",
        "of O",
        "France B-LOC",
        "",
        "quick B-X",
        "brown I-X",
        "fox I-X",
        "jumps O",
    ]
    file = tmp_path / "train.conll"
    file.write_text("\n".join(lines) + "\n\n" + "\n".join(lines[:4]) + "\n")
    prepared = load_task("tag", model=base, train=str(file), dev=str(file))
    config = prepared.objective.model.config
    assert list(config.id2label.values()) == ["O", "B-LOC", "B-X", "I-X"]
    fit(prepared.objective, prepared.train, steps=60, batch_size=3)
    figures = evaluated(prepared.objective, prepared.dev)
    assert figures["f1"] == figures["accuracy"] == figures["f1[LOC]"] == figures["f1_macro"] == 1.0
    folder = finished(prepared, tmp_path / "model")
    found = bertie.tag("quick brown fox jumps", model=folder)
    assert [(entity.label, entity.text) for entity in found] == [("X", "quick brown fox")]


QUESTIONS = [
    {
        "id": str(number),
        "question": question,
        "context": context,
        "answers": [{"text": answer, "answer_start": context.index(answer)}],
    }
    for number, (question, context, answer) in enumerate(
        [
            ("what is the capital of France?", SENTENCES[1], "Paris"),
            ("what fell?", SENTENCES[5], "Stocks"),
            ("what jumps?", SENTENCES[0], "fox"),
            ("what was good?", SENTENCES[3], "film"),
        ]
    )
]


def test_answer_learns_to_quote(base: str, tmp_path: Path) -> None:
    impossible = {"id": "x", "question": "nobody?", "context": SENTENCES[2], "is_impossible": True}
    prepared = load_task("answer", model=base, train=[*QUESTIONS, impossible], dev=[*QUESTIONS, impossible])
    fit(prepared.objective, prepared.train, steps=80, batch_size=len(prepared.train))
    figures = evaluated(prepared.objective, prepared.dev)
    assert figures["exact"] == figures["f1"] == figures["best_f1"] == 100.0
    folder = finished(prepared, tmp_path / "model")
    assert bertie.answer(QUESTIONS[0]["question"], QUESTIONS[0]["context"], model=folder).best.text == "Paris"


def test_choice_learns(base: str) -> None:
    rows = [{"question": "the dog", "choices": [GOOD[k], BAD[k], BAD[(k + 1) % 5]], "answer": 0} for k in range(5)] + [
        {"question": "the fox", "choices": [BAD[k], GOOD[k], BAD[(k + 2) % 5]], "answer": 1} for k in range(5)
    ]
    prepared = load_task("choice", model=base, train=rows)
    fit(prepared.objective, prepared.train, steps=80)
    assert evaluated(prepared.objective, prepared.train)["accuracy"] == 1.0


PAIRS = [
    {"query": a, "positive": b, "negative": GOOD[(k + 1) % 5]} for k, (a, b) in enumerate(zip(GOOD, BAD, strict=True))
]


@pytest.mark.parametrize("negatives", [False, True])
def test_contrastive_embedding_learns(base: str, negatives: bool, tmp_path: Path) -> None:
    rows = PAIRS if negatives else [{key: row[key] for key in ("query", "positive")} for row in PAIRS]
    prepared = load_task("embed", model=base, train=rows, dev=rows)
    assert prepared.objective.whole_batches
    fit(prepared.objective, prepared.train, steps=60)
    figures = evaluated(prepared.objective, prepared.dev)
    assert figures["recall@1"] == figures["mrr"] == 1.0
    folder = finished(prepared, tmp_path / "model")
    vectors = bertie.embed([GOOD[0], BAD[0], BAD[1]], model=folder)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2]
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("loss", ["cosine", "cosent"])
def test_scored_pairs_learn(base: str, loss: str) -> None:
    rows = [
        {"sentence1": a, "sentence2": b, "score": 5.0 if (a in GOOD) == (b in GOOD) else 0.5}
        for a in GOOD[:3] + BAD[:3]
        for b in GOOD[3:] + BAD[3:]
    ]
    prepared = load_task("embed", model=base, train=rows, dev=rows, options=TaskOptions(loss=loss))  # type: ignore[arg-type]
    fit(prepared.objective, prepared.train, steps=60, batch_size=24)
    # Two values only, so the best rank correlation there can be is √3/2.
    assert evaluated(prepared.objective, prepared.dev)["spearman"] > 0.85
    assert float(prepared.train.scores.max()) == 1.0  # type: ignore[attr-defined]


def test_a_sentence_folder_keeps_its_modules(base: str, tmp_path: Path) -> None:
    first = load_task("embed", model=base, train=PAIRS, options=TaskOptions(pooling="cls", max_length=20))
    folder = finished(first, tmp_path / "first")
    again = load_task("embed", model=folder, train=PAIRS)
    assert again.objective.settings.pooling.modes == ("cls",)  # type: ignore[attr-defined]
    assert again.objective.max_length == 20  # type: ignore[attr-defined]
    second = Path(finished(again, tmp_path / "second"))
    kinds = [module["type"].rpartition(".")[2] for module in json.loads((second / "modules.json").read_text())]
    assert kinds == ["Transformer", "Pooling", "Normalize"]
    assert bertie.Embedder(str(second)).pooling.modes == ("cls",)
    # A folder with a prompt of its own is trained with it, as it will be used.
    said = {"prompts": {"query": "the dog "}, "default_prompt_name": "query"}
    (second / "config_sentence_transformers.json").write_text(json.dumps(said))
    prompted = load_task("embed", model=str(second), train=PAIRS)
    assert tokenizer().decode(prompted.train.get(0, 0).rows[0].ids, skip_special_tokens=True) == f"the dog {GOOD[0]}"


@pytest.mark.parametrize("mode", POOLING_MODES)
def test_packed_pooling_by_its_formula(mode: str) -> None:
    states = torch.randn(12, 6)

    def one(text: torch.Tensor) -> torch.Tensor:
        weights = torch.arange(1, len(text) + 1)[:, None]
        return {
            "cls": lambda: text[0],
            "lasttoken": lambda: text[-1],
            "max": lambda: text.amax(dim=0),
            "mean": lambda: text.mean(dim=0),
            "mean_sqrt_len_tokens": lambda: text.sum(dim=0) / len(text) ** 0.5,
            "weightedmean": lambda: (text * weights).sum(dim=0) / weights.sum(),
        }[mode]()

    expected = torch.stack([one(text) for text in torch.split(states, [4, 1, 7])])
    torch.testing.assert_close(pool_packed(states, torch.tensor([0, 4, 5, 12]), (mode,)), expected)


def test_an_anchors_own_texts_are_not_its_negatives() -> None:
    vectors = F.normalize(torch.randn(6, 8), dim=-1)
    # Anchors 0 and 1 are the same text; positives 0 and 2 are the same text.
    texts = torch.tensor([[0, 0, 1], [5, 6, 5]])
    ours = contrastive_loss(vectors[:3], vectors[3:], texts, scale=10.0)
    scores = vectors[:3] @ vectors[3:].T * 10
    seen = [[0], [1], [1, 2]]  # what each anchor's positive competes with, itself included
    expected = sum(torch.logsumexp(scores[i, seen[i]], dim=0) - scores[i, i] for i in range(3))
    torch.testing.assert_close(ours, torch.as_tensor(expected))


def test_cosent_by_its_formula() -> None:
    cosines, scores = torch.tensor([0.9, 0.1, 0.4]), torch.tensor([1.0, 0.0, 0.0])
    expected = torch.log(1 + torch.exp(torch.tensor(20 * (0.1 - 0.9))) + torch.exp(torch.tensor(20 * (0.4 - 0.9))))
    torch.testing.assert_close(cosent_loss(cosines, scores, scale=20.0), expected)


def test_span_loss_over_packed_texts_equals_one_by_one() -> None:
    logits = torch.randn(9, requires_grad=True)
    segments, targets = torch.tensor([0] * 4 + [1] * 2 + [2] * 3), torch.tensor([2, 4, 8])
    ours = segment_cross_entropy(logits, segments, targets)
    parts = torch.split(logits, [4, 2, 3])
    expected = sum(F.cross_entropy(p[None], torch.tensor([t])) for p, t in zip(parts, [2, 0, 2], strict=True))
    torch.testing.assert_close(ours, torch.as_tensor(expected))
    ours_grad, expected_grad = (torch.autograd.grad(x, logits, retain_graph=True)[0] for x in (ours, expected))
    torch.testing.assert_close(ours_grad, expected_grad)


OWN_LOSS: dict[str, Any] = {
    "plain": {},
    "smoothed": {"label_smoothing": 0.1},
    "weighted": {"class_weights": {"good": 3.0, "bad": 0.5}},
    "both": {"class_weights": "balanced", "label_smoothing": 0.2},
}


@pytest.mark.parametrize("case", sorted(OWN_LOSS))
def test_sums_over_units_are_the_models_own_mean(base: str, case: str) -> None:
    rows = SENTIMENT[:7] + SENTIMENT[-4:]
    prepared = load_task("classify", model=base, train=rows, options=TaskOptions(**OWN_LOSS[case]))
    objective = prepared.objective
    batch = objective.collate([prepared.train.get(index, 0) for index in range(len(rows))])
    total, _ = objective.loss(objective.model, batch)
    own = objective.model(
        batch.tensors["input_ids"],
        token_type_ids=batch.tensors["token_type_ids"],
        cu_seqlens=batch.tensors["cu_seqlens"],
        labels=batch.tensors["labels"],
        class_weights=objective.class_weights,  # type: ignore[attr-defined]
        smoothing=objective.label_smoothing,  # type: ignore[attr-defined]
    ).loss
    torch.testing.assert_close(total / batch.units, own)
    # Halves add up to the whole, which is what lets a loop cut a batch.
    halves = [objective.collate([prepared.train.get(i, 0) for i in part]) for part in (range(5), range(5, len(rows)))]
    sums = [objective.loss(objective.model, half)[0] for half in halves]
    torch.testing.assert_close(sums[0] + sums[1], total)
    assert sum(half.units for half in halves) == pytest.approx(batch.units)


def test_question_answering_loss_is_the_models_own(base: str) -> None:
    prepared = load_task("answer", model=base, train=QUESTIONS)
    objective, examples = prepared.objective, [prepared.train.get(i, 0) for i in range(len(prepared.train))]
    batch = objective.collate(examples)
    own = objective.model(
        batch.tensors["input_ids"],
        token_type_ids=batch.tensors["token_type_ids"],
        cu_seqlens=batch.tensors["cu_seqlens"],
        start_positions=torch.tensor([example.start for example in examples]),
        end_positions=torch.tensor([example.end for example in examples]),
    ).loss
    torch.testing.assert_close(objective.loss(objective.model, batch)[0] / batch.units, own)


def test_a_checkpoints_own_labels_stay(tmp_path: Path) -> None:
    folder = saved(tmp_path, "BertForSequenceClassification", id2label={0: "good", 1: "bad", 2: "so-so"})
    prepared = load_task("classify", model=folder, train=SENTIMENT)
    assert prepared.objective.model.config.id2label == {0: "good", 1: "bad", 2: "so-so"}


def test_model_objects_need_their_tokenizer_and_head() -> None:
    with pytest.raises(InputError, match="without its tokenizer"):
        load_task("classify", model=tiny("BertForSequenceClassification"), train=SENTIMENT)
    with pytest.raises(InputError, match="needs a BertForSequenceClassification; it was given a BertModel"):
        load_task("classify", model=tiny("BertModel"), tokenizer=tokenizer(), train=SENTIMENT)
    model = tiny("BertForSequenceClassification", num_labels=3)
    with pytest.raises(InputError, match="The model has 3 outputs, and the data needs 2"):
        load_task("classify", model=model, tokenizer=tokenizer(), train=SENTIMENT)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (TaskOptions(class_weights={"fine": 2.0}), "names 'fine', which is no label"),
        (TaskOptions(class_weights="even"), "^class_weights='even' is not known"),
        (TaskOptions(class_weights=[1.0, 2.0, 3.0]), "there are 2 labels"),
        (TaskOptions(max_length=1000), "max_length is 1000; it must be 4 to 48"),
    ],
    ids=["label", "weights", "number of weights", "length"],
)
def test_options_that_the_data_or_the_model_refuses(base: str, options: TaskOptions, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_task("classify", model=base, train=SENTIMENT, options=options)


@pytest.mark.parametrize(
    ("option", "value"),
    [("label_smoothing", 1.0), ("dev_share", 1.0), ("max_length", 3), ("stride", -1), ("max_answer_tokens", 0),
     ("scale", 0.0)],
)  # fmt: skip
def test_options_that_cannot_be_are_refused_at_once(option: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{option} is {value!r}"):
        TaskOptions(**{option: value})  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match=r"^loss='margin' is not known\.\nUse one of 'contrastive', 'cosine', 'cosent'\.$"
    ):
        TaskOptions(loss="margin")  # type: ignore[arg-type]


def test_a_share_of_the_training_data_can_be_held_out(base: str) -> None:
    prepared = load_task("classify", model=base, train=SENTIMENT, options=TaskOptions(dev_share=0.25))
    assert (len(prepared.train), len(prepared.dev or ())) == (15, 5)
    assert "5 of 20 examples are held out" in prepared.notes[-1]
    evaluated(prepared.objective, prepared.dev)  # type: ignore[arg-type]


def test_one_label_is_not_enough(base: str) -> None:
    with pytest.raises(DataError, match="all rows have the label 'good'"):
        load_task("classify", model=base, train=SENTIMENT[:4], options=TaskOptions(columns=Columns(text="text")))


def test_unknown_tasks_are_refused(base: str) -> None:
    with pytest.raises(InputError, match="There is no task 'classy'"):
        load_task("classy", model=base, train=SENTIMENT)


def test_word_tags_without_spans_are_judged_by_accuracy(base: str) -> None:
    rows = [{"tokens": ["the", "dog", "sleeps"], "tags": ["DET", "NOUN", "VERB"]}]
    prepared = load_task("tag", model=base, train=rows, dev=rows)
    assert prepared.objective.best_metric == "accuracy"
    assert isinstance(prepared.dev.sentences[0], Sentence)  # type: ignore[union-attr]
    assert set(evaluated(prepared.objective, prepared.dev)) == {"loss", "accuracy"}  # type: ignore[arg-type]
