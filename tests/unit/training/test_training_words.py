"""Settings in the words that were typed, and the help of the training commands."""

from __future__ import annotations

import re
from dataclasses import fields

import click
import pytest

from bertie.cli.commands.training.finetune import LINES
from bertie.cli.commands.training.finetune import command as finetune
from bertie.cli.commands.training.pretrain import command as pretrain
from bertie.cli.main import main
from bertie.cli.support.training_help import SECTIONS
from bertie.training import PretrainOptions, Settings, TaskOptions

OPTIONS = {
    str(param.name): param
    for command in (*finetune.commands.values(), pretrain)
    for param in command.params
    if isinstance(param, click.Option)
}


def test_every_setting_that_can_be_typed_is_called_the_same_in_python() -> None:
    python = {field.name for kind in (Settings, TaskOptions, PretrainOptions) for field in fields(kind)}
    arguments = {"train", "corpus", "dev", "model", "output", "resume", "device", "teacher", "student_layers"}
    columns = {"column", "columns", "label", "glue", "input_format", "delimiter", "encoding"}
    assert set(OPTIONS) - python - arguments - columns - {"distil"} == set()


@pytest.mark.parametrize("line", [*(f"finetune {task}" for task in LINES), "pretrain"])
@pytest.mark.parametrize("width", [80, 120])
def test_help_has_sections_that_fit_the_screen(
    line: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert main([*line.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= width
    titles = [each[:-1] for each in shown.splitlines() if each.endswith(":") and not each.startswith(" ")]
    assert titles == [title for title in SECTIONS if title in titles]
    assert titles[0] == "Most used"
    assert len(titles) >= 7
    first = shown.partition("Most used:")[2].partition("\n\n")[0]
    assert all(option in first for option in ("-o, --output", "-m, --model", "--lr", "--epochs", "--resume", "--help"))
    command = pretrain if line == "pretrain" else finetune.commands[line.split()[1]]
    for param in command.params:
        if isinstance(param, click.Option):
            assert len(re.findall(rf"\n  {', '.join(param.opts)}(?=[ \n])", shown)) == 1, f"{param.name}: not once"
    assert "RANGE" not in shown
    assert "x>=" not in shown


def test_every_option_has_a_section() -> None:
    placed = [name for names in SECTIONS.values() for name in names]
    assert len(placed) == len(set(placed))
    assert set(placed) == {*OPTIONS, "help"}
