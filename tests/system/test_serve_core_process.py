"""`bertie serve` as a process: it drains on SIGTERM, bears an overload, and restarts a worker that dies.

The long forms are scripts: tests/scripts/serve_drain.py and serve_overload.py.
"""

from __future__ import annotations

import collections
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest
from serving import folders

from scripts.serve_drain import run as run_drains
from scripts.serve_overload import measure


def check_drains(rounds: int) -> None:
    for one in run_drains(rounds, seed=1):
        assert one.good, one


def test_sigterm_under_load_loses_nothing() -> None:
    check_drains(1)


@pytest.mark.slow
def test_sigterm_under_load_loses_nothing_twenty_times() -> None:
    check_drains(20)


def check_overload(seconds: float, p99: float) -> None:
    found = measure(seconds)
    assert found.factor > 4, found
    assert found.others == 0, found
    assert found.refused > 0, found
    assert found.without_retry_after == 0, found
    assert found.refusal_p50 <= 0.1, found
    assert found.refusal_p99 <= p99, found
    assert found.memory_growth <= 0.05, found
    assert found.recovered_after <= 5, found


def test_an_overload_is_refused_at_once_and_passes() -> None:
    check_overload(3, p99=0.5)  # other tests run beside this one


@pytest.mark.slow
def test_a_long_overload_is_refused_at_once_and_passes() -> None:
    check_overload(20, p99=0.1)


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux's /proc")
def test_a_worker_that_dies_is_started_again_and_accepts_nobody_before_it_is_ready(tmp_path: Path) -> None:
    model = folders(tmp_path, "embed")["embed"]
    models = [part for number in range(4) for part in ("-m", f"m{number}={model}")]  # several, so that it takes a while
    command = [sys.executable, "-m", "bertie", "serve", *models, "--task", "embed", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--workers", "2"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1
    )
    try:
        assert process.stdout is not None
        lines: list[str] = []
        while sum(line.startswith("Ready") for line in lines) < 2:
            lines.append(process.stdout.readline())
            assert lines[-1], "the server ended"
        url = lines[0].split()[3]
        before = children(process.pid)
        assert len(before) == 2
        with httpx.Client(base_url=url, timeout=30, verify=False) as http:
            for _ in range(4):
                assert http.post("/embed", json={"inputs": "a dog"}).status_code == 200
        os.kill(before[0], signal.SIGKILL)
        again = threading.Thread(target=lambda: any(line.startswith("Ready") for line in process.stdout or ()))
        again.start()
        statuses, lost = collections.Counter[int](), 0
        while again.is_alive():
            try:  # a connection each, so that either worker may take it
                statuses[httpx.get(url + "/ready", verify=False, timeout=30).status_code] += 1
            except httpx.TransportError:
                lost += 1
            time.sleep(0.02)
        assert set(statuses) == {200}
        assert lost <= 2  # what the killed one had accepted
        assert len(set(children(process.pid)) - set(before)) == 1
        counted = 0.0
        with httpx.Client(base_url=url, timeout=30, verify=False) as http:
            assert http.post("/embed", json={"inputs": "a dog"}).status_code == 200
            for line in http.get("/metrics").text.splitlines():
                if line.startswith('bertie_outcomes_total{outcome="answered",route="/embed"'):
                    counted += float(line.rpartition(" ")[2])
        assert counted == 5  # of both workers, the dead one too
        assert children(process.pid)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(40) == 0
        assert time.monotonic() - began < 30
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux's /proc")
def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    model = folders(tmp_path, "embed")["embed"]
    command = [sys.executable, "-m", "bertie", "serve", "-m", f"m={model}", "--task", "embed", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--workers", "2"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1
    )
    with process, process.stdout as lines:  # type: ignore[union-attr]
        ready = 0
        while ready < 2:
            ready += lines.readline().startswith("Ready")
        workers = children(process.pid)
        process.kill()
        ends = time.monotonic() + 30
        while any(map(running, workers)):
            assert time.monotonic() < ends
            time.sleep(0.1)


def test_mistakes_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from bertie.cli.main import main

    for given, said in [
        (["-m", "a=x", "-m", "a=y"], "Two models are called 'a'"),
        (["--api-key-file", str(tmp_path / "none")], "cannot be read"),
        (["-m", "=x"], "does not name a model"),
        (["--host", "203.0.113.77"], "cannot listen on 203.0.113.77"),
    ]:
        assert main(["serve", *given]) == 2
        written = capsys.readouterr().err
        assert said in written
        assert len(written.strip().splitlines()) == 2


def test_a_model_that_is_not_there_is_explained(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bertie", "serve", "--port", "0", "-m", str(tmp_path / "none")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert "error:" in ended.stderr
    assert "Traceback" not in ended.stderr
