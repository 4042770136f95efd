"""Every command of the README and of docs/ runs, one page after another, and prints what the page shows.

consoles.py says how pages show output. docs/training.md has files and a test of its own, test_docs_training.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bertie.defaults import default_embedding_model
from scripts.course import same_output
from system.consoles import BLOCK, Command, Shell, commands, served

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "docs" / "course" / "en" / "index.md"]
# What a test has not: then the command and its options are checked (test_docs.py).
REASONS = {"it installs packages", "it needs a GPU", "it needs a cluster", "it takes hours"}
TEXTS = ["Salmon return to the stream they hatched in.", "Stamps were printed in 1840.", "Bats listen for echoes."]


def all_commands(page: Path) -> list[Command]:
    return list(commands(page.read_text(encoding="utf-8")))


@pytest.fixture
def shell(
    workshop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Shell]:
    """In a folder with the models and files that the pages name."""
    for source in workshop.iterdir():
        (tmp_path / source.name).symlink_to(source)
    (tmp_path / "minilm").symlink_to(default_embedding_model())
    rows = "".join(json.dumps({"id": n, "text": text}) + "\n" for n, text in enumerate(TEXTS))
    (tmp_path / "texts.jsonl").write_text(rows, encoding="utf-8")
    labelled = [f"{text}\t{label}" for text in TEXTS * 4 for label in ("positive", "negative")]
    (tmp_path / "dev.tsv").write_text("\n".join(["sentence\tlabel", *labelled]) + "\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("webbrowser.open", lambda page: True)
    opened = Shell(monkeypatch, capsys)
    yield opened
    opened.close()


RUN_HERE = [page for page in PAGES if page.name != "training.md" and any(not c.reason for c in all_commands(page))]
SLOW = {"compress.md", "serve.md"}  # one measures times, the other starts a server ten times


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=page.name, marks=pytest.mark.slow if page.name in SLOW else ()) for page in RUN_HERE],
)
def test_commands_run_and_print_what_is_shown(page: Path, shell: Shell) -> None:
    for command in all_commands(page):
        if command.reason is None and not (command.text == "bertie serve" and command.shown):
            shell.check(command)


@pytest.mark.slow  # a process of its own, with both default models
def test_a_server_prints_what_is_shown() -> None:
    page = all_commands(ROOT / "docs" / "serve.md")
    (shown,) = (each.shown for each in page if each.text == "bertie serve" and each.shown)
    with served(["serve", "--port", "0", "--log-level", "error"], "Ready:") as printed:
        assert same_output(shown.replace(":8000", ":…") + "\n", printed)


def test_only_what_needs_more_than_a_test_has_is_not_run() -> None:
    reasons = [each.reason for page in PAGES for each in all_commands(page) if each.reason]
    assert set(reasons) <= REASONS
    assert len(reasons) <= 20, "more than there were"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_says_what_it_is(page: Path) -> None:
    """A block without a language would be run by nobody."""
    text = page.read_text(encoding="utf-8")
    assert {block["language"] for block in BLOCK.finditer(text)} <= {"python", "console", "sh", "text"}
    assert "$ bertie" not in "".join(block["body"] for block in BLOCK.finditer(text) if block["language"] == "text")


def test_output_is_compared() -> None:
    page = "```console\n$ a 1 \\\n    2\n0.25 x\n…\nend\n\n$ b    # why\n```\n\n<!-- not run: no -->\n```sh\nc\n```\n"
    found = list(commands(page))
    assert [(each.text, each.shown, each.line, each.reason) for each in found] == [
        ("a 1 \\\n    2", "0.25 x\n…\nend", 2, None),
        ("b    # why", "", 8, None),
        ("c", "", 13, "no"),
    ]
    shown = found[0].shown
    assert same_output(shown, "0.26 x\nend")
    assert same_output(shown, "0.25 x\n1\n2\nend")
    for other in ("0.27 x\nend", "0.25 y\nend", "-0.25 x\nend", "0.25 x\nend\nmore", "0.25 x\n1\n"):
        assert not same_output(shown, other)
    assert same_output("[0.1…, …]", "[0.1234, 5, 6]")
