"""The CPU engine's answers and its road from text to vectors on this machine, without a test runner.

    python tests/scripts/cpu_answers.py [--model FOLDER] [--vectors] [--threads 16]

Answers: for every instruction set that the processor has, bfloat16 and int8 beside float32, alone and in company, with
several numbers of threads. `--vectors`: tokens a second of `Embedder.embed`, over those of the model alone on the same
rows, in turn (bar: 0.85). Each line is printed when it is measured.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

import bertie
from bertie.defaults import default_embedding_model
from bertie.engine.cpu.library import bfloat16_instructions, instruction_set
from bertie.engine.cpu.runner import usable_cores

sys.path.insert(0, str(Path(__file__).parents[2]))
SETS = ("amx", "avx512-bf16", "avx512-vnni", "avx2", "portable")


def texts(count: int) -> list[str]:
    from benchmarks.texts import paragraphs

    return paragraphs(count).texts


def answers(folder: str) -> None:
    """One instruction set's, in a process of its own."""
    some = texts(64)
    wanted = bertie.Embedder(folder, engine="reference").embed(some)
    line = f"{instruction_set()} (bfloat16: {bfloat16_instructions() or 'as float32'}):"
    for dtype in ("float32", "bfloat16", "int8"):
        embedder = bertie.Embedder(folder, dtype=dtype, device="cpu")
        found = embedder.embed(some)
        cosines = (found * wanted).sum(1)
        if not embedder.loaded.is_fast:  # cpu/timing.py found it faster here
            line += f"  {dtype}: the reference"
            continue
        runner: Any = embedder.loaded.model.base_model.runner  # type: ignore[union-attr]
        same = True
        for threads in (1, 2, 3, usable_cores()):
            runner.threads = threads
            same &= np.array_equal(embedder.embed(some), found)
        same &= all(np.array_equal(embedder.embed(text), vector) for text, vector in zip(some, found, strict=True))
        line += f"  {dtype} mean {cosines.mean():.6f} least {cosines.min():.6f}{'' if same else ' BITS DIFFER'}"
    print(line, flush=True)


def vectors(folder: str, threads: int, count: int) -> None:
    some = texts(count)
    for dtype in ("int8", "bfloat16", "float32"):
        embedder = bertie.Embedder(folder, dtype=dtype, device="cpu")
        embedder.loaded.model.base_model.runner.threads = threads  # type: ignore[union-attr]
        pieces = embedder.cutting().pieces(some)
        tokens = len(pieces.ids)
        budget = embedder.loaded.budget
        ends = np.cumsum(pieces.lengths)
        cuts = [0, *(int(np.searchsorted(ends, budget * k)) for k in range(1, tokens // budget + 1)), len(some)]
        batches = [pieces.between(a, b) for a, b in pairwise(cuts) if b > a]
        times: dict[str, list[float]] = {"model": [], "text": []}
        for _ in range(4):
            start = time.perf_counter()
            for batch in batches:
                embedder.loaded.last_states(batch.ids, batch.lengths)
            times["model"].append(time.perf_counter() - start)
            start = time.perf_counter()
            embedder.embed(some, progress=False)
            times["text"].append(time.perf_counter() - start)
        model, text = (tokens / median(found[1:]) for found in times.values())
        print(
            f"{dtype}, {threads} threads, batches of {budget}: model {model:,.0f} tokens/s, text to vectors "
            f"{text:,.0f} tokens/s, ratio {text / model:.2f} (bar 0.85)",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--vectors", action="store_true")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--texts", type=int, default=2048)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = options.model or default_embedding_model()
    torch.set_num_threads(options.threads)
    if options.one:
        answers(folder)
        return 0
    if options.vectors:
        vectors(folder, options.threads, options.texts)
        return 0
    best = str(instruction_set())
    failed = 0
    for name in SETS[SETS.index(best) :] if best in SETS else [best]:
        command = [sys.executable, __file__, "--one", "--model", folder]
        failed += subprocess.run(command, env=os.environ | {"BERTIE_CPU": name}, timeout=120).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
