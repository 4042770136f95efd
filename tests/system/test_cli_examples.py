"""Help that teaches: every command explains all it takes, and every example it shows runs."""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from bertie.cli.main import COMMANDS, EXAMPLES, cli, main

CONTEXT = click.Context(cli)


def command(name: str) -> click.Command:
    found = cli.get_command(CONTEXT, name)
    assert found is not None
    return found


def examples(name: str) -> list[str]:
    epilog = command(name).epilog or ""
    return [line.strip() for line in epilog.splitlines() if "bertie " in line]


def run(line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What a line of a shell writes to its standard output: `echo … |` or `cat FILE |` before, `| jq …` or `> FILE`
    after."""
    before, _, rest = line.partition("bertie ")
    if before:
        verb, given = shlex.split(before.rstrip("| "))
        text = f"{given}\n" if verb == "echo" else Path(given).read_text(encoding="utf-8")
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8"))
    arguments = shlex.split(re.split(r" [|>] ", rest)[0])
    code = main(arguments)
    captured = capsys.readouterr()
    assert code == 0, f"{line}\n{captured.err}"
    assert not re.search(r"^(error|note):", captured.err, re.MULTILINE), captured.err
    if "-o" in arguments:
        assert Path(arguments[arguments.index("-o") + 1]).exists()
    else:
        assert captured.out.strip(), line
    return captured.out


# These need a server that runs on (test_serve_client.py, test_explore_command.py), train for minutes
# (test_train_commands.py), or measure times (unit/compression/test_compressing.py).
ELSEWHERE = ("serve", "client", "explore", "finetune", "pretrain", "compress")


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ELSEWHERE])
def test_every_example_of_the_help_runs(
    name: str, desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = examples(name)
    assert lines, f"{name} shows no example"
    if name == "convert":
        assert main(["convert", "my-bert", "uncased_L-12_H-768_A-12", "--to", "tf"]) == 0
        capsys.readouterr()
        (desk / "my-bert").rename(desk / "moved")
    if name == "inspect":
        assert main(["convert", "my-bert", "uncased_L-12_H-768_A-12", "--to", "tf"]) == 0
    if name == "search":
        assert main(["index", "corpus.jsonl", "-o", "./index"]) == 0
    for line in lines:
        if name == "index" and "corpus.csv" in line:
            line = line.replace("./index", "./index-csv")
        run(line, monkeypatch, capsys)


def test_the_examples_of_the_front_page_run(
    desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in EXAMPLES.values():
        if line.split()[1] in ELSEWHERE:
            continue
        run(line, monkeypatch, capsys)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_explains_every_option_and_fits_the_screen(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Example" in shown
    assert max(map(len, shown.splitlines())) <= 80
    for parameter in command(name).params:
        if not isinstance(parameter, click.Option):
            continue
        assert parameter.help, f"{name} {parameter.opts[0]} is not explained"
        if not parameter.is_flag and not parameter.required and parameter.default is None:
            told = "default" in parameter.help or "Needed" in parameter.help
            own = {"file", "output", "labels", "context", "context_file", "predictions"}  # nothing, unless given
            assert told or parameter.name in own, f"{name} {parameter.opts[0]}: what if it is left out?"


def test_the_front_page_lists_every_command_in_its_section(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert [line for line in shown.splitlines() if line.endswith(":") and line[0] != " "] == [
        "Options:", "Answers:", "Training:", "Checkpoints:", "Serving:", "This machine:",
    ]  # fmt: skip
    for name in COMMANDS:
        assert re.search(rf"^  {name} ", shown, re.MULTILINE)


def test_files_and_folders_are_checked_before_torch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("a text\n")
    lines = [
        "embed -f gone.txt",
        "embed -f texts.txt -o gone/vectors.npy",
        "index gone.jsonl -o index",
        "search gone hello",
        "bulk embed gone.txt out",
        "finetune classify --train gone.csv -o out",
        "answer -m my-squad -f texts.txt --predictions gone/out.json",
        "explore a[MASK] -o gone/page.html",
    ]
    code = "import sys; from bertie.cli.main import main\n"
    code += f"print([main(line.split()) for line in {lines!r}], 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == f"{[2] * len(lines)} False", done.stderr
    assert done.stderr.count("here is no ") == len(lines), done.stderr


def test_help_starts_without_torch_and_rich_and_at_once(record_property: pytest.RecordProperty) -> None:
    code = (
        "import sys; from bertie.cli.main import main; main(['--help']); print([m for m in ('torch', 'rich', 'numpy') "
    )
    code += "if m in sys.modules])"
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        seconds.append(time.perf_counter() - started)
        assert result.stdout.splitlines()[-1] == "[]"
    record_property("seconds", min(seconds))
    print(f"bertie --help: {min(seconds):.2f} s")
    assert min(seconds) <= 0.3 * 2  # 0.3 s on a quiet machine; tests run beside each other
