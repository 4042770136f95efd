"""`bertie finetune` and `bertie pretrain` as a user meets them: every task, reports, mistakes, interruptions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest

import bertie
from bertie.cli.commands.training.finetune import LINES
from bertie.cli.commands.training.finetune import command as finetune_group
from bertie.cli.main import main
from bertie.training.run.journal import read_metrics
from system.workshop import SQUAD
from tiny_models import SENTENCES

SMALL = ["--epochs", "1", "--batch-size", "4", "--max-length", "40", "--device", "cpu"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Training data for every task."""
    folder = tmp_path_factory.mktemp("files")

    def rows(name: str, made: list[dict[str, Any]]) -> None:
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in made), encoding="utf-8")

    rows("classify.jsonl", [{"text": text, "label": ("bad", "good")[n % 2]} for n, text in enumerate(SENTENCES)])
    pairs = list(zip(SENTENCES, SENTENCES[1:] + SENTENCES[:1], strict=True))
    rows("pairs.jsonl", [{"text_a": a, "text_b": b, "label": ("no", "yes")[n % 2]} for n, (a, b) in enumerate(pairs)])
    rows("regress.jsonl", [{"text_a": a, "text_b": b, "label": n / 2} for n, (a, b) in enumerate(pairs)])
    rows("embed.jsonl", [{"text_a": a, "text_b": b} for a, b in pairs])
    rows("choice.jsonl", [{"question": a, "choices": [b, a], "label": n % 2} for n, (a, b) in enumerate(pairs)])
    conll = "\n\n".join(f"{a.split()[0]} B-PER\n{a.split()[1]} O\n{a.split()[2]} O" for a in SENTENCES)
    (folder / "tag.conll").write_text(conll + "\n", encoding="utf-8")
    (folder / "answer.json").write_text(json.dumps(SQUAD), encoding="utf-8")
    (folder / "text.txt").write_text("\n\n".join("\n".join(SENTENCES) for _ in range(4)), encoding="utf-8")
    return folder


@pytest.mark.parametrize("task", [*LINES, "pretrain"])
def test_files_are_read_in_the_encoding_that_is_named(desk: Path, files: Path, task: str) -> None:
    source = files / "text.txt" if task == "pretrain" else Path(train_file(files, task))
    data = f"wide{source.suffix}"
    Path(data).write_text(source.read_text(encoding="utf-8"), encoding="utf-16")
    line = ["pretrain", "--corpus", data, "--size", "tiny", "--vocab-size", "300"]
    if task != "pretrain":
        line = ["finetune", task, "-m", "my-bert", "--train", data]
    line += ["-o", "out", "--max-steps", "1", *SMALL]
    assert main(line) == 2
    assert main([*line, "--encoding", "utf-16"]) == 0


def test_columns_are_separated_by_what_is_named(desk: Path) -> None:
    rows = "".join(f"{text}|{('bad', 'good')[n % 2]}\n" for n, text in enumerate(SENTENCES))
    Path("a.csv").write_text(f"text|label\n{rows}")
    line = ["finetune", "classify", "-m", "my-bert", "--train", "a.csv", "-o", "out", *SMALL]
    assert main([*line, "--delimiter", "|"]) == 0


def train_file(files: Path, task: str) -> str:
    endings = {"tag": "tag.conll", "answer": "answer.json"}
    return str(files / endings.get(task, f"{task}.jsonl"))


@pytest.mark.parametrize("task", LINES)
def test_every_task_is_trained_from_its_files(desk: Path, files: Path, task: str) -> None:
    data = train_file(files, task)
    assert main(["finetune", task, "-m", "my-bert", "--train", data, "--dev", data, "-o", "out", *SMALL]) == 0
    assert {row["kind"] for row in read_metrics(Path("out"))} == {"train", "dev"}
    report = Path("out/report.md").read_text(encoding="utf-8")
    assert "| metric (dev) | value |" in report
    assert "bertie" in report
    assert Path("out/curves.png").stat().st_size > 1000
    if task == "embed":  # no pooler in it: loading it as a plain model would warn
        assert main(["embed", "-m", "out", "hello"]) == 0
        again = ["finetune", task, "-m", "my-bert", "--train", data, "-o", "twice", *SMALL]
        assert main(again) == 0
        assert main([*again, "--resume"]) == 0  # ends again; its folders are replaced
        assert main(["embed", "-m", "twice", "hello"]) == 0
        return
    loaded = bertie.load("out")
    assert type(loaded).__name__ == json.loads(Path("out/config.json").read_text())["architectures"][0]


def test_a_trained_classifier_answers_with_its_labels(
    desk: Path, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["finetune", "classify", "-m", "my-bert", "--train", train_file(files, "classify"), "-o", "o", *SMALL])
        == 0
    )
    capsys.readouterr()
    assert main(["classify", "-m", "o", "A fine film."]) == 0
    assert json.loads(capsys.readouterr().out)["label"] in ("bad", "good")


@pytest.mark.parametrize("way", [[], ["--nsp", "--dupe-factor", "2"]], ids=["masked words", "with next sentences"])
def test_a_model_is_pretrained_from_raw_text(
    desk: Path, files: Path, way: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--size", "tiny", "--vocab-size", "300", "--max-length", "32", "--max-steps", "3", "--batch-size", "8"]
    assert main(["pretrain", "--corpus", str(files / "text.txt"), "-o", "new", *arguments, *way]) == 0
    assert Path("new/vocab.txt").exists()
    assert "mlm_accuracy" in capsys.readouterr().out
    assert type(bertie.load("new")).__name__ == ("BertForPreTraining" if way else "BertForMaskedLM")
    again = [
        "pretrain",
        str(files / "text.txt"),
        "--corpus",
        "texts.txt",
        "-m",
        "new",
        "-o",
        "more",
        "--max-length",
        "32",
    ]
    assert main([*again, "--max-steps", "1", "--batch-size", "8", *way]) == 0


def test_a_student_learns_from_a_teacher(desk: Path, files: Path) -> None:
    data = train_file(files, "classify")
    assert main(["finetune", "classify", "-m", "my-bert", "--train", data, "-o", "teacher", *SMALL]) == 0
    taught = ["finetune", "classify", "-m", "my-bert", "--train", data, "-o", "student", "--teacher", "teacher", *SMALL]
    assert main([*taught, "--distil", "0.5", "0.5", "1", "0"]) == 0
    assert main(["pretrain", "--corpus", "texts.txt", "-m", "my-bert", "--teacher", "my-bert", "-o", "distilled",
                 "--max-steps", "2", "--max-length", "32"]) == 0  # fmt: skip


def test_tensorboard_files_are_written(desk: Path, files: Path) -> None:
    pytest.importorskip("tensorboard")
    data = train_file(files, "classify")
    command = ["finetune", "classify", "-m", "my-bert", "--train", data, "-o", "out", "--tensorboard", *SMALL]
    assert main(command) == 0
    assert any(path.name.startswith("events") for path in Path("out/tensorboard").iterdir())


@pytest.mark.parametrize(
    ("arguments", "cause", "remedy"),
    [
        ("finetune classify -m my-bert --train none.csv -o out", "none.csv", ""),
        ("finetune classify -m my-bert --train texts.csv -o out", "label", ""),
        ("finetune classify -m my-bert -o out", "--train", "--help"),
        ("finetune classify -m my-bert --train {classify}", "--output", "--help"),
        ("finetune sort -m my-bert", "sort", "--help"),
        ("finetune classify -m my-bert --train {classify} -o out --lr 0", "--lr 0: it must be above", "--help"),
        ("finetune classify -m my-bert --train {classify} -o out --resume", "no run in out", "--resume"),
        ("finetune classify -m my-bert --train {classify} -o out --device cuda:7", "cuda:7", "--device cpu"),
        ("finetune classify -m my-bert --train {classify} -o out --shard", "one alone", "torchrun"),
        ("finetune classify -m my-bert --train {classify} -o out --class-weights a,b", "'a,b'", "balanced"),
        ("pretrain -o out", "No corpus was given", "--corpus"),
        ("pretrain --corpus none.txt -o out", "none.txt: there is no such file", "Check the path"),
        ("pretrain --corpus texts.txt -o out --vocab-size 20", "too small", "larger"),
        ("pretrain --corpus texts.txt -o out -m my-bert --max-length 64", "--max-length 64: my-bert takes", "--help"),
    ],
)  # fmt: skip
def test_mistakes_are_explained(
    desk: Path, files: Path, arguments: str, cause: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = arguments.format(classify=train_file(files, "classify"))
    assert main(line.split()) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    first, last = error.strip().splitlines()[-2:]
    assert first.startswith("error: ")
    assert cause in first
    assert remedy in last
    if "none." in line:
        assert not (desk / "out").exists(), "something was begun"


@pytest.mark.parametrize("task", LINES)
def test_help_explains_every_option_of_every_task(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["finetune", task, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Example" in shown
    assert max(map(len, shown.splitlines())) <= 80
    found = finetune_group.get_command(click.Context(finetune_group), task)
    assert found is not None
    for option in found.params:
        assert isinstance(option, click.Option)
        assert option.help, option.name
        if not option.is_flag and not option.required and option.default is None and option.name != "dev":
            assert "default" in option.help, f"{task} {option.name}: what if it is left out?"


def test_ctrl_c_saves_and_says_how_to_go_on(desk: Path, files: Path) -> None:
    line = ["finetune", "classify", "-m", "my-bert", "--train", train_file(files, "classify"), "-o", "out",
            "--epochs", "100000", "--batch-size", "2", "--log-every", "1"]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "bertie", *line],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
    )
    try:
        until = time.monotonic() + 60
        while not read_metrics(Path("out")) and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            process.kill()
    assert process.returncode == 130
    assert "everything is saved in out" in error
    assert "Continue with: bertie finetune classify" in error
    assert error.strip().endswith("--resume")
    assert any(Path("out/checkpoints").iterdir())
