"""docs/training.md and docs/results.md stay true: commands run as they stand there, on the files that the page shows.

The table of results is that of the saved result.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.finetune import table_of

from bertie.cli.main import main
from bertie.text import train_vocabulary
from tiny_models import SENTENCES, tiny

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"Here `([\w.-]+)`:\n\n```text\n(.*?)```", PAGE, re.DOTALL))
BLOCKS = [
    [line.removeprefix("$ ") for line in block.splitlines()]
    for block in re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
]


def needs_a_gpu(line: str) -> bool:
    return "--compile" in line.split()


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's files, a dev file beside each, and the two checkpoints its commands begin with."""
    for name, text in FILES.items():
        stem, dot, ending = name.partition(".")
        for each in (name, f"{stem}-dev{dot}{ending}"):
            (tmp_path / each).write_text(text, encoding="utf-8")
    tokenizer = train_vocabulary(SENTENCES * 3, vocab_size=300, min_frequency=1)
    for name, layers in (("my-bert", 2), ("my-small-bert", 1)):
        sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 512, "num_hidden_layers": layers}
        tiny("BertForPreTraining", **sizes).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_page_shows_every_task_and_both_ways_to_pretrain() -> None:
    lines = [line for block in BLOCKS for line in block]
    for task in ("classify", "pairs", "regress", "tag", "answer", "choice", "embed"):
        assert any(line.startswith(f"bertie finetune {task} ") for line in lines), task
    assert {"--nsp" in line for line in lines if line.startswith("bertie pretrain ")} == {True, False}


def test_every_command_of_the_page_runs(
    desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """But for those that need a shell or torchrun, which the slow test below runs too."""
    for block in BLOCKS:
        if not all(line.startswith("bertie ") for line in block):
            continue
        for line in block:
            if needs_a_gpu(line):
                continue
            words = shlex.split(line)
            monkeypatch.setattr(sys, "argv", words)  # what the report shows
            code = main(words[1:])
            said = capsys.readouterr()
            assert code == 0, f"{line}\n{said.err}"
            if "-o" in words:
                output = desk / words[words.index("-o") + 1]
                assert line in (output / "report.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_every_block_of_the_page_runs_in_a_shell(desk: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for block in BLOCKS:
        script = "\n".join(line for line in block if not needs_a_gpu(line))
        command = ["bash", "-euo", "pipefail", "-c", script]
        result = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PATH": path}, timeout=300)
        assert result.returncode == 0, f"{script}\n{result.stdout}{result.stderr}"


def test_the_table_of_results_is_that_of_the_saved_result() -> None:
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    command = re.search(r"python -m benchmarks\.finetune --table (\S+\.json)", page)
    assert command is not None
    assert table_of(ROOT / command[1]) in page, f"paste the output of: {command[0]}"
