"""Draws what `python -m benchmarks.gpu --save` measured: throughput beside the peers, time against tokens and length.

    python -m benchmarks.gpu_chart [benchmarks/results/gpu-DATE.json]

Writes an SVG beside the result file. Needs matplotlib.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.machine import RESULTS

OURS, THEIRS = "#1f6f8b", "#b8b8b8"


def draw(path: Path) -> Path:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = json.loads(path.read_text())["rows"]
    figure, (bars, tokens, lengths) = plt.subplots(1, 3, figsize=(15, 4.2), width_ratios=(1.5, 1, 1))
    _bars(bars, [row for row in rows if "ratio_to_sdpa" in row])
    _line(tokens, [(r["tokens"], r["ms"]) for r in rows if r["what"] == "tokens"], "tokens in a batch (texts of 64)")
    tokens.set_xscale("log", base=2)
    tokens.set_yscale("log", base=2)
    _line(
        lengths,
        [(r["length"], r["ms"]) for r in rows if r["what"] == "length of texts"],
        "length of the texts (65,536 tokens of them)",
    )
    lengths.set_xscale("log", base=2)
    lengths.set_ylim(bottom=0)
    figure.tight_layout()
    target = path.with_suffix(".svg")
    figure.savefig(target, metadata={"Date": None})
    return target


def _bars(axes: Any, rows: list[dict[str, Any]]) -> None:
    rows = sorted(rows, key=lambda row: row["m_tokens_per_s"])
    names = [row["what"].split("texts, ")[1] for row in rows]
    drawn = axes.barh(names, [row["m_tokens_per_s"] for row in rows])
    for bar, name, row in zip(drawn, names, rows, strict=True):
        bar.set_color(OURS if name.startswith("ours") else THEIRS)
        label = f"{row['m_tokens_per_s']:.2f}  ({row['ratio_to_sdpa']:.2f}×)"
        axes.text(bar.get_width(), bar.get_y() + bar.get_height() / 2, f" {label}", va="center")
    axes.set_xlim(right=1.25 * rows[-1]["m_tokens_per_s"])
    axes.set_title("BERT-base on an H200: million tokens a second", loc="left")
    axes.spines[["top", "right"]].set_visible(False)


def _line(axes: Any, points: list[tuple[int, float]], label: str) -> None:
    axes.plot(*zip(*points, strict=True), marker="o", color=OURS)
    axes.set_xlabel(label)
    axes.set_ylabel("milliseconds, bf16")
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    given = sys.argv[1:]
    print(draw(Path(given[0]) if given else sorted(RESULTS.glob("gpu-2*.json"))[-1]))


if __name__ == "__main__":
    main()
