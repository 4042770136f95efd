"""Text prepared by several processes: the same bytes, in order, and no process that is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import worker_tasks
from test_pretraining_data import bytes_in, write_text

from bertie.errors import DataError
from bertie.text import train_vocabulary
from bertie.text.corpus import processes
from bertie.text.corpus.documents import text_size, tokenize_documents
from bertie.text.corpus.processes import in_order, num_processes
from bertie.training.pretraining import corpus as corpus_module
from bertie.training.pretraining import pairs as pretraining_data
from bertie.training.pretraining.corpus import tokenize_corpus
from bertie.training.pretraining.pairs import PairRules, make_pairs
from tiny_models import SENTENCES, tokenizer

HERE = Path(__file__).parent


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many pieces and commits out of a small text."""
    monkeypatch.setattr(corpus_module, "_CHARACTERS_AT_ONCE", 4000)
    monkeypatch.setattr(corpus_module, "_CHARACTERS_IN_A_PIECE", 900)
    monkeypatch.setattr(pretraining_data, "_DOCUMENTS_AT_ONCE", 9)
    monkeypatch.setattr(pretraining_data, "_TOKENS_AT_ONCE", 300)


@pytest.fixture
def started() -> Callable[[], set[str]]:
    """The processes that this test started and that are still there (other tests may keep a server running)."""
    earlier = children()
    return lambda: children() - earlier


def write_paragraphs(path: Path, *, documents: int = 40) -> Path:
    """Documents of paragraphs of a few sentences, and one whose lines have no token."""
    blocks = [
        "\n".join(" ".join(SENTENCES[k % 6 : k % 6 + 3]) for k in range(n, n + n % 5 + 2)) for n in range(documents)
    ]
    blocks.insert(7, "\u200b\n\u00ad")
    path.write_text("\n\n".join(blocks), encoding="utf-8")
    return path


def make(text: Path, folder: Path, number: int, progress: Any = None) -> None:
    corpus = tokenize_corpus([text], tokenizer(), folder / "corpus", progress=progress, processes=number)
    rules = PairRules(32, dupe_factor=2)
    first, _ = corpus.split(0.2)
    for name, part in (("pairs", corpus), ("fewer", first)):
        make_pairs(part, tokenizer(), folder / name, rules=rules, progress=progress, processes=number)


def test_one_and_three_processes_make_the_same_bytes(
    tmp_path: Path, small_pieces: None, started: Callable[[], set[str]]
) -> None:
    text = write_paragraphs(tmp_path / "text.txt")
    commits: dict[int, list[Any]] = {1: [], 3: []}
    for number, seen in commits.items():
        make(text, tmp_path / str(number), number, lambda *given, seen=seen: seen.append(given))
    for part in ("corpus", "pairs", "fewer"):
        assert bytes_in(tmp_path / "1" / part) == bytes_in(tmp_path / "3" / part)
    assert commits[1] == commits[3]  # the same commits at the same places
    assert len(commits[1]) > 15
    assert not started()


def test_pieces_and_commits_change_nothing(tmp_path: Path, small_pieces: None, monkeypatch: pytest.MonkeyPatch) -> None:
    text = write_paragraphs(tmp_path / "text.txt")
    make(text, tmp_path / "pieces", 1)
    monkeypatch.undo()
    make(text, tmp_path / "whole", 1)
    for part in ("corpus", "pairs", "fewer"):
        assert bytes_in(tmp_path / "pieces" / part) == bytes_in(tmp_path / "whole" / part)


def test_a_build_of_several_processes_is_stopped_and_goes_on_with_another_number(
    tmp_path: Path, small_pieces: None, started: Callable[[], set[str]]
) -> None:
    text = write_paragraphs(tmp_path / "text.txt")
    make(text, tmp_path / "whole", 1)
    seen: list[int] = []

    def stop(done: int, made: int, share: float) -> None:
        seen.append(done)
        if len(seen) in (2, 4):
            raise KeyboardInterrupt

    for number in (3, 2):
        with pytest.raises(KeyboardInterrupt):
            make(text, tmp_path / "stopped", number, stop)
        assert not started()
    make(text, tmp_path / "stopped", 1, stop)
    for part in ("corpus", "pairs", "fewer"):
        assert bytes_in(tmp_path / "stopped" / part) == bytes_in(tmp_path / "whole" / part)
    corpus_steps = seen[: seen.index(41) + 1]
    assert corpus_steps == sorted(set(corpus_steps))  # every block was made once


def test_bad_lines_are_told_after_what_comes_before_them_is_kept(tmp_path: Path, small_pieces: None) -> None:
    text = write_paragraphs(tmp_path / "text.txt")
    seen: list[int] = []
    with open(text, "ab") as file:
        file.write(b"\n\nGr\xfc\xdfe.\n")
    with pytest.raises(DataError, match=r"text\.txt, line \d+: byte 0xfc"):
        tokenize_corpus(
            [text], tokenizer(), tmp_path / "corpus", processes=2, progress=lambda done, *_: seen.append(done)
        )
    assert seen[-1] > 30


def test_a_vocabulary_is_the_same_with_several_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertie.text.wordpiece.learning._CHARACTERS_AT_ONCE", 2000)
    text = write_text(tmp_path / "text.txt", documents=50)
    told: list[tuple[str, int]] = []
    one = train_vocabulary([text], vocab_size=200, progress=lambda what, read: told.append((what, read)))
    assert train_vocabulary([text], vocab_size=200, processes=2).get_vocab() == one.get_vocab()
    size = len(text.read_text(encoding="utf-8"))
    assert told[-1] == ("pieces", size)
    assert ("letters", size) in told
    assert len([read for what, read in told if what == "words"]) > 5


def test_results_come_in_order_whoever_is_done_first() -> None:
    pauses = [0.3, 0.0, 0.1, 0.0, 0.0, 0.2, 0.0, 0.0]
    with closing(in_order(worker_tasks.pause, pauses, processes=3)) as results:
        found = list(results)
    assert [seconds for seconds, _ in found] == pauses
    assert len({process for _, process in found} - {os.getpid()}) > 1
    with closing(in_order(worker_tasks.multiply, range(20), setup=(3,), processes=2)) as products:
        assert list(products) == [3 * item for item in range(20)]


def test_no_more_is_read_than_the_workers_can_use() -> None:
    read = 0

    def items() -> Iterator[int]:
        nonlocal read
        for item in range(1000):
            read += 1
            yield item

    with closing(in_order(worker_tasks.multiply, items(), setup=(1,), processes=2)) as results:
        for given, _ in zip(range(50), results, strict=False):
            assert read - given <= 2 * processes._AHEAD + 1


@pytest.mark.parametrize("task", ["refuse", "die"])
def test_a_worker_that_fails_or_dies_is_told_of(task: str, started: Callable[[], set[str]]) -> None:
    message = {"refuse": r"The item 3 is no good\.\nLeave it out", "die": r"exit code -9.*\n.*e\.g\. processes=1\."}[
        task
    ]
    results = in_order(getattr(worker_tasks, task), range(10), processes=2)
    with closing(results), pytest.raises(DataError, match=message):
        list(results)
    assert not started()


def test_how_many_processes_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    assert (num_processes(), num_processes(worth_it=False), num_processes(3, worth_it=False)) == (8, 1, 3)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert num_processes() == 2
    with pytest.raises(DataError, match="processes is 0"):
        num_processes(0)


PROGRAM = """
import sys, time
sys.path.insert(0, {here!r})
from worker_tasks import pause
from bertie.text.corpus.processes import in_order
print("begun", flush=True)  # no `if __name__ == "__main__"`: a worker that read this again would print it too
for seconds, process in in_order(pause, [0.05] * {number}, processes=2):
    print(process, flush=True)
"""


def test_a_program_without_a_guard_is_not_run_again_by_its_workers(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.format(here=str(HERE), number=4), encoding="utf-8")
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == "begun"
    assert len(done.stdout.splitlines()) == 5


@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_workers_end_with_the_process_that_started_them(tmp_path: Path, kill: signal.Signals) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.format(here=str(HERE), number=10000), encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, "program.py"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    workers = {int(process.stdout.readline()) for _ in range(20)}
    assert len(workers) == 2
    # Ctrl-C on a terminal reaches the workers too.
    (os.killpg if kill == signal.SIGINT else os.kill)(process.pid, kill)
    _, complaints = process.communicate(timeout=30)
    until = time.monotonic() + 20
    while any(map(runs, workers)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(runs, workers))
    assert complaints.count("Traceback") == (kill == signal.SIGINT)  # the parent's own


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_documents_are_split_and_tokenized_bare() -> None:
    made = tokenize_documents([["The dog sleeps. Paris is good.", "Nobody"], ["\u200b"]], tokenizer(), False, "<u2")
    expected = [
        tokenizer().encode(s, add_special_tokens=False) for s in ("The dog sleeps.", "Paris is good.", "Nobody")
    ]
    assert made.ids.tolist() == [token for sentence in expected for token in sentence]
    assert made.lengths.tolist() == [*map(len, expected), 0]
    assert made.counts.tolist() == [3, 1]
    assert made.ids.dtype == np.uint16
    nothing = tokenize_documents([], tokenizer(), True, "<u4")
    assert [len(part) for part in nothing] == [0, 0, 0]


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz", ".bz2"])
def test_the_size_of_packed_text_is_guessed(tmp_path: Path, suffix: str) -> None:
    import bz2
    import gzip
    import lzma

    chance = np.random.default_rng(0)
    text = " ".join(SENTENCES[k] for k in chance.integers(0, 7, 20000)).encode()
    pack: Any = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}[suffix]
    (tmp_path / f"text{suffix}").write_bytes(pack(text))
    assert text_size(tmp_path / f"text{suffix}") == pytest.approx(len(text), rel=0.05)
    (tmp_path / "broken").write_bytes(pack(text)[:6])
    assert text_size(tmp_path / "broken") == 6
