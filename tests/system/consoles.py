"""Commands that pages show, and what they show as output, so that tests can run the one and compare the other.

A `console` block has commands after `$ `, each followed by its output; a backslash at the end of a line continues a
command in the next. Every line of an `sh` block is a command whose output is not shown. A block right after
`<!-- not run: REASON -->` needs what a test does not have. In an output, `…` stands for whatever is there: on a line of
its own for any number of lines, otherwise for a part of a line. Numbers with decimals may differ by one in the last
place.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from bertie.cli.main import main
from bertie.serve.run import Running
from bertie.serve.settings import Settings
from scripts.course import same_output

BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]+) -->\n)?```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
ADDRESS = re.compile(r"(?:127\.0\.0\.1|gpu-box):8000")
SHELL = re.compile(r"[|<>$;&*`]|^(?!bertie )|\\\n")
QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'|  +# .*")


@dataclass(frozen=True)
class Command:
    text: str
    shown: str  # as its output; empty if none is shown
    line: int
    reason: str | None  # why it is not run


def commands(page: str) -> Iterator[Command]:
    """In the order of the page."""
    for block in BLOCK.finditer(page):
        first = page.count("\n", 0, block.start("body")) + 1
        if block["language"] == "sh":
            for number, line in enumerate(block["body"].splitlines()):
                yield Command(line, "", first + number, block["reason"])
        elif block["language"] == "console":
            for found in re.finditer(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", block["body"], re.MULTILINE):
                line = first + block["body"].count("\n", 0, found.start())
                yield Command(found[1], found[2].rstrip("\n"), line, block["reason"])


class Shell:
    """Runs commands one after another, in the folder where it is made: a `bertie serve` answers until the next one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._patch, self._capsys = monkeypatch, capsys
        self._servers = ExitStack()
        self._address = "127.0.0.1:8000"
        programs = Path("programs").absolute()  # `bertie` and `python`, wherever this Python has them
        programs.mkdir()
        for name, given in (("bertie", "-m bertie "), ("python", "")):
            (programs / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {given}"$@"\n')
            (programs / name).chmod(0o755)
        monkeypatch.setenv("COLUMNS", "80")  # pages show what a terminal shows
        monkeypatch.setattr("bertie.cli.support.show._on_terminal", lambda: True)
        monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setattr("bertie.serve.run.serve", self._serve)
        monkeypatch.setattr("bertie.serve.processes.supervisor.serve_processes", self._serve)

    def close(self) -> None:
        self._servers.close()

    def check(self, command: Command) -> None:
        """Runs it, and compares what it prints with what is shown."""
        printed = self.run(command.text)
        if command.shown:
            lines = [line.rstrip() for line in printed.rstrip().replace(self._address, "127.0.0.1:8000").splitlines()]
            same = same_output(command.shown + "\n", "\n".join(lines) + "\n")
            assert same, f"line {command.line}: {command.text}\nprints\n{printed}"

    def run(self, text: str) -> str:
        text = ADDRESS.sub(self._address, text)
        if set_ := re.fullmatch(r"export (\w+)=(.*)", text):
            self._patch.setenv(set_[1], self._in_a_shell(f"printf %s {set_[2]}"))
            return ""
        if serving := re.fullmatch(r"(?:(\w+)=\$(\w+) )?bertie (serve|explore)\b(?!.* -o )(.*)", text):
            with self._patch.context() as patch:
                if serving[1]:
                    patch.setenv(serving[1], os.environ[serving[2]])
                return self._in_here([serving[3], *shlex.split(serving[4], comments=True), "--port", "0"])
        words = shlex.split(text, comments=True)
        if not words:
            return ""
        return self._in_a_shell(text) if SHELL.search(QUOTED.sub("", text)) else self._in_here(words[1:])

    def _in_here(self, words: list[str]) -> str:
        self._capsys.readouterr()
        code = main(words)
        said = self._capsys.readouterr()
        assert code == 0, f"bertie {shlex.join(words)}\n{said.err}"
        return said.out

    def _in_a_shell(self, text: str) -> str:
        command = ["bash", "-euo", "pipefail", "-c", text]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _serve(self, settings: Settings, sock: Any, *_: object, **__: object) -> int:
        """In place of a process of its own that would serve until it is killed: a thread, until the next server."""
        self._servers.close()
        sock.close()
        server = self._servers.enter_context(Running(replace(settings, log_level="error")))
        self._address = server.url.removeprefix("http://")
        self._patch.setenv("BERTIE_URL", server.url)
        return 0


@contextmanager
def served(words: list[str], ready: str) -> Iterator[str]:
    """What a `bertie serve` in a process of its own prints up to the line that begins with `ready`."""
    process = subprocess.Popen([sys.executable, "-m", "bertie", *words], stdout=subprocess.PIPE, text=True)
    late = threading.Timer(120, process.kill)
    late.start()
    try:
        assert process.stdout is not None
        printed = ""
        for line in process.stdout:
            printed += line
            if line.startswith(ready):
                break
        yield printed
    finally:
        late.cancel()
        process.terminate()
        process.communicate(timeout=60)
