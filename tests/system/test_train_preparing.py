"""Preparing and distilling from the command line: processes, held-out data, students of a teacher."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bertie.cli.main import main
from bertie.training.run.journal import read_metrics
from tiny_models import SENTENCES

SMALL = ["--epochs", "1", "--batch-size", "4", "--max-length", "40", "--device", "cpu"]


def test_a_corpus_is_prepared_by_several_processes(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("text.txt").write_text("\n\n".join("\n".join(SENTENCES) for _ in range(9)), encoding="utf-8")
    arguments = ["pretrain", "text.txt", "--size", "tiny", "--vocab-size", "300", "--max-length", "32", "--nsp"]
    arguments += ["--dupe-factor", "2", "--max-steps", "1", "--batch-size", "8", "--device", "cpu"]
    for number in ("1", "2"):
        assert main([*arguments, "--processes", number, "-o", number]) == 0
    said = capsys.readouterr().err
    assert said.count("tokenizing (train): 9 documents, ") >= 2
    files = sorted(path.relative_to("1") for path in Path("1/data").rglob("*.bin"))
    assert len(files) == 13  # 3 of the corpus, 5 of the pairs to train on and 5 of those held out
    assert all((Path("1") / file).read_bytes() == (Path("2") / file).read_bytes() for file in files)


@pytest.mark.parametrize("task", ["tag", "answer", "embed"])
def test_a_share_is_held_out_for_every_task(desk: Path, task: str) -> None:
    if task == "tag":
        data = "\n\n".join(f"{text.split()[0]} B-PER\n{text.split()[1]} O" for text in SENTENCES) + "\n"
    else:
        rows = [
            {"id": str(n), "question": "Who?", "context": text, "answers": [{"text": text[:3], "answer_start": 0}]}
            if task == "answer"
            else {"query": text[:20], "positive": text}
            for n, text in enumerate(SENTENCES)
        ]
        data = "".join(json.dumps(row) + "\n" for row in rows)
    Path("train.conll" if task == "tag" else "train.jsonl").write_text(data, encoding="utf-8")
    name = "train.conll" if task == "tag" else "train.jsonl"
    assert main(["finetune", task, "-m", "my-bert", "--train", name, "--dev-share", "0.3", "-o", "out", *SMALL]) == 0
    assert {row["kind"] for row in read_metrics(Path("out"))} == {"train", "dev"}


def test_a_student_of_some_layers(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "pretrain",
        "texts.txt",
        "--teacher",
        "my-bert",
        "--student-layers",
        "2",
        "-o",
        "out",
        "--max-steps",
        "1",
    ]
    assert main([*command, "--max-length", "32", "--device", "cpu"]) == 0
    assert json.loads(Path("out/config.json").read_text())["num_hidden_layers"] == 2
    capsys.readouterr()
    assert main(["pretrain", "texts.txt", "--student-layers", "2", "-o", "new"]) == 2
    assert "no teacher to take them from" in capsys.readouterr().err
    rows = [{"text": text, "label": str(n % 2)} for n, text in enumerate(SENTENCES)]
    Path("train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    line = ["finetune", "classify", "--train", "train.jsonl", "--teacher", "my-nli", "--student-layers", "1"]
    assert main([*line, "--distil", "0.5", "0", "1", "0", "-o", "small", *SMALL]) == 0
    assert json.loads(Path("small/config.json").read_text())["num_hidden_layers"] == 1
