"""Two signals at once end `bertie serve` quickly and without a traceback: `timeout 5 bertie serve` sends two."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the server needs the extra: serve")

from serving import folders

from system.serve_process import serving
from system.test_serve_limits import until
from tiny_models import saved


@pytest.mark.parametrize("pause", [0.0, 0.2, 0.75], ids=["at once", "while it drains", "while it ends"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_a_second_signal_ends_it_without_a_traceback(tmp_path: Path, number: int, pause: float) -> None:
    model = folders(tmp_path, "embed")["embed"]
    command = [sys.executable, "-m", "bertie", "serve", "-m", f"m={model}", "--task", "embed", "--port", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        said = ""
        while "Ready" not in said:
            line = process.stdout.readline()
            assert line, said
            said += line
        port = int(said.split("http://127.0.0.1:")[1].split()[0])
        with socket.create_connection(("127.0.0.1", port)) as client:
            if pause < 0.5:  # a request that is never whole is under way
                client.sendall(b"POST /embed HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
                               b"content-length: 99\r\n\r\n{")  # fmt: skip
                time.sleep(0.2)
            process.send_signal(number)
            time.sleep(pause)
            began = time.monotonic()
            os.killpg(process.pid, number)
            rest, _ = process.communicate(timeout=40)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert "Traceback" not in said + rest
    assert "CancelledError" not in said + rest
    assert process.returncode == 0
    # Two signals before the process runs again are one to it, and one waits for requests, 25 s at most.
    assert time.monotonic() - began < (10 if pause else 30), "it waited for the request"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_request_that_cannot_be_finished_in_time_is_told_so(tmp_path: Path, workers: int) -> None:
    """It was accepted, so it has an answer: 503, not 500; and the server ends in time, with 0."""
    model = saved(tmp_path / "slow", "BertModel", hidden_size=256, num_hidden_layers=12, intermediate_size=1024)
    options = ("-m", f"m={model}", "--drain-seconds", "0.5", "--threads", "1", "--workers", str(workers))
    with serving(tmp_path, *options) as server:
        answers = []

        def ask() -> None:
            body = {"inputs": ["the dog and the fox " * 12] * 1024, "truncate": True}
            answers.append(server.post("/embed", body))

        thread = threading.Thread(target=ask)
        thread.start()
        until(lambda: server.metric("bertie_batch_tokens_count") > 0)
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        code = server.process.wait(30)
        seconds = time.monotonic() - began
        thread.join(10)
    assert code == 0
    assert seconds < 15
    (answer,) = answers
    assert answer.status_code == 503
    assert answer.json()["error_type"] == "Unhealthy"
    assert "retry-after" in answer.headers
    assert "Traceback" not in server.log.read_text()
