"""What was cut, what it cost: compress.md for people, compress.json for programs, compress.png where matplotlib is.

The page says what was asked for and what came of it, with the score against the measured speed of everything that was
tried, what is left of every layer, and the commands to go on with.
"""

from __future__ import annotations

import json
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
    metric: str
    on: str
    engine: str
    original: Sizes
    heads: int  # of a whole layer
    neurons: int
    points: tuple[Point, ...]  # the original first
    chosen: int
    seconds: float
    output: str
    command: str | None
    asked: str
    wanted_speed: float | None = None

    @property
    def point(self) -> Point:
        return self.points[self.chosen]

    def text(self, files: dict[str, int] | None = None, picture: bool = False) -> str:
        """The page, in Markdown."""
        before, after = self.points[0], self.point
        lines = [f"# {self.source}, compressed", "", f"Asked for: {self.asked}.", ""]
        if self.task is not None:
            lines += [
                f"The model is **{after.speedup:.2f} times** as fast as the original ({self.engine}, the rows' own "
                f"lengths, measured in turn). {self.metric}: **{abs(after.score):.4f}**, the original's is "
                f"{abs(before.score):.4f}.",
                f"It was made in {self.seconds:.0f} s.",
                "",
            ]
        if self.wanted_speed is not None and after.speedup < (1 - MISSED) * self.wanted_speed:
            lines += [
                f"**That is less than the {self.wanted_speed:g} times asked for**: the closest that was found. Other "
                "programs disturb measurements; try again when the machine is quiet, or ask for a little more.",
                "",
            ]
        share = after.parameters / before.parameters
        lines += [f"Parameters: {after.parameters:,} of {before.parameters:,} ({share:.0%}).", ""]
        if files:
            total = sum(files.values())
            lines += [f"On disk: {total / 1e6:.1f} MB. In memory the weights take {after.parameters * 4 / 1e6:.1f} MB "
                      "as float32.", ""]  # fmt: skip
        if self.task is not None:
            lines += ["## Score against speed", "", "![score against speed](compress.png)" if picture else "", ""]
            lines += [
                f"| times as fast | {self.metric} | parameters | heads | neurons | |",
                "|---|---|---|---|---|---|",
            ]
            for number, point in sorted(enumerate(self.points), key=lambda item: item[1].speedup):
                named = "the original" if number == 0 else "**written**" if number == self.chosen else ""
                if point.trained:
                    named += f", {point.trained:g} epochs"
                lines.append(
                    f"| {point.speedup:.2f} | {abs(point.score):.4f} | {point.parameters:,} | "
                    f"{sum(point.sizes.heads)} | {sum(point.sizes.neurons):,} | {named} |"
                )
            lines += ["", "Rows that judged are not those that were fitted to.", ""]
        lines += ["## What is left of each layer", "", *self._layers(), ""]
        lines += ["## Go on", "", "```", *self._commands(), "```", ""]
        if self.command:
            lines += [f"Made by `{self.command}`.", ""]
        return "\n".join(lines)

    def _layers(self) -> list[str]:
        lines = ["| layer | heads | | neurons | |", "|---|---|---|---|---|"]
        for number, (heads, neurons) in enumerate(zip(self.point.sizes.heads, self.point.sizes.neurons, strict=True)):
            lines.append(
                f"| {number} | {heads} of {self.heads} | {_bar(heads / self.heads)} | "
                f"{neurons:,} of {self.neurons:,} | {_bar(neurons / self.neurons)} |"
            )
        return lines

    def _commands(self) -> list[str]:
        made = self.output or "FOLDER"
        lines = [f"bertie inspect {made}", f"bertie serve -m {made}"]
        if self.task not in (None, "fill"):
            lines.append(f"bertie finetune {self.task} -m {made} --teacher {self.source} --train TRAIN -o AGAIN")
        return lines


def _bar(share: float) -> str:
    """A heat map's cell: ten blocks."""
    full, rest = divmod(round(share * 40), 4)
    return "█" * full + (_SHADES[rest] if rest else "")


def write_report(report: Report, folder: Path) -> None:
    files = {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    picture = draw(report, folder / "compress.png")
    replace_file(folder / "compress.md", report.text(files, picture))
    replace_file(folder / "compress.json", json.dumps(asdict(report), indent=1) + "\n")


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
    scores.plot([report.point.speedup], [abs(report.point.score)], color="#b5442e", marker="o", markersize=10)
    scores.set_xlabel(f"times as fast ({report.on})")
    scores.set_ylabel(report.metric)
    scores.grid(alpha=0.3)
    sizes = report.point.sizes
    shares = [[h / report.heads for h in sizes.heads], [n / report.neurons for n in sizes.neurons]]
    left.imshow(shares, vmin=0, vmax=1, cmap="Blues", aspect="auto")
    left.set_yticks([0, 1], ["heads", "neurons"])
    left.set_xlabel("layer")
    for row, values in enumerate(([*sizes.heads], [*sizes.neurons])):
        for column, value in enumerate(values):
            dark = shares[row][column] > 0.6
            left.text(column, row, str(value), ha="center", va="center", color="white" if dark else "black", fontsize=8)
    figure.savefig(path, dpi=120)
    return True
