"""The end of a run in one page: report.md with figures, command and machine, and the curves as a picture."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

import bertie
from bertie.training.contract import Json, Result
from bertie.training.run.distributed import World
from bertie.training.run.journal import LoggedRow, duration, read_metrics
from bertie.training.settings import Settings

_PACKAGES = ("torch", "tokenizers", "safetensors", "numpy")
# Dense bfloat16 peaks of data sheets, in TFLOP/s, by a part of the device's name; the longest part that fits counts.
PEAKS = {
    "H200": 989.0, "H100": 989.0, "H100 PCIe": 756.0, "H800": 989.0, "A100": 312.0, "A800": 312.0, "A10G": 70.0,
    "A10": 125.0, "A30": 165.0, "A40": 150.0, "L4": 121.0, "L40": 181.0, "L40S": 362.0, "B200": 2250.0, "B100": 1750.0,
    "GB200": 2500.0, "RTX 4090": 165.0, "RTX 3090": 71.0, "RTX 5090": 210.0,
}  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """What was trained, in words and numbers."""

    task: str
    model: str
    num_parameters: int
    num_train: int
    num_dev: int
    best_metric: str
    command: str
    notes: Sequence[str] = ()
    options: Json = field(default_factory=dict)  # besides the settings


def write_report(result: Result, subject: Subject, settings: Settings, world: World) -> Path:
    """report.md, curves.png (where matplotlib is installed) and run.json in the run's folder."""
    rows = read_metrics(result.output)
    picture = draw_curves(rows, result.output / "curves.png", best_metric=subject.best_metric)
    environment = environment_of(world)
    chosen = {**asdict(settings), **subject.options}
    about = [
        ("model", subject.model),
        ("parameters", f"{subject.num_parameters:,}"),
        ("training examples", f"{subject.num_train:,}"),
        ("dev examples", f"{subject.num_dev:,}"),
    ]
    sections: dict[str, list[str]] = {
        "Speed": _table(speed_of(result, rows, world)),
        "Command": ["```", subject.command, "```"],
        "Data and model": [*_table(about), "", *(f"- {note}" for note in subject.notes)],
        "Settings": _table([(name, str(value)) for name, value in chosen.items()], "setting", "value"),
        "Machine": _table(list(environment.items())),
    }
    figures = _table([(name, f"{value:.4f}") for name, value in result.metrics.items()], "metric (dev)", "value")
    no_picture = "No picture: `pip install 'bertie[train]'` brings matplotlib."
    lines = [f"# {subject.task}: {result.output.resolve().name}", "", *_outcome(result, subject), "", *figures, ""]
    lines += ["![curves](curves.png)" if picture else no_picture, ""]
    for title, section in sections.items():
        lines += [f"## {title}", "", *section, ""]
    path = result.output / "report.md"
    path.write_text("\n".join(lines), encoding="utf-8")
    facts = {
        "task": subject.task, "command": subject.command, "settings": chosen,
        "metrics": result.metrics, "best_step": result.best_step, "steps": result.steps,
        "seconds": result.seconds, "tokens": result.tokens, "environment": environment,
    }  # fmt: skip
    facts = json.loads(json.dumps(facts), parse_constant=lambda constant: None)  # JSON has no NaN and no infinity
    (result.output / "run.json").write_text(json.dumps(facts, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    return path


def peak_flops(device: torch.device) -> float | None:
    """The bfloat16 peak of this device, in FLOP/s; None where it is not known."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    fitting = [part for part in PEAKS if part in name]
    return PEAKS[max(fitting, key=len)] * 1e12 if fitting else None


def speed_of(result: Result, rows: Sequence[LoggedRow], world: World) -> list[tuple[str, str]]:
    """Tokens per second, and the share of the device's peak where that is known."""
    speeds = [row["tokens_per_s"] for row in rows if row["kind"] == "train" and row.get("tokens_per_s")]
    found = [("training time", duration(result.seconds)), ("tokens", f"{result.tokens:,}")]
    if result.seconds:
        found.append(("tokens/s, mean", f"{result.tokens / result.seconds:,.0f}"))
        found.append(("useful TFLOP/s", f"{result.flops / result.seconds / 1e12:.3g}"))
    if speeds:
        found.append(("tokens/s, median", f"{statistics.median(speeds):,.0f}"))
    peak = peak_flops(world.device)
    if peak is not None and result.seconds:
        share = result.flops / result.seconds / (peak * world.size)
        found.append(("model FLOPs utilisation", f"{share:.1%} of {peak / 1e12:.0f} TFLOP/s × {world.size}"))
    return found


def environment_of(world: World) -> dict[str, str]:
    """Processor or GPU, processes, versions."""
    place = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else _processor()
    versions = {"bertie": bertie.__version__, "Python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "device": place,
        "processes": str(world.size) + (" (sharded)" if world.shard else ""),
        "cores": str(os.cpu_count()),
        "system": platform.platform(),
        "versions": ", ".join(f"{name} {number}" for name, number in versions.items()),
    }


def draw_curves(rows: Sequence[LoggedRow], path: Path, *, best_metric: str) -> bool:
    """Loss and learning rate, and the dev figures where there are any; False without matplotlib or numbers."""
    try:
        import matplotlib as mpl
    except ImportError:
        return False
    mpl.use("agg")
    from matplotlib.figure import Figure

    train = [row for row in rows if row["kind"] == "train" and row.get("loss") is not None]
    dev = [row for row in rows if row["kind"] == "dev" and row.get(best_metric) is not None]
    if not train:
        return False
    figure = Figure(figsize=(9, 3.6 if not dev else 6.4), layout="constrained")
    axes = figure.subplots(2 if dev else 1, 1, squeeze=False, sharex=True)[:, 0]
    steps = [row["step"] for row in train]
    axes[0].plot(steps, [row["loss"] for row in train], color="#1f5fa8", linewidth=1.2)
    axes[0].set_ylabel("training loss")
    axes[0].grid(alpha=0.3)
    rate = axes[0].twinx()
    rate.plot(steps, [row["lr"] for row in train], color="#999999", linewidth=0.9, linestyle="--")
    rate.set_ylabel("learning rate", color="#777777")
    if dev:
        axes[1].plot([row["step"] for row in dev], [row[best_metric] for row in dev], color="#b5442e", marker="o")
        axes[1].set_ylabel(f"dev {best_metric}")
        axes[1].grid(alpha=0.3)
    axes[-1].set_xlabel("step")
    figure.savefig(path, dpi=120)
    return True


def _outcome(result: Result, subject: Subject) -> list[str]:
    ended = "stopped early" if result.stopped_early else "finished"
    said = [f"The run {ended} after {result.steps:,} steps ({duration(result.seconds)} of training)."]
    if result.best_step is not None and subject.best_metric in result.metrics:
        best = result.metrics[subject.best_metric]
        said.append(f"The model kept is that of step {result.best_step:,}: {subject.best_metric} {best:.4f}.")
    else:
        said.append("There was no dev data: the model kept is the last one.")
    if result.skipped:
        said.append(f"{result.skipped} steps had gradients that were not finite and were skipped.")
    if result.oom_halvings:
        said.append(f"Memory ran out {result.oom_halvings} times; micro-batches were halved each time.")
    return said


def _table(rows: Sequence[tuple[str, str]], first: str = "", second: str = "") -> list[str]:
    if not rows:
        return []
    return [f"| {first} | {second} |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    return named or platform.processor() or platform.machine()
