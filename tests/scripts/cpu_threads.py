"""More threads than cores, and one short text: what the CPU engine's team costs and how steady it is.

    python tests/scripts/cpu_threads.py [--rounds 40]

Rounds alternate between as many threads as cores and sixteen; `forced` is a team that really has sixteen members, which
`threads=16` never makes. The last line is the figure: throughput of threads=16 over that of one thread to a core (bar:
0.85), and the 99th percentile of one short text over its median with one thread to a core, measured before the rounds
(bar: 3). Run it on a machine that does nothing else: another process on the cores is in the second number.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch

import bertie
from bertie.config import BertConfig
from bertie.engine.cpu import runner as cpu_runner

MANY = 16


def batch(lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(0, 1000, (sum(lengths),), generator=torch.Generator().manual_seed(0))
    return ids, torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])


def timed(model: Any, ids: torch.Tensor, ends: torch.Tensor) -> float:
    start = time.perf_counter()
    model(ids, cu_seqlens=ends)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    cores = cpu_runner.usable_cores()
    # The size of all-MiniLM-L6-v2.
    config = BertConfig(
        vocab_size=1000, hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    )
    model: Any = bertie.compile(bertie.BertModel(config).eval())
    batches = {"batch": batch([5 + 3 * k for k in range(16)]), "short": batch([12])}
    teams = {"cores": (cores, cores), "sixteen": (MANY, cores), "forced": (MANY, MANY)}
    times: dict[tuple[str, str], list[float]] = {(kind, team): [] for kind in batches for team in teams}
    wanted = {kind: model(ids, cu_seqlens=ends)[0] for kind, (ids, ends) in batches.items()}
    # Before anything else: sixteen members on two cores are still falling asleep when the next team's turn begins.
    alone = sorted(timed(model, *batches["short"]) for _ in range(25 * rounds))
    for _ in range(rounds):
        for team, (threads, usable) in teams.items():
            model.runner.threads = threads
            cpu_runner.usable_cores = lambda usable=usable: usable  # type: ignore[misc]
            for kind, repeats in (("batch", 1), ("short", 25)):
                ids, ends = batches[kind]
                times[kind, team] += [timed(model, ids, ends) for _ in range(repeats)]
                assert torch.equal(model(ids, cu_seqlens=ends)[0], wanted[kind]), "bits depend on threads"
    medians = {key: statistics.median(values) for key, values in times.items()}
    print("team     a batch  short text  its p99   (ms)")
    for team in teams:
        steady = sorted(times["short", team])
        shown = (medians["batch", team], medians["short", team], steady[len(steady) * 99 // 100])
        print(f"{team:8}" + "".join(f"{1e3 * seconds:8.2f}   " for seconds in shown))
    ratio = medians["batch", "cores"] / medians["batch", "sixteen"]
    tail = alone[len(alone) * 99 // 100] / statistics.median(alone)
    print(
        f"{cores} cores: throughput of 16 threads {ratio:.2f} (bar 0.85); one short text p99/median {tail:.1f} (bar 3)"
    )


if __name__ == "__main__":
    main()
