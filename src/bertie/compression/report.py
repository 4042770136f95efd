"""What was cut, what it cost: compress.md for people, compress.json for programs, compress.png where matplotlib is.

The page says what was asked for and what came of it, with the score against the measured speed of everything that was
tried, what is left of every layer, and the commands to go on with.
"""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path

from bertie.compression.layers import Sizes
from bertie.files import replace_file

_SHADES = " ░▒▓█"
MISSED = 0.05  # so much less than the speed asked for is said


@dataclass(frozen=True)
class Point:
    """One model: the speed-up (or share) that was asked for, the measured one, and the score."""

    asked: float
    speedup: float
    score: float
    parameters: int
    sizes: Sizes
    promised: float = 1.0  # the speed of these sizes as the search left them
    trained: float = 0.0  # epochs


@dataclass(frozen=True)
class Report:
    source: str
    task: str | None  # None: only tables were trimmed
    labelled: bool  # whether the data has labels
    metric: str
    meaning: str  # of the metric; may be empty
    on: str
    engine: str
    original: Sizes
    heads: int  # of a whole layer
    neurons: int
    points: tuple[Point, ...]  # the original first
    chosen: int
    seconds: float
    output: str
    folder: str  # of the chosen model in `output`; empty where that is the model
    weights: int  # bytes of the original's files of weights
    dense: bool
    command: str | None
    asked: str
    wanted_speed: float | None = None

    @property
    def point(self) -> Point:
        return self.points[self.chosen]

    def text(self, weights: int, total: int, *, picture: bool) -> str:
        """The page, in Markdown; `weights` and `total` are the bytes of the new model's weights and folder."""
        before, after = self.points[0], self.point
        lines = [f"# {self.source}, compressed", ""]
        lines += [f"Kept: {self.asked}.", ""] if self.task is None else [f"Target: {self.asked}.", "", *self._result()]
        share = after.parameters / before.parameters
        lines += [
            "| | original | compressed | |",
            "|---|---|---|---|",
            f"| parameters | {before.parameters:,} | {after.parameters:,} | {share:.0%} |",
            f"| weights on disk | {_megabytes(self.weights)} | {_megabytes(weights)} | {weights / self.weights:.0%} |",
            f"| weights in memory (float32) | {_megabytes(4 * before.parameters)} | {_megabytes(4 * after.parameters)} "
            f"| {share:.0%} |",
            "",
            f"The whole folder takes {_megabytes(total)}.",
            "",
        ]
        if self.task is not None:
            lines += ["## Score against speed", "", *(["![score against speed](compress.png)", ""] if picture else [])]
            lines += [*self._frontier(), "## What is left of each layer", "", *self._layers(), ""]
        lines += ["## Next steps", "", "```", *self._commands(), "```", ""]
        if self.command:
            lines += [f"Made by `{self.command}`.", ""]
        return "\n".join(lines)

    def _result(self) -> list[str]:
        before, after = self.points[0], self.point
        meaning = f" ({self.meaning})" if self.meaning else ""
        of_what = "original in float32" if self.on == "cpu-int8" else "original"
        lines = [
            f"The model is **{after.speedup:.2f} times** as fast as the original. Its {self.metric}{meaning} is "
            f"**{abs(after.score):.4f}**; the {of_what} has {abs(before.score):.4f}.",
            "",
            f"Both were timed in turn on {self.engine}, with rows as long as yours. All of this took "
            f"{self.seconds:.0f} s.",
            "",
        ]
        if self.wanted_speed is not None and after.speedup < (1 - MISSED) * self.wanted_speed:
            lines += [
                f"**That is less than the {self.wanted_speed:g} times asked for**: the closest that was found. Other "
                "programs disturb measurements; try again when the machine is quiet, or ask for a little more.",
                "",
            ]
        if self.dense:
            lines += [
                "**The speed and the parameters are those of the model without `--dense`.** This folder has plain "
                "sizes with zeros for what was cut: the same answers, as fast and as large as the original.",
                "",
            ]
        return lines

    def _frontier(self) -> list[str]:
        lines = [
            f"| times as fast | {self.metric} | parameters | heads | neurons | |",
            "|---|---|---|---|---|---|",
        ]
        for number, point in sorted(enumerate(self.points), key=lambda item: item[1].speedup):
            notes = [note for note, holds in (("the original", number == 0), ("**written**", number == self.chosen))
                     if holds]  # fmt: skip
            if point.trained:
                notes.append(f"after {point.trained:g} epoch{'' if point.trained == 1 else 's'} of learning")
            lines.append(
                f"| {point.speedup:.2f} | {abs(point.score):.4f} | {point.parameters:,} | "
                f"{sum(point.sizes.heads)} | {sum(point.sizes.neurons):,} | {', '.join(notes)} |"
            )
        return [*lines, "", "The score is of rows that nothing was fitted to.", ""]

    def _layers(self) -> list[str]:
        sizes = self.point.sizes
        lines = ["| layer | heads | | neurons | |", "|---|---|---|---|---|"]
        for number, (heads, neurons) in enumerate(zip(sizes.heads, sizes.neurons, strict=True)):
            lines.append(
                f"| {number} | {heads} of {self.heads} | {_bar(heads / self.heads)} | "
                f"{neurons:,} of {self.neurons:,} | {_bar(neurons / self.neurons)} |"
            )
        if len(sizes) < len(self.original):
            lines += ["", f"{len(sizes)} of {len(self.original)} layers are left, with new numbers."]
        return lines

    def _commands(self) -> list[str]:
        made = shlex.quote(os.path.join(self.output, self.folder) if self.folder else self.output)
        lines = [f"bertie inspect {made}", f"bertie serve -m {made}"]
        if self.labelled:
            source = shlex.quote(self.source)
            lines.append(f"bertie finetune {self.task} -m {made} --teacher {source} --train TRAIN -o AGAIN")
        return lines


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


def _bar(share: float) -> str:
    """A heat map's cell: ten blocks."""
    full, rest = divmod(max(round(share * 40), share > 0), 4)
    return "█" * full + (_SHADES[rest] if rest else "")


def write_report(report: Report, folder: Path) -> str:
    """Write all of it beside the models, and give the page."""
    files = [path for path in (folder / report.folder).rglob("*") if path.is_file()]
    weights = sum(path.stat().st_size for path in files if path.name.startswith("model") and "json" not in path.name)
    picture = draw(report, folder / "compress.png")
    page = report.text(weights, sum(path.stat().st_size for path in files), picture=picture)
    replace_file(folder / "compress.md", page)
    replace_file(folder / "compress.json", json.dumps(asdict(report), indent=1) + "\n")
    return page


def draw(report: Report, path: Path) -> bool:
    """Score against speed, and a heat map of what is left; False without matplotlib, or with nothing to draw."""
    if report.task is None:
        return False
    try:
        import matplotlib as mpl
    except ImportError:
        return False
    mpl.use("agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    scores, left = figure.subplots(1, 2)
    points = sorted(report.points, key=lambda point: point.speedup)
    scores.plot([p.speedup for p in points], [abs(p.score) for p in points], color="#1f5fa8", marker="o")
    scores.plot(
        [report.point.speedup], [abs(report.point.score)], color="#b5442e", marker="o", markersize=10, linestyle="",
        label="this model",
    )  # fmt: skip
    scores.legend(loc="best", frameon=False)
    scores.set_title("score against speed", fontsize=10)
    scores.set_xlabel(f"times as fast as the original ({report.on})")
    scores.set_ylabel(report.metric)
    scores.grid(alpha=0.3)
    sizes = report.point.sizes
    shares = [[h / report.heads for h in sizes.heads], [n / report.neurons for n in sizes.neurons]]
    left.imshow(shares, vmin=0, vmax=1, cmap="Blues", aspect="auto")
    left.set_title(f"what is left of {report.heads} heads and {report.neurons:,} neurons", fontsize=10)
    left.set_yticks([0, 1], ["heads", "neurons"])
    left.set_xticks(range(len(sizes)))
    left.set_xlabel("layer")
    for row, values in enumerate(([*sizes.heads], [*sizes.neurons])):
        for column, value in enumerate(values):
            dark = shares[row][column] > 0.6
            left.text(column, row, str(value), ha="center", va="center", color="white" if dark else "black", fontsize=8)
    figure.savefig(path, dpi=120)
    return True
