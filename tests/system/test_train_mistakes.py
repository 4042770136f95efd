"""Mistakes at `bertie finetune` and `bertie pretrain`: refused at once, in the words that were typed, nothing left."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from bertie.cli.main import main
from bertie.errors import BertieError, ConfigError
from bertie.training import Settings, TaskOptions, finetune
from bertie.training.run import checkpoint as run_checkpoint
from bertie.training.run import report
from tiny_models import SENTENCES

CLASSIFY = "finetune classify -m my-bert -o out --device cpu --epochs 1"
PRETRAIN = "pretrain -o out --device cpu --size tiny --vocab-size 300 --max-length 32 --max-steps 1"
FURTHER = "pretrain -o out --device cpu --corpus texts.txt -m"


@pytest.fixture
def files(desk: Path) -> Path:
    """The mistakes that are files."""

    def rows(name: str, labels: tuple[str, ...], times: int = 1) -> None:
        made = [{"text": text * times, "label": labels[n % len(labels)]} for n, text in enumerate(SENTENCES)]
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in made), encoding="utf-8")

    rows("two.jsonl", ("bad", "good"))
    rows("three.jsonl", ("bad", "good", "odd"))
    rows("one.jsonl", ("good",))
    rows("long.jsonl", ("bad", "good"), times=50)
    Path("raw").write_text("{")  # what is wrong is told before any file is read
    Path("empty.csv").write_text("")
    Path("head.csv").write_text("text,label\n")
    Path("stars.csv").write_text("review,stars\nA film,1\nB film,2\n")
    Path("hole.csv").write_text("text,label\nA film,good\nB film,\n")
    Path("blank.txt").write_text("\n\n\n")
    Path("data.xyz").write_text("text,label\nA film,good\n")
    Path("latin.txt").write_bytes("Grüße\n".encode("latin-1"))
    Path("latin.csv").write_bytes("text,label\nGrüße,good\n".encode("latin-1"))
    Path("semicolons.csv").write_text("text;label\nA film;good\n")
    Path("nulls.jsonl").write_text('{"text": "A", "labels": ["x", "y"]}\n{"text": "B", "labels": null}\n')
    Path("odd.conll").write_text("Ada B-PER\nLovelace PER\nslept O\n")
    other = Path("other-words")  # as large a vocabulary, and two words have changed places
    shutil.copytree("my-sentiment", other)
    (other / "tokenizer.json").unlink(missing_ok=True)
    words = (other / "vocab.txt").read_text(encoding="utf-8").splitlines()
    (other / "vocab.txt").write_text("\n".join([*words[:-2], words[-1], words[-2], ""]), encoding="utf-8")
    return desk


# (arguments, what the cause says, what the remedy says)
MISTAKES = [
    # settings are named as they were typed
    (f"{CLASSIFY} --train two.jsonl --lr 0",
     "error: --lr 0: it must be above 0.", "bertie finetune classify --help"),
    (f"{CLASSIFY} --train two.jsonl --lr high", "'--lr'", "bertie finetune classify --help"),
    (f"{CLASSIFY} --train two.jsonl --batch-size 0", "--batch-size 0: it must be at least 1.", "--help"),
    (f"{CLASSIFY} --train two.jsonl --micro-batch-tokens -5", "--micro-batch-tokens -5: it must be", "--help"),
    (f"{CLASSIFY} --train two.jsonl --seed {2**63}",
     f"--seed {2**63}: it must be at least 0 and at most {2**63 - 1}.", "--help"),
    (f"{CLASSIFY} --train two.jsonl --dropout 1", "--dropout 1: it must be at least 0 and less than 1.", "--help"),
    (f"{CLASSIFY} --train two.jsonl --dev-share 2",
     "--dev-share 2: it must be at least 0 and less than 1.", "--help"),
    (f"{CLASSIFY} --train two.jsonl --dev two.jsonl --dev-share 0.5", "Both --dev and --dev-share were given", "share"),
    (f"{CLASSIFY} --train two.jsonl --max-length 4000", "--max-length 4000: it must be 4 to 48", "--help"),
    (f"{CLASSIFY} --train two.jsonl --class-weights 1,2,3", "--class-weights 1,2,3: there are 2 labels", "bad, good"),
    (f"{PRETRAIN} --corpus texts.txt --mask-probability 2", "--mask-probability 2: it must", "bertie pretrain --help"),
    (f"{FURTHER} my-bert --vocab my-bert", "Both --model and --vocab were given", "keeps"),
    (f"{PRETRAIN} --corpus texts.txt --dupe-factor 0", "--dupe-factor 0: it must be at least 1.", "--help"),
    (f"{CLASSIFY} --train two.jsonl three.jsonl", "unexpected extra argument", "--train A --train B"),
    (f"{CLASSIFY} --train two.jsonl --class-weights=-1,1", "--class-weights -1,1: weights must be finite", "--help"),
    ("finetune embed -m my-bert --train pairs.csv -o out --batch-size 1", "--batch-size 1: rows of a batch", "Larger"),
    (f"{CLASSIFY} --train two.jsonl --class-weights inf,1", "--class-weights inf,1: weights must be finite", "--help"),
    (f"{CLASSIFY} --train raw --seed 99999999999999999999",
     "--seed 99999999999999999999: it must be", "--help"),
    (f"{CLASSIFY} --train raw --warmup inf", "error: --warmup inf: it must be a finite number.", "--help"),
    (f"{FURTHER} my-bert --size base", "Both --model and --size were given", "its own"),
    ("finetune answer -m my-bert --train two.jsonl -o out --input-format conll", "--input-format conll is not known",
     "jsonl, json"),
    # what it is judged by
    (f"{CLASSIFY} --train raw --dev raw --metric f2", "--metric f2: classify has no such metric", "matthews, f1, "),
    (f"{CLASSIFY} --train raw --dev raw --metric acuracy", "--metric acuracy", "Did you mean accuracy? It has:"),
    (f"{CLASSIFY} --train three.jsonl --dev three.jsonl --metric f1", "--metric f1: classify does not", "f1_macro"),
    (f"{CLASSIFY} --train two.jsonl --metric f1", "--metric f1: there is no development data", "--dev-share."),
    (f"{CLASSIFY} --train two.jsonl --patience 2", "--patience 2: there is no development data", "--dev"),
    ("finetune regress -o out --train raw --dev raw --metric f1", "regress has no such metric", "spearman, pearson"),
    # files
    (f"{CLASSIFY} --train empty.csv", "empty.csv: is empty", "name the columns"),
    (f"{CLASSIFY} --train head.csv", "head.csv: there are no rows", "with texts and their labels"),
    (f"{CLASSIFY} --train two.jsonl --dev head.csv", "head.csv has no rows", "Check the file"),
    (f"{CLASSIFY} --train stars.csv", "which column is the label? There are: 'review', 'stars'", "--label"),
    (f"{CLASSIFY} --train stars.csv --label star", "there is no column 'star'", "'stars'"),
    (f"{CLASSIFY} --train texts.txt", "texts.txt: there is only one column, 'text'", "csv, tsv or jsonl"),
    (f"{CLASSIFY} --train hole.csv", "hole.csv, line 3: the column 'label'", "--skip-bad"),
    (f"{CLASSIFY} --train one.jsonl", "all rows have the label 'good'", "two labels"),
    (f"{CLASSIFY} --train two.jsonl --dev three.jsonl", "three.jsonl, line 3: the label 'odd'", "--skip-bad"),
    (f"{CLASSIFY} --train latin.csv", "latin.csv, line 2: byte 0xfc", "--encoding latin-1, or leave such lines out: -"),
    (
        f"{CLASSIFY} --train data.xyz",
        "data.xyz: its format cannot be recognized",
        "Give it with --input-format: one of txt",
    ),
    (f"{CLASSIFY} --train semicolons.csv", "is one column, with ';' in it", "--delimiter ';'."),
    (f"{CLASSIFY} --train two.jsonl --encoding utf-9", "'utf-9' is none of", "bertie finetune classify --help"),
    (f"{PRETRAIN} --corpus latin.txt", "latin.txt, line 1: byte 0xfc", "--encoding latin-1, or leave such lines"),
    (f"{PRETRAIN} --corpus blank.txt", "no letter was found", "are they empty?"),
    (f"{PRETRAIN} --corpus my-bert", "my-bert: this is a folder", "one text file or more"),
    (f"{PRETRAIN} --corpus texts.txt --dev none.txt", "none.txt: there is no such file", "Check the path"),
    # folders
    (f"{CLASSIFY} --train two.jsonl --resume", "no run in out to resume", "--resume out"),
    (f"{PRETRAIN} --corpus texts.txt --resume", "no run in out to resume", "--resume out"),
    ("finetune classify -m my-bert --train two.jsonl -o texts.txt", "--output texts.txt: it is a file", "folder"),
    ("finetune classify -m my-bert --train two.jsonl -o texts.txt/a", "texts.txt is a file", "another folder"),
    ("finetune classify -m my-bert --train two.jsonl -o my-ner", "a model in my-ner already", "not overwritten"),
    (f"{CLASSIFY} --train nulls.jsonl", "nulls.jsonl, line 2: the column 'labels' should be a list", "--skip-bad"),
    ("finetune tag -m my-bert --train odd.conll -o out", "odd.conll, line 2: the tag 'PER'", "Correct it: either all"),
    ("finetune tag -m my-bert --train odd.conll -o out --skip-bad", "odd.conll, line 2: the tag 'PER'", "Correct it"),
    # teachers
    (f"{CLASSIFY} --train raw --temperature 3", "--temperature 3: there is no teacher", "--teacher"),
    (f"{CLASSIFY} --train raw --distil 1 1 0 0", "--distil 1 1 0 0: there is no teacher", "--teacher"),
    (f"{PRETRAIN} --corpus texts.txt --distil 1 1 0 0", "--distil 1 1 0 0: there is no teacher", "--teacher"),
    ("pretrain -o out --corpus texts.txt --teacher my-bert --student-layers 1 --size tiny",
     "Both --student-layers and --size were given", "its own"),
    (f"{CLASSIFY} --train raw --teacher other-words", "teacher other-words has another vocabulary", "same ids"),
    (f"{CLASSIFY} --train two.jsonl --teacher my-nli", "'entailment'", "--distil 0.5 0 0 0."),
    (f"{CLASSIFY} --train two.jsonl --teacher my-sentiment --distil 0 0 0 0", "--distil 0 0 0 0: its", "--help"),
    (f"{CLASSIFY} --train raw --teacher my-sentiment --temperature 0",
     "--temperature 0: it must be above 0.", "--help"),
    ("finetune classify --train two.jsonl -o out --teacher my-sentiment --student-layers 99",
     "--student-layers 99: the teacher has 3", "--help"),
    (f"{FURTHER} other-words --teacher my-bert", "has another vocabulary", "same ids"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "cause", "remedy"), MISTAKES, ids=[case[0][:90] for case in MISTAKES])
def test_a_mistake_is_told_in_two_lines_and_leaves_nothing(
    files: Path, arguments: str, cause: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(path for path in files.rglob("*"))
    assert main(arguments.split()) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    first, last = error.strip().splitlines()[-2:]
    assert first.startswith("error: ")
    assert cause in first
    assert remedy in last
    assert sorted(path for path in files.rglob("*")) == before


def test_python_names_settings_by_their_own_names(files: Path) -> None:
    with pytest.raises(ConfigError, match=r"^learning_rate is 0\.0; it must be above 0\.$"):
        Settings(learning_rate=0.0)
    most = r"^seed is 36893488147419103232; it must be at least 0 and at most 9223372036854775807\.$"
    with pytest.raises(ConfigError, match=most):
        Settings(seed=2**65)
    weights = TaskOptions(class_weights={"good": -1.0})
    with pytest.raises(BertieError, match=r"^class_weights is \[1\.0, -1\.0\]; weights must be finite, at least 0"):
        finetune("classify", model="my-bert", train="two.jsonl", output="out", options=weights)
    with pytest.raises(BertieError, match=r"^best_metric is 'f2'; classify has no such metric\.\nIt has: accuracy, "):
        finetune("classify", train="none", dev="none", output="out", options=TaskOptions(best_metric="f2"))


def test_tensorboard_that_is_missing_is_told_before_anything_is_read(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bertie.training.run.journal.find_spec", lambda name: None)
    assert main([*CLASSIFY.split(), "--train", "raw", "--tensorboard"]) == 2
    assert "pip install 'bertie[train]'" in capsys.readouterr().err


def test_a_column_that_is_no_label_is_noticed(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(f"a text,id-{number}\n" for number in range(30))
    Path("ids.csv").write_text(f"text,label\n{rows}")
    assert main([*CLASSIFY.split(), "--train", "ids.csv"]) == 0
    assert "30 labels for 30 rows: is it the right column?" in capsys.readouterr().err


def test_texts_that_are_too_long_are_counted(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CLASSIFY.split(), "--train", "long.jsonl"]) == 0
    number = len(SENTENCES)
    assert f"{number} of {number} texts fill all 48 tokens; what goes beyond is cut off" in capsys.readouterr().err


def test_a_finished_run_is_neither_begun_anew_nor_resumed_without_its_checkpoints(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [*CLASSIFY.split(), "--train", "two.jsonl"]
    assert main(line) == 0
    for more, said in (([], "There is a run in out already"), (["--resume", "--lr", "1"], "started with --lr 3e-05")):
        assert main([*line, *more]) == 2
        assert said in capsys.readouterr().err
    shutil.rmtree("out/checkpoints")
    model = Path("out/model.safetensors").read_bytes()
    for more, said in (([], "There is a model in out already"), (["--resume"], "its checkpoints are gone")):
        assert main([*line, *more]) == 2
        assert said in capsys.readouterr().err
    assert Path("out/model.safetensors").read_bytes() == model


def test_a_folder_that_may_not_be_written_to_is_refused_before_anything_is_read(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_checkpoint.os, "access", lambda path, mode: mode == os.R_OK)  # root may write anywhere
    assert main([*CLASSIFY.split(), "--train", "raw"]) == 2
    assert "The run folder out cannot be written to" in capsys.readouterr().err


@pytest.mark.parametrize("where", ["model", "checkpoint", "metrics", "report"])
def test_a_full_disk_says_what_is_safe_and_how_to_go_on(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fail(*_: Any, **__: Any) -> Any:
        raise full

    line = [*CLASSIFY.split(), "--train", "two.jsonl", "--dev", "two.jsonl", "--log-every", "1"]
    with monkeypatch.context() as broken:
        if where == "model":
            broken.setattr("bertie.training.run.state.save_tensors", fail)
        elif where == "checkpoint":
            broken.setattr(run_checkpoint, "write_safetensors", fail)
        elif where == "metrics":
            broken.setattr("bertie.training.run.journal._keep_until", lambda path, step: path.symlink_to("/dev/full"))
        else:
            broken.setattr(report, "environment_of", fail)
        assert main(line) == 2
    error, remedy = capsys.readouterr().err.strip().splitlines()[-2:]
    assert "No space left on device" in error
    if where == "report":
        assert "The model itself is complete" in remedy
        assert main([*line, "--resume"]) == 0
        assert Path("out/report.md").exists()
        return
    assert "Nothing was saved before" in remedy
    assert "start the run again" in remedy
    assert not Path("out/config.json").exists()
    assert main(line) == 0  # with room again
