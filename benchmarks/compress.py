"""Compressing all-MiniLM-L6-v2: what a speed-up costs, ours beside other ways to prune, at the same measured speed.

    python -m benchmarks.compress [--tasks SST-2 MRPC QNLI STS-B] [--seeds 0 1 2] [--on cpu] [--rows N] [--save]
    python -m benchmarks.compress --collect FILE … --save      rows that other runs wrote with --out, as one result

For every task and seed MiniLM is fine-tuned first (kept in --models, and taken from there the next time). STS-B is
judged by the Spearman correlation of the model's own vectors; its scores are never learned from, only the original's
vectors. Ours is `bertie.compress`'s work; the others are in compress_peers.py. Where a speed-up has epochs, all learn
from the original for as long and with the same settings. Training runs on a GPU where there is one; `--on` says where
speed is measured. `again` is the speed of the saved folder, loaded and timed anew beside the original's.

Expected before measuring (points of the task's figure lost, median over seeds): 1.5× without training ≤ 1.0, in at most
three minutes on two cores; 2× with one epoch ≤ 1.0; 3× with three epochs ≤ 3.0; ours ahead of each other way at equal
speed; the speed that is reported and the one measured again within 5 %.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks import compress_peers as peers
from benchmarks.machine import describe, save_result
from bertie.compression.cost import rows_like, runner_of, speedup
from bertie.compression.layers import Sizes
from bertie.compression.learning import Lesson, distilled
from bertie.compression.targets import Target, VectorTarget, open_target
from bertie.compression.work import Work
from bertie.data import read_glue
from bertie.defaults import default_embedding_model
from bertie.model import BertModel
from bertie.model.pretrained import BertPreTrainedModel
from bertie.text import BertTokenizer
from bertie.training.contract import Interrupted
from bertie.training.fine_tuning import finetune
from bertie.training.metrics import spearman
from bertie.training.run import loop

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "glue"
BASELINES = ("magnitude", "top layers", *peers.PACKAGES)
Rows = list[dict[str, Any]]
Say = Callable[[str], None]


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


def fine_tuned(task: Task, seed: int, base: str, models: Path, epochs: float) -> str:
    if task.kind == "embed":
        return base
    folder = models / f"{task.name}-{len(task.train)}-{seed}"
    if not (folder / "config.json").is_file():
        finetune(
            task.kind, model=base, train=task.train, dev=task.dev, output=folder, epochs=epochs, learning_rate=1e-4,
            batch_size=32, seed=seed, show=False,
        )  # fmt: skip
    return str(folder)


# -- what is measured --------------------------------------------------------------------------------------------------


class PairVectors(VectorTarget):
    """The vectors of both texts of every pair, judged by how the cosines follow the scores."""

    metric = "spearman"

    def __init__(self, path: str, task: Task, tokenizer: BertTokenizer) -> None:
        texts, learned = ([row[name] for row in part for name in ("sentence1", "sentence2")]
                          for part in (task.dev, task.train))  # fmt: skip
        super().__init__("embed", path, texts, learned, tokenizer)
        self._scores = [row["label"] for row in task.dev]
        assert len(self.judged) == 2 * len(self._scores)

    def score(self, model: BertPreTrainedModel) -> float:
        vectors = self._judged_vectors(model)
        cosines = F.cosine_similarity(vectors[::2], vectors[1::2])
        return spearman(cosines.numpy(), self._scores)


@dataclass(frozen=True)
class Bench:
    """One task and seed on one engine."""

    task: Task
    seed: int
    path: str
    target: Target
    work: Work
    say: Say
    opened: float  # seconds until the original's score was known

    @classmethod
    def open(cls, task: Task, seed: int, path: str, on: str, say: Say) -> Bench:
        begun = time.monotonic()
        tokenizer = BertTokenizer.from_pretrained(path)
        if task.kind == "embed":
            target: Target = PairVectors(path, task, tokenizer)
        else:
            target = open_target(task.kind, path, task.dev, task.train, tokenizer, None)
        work = Work(target, on, say)
        return cls(task, seed, path, target, work, say, time.monotonic() - begun)

    def ours(self, speed: float, epochs: float) -> dict[str, Any]:
        begun, busy = time.monotonic(), time.process_time()
        made = self.work.of_speed(speed)
        seconds, processor = time.monotonic() - begun, time.process_time() - busy
        row = self._row("ours", speed, epochs, made.model, made.point.speedup, made.point.score)
        return row | {"promised": round(made.point.promised, 3), "again": round(self._again(made.model), 3),
                      "seconds": round(self.opened + seconds, 1), "processor_seconds": round(processor, 1)}  # fmt: skip

    def other(self, name: str, speed: float, epochs: float) -> dict[str, Any]:
        model = self.target.model
        if name == "top layers":
            smaller, measured = peers.top_layers(self.work, model, speed)
        elif name == "magnitude":
            smaller, measured = peers.at_speed(self.work, lambda share: peers.by_magnitude(model, share), speed)
        else:
            make, batches = peers.PACKAGES[name][1], self._batches()
            smaller, measured = peers.at_speed(self.work, lambda share: make(model, batches, share), speed)
        return self._row(name, speed, epochs, smaller, measured, self.work.score(smaller))

    def _row(
        self, name: str, asked: float, epochs: float, model: BertPreTrainedModel, speed: float, untrained: float
    ) -> dict[str, Any]:
        score, sizes, base = untrained, Sizes.of(model), self.work.base
        begun = time.monotonic()
        if epochs:
            lesson = Lesson(self.task.kind, self.path, self.task.dev, self.task.train, epochs, seed=self.seed)
            with tempfile.TemporaryDirectory() as scratch:
                learned = distilled(self.target, model, lesson, scratch, self.say)
            score = max(score, self.work.score(learned))  # as `bertie.compress` keeps the better one
        return {
            "task": self.task.name, "seed": self.seed, "method": name, "asked": asked, "epochs": epochs,
            "engine": self.work.engine, "speedup": round(speed, 3), "metric": self.target.metric,
            "original": round(base, 4), "untrained": round(untrained, 4), "score": round(score, 4),
            "points_lost": round(100 * (base - score), 2), "heads": sizes.heads, "neurons": sizes.neurons,
            "learning_seconds": round(time.monotonic() - begun, 1) if epochs else None,
        }  # fmt: skip

    def _again(self, model: BertPreTrainedModel) -> float:
        """The speed of the saved model, as anyone would find it who loads both."""
        with tempfile.TemporaryDirectory() as folder:
            model.base_model.save_pretrained(folder)
            both = [BertModel.from_pretrained(place, add_pooling_layer=False).eval()
                    for place in (self.path, folder)]  # fmt: skip
        on, runners = self.work.on, [runner_of(one, self.work.on) for one in both]
        return speedup(runners[0], runners[1], *rows_like(self.target.lengths, on, both[0].config.vocab_size))

    def _batches(self) -> peers.Batches:
        """The rows that ours looks at, with their labels, for packages that want a loss."""
        rows = []
        for batch in self.target.fit:
            given, ends = batch.tensors, batch.tensors["cu_seqlens"].tolist()
            for i, (start, end) in enumerate(pairwise(ends)):
                ids, types = (given[name][start:end] for name in ("input_ids", "token_type_ids"))
                rows.append((ids, torch.ones_like(ids), types, int(given["labels"][i])))
        return peers.labelled(rows)


def compare(bench: Bench, speeds: dict[float, float], methods: list[str], out: Path | None) -> Rows:
    rows: Rows = []
    for name in methods:
        if name in peers.PACKAGES and bench.task.kind == "embed":
            continue  # both want a loss of labels
        for speed, epochs in speeds.items():
            try:
                row = bench.ours(speed, epochs) if name == "ours" else bench.other(name, speed, epochs)
            except Interrupted:
                raise
            except Exception:  # one way that fails is not the others' fault; it is in the output
                bench.say(f"{bench.task.name} {bench.seed} {name} {speed}: {traceback.format_exc()}")
                continue
            rows.append(row)
            bench.say(json.dumps(row))
            if out is not None:
                with out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    return rows


def show(rows: Rows) -> None:
    print("\n| task | on | asked | epochs | method | seeds | speed-up | points lost (median) |\n|" + "---|" * 8)
    names = ("task", "engine", "asked", "epochs", "method")
    for key in sorted({tuple(row[name] for name in names) for row in rows}):
        some = [row for row in rows if tuple(row[name] for name in names) == key]
        fast, lost = (median(row[name] for row in some) for name in ("speedup", "points_lost"))
        cells = (*key[:2], f"{key[2]:g}", f"{key[3]:g}", key[4], len({row["seed"] for row in some}))
        print("|", " | ".join(map(str, cells)), f"| {fast:.2f} | {lost:.2f} |")
    ours = [row for row in rows if "again" in row]
    for engine in sorted({row["engine"] for row in ours}):
        for wanted in ("speedup", "asked"):
            offs = [100 * abs(row["again"] / row[wanted] - 1) for row in ours if row["engine"] == engine]
            print(f"{engine}: `again` is off `{wanted}` by {median(offs):.1f} % (median of {len(offs)}), "
                  f"{max(offs):.1f} % (most)")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["SST-2", "MRPC", "QNLI", "STS-B"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--speedups", nargs="+", type=float, default=[1.5, 2.0, 3.0])
    parser.add_argument("--epochs", nargs="+", type=float, default=[0.0, 1.0, 3.0], help="of each speed-up")
    parser.add_argument("--methods", nargs="*", default=None, help=f"of: ours, {', '.join(BASELINES)}")
    parser.add_argument("--model", default=os.fspath(default_embedding_model()), help="what is fine-tuned")
    parser.add_argument("--on", default="cpu")
    parser.add_argument("--rows", type=int, default=None, help="training rows at most")
    parser.add_argument("--tuning-epochs", type=float, default=3.0)
    parser.add_argument("--only-tune", action="store_true", help="fine-tune what is to be compressed, and stop")
    parser.add_argument("--reference-layers", action="store_true", help="train without our GPU kernels")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--models", type=Path, default=Path("compress-models"))
    parser.add_argument("--out", type=Path, help="add every row to this file as it is found")
    parser.add_argument("--collect", type=Path, nargs="+", help="show and save rows of such files instead")
    parser.add_argument("--measured-on", help="with --collect: the machine that the rows are from")
    parser.add_argument("--note", default="", help="what a reader of the saved result should know")
    parser.add_argument("--save", action="store_true", help="write results/compress-DATE.json")
    arguments = parser.parse_args()
    print(describe(), flush=True)
    if arguments.reference_layers:
        loop.fuse_layers = lambda model, alone: None  # type: ignore[assignment]
    methods = arguments.methods
    if methods is None:
        methods = ["ours", "magnitude", "top layers", *peers.installed()]
    rows: Rows = []
    if arguments.collect:
        rows = [json.loads(line) for path in arguments.collect for line in path.read_text().splitlines()]
    else:
        speeds = dict(zip(arguments.speedups, arguments.epochs, strict=True))
        for name in arguments.tasks:
            task = read_task(name, arguments.data, arguments.rows)
            for seed in arguments.seeds:
                started = time.monotonic()
                torch.manual_seed(seed)
                path = fine_tuned(task, seed, arguments.model, arguments.models, arguments.tuning_epochs)
                say = lambda line, name=name, seed=seed: print(f"[{name} {seed}] {line}", flush=True)  # noqa: E731
                say(f"fine-tuned after {time.monotonic() - started:.0f} s")
                if arguments.only_tune:
                    continue
                bench = Bench.open(task, seed, path, arguments.on, say)
                rows += compare(bench, speeds, methods, arguments.out)
                say(f"done after {time.monotonic() - started:.0f} s")
    show(rows)
    if arguments.save:
        command = f"python -m benchmarks.compress --tasks {' '.join(arguments.tasks)} --on {arguments.on}"
        more = {"training_rows": arguments.rows, "peers_installed": peers.installed(), "note": arguments.note}
        if arguments.measured_on:
            more["machine"] = arguments.measured_on
        print(save_result("compress", command, rows, **more))


if __name__ == "__main__":
    main()
