"""Real results of fine-tuning: every data set at hand, several seeds, the median of each figure.

    python -m benchmarks.finetune --data glue [--model all-MiniLM-L6-v2's folder] [--tasks SST-2 …] [--seeds 3]
                                  [--jobs 8] [--save]
    python -m benchmarks.finetune --table benchmarks/results/finetune-DATE.json      # docs/results.md's table

With --jobs, that many runs share the machine, each in a process of its own; its seconds are then no measure of speed.
Each line is one `bertie finetune …` command, printed beside its figures. The dev set chooses the best of a run's
evaluations and is what is reported, as is usual for these data sets. Bars are those we hold ourselves to from
all-MiniLM-L6-v2.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shlex
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.machine import save_result
from bertie.training import Settings, finetune


@dataclass(frozen=True)
class Recipe:
    """What is trained on which files, and the figure that counts."""

    task: str
    train: str
    dev: str
    metric: str
    bar: float | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    def command(self, model: str | None, data: Path, seed: int) -> str:
        parts = ["bertie", "finetune", self.task, *(["-m", model] if model else []), "--train", str(data / self.train)]
        parts += ["--dev", str(data / self.dev), "--seed", str(seed)]
        names = {"learning_rate": "lr"}
        for name, value in self.settings.items():
            parts += [f"--{names.get(name, name).replace('_', '-')}", f"{value:g}"]
        return shlex.join([*parts, "-o", "out"])


SMALL = {"epochs": 5, "learning_rate": 1e-4, "batch_size": 32}
RECIPES = {
    "SST-2": Recipe(
        "classify", "SST-2/train.tsv", "SST-2/dev.tsv", "accuracy", 0.900,
        {"epochs": 3, "learning_rate": 5e-5, "batch_size": 32, "evaluate_every": 250},
    ),
    "MRPC": Recipe(
        "pairs", "MRPC/train.tsv", "MRPC/dev.tsv", "f1", 0.86,
        {"epochs": 8, "learning_rate": 1.5e-4, "batch_size": 32, "evaluate_every": 50},
    ),
    "STS-B": Recipe("regress", "STS-B/train.tsv", "STS-B/dev.tsv", "spearman", 0.88, SMALL | {"epochs": 10}),
    "STS-B vectors": Recipe(
        "embed", "STS-B/train.tsv", "STS-B/dev.tsv", "spearman", 0.88,
        {"epochs": 4, "learning_rate": 2e-5, "batch_size": 32},
    ),
    "RTE": Recipe("pairs", "RTE/train.tsv", "RTE/dev.tsv", "accuracy", None, SMALL),
    "CoLA": Recipe("classify", "CoLA/train.tsv", "CoLA/dev.tsv", "matthews", None, SMALL),
    "WNUT-17": Recipe("tag", "wnut17/wnut17train.conll", "wnut17/emerging.dev.conll", "f1", None, SMALL),
    "CommonsenseQA": Recipe(
        "choice", "commonsenseqa/train.jsonl", "commonsenseqa/valid.jsonl", "accuracy", None,
        {"epochs": 3, "learning_rate": 5e-5, "batch_size": 16},
    ),
    "PolicyQA": Recipe(  # its two files hold other policies each: one is learned from, the other asked about
        "answer", "policyqa/dev.json", "policyqa/test.json", "f1", None,
        {"epochs": 4, "learning_rate": 1e-4, "batch_size": 16},
    ),
}  # fmt: skip


def run(name: str, model: str | None, data: Path, seed: int, limit: int | None) -> dict[str, Any]:
    recipe = RECIPES[name]
    settings = Settings(**(recipe.settings | {"seed": seed, "max_steps": limit}))
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        result = finetune(
            recipe.task, model=model, train=data / recipe.train, dev=data / recipe.dev, output=Path(folder) / "run",
            settings=settings, show=False,
        )  # fmt: skip
    wall = time.perf_counter() - started
    return {
        "seed": seed, "metrics": result.metrics, "steps": result.steps, "seconds": result.seconds, "wall": wall,
        "tokens_per_second": result.tokens / max(result.seconds, 1e-9),
    }  # fmt: skip


def report(name: str, model: str | None, data: Path, runs: list[dict[str, Any]]) -> dict[str, Any]:
    recipe = RECIPES[name]
    print(recipe.command(model, data, 1), flush=True)
    for one in runs:
        shown = ", ".join(f"{key} {value:.4f}" for key, value in one["metrics"].items())
        print(f"  seed {one['seed']}: {shown}; {one['steps']} steps in {one['wall']:.0f} s", flush=True)
    median = statistics.median(one["metrics"][recipe.metric] for one in runs)
    bar = "" if recipe.bar is None else f" (bar {recipe.bar}: {'reached' if median >= recipe.bar else 'MISSED'})"
    print(f"{name}: median {recipe.metric} {median:.4f}{bar}", flush=True)
    command = recipe.command(None, Path("data"), 1)
    return {"metric": recipe.metric, "median": median, "bar": recipe.bar, "command": command, "runs": runs}


def table_of(path: Path) -> str:
    """A saved result as a table in markdown. The default model is left out of the commands: it has no name to type."""

    def number(value: float) -> str:
        return f"{value:.4f}" if abs(value) <= 1 else f"{value:.2f}"  # SQuAD's figures are percentages

    head = ["data", "metric (dev)", "median", "each seed", "bar", "steps", "command"]
    lines = [head, ["---"] * len(head)]
    for name, row in json.loads(path.read_text(encoding="utf-8"))["rows"].items():
        missed = row["bar"] is not None and row["median"] < row["bar"]
        lines.append([
            name, row["metric"], f"**{number(row['median'])}**",
            ", ".join(number(run["metrics"][row["metric"]]) for run in row["runs"]),
            "" if row["bar"] is None else f"{row['bar']:.3f}{', **missed**' if missed else ''}",
            f"{row['runs'][0]['steps']:,}", f"`{row['command'].replace(' -m all-MiniLM-L6-v2', '')}`",
        ])  # fmt: skip
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--data", type=Path, help="folder that holds SST-2/, MRPC/, …")
    what.add_argument("--table", type=Path, help="print this saved result as a table, and train nothing")
    parser.add_argument("--model", default=None, help="checkpoint to start from (default: all-MiniLM-L6-v2)")
    parser.add_argument("--tasks", nargs="+", default=list(RECIPES), choices=list(RECIPES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--max-steps", type=int, default=None, help="for a quick look")
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    if arguments.table is not None:
        print(table_of(arguments.table))
        return
    there = []
    for name in arguments.tasks:
        if (arguments.data / RECIPES[name].train).is_file():
            there.append(name)
        else:
            print(f"{name}: {arguments.data / RECIPES[name].train} is not there; left out", flush=True)
    # Started in processes of their own: a forked one could not use the GPU.
    with ProcessPoolExecutor(arguments.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        seeds = range(1, arguments.seeds + 1)
        started = {
            (name, seed): pool.submit(run, name, arguments.model, arguments.data, seed, arguments.max_steps)
            for name in there
            for seed in seeds
        }
        table = {
            name: report(name, arguments.model, arguments.data, [started[name, seed].result() for seed in seeds])
            for name in there
        }
    if arguments.save:
        print(save_result("finetune", "python -m benchmarks.finetune --data … --save", table))


if __name__ == "__main__":
    main()
