"""Threads of the CPU engine: how many there are, and that answers do not depend on it."""

from __future__ import annotations

import asyncio
import copy
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny_models import SENTENCES, saved, tiny, tokenizer

import bertie
from bertie.engine.cpu import cores
from bertie.engine.cpu import runner as cpu_runner
from bertie.engine.cpu.library import instruction_set
from bertie.engine.cpu.runner import CpuRunner
from bertie.errors import InputError

pytestmark = pytest.mark.skipif(instruction_set() is None, reason="the kernels were not built: no C++ compiler")


@pytest.fixture(autouse=True)
def _restored_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("BERTIE_CACHE", str(tmp_path))
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [0, -1, 1025, 100_000, 2.5, True])
def test_a_number_of_threads_out_of_range_is_refused(threads: Any) -> None:
    with pytest.raises(InputError, match=r"threads is .*; it must be a whole number from 1 to 1024"):
        bertie.compile(tiny("BertModel"), threads=threads)
    with pytest.raises(InputError, match="from 1 to 1024"):
        bertie.compile(tiny("BertModel"), threads=threads, dtype="int8", tokenizer=tokenizer())


def test_a_team_has_no_more_threads_than_there_are_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = bertie.compile(tiny("BertModel"), threads=1024)
    runner: Any = fast.runner
    assert runner._team == cpu_runner.usable_cores()
    if hasattr(os, "sched_getaffinity"):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(7)))
        monkeypatch.setattr(cpu_runner, "own_quota", lambda: None)
        assert runner._team == 7
        monkeypatch.setattr(cpu_runner, "own_quota", lambda: 3)
        assert runner._team == 3
    runner.threads = None
    torch.set_num_threads(2)
    assert runner._team == min(2, cpu_runner.usable_cores())


def test_batches_are_as_large_as_two_cores_do_in_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("BertModel")
    size = sum(parameter.numel() for parameter in model.encoder.parameters())

    def budget(base: int, threads: int = 2) -> int:
        monkeypatch.setattr(cpu_runner, "_BASE", base)
        monkeypatch.setattr(cpu_runner, "usable_cores", lambda: 16)
        return CpuRunner(model, threads=threads).token_budget

    assert budget(size) == budget(size // 3) == 4096
    assert budget(size * 3 // 2) == 6144
    assert budget(size * 3) == 8192
    assert budget(size * 3, threads=16) == 16384


def write(folder: Path, files: dict[str, str]) -> tuple[Path, Path]:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder / "membership", folder / "mounted"


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({}, None),
        ({"membership": "0::/\n"}, None),
        ({"membership": "0::/\n", "mounted/cpu.max": "max 100000\n"}, None),
        ({"membership": "0::/\n", "mounted/cpu.max": "200000 100000\n"}, 2),
        ({"membership": "0::/\n", "mounted/cpu.max": "150000 100000\n"}, 2),
        ({"membership": "0::/\n", "mounted/cpu.max": "1000 100000\n"}, 1),
        ({"membership": "0::/a/b\n", "mounted/a/b/cpu.max": "max 100000", "mounted/a/cpu.max": "300000 100000"}, 3),
        ({"membership": "0::/the/host's/name\n", "mounted/cpu.max": "400000 100000\n"}, 4),
        (
            {
                "membership": "5:memory:/x\n4:cpu,cpuacct:/x\n",
                "mounted/cpu,cpuacct/x/cpu.cfs_quota_us": "250000\n",
                "mounted/cpu,cpuacct/x/cpu.cfs_period_us": "100000\n",
            },
            3,
        ),
        (
            {
                "membership": "4:cpu:/x\n",
                "mounted/cpu/x/cpu.cfs_quota_us": "-1\n",
                "mounted/cpu/x/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
        ({"membership": "nonsense\n::\n0::/\n", "mounted/cpu.max": "1 0 2\n"}, None),
    ],
)
def test_the_quota_of_a_control_group_counts(files: dict[str, str], wanted: int | None, tmp_path: Path) -> None:
    assert cores.cpu_quota(*write(tmp_path, files)) == wanted


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_bits_do_not_depend_on_threads(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_runner, "usable_cores", lambda: 16)
    model = tiny("BertModel", max_position_embeddings=512, hidden_size=64)
    fast = bertie.compile(model, dtype=dtype, tokenizer=tokenizer(), threads=1)
    runner: Any = fast.runner
    for lengths in ([3], [200], [512, 1, 77], [30] * 40):
        ids = torch.arange(sum(lengths)) % 200
        ends = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])
        runner.threads = 1
        wanted = fast(ids, cu_seqlens=ends)[0]
        for threads in (2, 3, 7, 16):
            runner.threads = threads
            assert torch.equal(fast(ids, cu_seqlens=ends)[0], wanted), (lengths, threads)
        runner.threads = None
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            assert torch.equal(fast(ids, cu_seqlens=ends)[0], wanted), (lengths, threads)


@pytest.mark.parametrize("pooling", ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"])
def test_a_vector_has_the_same_bits_alone_in_company_and_with_any_number_of_threads(
    pooling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_runner, "usable_cores", lambda: 4)
    folder = saved(tmp_path, "BertModel", hidden_size=64, max_position_embeddings=512)
    embedder = bertie.Embedder(folder, max_length=512, pooling=pooling)
    texts = [" ".join(SENTENCES[: 1 + k % 7] * (1 + k % 4)) for k in range(28)]
    torch.set_num_threads(1)
    together = embedder.embed(texts)
    for threads in (1, 4):
        torch.set_num_threads(threads)
        assert (embedder.embed(texts) == together).all()
        assert all((embedder.embed(text) == vector).all() for text, vector in zip(texts, together, strict=True))


def test_an_event_loop_s_executor_and_a_signal_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen threads call one model while signals come, and their handler calls it too."""
    monkeypatch.setattr(cpu_runner, "usable_cores", lambda: 2)
    fast = bertie.compile(tiny("BertModel", max_position_embeddings=128), threads=2)
    jobs = [(torch.arange(60 + k), torch.tensor([0, 20, 60 + k])) for k in range(16)]
    wanted = [fast(ids, cu_seqlens=ends)[0] for ids, ends in jobs]
    right: list[bool] = []

    def answer(number: int) -> bool:
        ids, ends = jobs[number]
        return torch.equal(fast(ids, cu_seqlens=ends)[0], wanted[number])

    async def everyone() -> list[bool]:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(16) as executor:
            return await asyncio.gather(*(loop.run_in_executor(executor, answer, k % 16) for k in range(160)))

    before = signal.signal(signal.SIGUSR1, lambda *_: right.append(answer(3)))
    ended = threading.Event()

    def send() -> None:
        for _ in range(20):
            if ended.wait(0.005):
                return
            os.kill(os.getpid(), signal.SIGUSR1)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        assert all(asyncio.run(everyone()))
    finally:
        ended.set()
        sender.join()
        time.sleep(0)  # a signal that has come is handled between two steps of Python
        signal.signal(signal.SIGUSR1, before)
    assert all(right)


def test_a_runner_is_neither_copied_nor_pickled() -> None:
    """A compiled model is: it leaves its runner behind, and the copy makes its own."""
    fast = bertie.compile(tiny("BertModel"))
    for copied in (copy.deepcopy, pickle.dumps):
        copied(fast)
        with pytest.raises(InputError, match=r"^A runner .* cannot be copied.*\nCopy or pickle the compiled"):
            copied(fast.base_model.runner)


ONE_WORKER = """
import os, statistics, sys, time
import torch
import bertie
from bertie.engine.cpu import runner as cpu_runner

cpu_runner.usable_cores = lambda: 2
torch.set_num_threads(1)  # its threads are not ours
cores = sorted(os.sched_getaffinity(0))
config = bertie.BertConfig(vocab_size=100, hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
                           intermediate_size=1024)
model = bertie.BertModel(config).eval()
before = set(os.listdir("/proc/self/task"))
fast = bertie.compile(model, threads=2)
(worker,) = map(int, set(os.listdir("/proc/self/task")) - before)

def keep_its_core_busy():
    os.sched_setaffinity(0, cores[:1])
    os.sched_setaffinity(worker, cores[1:2])
    hog = os.fork()
    if not hog:
        os.sched_setaffinity(0, cores[1:2])
        while os.getppid() != 1:
            sum(range(10_000))
        os._exit(0)
    return hog
"""

STARVED = """
ids, ends = torch.arange(24), torch.tensor([0, 24])

def median():
    times = []
    for _ in range(40):
        start = time.perf_counter()
        answers.append(fast(ids, cu_seqlens=ends)[0])
        times.append(time.perf_counter() - start)
    return statistics.median(times)

answers = []
fast.runner.threads = 1
alone = median()
fast.runner.threads = 2
os.sched_setscheduler(worker, os.SCHED_IDLE, os.sched_param(0))
hog = keep_its_core_busy()
together = median()
os.kill(hog, 9)
assert all(torch.equal(answer, answers[0]) for answer in answers)
print(together / alone)
"""


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs Linux and two cores"
)
def test_a_member_that_the_system_does_not_run_is_not_waited_for() -> None:
    """Its core belongs to another process, which leaves it a few milliseconds of every second."""
    done = subprocess.run([sys.executable, "-c", ONE_WORKER + STARVED], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 10, "times as long as with one thread"


KEPT_WAITING = """
short, longer = [(torch.arange(count), torch.tensor([0, count])) for count in (24, 60)]
wanted = fast(short[0], cu_seqlens=short[1])[0]

def turns():
    with open(f"/proc/self/task/{worker}/status") as status:
        return sum(int(line.split()[1]) for line in status if "ctxt_switches" in line)

def calls_without_worker(most):
    # how many calls follow each other in which the worker sleeps, at the longest
    longest = now = 0
    for _ in range(most):
        known = turns()
        assert torch.equal(fast(short[0], cu_seqlens=short[1])[0], wanted)
        now = now + 1 if turns() == known else 0
        longest = max(longest, now)
        if longest > 90:
            break
    return longest

hog = keep_its_core_busy()
alone = calls_without_worker(20_000)
known = turns()
for _ in range(20):
    fast(longer[0], cu_seqlens=longer[1])
print(alone, turns() - known)
os.kill(hog, 9)
"""


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs Linux and two cores"
)
def test_a_caller_that_was_kept_waiting_does_the_next_texts_of_that_length_alone() -> None:
    """A member shares its core with another process, and so loses it in the middle of a part now and then."""
    done = subprocess.run(
        [sys.executable, "-c", ONE_WORKER + KEPT_WAITING], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    alone, turns_of_longer = map(int, done.stdout.split())
    assert alone > 90, "calls in which the worker slept"
    assert turns_of_longer > 0, "longer texts are still shared"
