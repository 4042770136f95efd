"""`bertie explore`: a server of its own on this machine, or one HTML file."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

from bertie.cli.commands.serving.explore import EXAMPLES
from bertie.cli.main import main
from bertie.explore.page import saved

httpx = pytest.importorskip("httpx", reason="the client needs the extra: serve")


def index_of(page: str) -> dict[str, Any]:
    whole = zlib.decompress(bytes_in(page))
    found: dict[str, Any] = json.loads(whole[4 : 4 + int.from_bytes(whole[:4], "little")])
    return found


def test_the_examples_that_write_a_file_run(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert any("-o page.html" in line for line in EXAMPLES.splitlines())
    assert main(["explore", "She opened the door.", "The room was empty.", "-o", "page.html"]) == 0
    page = Path("page.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", page)
    assert "MB" in capsys.readouterr().out


def bytes_in(page: str) -> bytes:
    """What a saved page holds: 13 bits to two letters of what ASCII prints, without what HTML has to mark."""
    found = re.search(r'id="bertie-saved"[^>]* data-size="(\d+)">([^<]+)<', page)
    assert found is not None
    alphabet = "".join(chr(code) for code in range(32, 127) if chr(code) not in "\"&'<")
    places = [alphabet.index(letter) for letter in found[2]]
    bits = "".join(f"{91 * first + second:013b}" for first, second in zip(places[::2], places[1::2], strict=True))
    size = int(found[1])
    assert 8 * size <= len(bits) < 8 * size + 13
    return int(bits[: 8 * size], 2).to_bytes(size, "big")


@pytest.mark.parametrize("size", [1, 12, 13, 14, 26, 27, 100])
def test_letters_are_the_bytes(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved, "_AT_ONCE", 26)  # several parts
    data = bytes(place * 37 % 256 for place in range(size))
    assert bytes_in(f'<script id="bertie-saved" data-size="{size}">{saved._letters(data)}</script>') == data


def test_a_file_keeps_patching_and_importance(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("texts.txt").write_text("The fox sleeps.\nThe dog jumps.\n", encoding="utf-8")
    given = ["explore", "The [MASK] fox.", "-m", "./my-bert", "--task", "fill", "--importance", "texts.txt"]
    assert main([*given, "--patch", "The [MASK] dog.", "-o", "page.html"]) == 0
    index = index_of(Path("page.html").read_text(encoding="utf-8"))
    assert {"patching{}", "importance{}"} <= set(index["entries"])
    assert main(given) == 2
    assert "--importance goes with -o" in capsys.readouterr().err


def test_a_file_without_a_text_is_refused(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", "-o", "page.html"]) == 2
    assert "needs a text" in capsys.readouterr().err
    assert not Path("page.html").exists()


def test_the_server_says_its_address_with_the_text_in_it_and_writes_where_it_was_started(desk: Path) -> None:
    command = [sys.executable, "-m", "bertie", "explore", "The [MASK] fox.", "-m", "./my-bert", "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        address, state = said.removeprefix("Ready: ").strip().split("#", 1)
        assert state == "explore?text=The+%5BMASK%5D+fox."
        assert "127.0.0.1" in address
        body = {"text": "The [MASK] fox.", "off": {"heads": [[0, 1]]}}
        with httpx.Client(base_url=address, timeout=60) as client:
            assert client.get("/info").json()["models"][0]["tasks"] == ["explore"]
            switched = client.post("/explore/switch", json=body).json()
            assert switched["before"] != switched["after"]
            written = client.post("/explore/prune", json={**body, "name": "pruned"}).json()["folder"]
        assert Path(written).resolve() == (desk / "pruned").resolve()
        assert (desk / "pruned" / "config.json").exists()
    finally:
        process.send_signal(signal.SIGTERM)
        until = time.monotonic() + 30
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        if process.poll() is None:
            process.kill()
        process.communicate()
    assert process.returncode == 0
