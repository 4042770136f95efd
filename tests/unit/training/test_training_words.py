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
from bertie.cli.support.training_words import typed
from bertie.training import PretrainOptions, Settings, TaskOptions

OPTIONS = {
    str(param.name): param
    for command in (*finetune.commands.values(), pretrain)
    for param in command.params
    if isinstance(param, click.Option)
}


@pytest.mark.parametrize(
    ("said", "typed_as"),
    [
        ("learning_rate is 0.0; it must be above 0.", "--lr 0: it must be above 0."),
        ("optimizer is 'sgd'. It takes one of: adamw.", "--optimizer sgd. It takes one of: adamw."),
        ("loss='cosine' needs a score.", "--loss cosine needs a score."),
        ("Go on with it with resume=True, or not.", "Go on with it with --resume, or not."),
        ("Say so: encoding='utf-16'.", "Say so: --encoding utf-16."),
        ("If that separates them: delimiter=';'.", "If that separates them: --delimiter ';'."),
        ("Leave such rows out: skip_bad=True (--skip-bad).", "Leave such rows out: --skip-bad."),
        ("Name its column: label=, or stop.", "Name its column: --label, or stop."),
        ("The run was started with ema=0.5; now it is 0.0.", "The run was started with --ema 0.5; now it is 0.0."),
        ("It was started with max_steps=None.", "It was started with no --max-steps."),
        ("It was started with whole_words=False.", "It was started with no --whole-words."),
        ("It was started with nsp=False.", "It was started with --no-nsp."),
        ("Use micro_batch_tokens=512, or less.", "Use --micro-batch-tokens 512, or less."),
        ("Try a lower learning_rate, more warmup.", "Try a lower --lr, more warmup."),
        ("Both model and vocab were given.", "Both --model and --vocab were given."),
        ("class_weights is [1.0, 2.5]; there are 3.", "--class-weights 1,2.5: there are 3."),
        # words, names of columns and files stay
        ("The loss is high and the scale of it, too.", "The loss is high and the scale of it, too."),
        ("there is no column 'max_length'; there are: 'text'.", "there is no column 'max_length'; there are: 'text'."),
        ("data/batch_size.csv: a folder.", "data/batch_size.csv: a folder."),
        ("batch_size.csv, line 3: label is wrong.", "batch_size.csv, line 3: label is wrong."),
        ("my_max_length_file: empty.", "my_max_length_file: empty."),
    ],
)  # fmt: skip
def test_settings_become_options(said: str, typed_as: str) -> None:
    assert typed(said, OPTIONS) == typed_as


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
