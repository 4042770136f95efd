"""What a CPU comparison says: its table, the ratios asked of it, and the page beside the result file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers import OURS_BF16, OURS_FP32, OURS_INT8, SENTENCE, TRANSFORMERS, is_ours

# Vectors this near to float32 count as the same answers when peers are compared at equal accuracy.
SAME_ANSWERS = 0.999


@dataclass(frozen=True)
class Ratio:
    """One figure with its bar: ours against `other`, larger is better unless `least` is False."""

    model: str
    what: str
    value: float
    bar: float | None
    other: str
    least: bool = True

    @property
    def reached(self) -> bool | None:
        if self.bar is None:
            return None
        return self.value >= self.bar if self.least else self.value <= self.bar

    def __str__(self) -> str:
        wanted = "" if self.bar is None else f", wanted {'≥' if self.least else '≤'}{self.bar:g}"
        mark = {True: "ok  ", False: "MISS", None: "    "}[self.reached]
        digits = ".2f" if "/" in self.what else ".5f"  # a ratio, or a cosine or correlation
        return f"{mark} {self.model}: {self.what} {self.value:{digits}} ({self.other}{wanted})"


def ratios(model: dict[str, Any]) -> list[Ratio]:
    """The figures asked for, as far as those who make them ran."""
    title = model["model"]
    by_name = {one["name"]: one for one in model["contestants"]}
    found: list[Ratio] = []

    def peer(key: str, *, precision: str | None = None, cosine: float = -1.0) -> dict[str, Any] | None:
        fit = [
            one
            for one in model["contestants"]
            if not is_ours(one["name"])
            and key in one
            and precision in (None, one["precision"])
            and one.get("cosine_mean", 0.0) >= cosine
        ]
        return max(fit, key=lambda one: one[key], default=None)

    def compare(
        mine: str, key: str, other: dict[str, Any] | None, what: str, bar: float | None, *, least: bool = True
    ) -> None:
        one = by_name.get(mine, {})
        if other is not None and key in one and key in other:
            against = f"{one[key]:,.4g} against {other[key]:,.4g} of {other['name']}"
            found.append(Ratio(title, what, one[key] / other[key], bar, against, least))

    base, sentence = by_name.get(TRANSFORMERS), by_name.get(SENTENCE)
    matrix_unit = model.get("kernels") == "amx"  # products are so fast there that they are the smaller part of the time
    fastest = "int8 / fastest peer of any precision"
    compare(OURS_INT8, "sorted_rate", peer("sorted_rate"), fastest, 2.0 if matrix_unit else 1.9)
    same = peer("sorted_rate", cosine=SAME_ANSWERS)
    compare(OURS_INT8, "sorted_rate", same, f"int8 / fastest peer of cosine ≥{SAME_ANSWERS}", 2.4)
    if "sorted_rate" in by_name.get(OURS_INT8, {}):
        rate, floor = by_name[OURS_INT8]["sorted_rate"], model["floors"][-1]["arithmetic_rate"]
        against = f"{rate:,.4g} against {floor:,.4g} of the products alone"
        found.append(Ratio(title, "int8 / its products' floor", rate / floor, 0.45 if matrix_unit else 0.85, against))
    fp32 = peer("sorted_rate", precision="float32")
    compare(OURS_FP32, "sorted_rate", fp32, "fp32 / fastest fp32 peer", None)
    compare(OURS_BF16, "sorted_rate", peer("sorted_rate", precision="bfloat16"), "bf16 / fastest bf16 peer", 1.25)
    compare(OURS_INT8, "stream_rate", base, "arrival order, int8 / transformers", 3.0)
    compare(OURS_FP32, "stream_rate", base, "arrival order, fp32 / transformers", None)
    compare(OURS_INT8, "stream_rate", peer("stream_rate"), "arrival order, int8 / fastest peer", None)
    compare(OURS_INT8, "embed_rate", sentence, "text to vectors, int8 / sentence-transformers", None)
    compare(OURS_FP32, "embed_rate", sentence, "text to vectors, fp32 / sentence-transformers", None)
    compare(OURS_INT8, "latency_ms", base, "latency of one short text, int8 / transformers", 0.6, least=False)
    compare(OURS_FP32, "latency_ms", base, "latency of one short text, fp32 / transformers", 0.6, least=False)
    bf16 = by_name.get(OURS_BF16, {})
    if "cosine_mean" in bf16:
        bar = 0.99999 if model["trained"] else None
        found.append(Ratio(title, "bf16 cosine, mean", bf16["cosine_mean"], bar, "to the float32 reference"))
    for name in (OURS_FP32, OURS_BF16, OURS_INT8):
        one = by_name.get(name, {})
        if "embed_rate" in one and "sorted_rate" in one:
            against = f"{one['embed_rate']:,.4g} against {one['sorted_rate']:,.4g} of the model"
            ratio = one["embed_rate"] / one["sorted_rate"]
            found.append(Ratio(title, f"text to vectors / the model, {name}", ratio, 0.85, against))
    int8 = by_name.get(OURS_INT8, {})
    if "cosine_mean" in int8:
        # On random weights the cosine says little, so the bars are MiniLM's.
        bars = (0.999, 0.997) if model["trained"] else (None, None)
        found.append(Ratio(title, "int8 cosine, mean", int8["cosine_mean"], bars[0], "to the float32 reference"))
        found.append(Ratio(title, "int8 cosine, least", int8["cosine_min"], bars[1], "to the float32 reference"))
    if "stsb" in int8:
        loss = model["stsb_reference"] - int8["stsb"]
        against = f"{int8['stsb']:.4f} against {model['stsb_reference']:.4f}"
        found.append(Ratio(title, "STS-B Spearman loss of int8", loss, 0.001, against, least=False))
    return found


_COLUMNS = (
    ("sorted_rate", "sorted tok/s", "{:,.0f}"),
    ("stream_rate", "arrival tok/s", "{:,.0f}"),
    ("embed_rate", "text→vector tok/s", "{:,.0f}"),
    ("latency_ms", "1 text ms", "{:.2f}"),
    ("latency_p99_ms", "p99 ms", "{:.2f}"),
    ("cosine_mean", "cosine", "{:.5f}"),
    ("cosine_min", "least", "{:.5f}"),
    ("stsb", "STS-B", "{:.4f}"),
)


def table(model: dict[str, Any]) -> Iterator[str]:
    """Markdown rows, the fastest first; `×` columns are how many times faster ours is (sorted)."""
    by_name = {one["name"]: one for one in model["contestants"]}
    mine = [by_name.get(name, {}).get("sorted_rate") for name in (OURS_FP32, OURS_INT8)]
    heads = ["contestant", "precision", *(head for _, head, _ in _COLUMNS), "fp32 ours ×", "int8 ours ×", "settings"]
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" * len(heads)
    for one in sorted(model["contestants"], key=lambda one: -one.get("sorted_rate", 0)):
        if "error" in one:
            yield f"| {one['name']} | {one['precision']} | did not run: {one['error']} |" + " |" * (len(heads) - 3)
            continue
        cells = [form.format(one[key]) if key in one else "" for key, _, form in _COLUMNS]
        times = [f"{rate / one['sorted_rate']:.2f}" if rate and "sorted_rate" in one else "" for rate in mine]
        yield f"| {' | '.join([one['name'], one['precision'], *cells, *times, one.get('settings', '')])} |"


def floors(model: dict[str, Any]) -> Iterator[str]:
    """The floors, then the gap of ours to them."""
    by_name = {one["name"]: one for one in model["contestants"]}
    for name, floor in zip((OURS_FP32, OURS_BF16, OURS_INT8), model["floors"], strict=True):
        yield (
            f"{floor['precision']}: {floor['flops_per_token'] / 1e6:.1f} MFLOP a token "
            f"({floor['attention_share']:.0%} attention); arithmetic floor {floor['arithmetic_rate']:,.0f} tokens/s, "
            f"memory floor {floor['memory_rate']:,.0f} tokens/s; one text of 22 tokens: arithmetic "
            f"{floor['arithmetic_latency_ms']:.2f} ms, weights from memory {floor['memory_latency_ms']:.2f} ms"
        )
        rate = by_name.get(name, {}).get("sorted_rate")
        if rate:
            limit = min(floor["arithmetic_rate"], floor["memory_rate"])
            yield f"  {name} reaches {rate:,.0f}: {rate / limit:.0%} of that, a factor of {limit / rate:.2f} left"


def page(result: dict[str, Any], pictures: list[Path]) -> str:
    """The Markdown beside a result file."""
    lines = [
        f"# CPU: ours and the peers, {result['date']}",
        "",
        f"{result['machine']}; {', '.join(f'{name} {v}' for name, v in result['versions'].items())}.",
        f"`{result['command']}`; {result['threads']} threads; medians of {result['rounds']} rounds, all in turn.",
        f"Texts: {result['texts']}. Load before the start: {result['load']:.2f}.",
        "",
        "Expected before measuring:",
        "",
        *(f"- {line}" for line in result["predictions"]),
        "",
    ]
    for model in result["rows"]:
        lines += [f"## {model['title']}", "", model["workload"], ""]
        lines += [f"- {line.strip()}" for line in floors(model)]
        lines += ["", *table(model), ""]
        lines += [f"- {ratio}" for ratio in ratios(model)]
        for name, found in (model.get("linearity") or {}).items():
            spread, ends = found["microseconds_per_token"], found["lengths"]
            lines.append(
                f"- {name}: time against tokens is a line with R² {found['r_squared']:.4f}; a token costs "
                f"{min(spread):.1f} to {max(spread):.1f} µs in texts of {ends[0]} to {ends[-1]} tokens"
            )
        shown = [path for path in pictures if path.suffix == ".svg" and f"-{model['model']}-" in path.name]
        lines += ["", *(f"![{path.stem}]({path.name})" for path in shown), ""]
    return "\n".join(lines)


def as_figures(models: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The ratios as plain values for the result file."""
    return [asdict(ratio) | {"reached": ratio.reached} for model in models for ratio in ratios(model)]
