"""What is said while text is prepared: bars, lines, or nothing, and what was made at the end of each phase."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from bertie.training import PretrainOptions, Settings, pretrain
from bertie.training.run.journal import phase
from tiny_models import SENTENCES


def run(folder: Path, *, show: bool | None, resume: bool = False) -> None:
    corpus = folder / "text.txt"
    corpus.write_text("\n\n".join("\n".join(SENTENCES[n:] + SENTENCES[:n]) for n in range(7)), encoding="utf-8")
    pretrain(
        corpus=corpus, output=folder / "run", device="cpu", show=show, resume=resume, size="tiny",
        settings=Settings(max_steps=1, batch_size=4),
        options=PretrainOptions(nsp=True, max_length=32, dupe_factor=2, vocab_size=200),
    )  # fmt: skip


def test_every_phase_says_what_it_made_and_what_is_there_is_not_made_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, show=None)
    said = capsys.readouterr().err
    for what, made in (
        ("vocabulary", "200 tokens, in "),
        ("tokenizing (train)", "7 documents, "),
        ("making pairs (dev)", "2 documents, "),
        ("making pairs (train)", "10 documents, "),
    ):
        (line,) = [line for line in said.splitlines() if line.startswith(f"{what}: {made}") and ", in " in line]
        assert line.endswith(" s")
    assert "vocabulary: counting letters: 0%" in said
    assert "vocabulary: merging pieces" in said
    assert said.index("vocabulary") < said.index("tokenizing") < said.index("making pairs (train)") < said.index("step")
    run(tmp_path, show=None, resume=True)
    again = capsys.readouterr().err
    assert not any(what in again for what in ("vocabulary", "tokenizing", "making pairs"))


def test_silence_and_other_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, show=False)
    with phase("tokenizing", "documents", "tokens", show=None, is_main=False) as shown:
        shown.at(1, 2, 0.5)
    assert capsys.readouterr().err == ""


def test_lines_come_every_few_seconds(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with phase("tokenizing", "documents", "tokens", show=None) as shown:
        for step in range(1, 11):
            shown.at(step, 1000 * step, step / 10)
            now += 1.0
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["tokenizing: 10%, 1 documents, 1,000 tokens", "tokenizing: 30%, 3 documents, 3,000 tokens"]
    assert lines[-1] == "tokenizing: 10 documents, 10,000 tokens, in 10 s"
    assert len(lines) == 6


def test_a_terminal_shows_a_bar_that_ends_with_its_phase(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    bars: list[Any] = []
    with phase("vocabulary", "", "", size=2_000_000, show=True) as shown:
        shown.read("words", 1_000_000)
        bars.append(shown.screen.bar)
        (task,) = bars[0].tasks
        assert (task.description, task.percentage) == ("vocabulary: counting words", 75.0)
        assert task.fields["numbers"] == " 75%  1.0 MB read"
        shown.read("pieces", 2_000_000)
        (task,) = bars[0].tasks
        assert (task.description, task.total) == ("vocabulary: merging pieces", None)
        shown.end("300 tokens")
    assert not bars[0].live.is_started
    assert capsys.readouterr().err.endswith("vocabulary: 300 tokens, in 0 s\n")


def test_a_bar_ends_with_an_error_too(capsys: pytest.CaptureFixture[str]) -> None:
    bars: list[Any] = []

    def interrupted() -> None:
        with phase("pairs", "documents", "pairs", show=True) as shown:
            shown.at(1, 2, 0.5)
            bars.append(shown.screen.bar)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not bars[0].live.is_started
    assert ", in " not in capsys.readouterr().err
