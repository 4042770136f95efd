"""Compressing all-MiniLM-L6-v2: what a speed-up costs, ours beside pruning by magnitude and cutting layers.

    python -m benchmarks.compress [--tasks SST-2 MRPC QNLI STS-B] [--seeds 0 1 2] [--on cpu] [--rows N] [--save]

For every task and seed MiniLM is fine-tuned first (kept in --models, and taken from there the next time; with a GPU
that takes a minute a task). STS-B is judged by the vectors of the model as it is. Then, at the same measured speed:

    ours         bertie.compress, without training, or with the epochs of distillation that --epochs says
    magnitude    the same share of heads and of neurons in every layer, those with the smallest weights
    top layers   layers cut from the top; a speed-up between two depths is judged by the faster one

Expected before measuring (points of the task's figure lost, median over seeds): 1.5× without training ≤ 1.0; 2× with
one epoch ≤ 1.0; 3× with three epochs ≤ 3.0; ours ahead of both at equal speed; promised and measured speed within 5 %.
TextPruner and torch-pruning are named in the result where they are installed; neither has BERT's engine-measured speed.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.machine import describe, save_result
from bertie.compression.layers import Sizes, keep, keep_layers
from bertie.compression.report import Point
from bertie.compression.run import distilled
from bertie.compression.targets import Target, open_target
from bertie.compression.work import Made, Work
from bertie.data import read_glue
from bertie.defaults import default_embedding_model
from bertie.model.pretrained import BertPreTrainedModel
from bertie.text import BertTokenizer
from bertie.training.fine_tuning import finetune

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "glue"
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Task:
    name: str
    kind: str  # the task of bertie finetune
    train: Rows
    dev: Rows


def read_task(name: str, data: Path, most: int | None) -> Task:
    """GLUE's rows as dicts. QNLI comes without training data here: four fifths of its dev set take that place."""

    def rows(part: str) -> Rows:
        found: Rows = []
        for example in read_glue(name, data / name / f"{part}.tsv"):
            texts = {"text": example.text_a}
            if example.text_b is not None:
                texts = {"sentence1": example.text_a, "sentence2": example.text_b}
            found.append({**texts, "label": example.label})
        return found

    if name == "QNLI":
        whole = rows("dev")
        train, dev = [row for i, row in enumerate(whole) if i % 5], whole[::5]
    else:
        train, dev = rows("train"), rows("dev")
    if name == "STS-B":
        train, dev = ([{**row, "label": float(row["label"])} for row in part] for part in (train, dev))
        return Task(name, "embed", train[:most], dev)
    return Task(name, "classify" if name == "SST-2" else "pairs", train[:most], dev)


def fine_tuned(task: Task, seed: int, models: Path, epochs: float) -> str:
    base = os.fspath(default_embedding_model())
    if task.kind == "embed":
        return base
    folder = models / f"{task.name}-{len(task.train)}-{seed}"
    if not (folder / "config.json").is_file():
        finetune(
            task.kind, model=base, train=task.train, dev=task.dev, output=folder, epochs=epochs, learning_rate=1e-4,
            batch_size=32, seed=seed, show=False,
        )  # fmt: skip
    return str(folder)


# -- the baselines -----------------------------------------------------------------------------------------------------


def by_magnitude(model: BertPreTrainedModel, share: float) -> BertPreTrainedModel:
    """The same share of heads and neurons everywhere: those whose weights have the largest norm."""
    heads, neurons = [], []
    for layer in model.base_model.encoder.layer:
        inside, width = layer.attention.self, layer.attention.self.attention_head_size
        norms = layer.attention.output.dense.weight.detach().square().sum(0).view(-1, width).sum(1)
        count = max(1, round(share * len(inside.heads)))
        heads.append([inside.heads[int(slot)] for slot in norms.argsort(descending=True)[:count]])
        size = layer.intermediate.dense.weight.detach().norm(dim=1) * layer.output.dense.weight.detach().norm(dim=0)
        count = max(16, 16 * round(share * len(size) / 16))
        neurons.append(size.argsort(descending=True)[:count].sort().values)
    return keep(model, heads, neurons)


def at_speed(work: Work, make: Callable[[float], BertPreTrainedModel], speed: float) -> Made:
    """The largest share whose model is as fast as asked, by halving."""
    low, high = 0.0, 1.0
    for _ in range(5):
        middle = (low + high) / 2
        low, high = (middle, high) if work.speed(make(middle)) >= speed else (low, middle)
    model = make(low)
    return made(work, model, speed)


def top_layers(work: Work, model: BertPreTrainedModel, speed: float) -> Made:
    for number in range(len(Sizes.of(model)) - 1, 0, -1):
        fewer = keep_layers(model, range(number))
        if work.speed(fewer) >= speed or number == 1:
            return made(work, fewer, speed)
    raise AssertionError("a model has a layer")


def made(work: Work, model: BertPreTrainedModel, asked: float) -> Made:
    measured = work.speed(model)
    return Made(model, Point(asked, measured, work.score(model), model.num_parameters(), Sizes.of(model)))


# -- the table ---------------------------------------------------------------------------------------------------------


def compare(task: Task, seed: int, path: str, on: str, speeds: dict[float, float], say: Callable[[str], None]) -> Rows:
    tokenizer = BertTokenizer.from_pretrained(path)
    target = open_target(task.kind, path, task.dev, task.train, tokenizer, None)
    started = time.monotonic()
    work = Work(target, on, say)
    rows = []
    for speed, epochs in speeds.items():
        begun, busy = time.monotonic(), time.process_time()
        ours = work.of_speed(speed)
        seconds, processor = time.monotonic() - begun, time.process_time() - busy
        others = {
            "ours": ours,
            "magnitude": at_speed(work, lambda share: by_magnitude(target.model, share), speed),
            "top layers": top_layers(work, target.model, speed),
        }
        for name, one in others.items():
            score = one.point.score
            if epochs:
                score = learned(work, target, one.model, task, path, epochs, say)
            rows.append({
                "task": task.name, "seed": seed, "method": name, "asked": speed, "epochs": epochs,
                "engine": work.engine, "promised": round(one.point.promised, 3), "speedup": round(one.point.speedup, 3),
                "metric": target.metric, "original": round(work.base, 4), "untrained": round(one.point.score, 4),
                "score": round(score, 4), "points_lost": round(100 * (work.base - score), 2),
                "heads": one.point.sizes.heads, "neurons": one.point.sizes.neurons,
                "seconds": round(seconds, 1) if name == "ours" else None,
                "processor_seconds": round(processor, 1) if name == "ours" else None,
            })  # fmt: skip
            say(str(rows[-1]))
    say(f"{task.name}, seed {seed}: {time.monotonic() - started:.0f} s")
    return rows


def learned(
    work: Work, target: Target, model: BertPreTrainedModel, task: Task, path: str, epochs: float,
    say: Callable[[str], None],
) -> float:  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        return work.score(distilled(target, model, task.kind, path, task.dev, task.train, epochs, None, scratch, say))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["SST-2", "MRPC", "QNLI", "STS-B"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--speedups", nargs="+", type=float, default=[1.5, 2.0, 3.0])
    parser.add_argument("--epochs", nargs="+", type=float, default=[0.0, 1.0, 3.0], help="of each speed-up")
    parser.add_argument("--on", default="cpu")
    parser.add_argument("--rows", type=int, default=None, help="training rows at most")
    parser.add_argument("--tuning-epochs", type=float, default=3.0)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--models", type=Path, default=Path("compress-models"))
    parser.add_argument("--save", action="store_true", help="write results/compress-DATE.json")
    arguments = parser.parse_args()
    print(describe())
    rows: Rows = []
    for name in arguments.tasks:
        task = read_task(name, arguments.data, arguments.rows)
        for seed in arguments.seeds if task.kind != "embed" else arguments.seeds[:1]:
            torch.manual_seed(seed)
            path = fine_tuned(task, seed, arguments.models, arguments.tuning_epochs)
            speeds = dict(zip(arguments.speedups, arguments.epochs, strict=True))
            rows += compare(task, seed, path, arguments.on, speeds, lambda line: print(line, flush=True))
    print("\n| task | asked | epochs | method | speed-up | points lost (median) |\n|---|---|---|---|---|---|")
    for key in sorted({(r["task"], r["asked"], r["epochs"], r["method"]) for r in rows}):
        some = [r for r in rows if (r["task"], r["asked"], r["epochs"], r["method"]) == key]
        shown = median(r["speedup"] for r in some), median(r["points_lost"] for r in some)
        print(f"| {key[0]} | {key[1]:g} | {key[2]:g} | {key[3]} | {shown[0]:.2f} | {shown[1]:.2f} |")
    peers = [name for name in ("textpruner", "torch_pruning") if find_spec(name) is not None]
    if arguments.save:
        command = f"python -m benchmarks.compress --tasks {' '.join(arguments.tasks)} --on {arguments.on}"
        print(save_result("compress", command, rows, training_rows=arguments.rows, peers_installed=peers))


if __name__ == "__main__":
    main()
