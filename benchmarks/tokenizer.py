"""Tokenizing speed: `BertTokenizer` beside `tokenizers.encode_batch` called directly, alternating, medians.

    python benchmarks/tokenizer.py [--vocab vocab.txt] [--text file.txt] [--rounds 15]

Expected before measuring: about 1.0. A call encodes without offsets unless they are asked for, which saves Rust some
work, and spends what it saved on building the Python lists of ids, type ids and masks that a caller of the bare library
still has to build. The bare call is timed without building any lists, and with only the ids. The last line is the
smallest ratio (bare seconds / ours; above 1 is faster) of `tokenizer(texts)` to the bare call that makes no lists.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenizers

from benchmarks.machine import save_result
from bertie.text import BertTokenizer, train_vocabulary

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def alternate(jobs: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median seconds of each job; every round runs all of them once, so slow moments hit all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for job in jobs.values():
        job()
    for _ in range(rounds):
        for name, job in jobs.items():
            started = time.perf_counter()
            result = job()
            seconds[name].append(time.perf_counter() - started)
            del result  # freed outside the measurement, for all alike
    return {name: statistics.median(times) for name, times in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=Path, default=DATA / "vocabs" / "bert-base-uncased" / "vocab.txt")
    parser.add_argument("--text", type=Path, default=DATA / "text" / "wikitext-2" / "valid.txt")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/")
    arguments = parser.parse_args()
    if arguments.text.is_file():
        lines = [line for line in arguments.text.read_text(encoding="utf-8").split("\n") if line.strip()]
    else:
        lines = [
            f"Line {n} of a text that is made up, because the real one is not here; word{n % 97}." for n in range(3000)
        ]
    ours = BertTokenizer(arguments.vocab) if arguments.vocab.is_file() else train_vocabulary(lines, vocab_size=5000)
    bare = tokenizers.Tokenizer.from_str(ours._backend.to_str())
    print(f"tokenizers {tokenizers.__version__}; {len(lines)} lines, {sum(map(len, lines)):,} characters")

    ratios, rows = [], []
    for name, texts in {
        "lines": lines,
        "short lines": [line[:120] for line in lines],
        "pieces of 20 lines": ["\n".join(lines[i : i + 20]) for i in range(0, len(lines), 20)],
    }.items():
        jobs: dict[str, Callable[[], Any]] = {
            "bare": lambda texts=texts: bare.encode_batch(texts),
            "bare, ids": lambda texts=texts: [row.ids for row in bare.encode_batch(texts)],
            "bare, ids, offsets": lambda texts=texts: [(row.ids, row.offsets) for row in bare.encode_batch(texts)],
            "ours": lambda texts=texts: ours(texts),
            "ours, truncated": lambda texts=texts: ours(texts, truncation=True, max_length=512),
            "ours, offsets": lambda texts=texts: ours(texts, return_offsets_mapping=True),
            "ours, encode_ids": lambda texts=texts: ours.encode_ids(texts, max_length=512),
            "ours, encode_flat": lambda texts=texts: ours.encode_flat(texts, max_length=512),
        }
        medians = alternate(jobs, arguments.rounds)
        ratios.append(medians["bare"] / medians["ours"])
        for job, seconds in medians.items():
            rows.append({"texts": name, "job": job, "ms": round(seconds * 1e3, 1), "ratio": medians["bare"] / seconds})
            print(f"{name:20s} {job:18s} {seconds * 1e3:8.1f} ms   {medians['bare'] / seconds:5.2f}x bare")
    if arguments.save:
        save_result("tokenizer", "python -m benchmarks.tokenizer", rows)
    print(f"{min(ratios):.2f}")


if __name__ == "__main__":
    main()
