"""README's chart and table of speed, from a saved result.

    python -m benchmarks.readme benchmarks/results/cpu-minilm-DATE.json     # writes docs/speed.svg, prints the table

The chart is written by hand, without a plotting library: it is small, scales, and can be read on a light
and on a dark page. A test compares both with the result file that README names.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from benchmarks.peers import is_ours

SHOWN = (
    "bertie int8", "OpenVINO int8", "CTranslate2 int8", "ONNX Runtime int8", "OpenVINO bf16", "bertie", "OpenVINO",
    "transformers compiled", "transformers", "sentence-transformers",
)  # fmt: skip
OURS, PEER, INK = "#2f81f7", "#8b949e", "#768390"  # INK: contrast above 3.8 on white and on Furo's and GitHub's dark
CHART = Path(__file__).parents[1] / "docs" / "speed.svg"


def shown(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Those of README, the fastest first."""
    (model,) = result["rows"]
    ran = {one["name"]: one for one in model["contestants"]}
    return sorted((ran[name] for name in SHOWN), key=lambda one: -one["sorted_rate"])


def label(name: str) -> str:
    return {"bertie": "bertie float32", "OpenVINO": "OpenVINO float32", "OpenVINO bf16": "OpenVINO bfloat16"}.get(
        name, name
    )


def table_of(result: dict[str, Any]) -> str:
    rows = [
        "| | tokens/s, sorted | tokens/s, as they arrive | one short text | cosine to float32 |",
        "|---|---|---|---|---|",
    ]
    for one in shown(result):
        name = f"**{label(one['name'])}**" if is_ours(one["name"]) else label(one["name"])
        cosine = "1" if one["precision"] == "float32" else f"{one['cosine_mean']:.4f}"
        rates = [f"{round(one[key], -2):,.0f}" for key in ("sorted_rate", "stream_rate")]
        rows.append(f"| {name} | {' | '.join(rates)} | {one['latency_ms']:.1f} ms | {cosine} |")
    return "\n".join(rows) + "\n"


def chart_of(result: dict[str, Any]) -> str:
    rows, line, left, right = shown(result), 26, 172, 640
    height = 58 + line * len(rows)
    fastest = rows[0]["sorted_rate"]
    (model,) = result["rows"]
    title = f"{model['title']} on {result['threads']} CPU cores: tokens per second"
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="720" height="{height}" viewBox="0 0 720 {height}" '
        f'role="img" aria-label="{escape(title)}" font-family="system-ui, sans-serif" font-size="13">',
        f'<text x="0" y="18" font-size="15" font-weight="600" fill="{INK}">{escape(title)}</text>',
    ]
    for number, one in enumerate(rows):
        y, ours = 36 + line * number, is_ours(one["name"])
        width = (right - left) * one["sorted_rate"] / fastest
        weight = ' font-weight="600"' if ours else ""
        name, rate = escape(label(one["name"])), f"{round(one['sorted_rate'], -2):,.0f}"
        colour = OURS if ours else PEER
        drawn += [
            f'<text x="{left - 8}" y="{y + 15}" text-anchor="end" fill="{INK}"{weight}>{name}</text>',
            f'<rect x="{left}" y="{y}" width="{width:.1f}" height="{line - 6}" rx="3" fill="{colour}"/>',
            f'<text x="{left + width + 6:.1f}" y="{y + 15}" fill="{INK}"{weight}>{rate}</text>',
        ]
    said = f"{result['texts']}, batches sorted by length; measured {result['date']}"
    drawn.append(f'<text x="0" y="{height - 6}" font-size="11" fill="{INK}">{escape(said)}</text>')
    return "\n".join([*drawn, "</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path, help="a saved cpu-minilm-DATE.json")
    result = json.loads(parser.parse_args().result.read_text(encoding="utf-8"))
    CHART.write_text(chart_of(result), encoding="utf-8")
    print(table_of(result), end="")


if __name__ == "__main__":
    main()
