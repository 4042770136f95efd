"""Ctrl-C before the first step, with real signals: what is kept of what was prepared, and how to go on; one voice."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from bertie.cli.main import main
from bertie.text import train_vocabulary
from bertie.training.contract import Interrupted
from bertie.training.pretraining.array_folder import ArrayBuilder
from bertie.training.run.stopping import explained, interruption, stop_if_signalled

NOTHING = "Stopped before the first step. Nothing was written, and what was prepared so far is not kept."
FINETUNE = ["finetune", "classify", "-m", "my-bert", "--train", "pipe.jsonl", "-o", "out", "--device", "cpu"]
PRETRAIN = ["pretrain", "--corpus", "texts.txt", "-o", "out", "--size", "tiny", "--vocab-size", "300",
            "--max-length", "32", "--max-steps", "1", "--device", "cpu"]  # fmt: skip
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@contextmanager
def started(line: list[str], *, processes: int = 1) -> Iterator[subprocess.Popen[str]]:
    """A command in a process group of its own, as a terminal starts it."""
    launch = [*TORCHRUN, "-m", "bertie"] if processes > 1 else ["-m", "bertie"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.Popen(
        [sys.executable, *launch, *line], stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@contextmanager
def held(name: str) -> Iterator[os.stat_result]:
    """A lock on what the next phase of preparing makes: whoever comes to it waits, and is neither done nor dead."""
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield os.fstat(file.fileno())


def wait_for_waiters(lock: os.stat_result, number: int) -> None:
    until = time.monotonic() + 90
    while time.monotonic() < until:
        lines = Path("/proc/locks").read_text().splitlines()
        if sum("->" in line and f":{lock.st_ino} " in line for line in lines) >= number:
            return
        time.sleep(0.05)
    raise AssertionError("the command never came to the lock")


def wait_until_asleep(pid: int) -> None:
    """Until it waits for something, and not only for a moment.

    A signal that comes just before Python calls read() is seen when read() returns, here never: it is sent later.
    """
    looks, until = 0, time.monotonic() + 60
    while looks < 10:
        assert time.monotonic() < until
        asleep = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"
        looks = looks + 1 if asleep else 0
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_stopped_while_reading_says_that_nothing_is_kept(desk: Path, number: int) -> None:
    os.mkfifo("pipe.jsonl")  # data that never comes
    with started(FINETUNE) as process:
        until = time.monotonic() + 90
        while True:
            try:  # possible once someone reads
                writer = os.open("pipe.jsonl", os.O_WRONLY | os.O_NONBLOCK)
                break
            except OSError:
                assert time.monotonic() < until
                time.sleep(0.05)
        wait_until_asleep(process.pid)
        process.send_signal(number)
        _, error = process.communicate(timeout=60)
        os.close(writer)
    assert process.returncode == 130
    assert error.strip().splitlines() == [NOTHING, f"Start again with: bertie {' '.join(FINETUNE)}"]
    assert not Path("out").exists()


def test_stopped_while_preparing_says_what_is_kept_and_goes_on_from_it(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with held("out/data/.train-ids.lock") as lock, started(PRETRAIN) as process:
        wait_for_waiters(lock, 1)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    last = error.strip().splitlines()[-2:]
    assert last[0] == (
        "Stopped before the first step. What is prepared stays in out/data and is used again: the vocabulary."
    )
    assert last[1] == f"Continue with: bertie {' '.join(PRETRAIN)}"
    assert main(PRETRAIN) == 0
    assert "vocabulary:" not in capsys.readouterr().err, "it was learned anew"


def test_ctrl_c_under_torchrun_is_told_by_one_process(desk: Path) -> None:
    with held("out/data/.train-ids.lock") as lock, started(PRETRAIN, processes=2) as process:
        wait_for_waiters(lock, 2)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: torchrun and both processes get it
        _, error = process.communicate(timeout=90)
    assert error.count("Stopped before the first step.") == 1
    assert error.count("Continue with: torchrun --nproc-per-node 2 -m bertie pretrain") == 1
    ours = error.partition("Traceback")[0]  # torchrun has one of its own
    assert "KeyboardInterrupt" not in error
    assert "Continue with" in ours


@pytest.mark.slow
def test_ctrl_c_in_training_under_torchrun_is_told_by_one_process(desk: Path) -> None:
    line = ["pretrain", "--corpus", "texts.txt", "-o", "out", "-m", "my-bert", "--max-length", "32", "--device", "cpu",
            "--epochs", "100000", "--batch-size", "2", "--log-every", "1", "--dev-share", "0"]  # fmt: skip
    with started(line, processes=2) as process:
        until = time.monotonic() + 90
        while not (metrics := Path("out/metrics.jsonl")).exists() or not metrics.read_text():
            assert time.monotonic() < until
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=90)
    assert error.count("everything is saved in out") == 1
    assert error.count("Continue with: torchrun --nproc-per-node 2 -m bertie pretrain") == 1
    assert "KeyboardInterrupt" not in error
    assert any(Path("out/checkpoints").iterdir())


def test_processes_that_make_batches_keep_silent(desk: Path) -> None:
    line = ["pretrain", "--corpus", "texts.txt", "-o", "out", "-m", "my-bert", "--max-length", "32", "--device", "cpu",
            "--epochs", "100000", "--batch-size", "2", "--log-every", "1", "--workers", "2"]  # fmt: skip
    with started(line) as process:
        until = time.monotonic() + 90
        while not (metrics := Path("out/metrics.jsonl")).exists() or not metrics.read_text():
            assert time.monotonic() < until
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error.count("stopping after this step") == 1
    assert "Traceback" not in error


def test_a_mistake_under_torchrun_is_told_by_one_process(desk: Path) -> None:
    line = [*FINETUNE[:4], "--train", "none.jsonl", "-o", "out", "--device", "cpu"]
    with started(line, processes=2) as process:
        _, error = process.communicate(timeout=90)
    assert error.count("error: none.jsonl: there is no such file.") == 1


def test_what_is_kept_is_told_in_words(tmp_path: Path) -> None:
    assert str(interruption(tmp_path)).startswith(NOTHING)
    (tmp_path / "data" / "vocabulary").mkdir(parents=True)
    (tmp_path / "data" / "vocabulary" / "vocab.txt").touch()
    with ArrayBuilder(tmp_path / "data" / "train-ids", {"key": 1}, {"ids": "<u2"}) as whole:
        whole.append(ids=np.arange(3))
        whole.commit(1)
        whole.finish()
    with ArrayBuilder(tmp_path / "data" / "train-pairs", {"key": 1}, {"ids": "<u2"}) as part:
        assert "train-pairs" not in interruption(tmp_path).cause
        part.append(ids=np.arange(3))
        part.commit(1)
    told = interruption(tmp_path)
    assert told.cause.endswith(
        f"{tmp_path / 'data'} and is used again: the vocabulary, train-ids, train-pairs in part."
    )
    assert not told.began
    (tmp_path / "checkpoints" / "step-00000012").mkdir(parents=True)
    assert "saved at step 12 is whole" in interruption(tmp_path).cause
    assert interruption(tmp_path).began


def test_ctrl_c_does_not_wait_for_rust_to_count_all_words(tmp_path: Path) -> None:
    """Python's main thread is inside of Rust for a whole pass over the text, and hears of no signal."""
    calls: list[str] = []

    def progress(stage: str, characters: int) -> None:
        if stage == "words":
            calls.append(stage)
            if len(calls) == 2:
                os.kill(os.getpid(), signal.SIGINT)
        stop_if_signalled()

    texts = ["some words to count and to count again " * 400] * 1600  # 24 calls, if nobody stops it
    with pytest.raises(Interrupted, match="Stopped before the first step"), explained(tmp_path / "out"):
        train_vocabulary(texts, vocab_size=100, progress=progress)
    assert 2 <= len(calls) <= 12, "it went on counting"
