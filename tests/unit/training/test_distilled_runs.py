"""Runs with a teacher: another one is noticed when they are resumed, and students are cut out of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fitting import BAD, GOOD

from bertie.errors import ConfigError, InputError
from bertie.model import BertForMaskedLM, BertForSequenceClassification
from bertie.training import PretrainOptions, Settings, TaskOptions, finetune, pretrain
from bertie.training.distillation import Weights
from bertie.training.registry import load_task
from tiny_models import SENTENCES, saved

ROWS = [{"text": text, "label": str(int(text in GOOD))} for text in GOOD + BAD]
LABELS = {"id2label": {0: "0", 1: "1"}}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(("student", "teacher", "other")):
        saved(folder / name, "BertForSequenceClassification", seed=seed, **LABELS)
    saved(folder / "wider", "BertForSequenceClassification", seed=1, hidden_dropout_prob=0.3, **LABELS)
    saved(folder / "masked", "BertForPreTraining", seed=1)
    return folder


def run(models: Path, output: Path, *, resume: bool = False, teacher: str | None = "teacher", **changes: Any) -> Any:
    return finetune(
        "classify", model=models / "student", train=ROWS, output=output, resume=resume, device="cpu", show=False,
        teacher=None if teacher is None else models / teacher, settings=Settings(epochs=1, batch_size=4, save_every=1),
        **changes,
    )  # fmt: skip


def test_a_run_is_resumed_with_its_own_teacher_alone(models: Path, tmp_path: Path) -> None:
    run(models, tmp_path / "run")
    run(models, tmp_path / "run", resume=True)
    for changes, message in (
        ({"teacher": "other"}, "started with another teacher: its configuration or weights differ"),
        ({"teacher": "wider"}, "started with another teacher: its configuration or weights differ"),
        ({"teacher": None}, "started with a teacher; now it is without one"),
        ({"distillation": Weights(task=0.4, logits=0.6)}, r"distillation weights .*'task': 0\.5.*'task': 0\.4"),
        ({"temperature": 3.0}, r"temperature 2\.0; now it is 3\.0"),
    ):
        with pytest.raises(ConfigError, match=message + r"[\s\S]*Resume with the same teacher"):
            run(models, tmp_path / "run", resume=True, **changes)


def test_a_run_without_teacher_is_not_resumed_with_one(models: Path, tmp_path: Path) -> None:
    run(models, tmp_path / "run", teacher=None)
    with pytest.raises(ConfigError, match="started without a teacher; now it is with one"):
        run(models, tmp_path / "run", resume=True)


def test_checkpoints_from_before_still_resume(models: Path, tmp_path: Path) -> None:
    import hashlib

    run(models, tmp_path / "run")
    for folder in (tmp_path / "run" / "checkpoints").iterdir():
        state = json.loads((folder / "state.json").read_text())
        assert state.pop("deciding")["temperature"] == 2.0
        (folder / "state.json").write_text(json.dumps(state))
        manifest = json.loads((folder / "manifest.json").read_text())
        content = (folder / "state.json").read_bytes()
        manifest["files"]["state.json"] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        (folder / "manifest.json").write_text(json.dumps(manifest))
    run(models, tmp_path / "run", resume=True)


def test_a_student_begins_as_evenly_spaced_layers_of_its_teacher(models: Path) -> None:
    ready = load_task("classify", model=models / "teacher", train=ROWS, num_layers=2)
    teacher = BertForSequenceClassification.from_pretrained(models / "teacher")
    student = ready.objective.model
    assert student.config.num_hidden_layers == 2
    ours, theirs = student.state_dict(), teacher.state_dict()
    for layer, its in ((0, 1), (1, 2)):  # the second and the third of three
        name = "bert.encoder.layer.{}.attention.self.query.weight"
        assert torch.equal(ours[name.format(layer)], theirs[name.format(its)])
    for name in ("bert.embeddings.word_embeddings.weight", "classifier.weight"):
        assert torch.equal(ours[name], theirs[name])


@pytest.mark.parametrize("task", ["classify", "embed"])
def test_fine_tuning_a_teachers_layers(models: Path, tmp_path: Path, task: str) -> None:
    rows = ROWS if task == "classify" else [{"query": a, "positive": b} for a, b in zip(GOOD, BAD, strict=True)]
    hidden = Weights(logits=0.0, hidden=1.0) if task == "embed" else None
    finetune(
        task, train=rows, output=tmp_path / "run", teacher=models / "teacher", student_layers=2, device="cpu",
        distillation=hidden, settings=Settings(max_steps=1, batch_size=4), show=False, options=TaskOptions(),
    )  # fmt: skip
    assert json.loads((tmp_path / "run" / "config.json").read_text())["num_hidden_layers"] == 2
    report = (tmp_path / "run" / "report.md").read_text(encoding="utf-8")
    assert f"2 layers of {models / 'teacher'}" in report


def test_pretraining_a_teachers_layers(models: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n\n".join("\n".join(SENTENCES) for _ in range(4)), encoding="utf-8")
    pretrain(
        corpus=tmp_path / "text.txt", output=tmp_path / "run", teacher=models / "masked", student_layers=1,
        settings=Settings(max_steps=1, batch_size=2, learning_rate=1e-9, warmup=0), device="cpu", show=False,
        options=PretrainOptions(max_length=32),
    )  # fmt: skip
    student = BertForMaskedLM.from_pretrained(tmp_path / "run")
    teacher = BertForMaskedLM.from_pretrained(models / "masked")
    assert student.config.num_hidden_layers == 1
    torch.testing.assert_close(
        student.bert.encoder.layer[0].output.dense.weight, teacher.bert.encoder.layer[2].output.dense.weight
    )


def test_students_that_cannot_be(models: Path, tmp_path: Path) -> None:
    def taught(**changes: Any) -> None:
        finetune("classify", train=ROWS, output=tmp_path / "run", device="cpu", show=False, **changes)

    with pytest.raises(InputError, match="no teacher to take them from"):
        taught(student_layers=2)
    with pytest.raises(InputError, match="Both model and student_layers"):
        taught(student_layers=2, teacher=models / "teacher", model=models / "student")
    with pytest.raises(ConfigError, match="num_layers is 7; the teacher has 3 layers"):
        taught(student_layers=7, teacher=models / "teacher")
    with pytest.raises(InputError, match="no teacher to take them from"):
        pretrain(corpus=tmp_path / "none.txt", output=tmp_path / "run", student_layers=2)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"options": TaskOptions(label_smoothing=0.1)}, r"label_smoothing=0\.0; now it is 0\.1"),
        ({"options": TaskOptions(class_weights="balanced")}, "class_weights=None; now it is 'balanced'"),
        ({"dropout": 0.3}, r"dropout=None; now it is 0\.3"),
    ],
)
def test_a_run_is_not_resumed_with_other_options(
    models: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    run(models, tmp_path / "run", teacher=None)
    run(models, tmp_path / "run", teacher=None, resume=True)
    with pytest.raises(ConfigError, match=message):
        run(models, tmp_path / "run", teacher=None, resume=True, **changes)


def test_pretraining_is_not_resumed_with_other_masks(models: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n\n".join("\n".join(SENTENCES) for _ in range(4)), encoding="utf-8")

    def pretrained(*, resume: bool = False, **options: Any) -> None:
        pretrain(
            corpus=corpus, output=tmp_path / "run", model=models / "masked", resume=resume, device="cpu", show=False,
            settings=Settings(max_steps=2, batch_size=4, save_every=1, evaluate_every=1),
            options=PretrainOptions(max_length=32, **options),
        )  # fmt: skip

    pretrained()
    pretrained(resume=True)
    with pytest.raises(ConfigError, match=r"mask_probability=0\.15; now it is 0\.3"):
        pretrained(resume=True, mask_probability=0.3)


def test_a_dev_file_and_a_share_are_one_too_many(models: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Both dev and dev_share were given"):
        run(models, tmp_path / "run", teacher=None, dev=ROWS, options=TaskOptions(dev_share=0.5))


def test_a_vocabulary_may_have_any_name(tmp_path: Path) -> None:
    corpus, words = tmp_path / "corpus.txt", tmp_path / "words.txt"
    corpus.write_text("\n\n".join("\n".join(SENTENCES) for _ in range(4)), encoding="utf-8")
    letters = [*"abcdefghijklmnopqrstuvwxyz.,'!?"]
    words.write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{x}" for x in letters)]),
        encoding="utf-8",
    )
    pretrain(
        corpus=corpus, output=tmp_path / "run", size="tiny", device="cpu", show=False,
        settings=Settings(max_steps=1, batch_size=2), options=PretrainOptions(vocab=words, max_length=32),
    )  # fmt: skip
    assert (tmp_path / "run" / "vocab.txt").read_text(encoding="utf-8").split() == words.read_text(
        encoding="utf-8"
    ).split()


def test_a_head_made_anew_is_said(models: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n\n".join("\n".join(SENTENCES) for _ in range(4)), encoding="utf-8")
    pretrain(
        corpus=corpus, output=tmp_path / "run", model=models / "student", device="cpu", show=False,
        settings=Settings(max_steps=1, batch_size=2), options=PretrainOptions(max_length=32),
    )  # fmt: skip
    report = (tmp_path / "run" / "report.md").read_text(encoding="utf-8")
    assert "weights are not in the checkpoint and start from random numbers" in report
    assert "cls.predictions" in report
