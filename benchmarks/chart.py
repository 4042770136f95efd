"""The pictures beside a result file: rates as bars, latency as bars, and time against tokens and text length.

    python -m benchmarks.chart benchmarks/results/cpu-DATE.json

Draws from the saved figures alone, so a picture can be made again without measuring. PNG and SVG of each.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.peers import is_ours

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OURS, PEER, FAINT, INK = "#2563eb", "#94a3b8", "#e2e8f0", "#1e293b"
LINES = {"bertie": "#0f766e", "bertie bf16": "#7c3aed", "bertie int8": OURS}


def draw(result: dict[str, Any], folder: Path, stem: str) -> list[Path]:
    """Every picture of a result; the files written."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update(
        {
            "font.family": "DejaVu Sans",
            "font.size": 10,
            "svg.hashsalt": "bertie",  # the same figures give the same file
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.edgecolor": FAINT,
            "text.color": INK,
            "axes.labelcolor": INK,
            "xtick.color": INK,
            "ytick.color": INK,
        }
    )
    written = []
    for model in result["rows"]:
        name = model["model"]
        written += _save(_rates(model, result), folder / f"{stem}-{name}-rates")
        written += _save(_latency(model, result), folder / f"{stem}-{name}-latency")
        if model.get("linearity"):
            written += _save(_linearity(model, result), folder / f"{stem}-{name}-linearity")
    return written


def _rates(model: dict[str, Any], result: dict[str, Any]) -> Figure:
    """Two panels of horizontal bars: sorted and as they come, each with its fastest on top."""
    from matplotlib import pyplot

    ran = [one for one in model["contestants"] if "sorted_rate" in one]
    figure, panels = pyplot.subplots(1, 2, figsize=(11.5, 1.6 + 0.33 * len(ran)), layout="constrained")
    for panel, key, title in zip(
        panels,
        ("sorted_rate", "stream_rate"),
        ("batches sorted by length", "texts in the order they arrive"),
        strict=True,
    ):
        rows = sorted((one for one in ran if key in one), key=lambda one: one[key])
        _bars(panel, rows, [one[key] for one in rows], [f"{one[key]:,.0f}   {_cosine(one)}" for one in rows])
        panel.set_title(title, loc="left", fontsize=10.5)
        panel.set_xlabel("tokens per second")
    figure.suptitle(
        f"{model['title']}: token ids to vectors, {result['threads']} cores", x=0.01, ha="left", weight="bold"
    )
    return figure


def _latency(model: dict[str, Any], result: dict[str, Any]) -> Figure:
    from matplotlib import pyplot

    rows = sorted((one for one in model["contestants"] if "latency_ms" in one), key=lambda one: -one["latency_ms"])
    figure, panel = pyplot.subplots(figsize=(8, 1.4 + 0.33 * len(rows)), layout="constrained")
    labels = [f"{one['latency_ms']:.1f}   (p99 {one['latency_p99_ms']:.1f})" for one in rows]
    _bars(panel, rows, [one["latency_ms"] for one in rows], labels)
    panel.set_xlabel("milliseconds for one text of 12 to 32 tokens, median; less is better")
    figure.suptitle(f"{model['title']}: one short text, {result['threads']} cores", x=0.01, ha="left", weight="bold")
    return figure


def _bars(panel: Axes, rows: list[dict[str, Any]], values: list[float], labels: list[str]) -> None:
    from matplotlib.ticker import MaxNLocator

    names = [one["name"] for one in rows]
    colours = [OURS if is_ours(name) else PEER for name in names]
    bars = panel.barh(names, values, color=colours, height=0.72)
    panel.bar_label(bars, labels, padding=4, fontsize=8.5)
    panel.set_xlim(0, 1.7 * max(values, default=1))
    panel.xaxis.set_major_formatter("{x:,.0f}")
    panel.xaxis.set_major_locator(MaxNLocator(5))
    panel.tick_params(axis="y", length=0)
    panel.grid(axis="x", color=FAINT, linewidth=0.7)
    panel.set_axisbelow(True)
    for label, name in zip(panel.get_yticklabels(), names, strict=True):
        label.set_fontweight("bold" if is_ours(name) else "normal")


def _cosine(one: dict[str, Any]) -> str:
    if one["precision"] == "float32" or "cosine_mean" not in one:
        return ""
    return f"(cosine {one['cosine_mean']:.5f})"


def _linearity(model: dict[str, Any], result: dict[str, Any]) -> Figure:
    """Left: seconds against tokens, with the straight line through them. Right: time a token against text length."""
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for name, found in model["linearity"].items():
        colour = LINES.get(name, INK)
        tokens, seconds = found["tokens"], found["seconds"]
        left.plot(tokens, seconds, "o", color=colour, label=f"{name}: R² {found['r_squared']:.4f}")
        ends = [0, max(tokens)]
        left.plot(ends, [found["intercept"] + found["slope"] * x for x in ends], color=colour, linewidth=1)
        right.plot(found["lengths"], found["microseconds_per_token"], "o-", color=colour, label=name)
    left.set_xlabel("tokens, in texts of mixed length")
    left.set_ylabel("seconds")
    left.set_xlim(left=0)
    right.set_xscale("log", base=2)
    right.xaxis.set_major_formatter("{x:.0f}")
    right.set_xlabel("tokens in each text (the same number of tokens in all)")
    right.set_ylabel("microseconds per token")
    for panel in (left, right):
        panel.set_ylim(bottom=0)
        panel.grid(color=FAINT, linewidth=0.7)
        panel.legend(frameon=False)
    figure.suptitle(f"{model['title']}: cost against work, {result['threads']} cores", x=0.01, ha="left", weight="bold")
    return figure


def _save(figure: Figure, path: Path) -> list[Path]:
    from matplotlib import pyplot

    written = []
    for suffix, metadata in ((".png", {}), (".svg", {"Date": None})):
        target = path.with_name(path.name + suffix)
        figure.savefig(target, dpi=160, facecolor="white", metadata=metadata)
        written.append(target)
    pyplot.close(figure)
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path, help="a saved cpu-DATE.json")
    path: Path = parser.parse_args().result
    for written in draw(json.loads(path.read_text()), path.parent, path.stem):
        print(written)


if __name__ == "__main__":
    main()
