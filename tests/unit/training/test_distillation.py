"""Distillation: what each part computes, that a student follows its teacher, and how students are cut out of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fitting import BAD, GOOD, evaluated, fit

from bertie.errors import ConfigError, InputError
from bertie.ops.attention import AttentionPlan
from bertie.training.distillation import Distillation, Weights, even_layers, load_teacher, make_student
from bertie.training.registry import load_task
from tiny_models import saved, tiny, tokenizer

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
ROWS = [{"text": text, "label": str(int(text in GOOD))} for text in GOOD + BAD]
LABELS = {"id2label": {0: "0", 1: "1"}}


def prepared(
    name: str = "BertForSequenceClassification", task: str = "classify", rows: Any = None, **config: Any
) -> Any:
    model = tiny(name, seed=1, **(NO_DROPOUT | LABELS | config))
    return load_task(task, model=model, tokenizer=tokenizer(), train=ROWS if rows is None else rows)


def teacher_of(name: str = "BertForSequenceClassification", **config: Any) -> Any:
    return tiny(name, seed=2, **(NO_DROPOUT | LABELS | config))


def batch_of(ready: Any) -> Any:
    return ready.objective.collate([ready.train.get(index, 0) for index in range(len(ready.train))])


def outputs(model: Any, batch: Any, **options: Any) -> Any:
    tensors = batch.tensors
    shared = {"token_type_ids": tensors["token_type_ids"], "cu_seqlens": tensors["cu_seqlens"]}
    return model(tensors["input_ids"], **shared, **options)


def test_logits_by_the_formula() -> None:
    ready, teacher = prepared(), teacher_of()
    distillation = Distillation(ready.objective, teacher, weights=Weights(task=0.3, logits=0.7), temperature=3.0)
    batch = batch_of(ready)
    total, _ = distillation.loss(ready.objective.model, batch)
    task, _ = ready.objective.loss(ready.objective.model, batch)
    ours, theirs = (outputs(model, batch).logits / 3.0 for model in (ready.objective.model, teacher))
    p = theirs.softmax(-1)
    divergence = (p * (p.log() - ours.log_softmax(-1))).sum() * 9.0
    torch.testing.assert_close(total, 0.3 * task + 0.7 * divergence)


def test_hidden_states_by_the_formula_with_widths_that_differ() -> None:
    ready = prepared(num_hidden_layers=2)
    teacher = teacher_of(hidden_size=48, num_hidden_layers=4)
    distillation = Distillation(ready.objective, teacher, weights=Weights(task=0.0, logits=0.0, hidden=2.0))
    assert distillation.layers == (2, 4)
    projection = distillation.projection
    assert projection is not None
    torch.testing.assert_close(projection.T @ projection, torch.eye(32))
    batch = batch_of(ready)
    total, _ = distillation.loss(ready.objective.model, batch)
    ours = outputs(ready.objective.model, batch, output_hidden_states=True).hidden_states
    theirs = outputs(teacher, batch, output_hidden_states=True).hidden_states
    mean = sum(F.mse_loss(ours[a], theirs[b] @ projection) for a, b in ((0, 0), (1, 2), (2, 4))) / 3
    torch.testing.assert_close(total, 2.0 * batch.units * torch.as_tensor(mean))


@pytest.mark.parametrize("kind", ["maps", "relations"])
def test_attention_by_the_formula(kind: Any) -> None:
    ready = prepared(num_hidden_layers=2)
    teacher = teacher_of(num_hidden_layers=4, num_attention_heads=4 if kind == "maps" else 8)
    weights = Weights(task=0.0, logits=0.0, attention=1.0)
    distillation = Distillation(ready.objective, teacher, weights=weights, attention=kind)
    batch = batch_of(ready)
    total, _ = distillation.loss(ready.objective.model, batch)
    asked = {"output_attentions": True, "output_hidden_states": True}
    ours, theirs = (outputs(model, batch, **asked) for model in (ready.objective.model, teacher))
    ends = batch.tensors["cu_seqlens"].tolist()
    values = []
    for text in range(len(ends) - 1):
        here = slice(ends[text], ends[text + 1])
        if kind == "maps":
            tables = [(ours.attentions[a][text], theirs.attentions[b][text]) for a, b in ((0, 1), (1, 3))]
        else:
            h = [output.hidden_states[-1][here] for output in (ours, theirs)]
            tables = [tuple((x @ x.T / x.shape[1] ** 0.5).softmax(-1) for x in h)]  # type: ignore[list-item]
        for a, b in tables:
            values.append((b * (b.log() - a.log())).sum(-1).mean())
    torch.testing.assert_close(total, batch.units * torch.stack(values).mean())
    total.backward()
    query = ready.objective.model.bert.encoder.layer[0].attention.self.query.weight
    assert float(query.grad.abs().sum()) > 0


def test_different_numbers_of_heads_are_averaged() -> None:
    ready, teacher = prepared(), teacher_of(num_attention_heads=8)
    distillation = Distillation(ready.objective, teacher, weights=Weights(attention=1.0))
    assert float(distillation.loss(ready.objective.model, batch_of(ready))[0].detach()) > 0


def test_a_teacher_like_the_student_has_nothing_to_teach() -> None:
    ready = prepared()
    weights = Weights(task=0.0, logits=1.0, hidden=1.0, attention=1.0)
    teacher = make_student(ready.objective.model, num_layers=3)
    distillation = Distillation(ready.objective, teacher, weights=weights)
    assert float(distillation.loss(ready.objective.model, batch_of(ready))[0].detach()) == pytest.approx(0.0, abs=1e-4)


CASES: dict[str, tuple[str, str, Any, dict[str, Any]]] = {
    "pairs": (
        "BertForSequenceClassification",
        "pairs",
        [{"text_a": a, "text_b": b, "label": str(k % 2)} for k, (a, b) in enumerate(zip(GOOD, BAD, strict=True))],
        {},
    ),
    "regress": (
        "BertForSequenceClassification",
        "regress",
        [{"text": text, "score": 0.1 * k} for k, text in enumerate(GOOD)],
        {"id2label": {0: "score"}, "problem_type": "regression"},
    ),
    "several": (
        "BertForSequenceClassification",
        "classify",
        [{"text": text, "labels": ["0"] * (k % 2) + ["1"]} for k, text in enumerate(GOOD)],
        {},
    ),
    "tag": (
        "BertForTokenClassification",
        "tag",
        [{"tokens": ["the", "unbelievably", "lazy", "dog"], "tags": ["O", "B-X", "O", "B-X"]}],
        {"id2label": {0: "O", 1: "B-X"}},
    ),
    "answer": (
        "BertForQuestionAnswering",
        "answer",
        [{"question": "who?", "context": "the dog sleeps", "answers": [{"text": "dog", "answer_start": 4}]}],
        {"id2label": {0: "LABEL_0", 1: "LABEL_1"}},
    ),
    "choice": (
        "BertForMultipleChoice",
        "choice",
        [{"question": "the dog", "choices": GOOD[:2], "answer": 1}],
        {},
    ),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_students_of_every_task_learn_their_teachers_logits(case: str) -> None:
    name, task, rows, config = CASES[case]
    ready = prepared(name, task, rows, **config)
    teacher = teacher_of(name, **config)
    if case == "several":
        teacher.config.problem_type = "multi_label_classification"
    distillation = Distillation(ready.objective, teacher, weights=Weights(task=0.0, logits=1.0))
    losses = fit(distillation, ready.train, steps=40)
    floor = 0.0
    if case == "several":  # cross-entropy with probabilities has their own entropy left
        p = outputs(teacher, batch_of(ready)).logits.sigmoid()
        floor = float(F.binary_cross_entropy(p, p))
    assert losses[-1] - floor < 0.1 * (losses[0] - floor)


def test_a_student_becomes_as_good_as_its_teacher(tmp_path: Path) -> None:
    base = saved(tmp_path / "base", "BertModel", initializer_range=0.05, **NO_DROPOUT)
    taught = load_task("classify", model=base, train=ROWS)
    fit(taught.objective, taught.train)
    taught.objective.model.save_pretrained(tmp_path / "teacher")
    ready = prepared()
    teacher = load_teacher(tmp_path / "teacher", ready.objective)
    student = make_student(teacher, num_layers=1)
    student_ready = load_task("classify", model=student, tokenizer=tokenizer(), train=ROWS)
    distillation = Distillation(
        student_ready.objective, teacher, weights=Weights(task=0.0, logits=1.0, hidden=0.1, attention=0.1)
    )
    fit(distillation, student_ready.train)
    assert evaluated(distillation, student_ready.train)["accuracy"] == 1.0
    with pytest.raises(InputError, match=r"has no weights for classifier\.bias, classifier\.weight"):
        load_teacher(base, ready.objective)


def test_students_are_made_of_chosen_layers() -> None:
    teacher = tiny("BertForSequenceClassification", num_hidden_layers=4)
    teacher.prune_heads({2: [1]})
    student = make_student(teacher, layers=[1, 3])
    assert student.config.num_hidden_layers == 2
    assert student.config.pruned_heads == {1: [1]}
    ids = torch.tensor([[2, 10, 11, 3]])
    states = teacher.bert.embeddings(ids)
    for number in (0, 2):
        states = teacher.bert.encoder.layer[number](states, AttentionPlan())[0]
    torch.testing.assert_close(student.bert(ids).last_hidden_state, states)
    torch.testing.assert_close(student.classifier.weight, teacher.classifier.weight)
    assert student.classifier.weight.data_ptr() != teacher.classifier.weight.data_ptr()


def test_layers_are_spread_evenly() -> None:
    assert even_layers(6, 12) == (2, 4, 6, 8, 10, 12)
    assert even_layers(4, 3)[-1] == 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Weights(task=0.0, logits=0.0), "not all 0"),
        (lambda: Weights(hidden=-1.0), "must be at least 0"),
        (lambda: Distillation(prepared().objective, teacher_of(), temperature=0.0), "temperature is 0.0"),
        (lambda: Distillation(prepared().objective, teacher_of(), layers=[1]), "a student of 3 layers takes 3"),
        (lambda: Distillation(prepared().objective, teacher_of(), layers=[1, 2, 9]), "from 0 .embeddings. to 3"),
        (lambda: Distillation(prepared().objective, teacher_of(vocab_size=99)), "vocabulary has 99 tokens"),
        (lambda: Distillation(prepared().objective, teacher_of(id2label={0: "a", 1: "b"})), "same task and labels"),
        (lambda: make_student(teacher_of(), num_layers=9), "the teacher has 3 layers"),
        (lambda: make_student(teacher_of(), layers=[0]), "numbers from 1 to 3"),
        (lambda: make_student(teacher_of()), "either layers or num_layers"),
    ],
    ids=["none", "negative", "temperature", "few", "deep", "vocabulary", "labels", "many", "zero", "neither"],
)
def test_what_cannot_be_distilled(make: Any, message: str) -> None:
    with pytest.raises((ConfigError, InputError), match=message):
        make()
