"""How the CPU engine scales: tokens per second by number of threads, and one text alone.

    python -m benchmarks.threads [--threads 1,2,4,8,16] [--dtype int8|bfloat16|float32] [--apart]
                                 [--busy] [--nice -5] [--pause 10] [--save]

A model of all-MiniLM-L6-v2's size with random weights (speed does not depend on their values), 32 texts for each thread
(512 at most) of 10 to 512 tokens, sorted by length, in batches of the engine's own budget; then one text of 12 tokens,
6,000 times, and one of 100, 600 times: the system needs some 0.2 seconds to settle after what came before. BERTIE_CPU
chooses other kernels than the best ones. `--busy` keeps every core busy with other work, and prints the tail of a plain
loop of one thread that computes as long, which is the system's own doing; `--nice -5` gives this process, but not the
other work, that niceness (negative ones need root or CAP_SYS_NICE); `--pause` waits so many milliseconds before each
single text, as a server does between requests, so that cores are idle when it comes. `--apart` then runs as many
processes of one thread each as the largest team has threads, all at once: one of them is what one thread reaches when
every core is in use. Cores that share their units with a sibling, or their clock rate with all, are slower then, and
one thread alone is not what they can be compared with.
Each line is printed when it is measured.

Expected before measuring: nearly as many times one thread's rate as there are cores, since whole pieces of a batch are
worked on apart; one short text no slower with more threads, and a p99 within 3 times the median.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch

import bertie
from benchmarks.machine import save_result
from bertie.engine.calibration import PRODUCTS
from bertie.engine.cpu.library import instruction_set
from bertie.engine.cpu.runner import CpuRunner, usable_cores
from bertie.ops.packing import Packing

WIDTH, INNER, LAYERS = 384, 1536, 6
TEXTS, TEXTS_A_THREAD = 512, 32  # all texts would keep one thread busy for 20 seconds
SECONDS_APART = 4.0
REPEATS = {12: 6000, 100: 600}  # of one text, by its tokens


def packed(lengths: list[int]) -> tuple[torch.Tensor, Packing]:
    return torch.randint(0, 30000, (sum(lengths),)), Packing.of(lengths, device=torch.device("cpu"))


def batches(lengths: list[int], budget: int) -> list[tuple[torch.Tensor, Packing]]:
    cut: list[list[int]] = [[]]
    for length in lengths:
        if cut[-1] and sum(cut[-1]) + length > budget:
            cut.append([])
        cut[-1].append(length)
    return [packed(part) for part in cut]


def seconds(runner: CpuRunner, batch: tuple[torch.Tensor, Packing], *, pause: float = 0.0) -> float:
    if pause:
        time.sleep(pause)
    start = time.perf_counter()
    runner(batch[0], None, None, batch[1], all_states=False)
    return time.perf_counter() - start


def tail_of(times: list[float]) -> tuple[float, float]:
    """Median and 99th percentile."""
    ordered = sorted(times)
    return ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]


def plain_loop(milliseconds: float, repeats: int) -> tuple[float, float]:
    """The same of a loop that takes so long where nothing interrupts it."""

    def timed(count: int) -> float:
        start = time.perf_counter()
        sum(range(count))
        return 1e3 * (time.perf_counter() - start)

    count = int(milliseconds * 10_000 / min(timed(10_000) for _ in range(50)))
    return tail_of([timed(count) for _ in range(repeats)])


def runner_of(dtype: str, threads: int) -> CpuRunner:
    """A model of random weights, the same for every call."""
    torch.manual_seed(0)
    config = bertie.BertConfig(
        hidden_size=WIDTH, num_attention_heads=12, num_hidden_layers=LAYERS, intermediate_size=INNER
    )
    model = bertie.BertModel(config, add_pooling_layer=False).eval()
    if dtype == "bfloat16":
        model = model.to(torch.bfloat16)
    widths = {part: INNER if part == "down" else WIDTH for part in PRODUCTS}
    smoothing = {(layer, part): torch.ones(widths[part]) for layer in range(LAYERS) for part in PRODUCTS}
    return CpuRunner(model, smoothing if dtype == "int8" else None, threads=threads)


def texts_for(threads: int) -> list[int]:
    """Their lengths, in order."""
    torch.manual_seed(0)
    every_length = sorted((torch.randn(TEXTS) * 60 + 130).clamp(10, 512).int().tolist())
    return every_length[:: max(1, TEXTS // (TEXTS_A_THREAD * threads))]


def one_apart(dtype: str, start: Any, rates: Any) -> None:
    """Tokens a second of one thread, in a process of its own, while all the others of its kind run."""
    torch.set_num_threads(1)
    runner, lengths = runner_of(dtype, 1), texts_for(1)
    work = batches(lengths, runner.token_budget)
    seconds(runner, work[0])
    start.wait()
    passes, began = 0, time.perf_counter()
    while time.perf_counter() - began < SECONDS_APART:
        for batch in work:
            seconds(runner, batch)
        passes += 1
    rates.put(passes * sum(lengths) / (time.perf_counter() - began))


def apart(dtype: str, count: int) -> list[float]:
    """The rates of `count` processes of one thread each that run at the same time."""
    context = multiprocessing.get_context("spawn")
    start, rates = context.Barrier(count), context.Queue()
    processes = [context.Process(target=one_apart, args=(dtype, start, rates), daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    found = [rates.get(timeout=300) for _ in processes]
    for process in processes:
        process.join()
    return found


def _spin() -> None:
    while os.getppid() != 1:  # whoever started it is gone
        sum(range(100_000))


@contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """As many processes beside this one that do nothing but compute."""
    others = [multiprocessing.get_context("spawn").Process(target=_spin, daemon=True) for _ in range(count)]
    for one in others:
        one.start()
    time.sleep(1.0 if others else 0.0)
    try:
        yield
    finally:
        for one in others:
            one.terminate()
            one.join(5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="1,2,4,8,16")
    parser.add_argument("--dtype", choices=["int8", "bfloat16", "float32"], default="int8")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--nice", type=int, default=0, metavar="N")
    parser.add_argument("--pause", type=float, default=0.0, metavar="MS")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    with busy_cores(usable_cores() if options.busy else 0):
        if options.nice:
            try:
                os.setpriority(os.PRIO_PROCESS, 0, options.nice)  # threads that are started later inherit it
            except PermissionError:
                parser.error(f"--nice {options.nice} needs root or CAP_SYS_NICE.")
        measure(options)


def measure(options: argparse.Namespace) -> None:
    rows: list[dict[str, Any]] = []
    beside = ", other processes on all cores" if options.busy else ""
    if options.nice:
        beside += f", niceness {options.nice}"
    if options.pause:
        beside += f", {options.pause:g} ms before each single text"
    print(f"{instruction_set()}, {options.dtype}{beside}", flush=True)
    for threads in map(int, options.threads.split(",")):
        runner, lengths = runner_of(options.dtype, threads), texts_for(threads)
        work = batches(lengths, runner.token_budget)
        seconds(runner, work[0])
        rate = sum(lengths) / median(sum(seconds(runner, batch) for batch in work) for _ in range(options.rounds))
        row: dict[str, Any] = {"threads": threads, "tokens_per_second": round(rate)}
        times_first = rate / (rows[0] if rows else row)["tokens_per_second"]
        line = f"{threads:3} threads {rate:10,.0f} tokens/s  {times_first:5.1f}×"
        for length, repeats in REPEATS.items():
            one = packed([length])
            every = [1e3 * seconds(runner, one, pause=options.pause / 1e3) for _ in range(repeats + 50)]
            middle, tail = tail_of(every[50:])  # the first ones warm up
            row[f"one_text_of_{length}_ms"] = {"median": middle, "p99": tail}
            line += f"   {length} tokens: {middle:.2f} ms, p99 {tail:.2f} ({tail / middle:.1f}×)"
            if options.busy:
                loop, loop_tail = plain_loop(middle, repeats)
                row[f"loop_as_long_as_{length}_ms"] = {"median": loop, "p99": loop_tail}
                line += f", a loop {loop_tail:.2f} ({loop_tail / loop:.1f}×)"
        rows.append(row)
        print(line, flush=True)
    if options.apart:
        largest = max(rows, key=lambda row: row["threads"])
        threads, rate = largest["threads"], largest["tokens_per_second"]
        found = apart(options.dtype, threads)
        largest["processes_of_one_thread"] = [round(one) for one in found]
        print(
            f"{threads} processes of one thread each, at once: {median(found):,.0f} tokens/s each, {sum(found):,.0f} "
            f"together; {threads} threads are {rate / median(found):.1f}× one of them, {rate / sum(found):.2f} of all",
            flush=True,
        )
    if options.save:
        name, flags = f"threads-{instruction_set()}-{options.dtype}", f"--dtype {options.dtype}"
        for option, given in (("busy", options.busy), ("nice", options.nice), ("pause", options.pause)):
            if given:
                name += f"-{option}"
                flags += f" --{option}" if given is True else f" --{option} {given:g}"
        save_result(name, f"python -m benchmarks.threads {flags} --save", rows)


if __name__ == "__main__":
    main()
