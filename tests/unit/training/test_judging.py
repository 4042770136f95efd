"""What a task is judged by: objectives name the figures they give, and lower is better where it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bertie.errors import InputError
from bertie.training import TaskOptions, finetune
from bertie.training.registry import TASKS, load_task
from bertie.training.run.journal import read_metrics
from tiny_models import SENTENCES, saved

PAIRS = list(zip(SENTENCES, SENTENCES[1:] + SENTENCES[:1], strict=True))
TAGS = [{"tokens": text.split()[:2], "tags": ["B-PER", "O"]} for text in SENTENCES]
QUESTIONS: list[dict[str, Any]] = [
    {"id": str(n), "question": "Who?", "context": text, "answers": [{"text": text[:3], "answer_start": 0}]}
    for n, text in enumerate(SENTENCES)
]
NO_ANSWER = {"id": "no", "question": "Why?", "context": SENTENCES[0], "answers": [], "is_impossible": True}
ROWS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "two labels": ("classify", [{"text": t, "label": "ab"[n % 2]} for n, t in enumerate(SENTENCES)]),
    "three labels": ("classify", [{"text": t, "label": "abc"[n % 3]} for n, t in enumerate(SENTENCES)]),
    "several labels": ("classify", [{"text": t, "labels": ["a", "b"][: n % 3]} for n, t in enumerate(SENTENCES)]),
    "pairs": ("pairs", [{"text_a": a, "text_b": b, "label": "ab"[n % 2]} for n, (a, b) in enumerate(PAIRS)]),
    "numbers": ("regress", [{"text": t, "label": float(n)} for n, t in enumerate(SENTENCES)]),
    "entities": ("tag", TAGS),
    "word classes": ("tag", [{"tokens": row["tokens"], "tags": ["noun", "verb"]} for row in TAGS]),
    "answers": ("answer", QUESTIONS),
    "questions without answer": ("answer", [*QUESTIONS, NO_ANSWER]),
    "choices": ("choice", [{"question": a, "choices": [b, a], "answer": n % 2} for n, (a, b) in enumerate(PAIRS)]),
    "texts that belong together": ("embed", [{"query": a, "positive": b} for a, b in PAIRS]),
    "scored pairs": ("embed", [{"text_a": a, "text_b": b, "score": n / 9} for n, (a, b) in enumerate(PAIRS)]),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("model") / "bert", "BertForPreTraining")


def given(task: str, rows: list[dict[str, Any]], folder: Path) -> object:
    """Rows as they are; questions come in files."""
    if task != "answer":
        return rows
    path = folder / "questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ROWS)
def test_an_objective_names_exactly_what_it_is_judged_by(model: Path, tmp_path: Path, name: str) -> None:
    task, rows = ROWS[name]
    data = given(task, rows, tmp_path)
    made = load_task(task, model=model, train=data, dev=data, options=TaskOptions(max_length=40))
    objective: Any = made.objective
    assert made.dev is not None
    figures = objective.evaluate(objective.model, made.dev, token_budget=2000, device="cpu")
    named = set(objective.metric_names(made.dev))
    assert named == set(figures) - {"best_f1_threshold"}
    for metric in named:
        TASKS[task].check_metric(metric)  # what a run has is among what the task has


@pytest.mark.parametrize("task", TASKS)
def test_a_metric_the_task_does_not_have_is_refused_before_anything_is_read(task: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"best_metric is 'bleu'; {task} has no such metric\.\nIt has: "):
        finetune(task, train="nowhere", dev="nowhere", output=tmp_path, options=TaskOptions(best_metric="bleu"))


def test_a_metric_the_data_does_not_have_is_refused_before_training(model: Path, tmp_path: Path) -> None:
    task, rows = ROWS["three labels"]
    with pytest.raises(InputError, match=r"does not have it with this data\.\nIt has: accuracy, matthews, f1_macro"):
        finetune(task, model=model, train=rows, dev=rows, output=tmp_path / "o", options=TaskOptions(best_metric="f1"))
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("metric", ["loss", "mse"])
def test_the_lowest_loss_is_the_best(model: Path, tmp_path: Path, metric: str) -> None:
    rows = ROWS["numbers"][1]
    result = finetune(
        "regress", model=model, train=rows, dev=rows, output=tmp_path / "o", epochs=4, learning_rate=3e-3,
        options=TaskOptions(best_metric=metric, max_length=40), device="cpu", show=False,
    )  # fmt: skip
    looks = {row["step"]: row[metric] for row in read_metrics(tmp_path / "o") if row["kind"] == "dev"}
    assert len(set(looks.values())) > 1
    assert looks[result.best_step] == min(looks.values())
