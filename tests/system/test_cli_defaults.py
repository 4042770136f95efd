"""`bertie fill`, `next` and `features` without -m: the default model answers, is named in the help, and is missed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from bertie.cli.main import cli, main
from bertie.defaults import default_embedding_model
from bertie.tasks.features import features
from bertie.tasks.fill import fill
from bertie.tasks.next_sentence import next_sentence
from system.workshop import STAND_IN

# A command, and arguments that it answers.
COMMANDS = {
    "fill": ["A [MASK] dog."],
    "next": ["She opened the door.", "Nobody expected it."],
    "features": ["a dog", "--layers", "-1"],
}


@pytest.fixture
def answered(desk: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command; its only JSON line."""

    def run(*arguments: str) -> dict[str, Any]:
        assert main(list(arguments)) == 0, capsys.readouterr().err
        captured = capsys.readouterr()
        assert captured.err == ""
        (line,) = captured.out.splitlines()
        row: dict[str, Any] = json.loads(line)
        return row

    return run


@pytest.mark.parametrize("name", COMMANDS)
def test_without_a_model_the_default_one_answers(name: str, answered: Any) -> None:
    found = answered(name, *COMMANDS[name])
    assert found == answered(name, *COMMANDS[name], "-m", STAND_IN)
    assert found != answered(name, *COMMANDS[name], "-m", "my-bert")


def test_the_commands_say_what_the_tasks_say(answered: Any) -> None:
    told = fill("A [MASK] dog.")
    found = answered("fill", "A [MASK] dog.")
    assert [one["token"] for one in found["masks"][0]] == [one.token for one in told.candidates]
    assert len(found["fillings"]) == 5
    pair = COMMANDS["next"]
    assert answered("next", *pair)["probability"] == pytest.approx(next_sentence(*pair).probability)
    found = answered("features", *COMMANDS["features"])
    assert found["features"] == features("a dog", layers=[-1]).to_google_json()["features"]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_names_the_default_and_begins_without_a_model(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Folder or hub name of the model. [default: bertie-mini]" in shown
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    first, *others = [line for line in (command.epilog or "").splitlines() if "bertie " in line]
    assert " -m " not in first
    assert any(" -m " in line for line in others)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_default_that_is_missing_is_explained(
    name: str, desk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertie.defaults.LANGUAGE_MODEL", desk / "bertie-mini")
    assert main([name, *COMMANDS[name]]) == 2
    captured = capsys.readouterr()
    cause, remedy = captured.err.splitlines()
    assert captured.out == ""
    assert "the default one (bertie-mini) is not in this installation" in cause
    assert "name a model" in remedy
    assert main([name, *COMMANDS[name], "-m", "my-bert"]) == 0


def test_doctor_shows_both_defaults(
    desk: Path, workshop: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def facts() -> dict[str, str]:
        assert main(["doctor", "--json"]) == 0
        told: dict[str, str] = json.loads(capsys.readouterr().out)
        return told

    found = facts()
    assert found["default model"] == f"all-MiniLM-L6-v2 at {default_embedding_model()}"
    assert found["default language model"] == f"bertie-mini (fill, next, features) at {workshop / STAND_IN}"
    monkeypatch.setattr("bertie.defaults.LANGUAGE_MODEL", desk / "bertie-mini")
    assert facts()["default language model"].startswith("not installed. Install bertie again, or name a model")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_commands_and_options_are_completed(shell: str) -> None:
    """What docs/howto.md has users put into their shell's start-up file."""
    words = {"bash": ("bertie em", "1"), "zsh": ("bertie em", "1"), "fish": ("em", "")}[shell]
    asked = {"_BERTIE_COMPLETE": f"{shell}_complete", "COMP_WORDS": words[0], "COMP_CWORD": words[1]}
    run = [sys.executable, "-m", "bertie"]
    script = subprocess.run(
        run, env={**os.environ, "_BERTIE_COMPLETE": f"{shell}_source"}, capture_output=True, text=True
    )
    assert "_BERTIE_COMPLETE" in script.stdout
    found = subprocess.run(run, env={**os.environ, **asked}, capture_output=True, text=True)
    assert "embed" in found.stdout
