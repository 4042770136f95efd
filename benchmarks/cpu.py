"""BERT on a CPU: ours and every peer in one run, in turn, each with its best settings.

    python -m benchmarks.cpu [--model minilm|base|all] [--threads 1,2,4,8,16] [--quick] [--save] [--json FILE]

Measured for all-MiniLM-L6-v2 and for a BERT-base of random weights, over the same real paragraphs (texts.py):
tokens a second with batches sorted by length and prepared beforehand; tokens a second for texts in the order they
arrive; milliseconds for one short text; tokens a second from text to vectors; the cosine of every vector to the float32
reference; STS-B; and for ours, time against tokens and against text length. Peers choose the fastest of their settings
first (batch of 16, 32 or 64; two batches on a thread each or one on both; graph variants), ours its token budget.
The floors and what was expected come first, the ratios last.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import report
from benchmarks.contest import Failed, Seat, rounds_of
from benchmarks.floors import floor_of, measure_rates
from benchmarks.machine import RESULTS, describe, save_result
from benchmarks.peers import CONTESTANTS, OURS_BF16, OURS_FP32, OURS_INT8, SENTENCE, is_ours
from benchmarks.peers.batches import Rows
from benchmarks.texts import MAX_TOKENS, ROOT, Texts, data_folder, paragraphs, rows_of_length
from bertie import BertConfig, BertModel
from bertie.data import read_glue
from bertie.defaults import default_embedding_model
from bertie.engine.cpu.library import instruction_set
from bertie.tasks.similarity import score_pairs
from bertie.text import BertTokenizer

WORK = ROOT / ".bench"
BUSY = 0.5  # more than this many processes waiting before we start: others disturb the measurement
PACKAGES = ("torch", "transformers", "sentence-transformers", "onnxruntime", "ctranslate2", "openvino", "nncf", "numpy")

# Written before the contest. The peers had been tried for a minute each, ours only to see that it runs.
PREDICTIONS = (
    "int8 reaches half of its arithmetic floor on MiniLM (softmax, GELU, LayerNorm and rounding are not in the floor) "
    "and two thirds on BERT-base, whose products are four times as deep.",
    "fp32 reaches 75 % of its arithmetic floor on MiniLM and 85 % on BERT-base.",
    "The fastest peer of any precision is OpenVINO with int8 weights and activations rounded at run time, about twice "
    "as fast as ONNX Runtime's dynamic int8, at a cosine under 0.998; at a cosine of 0.999 it is OpenVINO in bfloat16.",
    "The fastest fp32 peer is OpenVINO, within 20 % of ONNX Runtime; fp32 on two cores is bound by products, so our "
    "gain there is padding and epilogues: 1.2 to 1.4.",
    "In arrival order padded peers lose half of their rate, ours loses under 5 %.",
    "One short text costs transformers 8 ms or more, most of it in Python; ours under 2 ms in int8.",
    "Time against tokens is a line (R² above 0.999); a token in a text of 512 costs at most twice one in a text of 32.",
)


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    rounds: int
    threads: int
    tune: bool
    names: tuple[str, ...]
    work: Path
    data: Path
    quick: bool
    linearity: bool = True


@dataclass(frozen=True)
class Subject:
    """A model that everyone runs. `trained` is False for random weights, whose vectors mean nothing."""

    name: str
    title: str
    folder: Path
    num_texts: int
    trained: bool


def minilm() -> Subject:
    return Subject("minilm", "all-MiniLM-L6-v2", Path(default_embedding_model()), 512, trained=True)


def base(work: Path) -> Subject:
    """BERT-base of random weights (seed 0) with MiniLM's vocabulary, which is bert-base-uncased's; made once."""
    folder = work / "bert-base"
    if not (folder / "config.json").is_file():
        torch.manual_seed(0)
        BertModel(BertConfig.preset("base")).save_pretrained(folder)
        BertTokenizer.from_pretrained(default_embedding_model()).save_pretrained(folder)
    return Subject("base", "BERT-base", folder, 128, trained=False)


def measure(subject: Subject, texts: Texts, plan: Plan) -> dict[str, Any]:
    """Everything about one model."""
    tokenizer = BertTokenizer.from_pretrained(subject.folder)
    config = BertConfig.from_json_file(subject.folder / "config.json")
    longest = min(MAX_TOKENS, config.max_position_embeddings)
    paragraphs_ = texts.texts[: subject.num_texts]
    rows = tokenizer.encode_ids(paragraphs_, max_length=longest)
    lengths = [len(row) for row in rows]
    tokens = sum(lengths)
    workload = (
        f"{len(rows)} texts, {tokens:,} tokens; {min(lengths)} to {max(lengths)} a text, "
        f"mean {tokens / len(rows):.0f}, median {median(lengths):.0f}."
    )
    print(f"\n{subject.title}: {workload}")
    rates = measure_rates(config, threads=plan.threads, seconds=0.1 if plan.quick else 1.0)
    print(
        f"  best products {rates.fp32_gflops:,.0f} GFLOP/s fp32, {rates.bf16_gflops:,.0f} bf16, "
        f"{rates.int8_gops:,.0f} GOP/s int8; copy "
        f"{rates.copy_gbs:.1f} GB/s"
    )
    floors = [floor_of(config, lengths, rates, precision=name).asdict() for name in ("float32", "bfloat16", "int8")]
    result: dict[str, Any] = {
        "model": subject.name,
        "title": subject.title,
        "trained": subject.trained,
        "kernels": instruction_set(),
        "threads": plan.threads,
        "workload": workload,
        "rates": asdict(rates),
        "floors": floors,
        "contestants": [{"name": name, "precision": CONTESTANTS[name].precision} for name in plan.names],
    }
    print(*(f"  {line}" for line in report.floors(result)), sep="\n")
    stands = {one["name"]: one for one in result["contestants"]}
    seats = _seated(subject, rows, plan, stands)
    try:
        _contest(seats, stands, rows, paragraphs_, plan)
        _accuracy(seats, stands, subject, rows, tokenizer, plan, result)
        if plan.linearity:
            result["linearity"] = _linearity(seats, rows, config, plan)
    finally:
        for seat in seats:
            seat.leave()
        _clear()
    return result


def _seated(subject: Subject, rows: Rows, plan: Plan, stands: dict[str, dict[str, Any]]) -> list[Seat]:
    """Everyone prepared, tuned and warm, one after the other; those who fail are noted and leave."""
    work = plan.work / subject.name.partition("-")[0]  # what is exported serves every number of threads
    work.mkdir(parents=True, exist_ok=True)
    sample = rows[:: 2 if len(rows) <= 128 else 4]
    # All processes start at once: what they import takes longer than what they prepare.
    started = [
        Seat(name, threads=plan.threads, log=plan.work / "logs" / f"{subject.name}-{name}.log") for name in plan.names
    ]
    seats = []
    for seat in started:
        name = seat.name
        try:
            _show(f"preparing {name}")
            note = seat.ask("prepare", str(subject.folder), str(work.resolve()), plan.threads)
            seat.ask("load", rows, sample)
            if plan.tune:
                _show(f"trying settings of {name}")
                best = seat.ask("tune")
                note = f"{note}; {best.sorted}; arrival: size {best.stream.size}"
            _show(f"warming up {name}")
            seat.ask("warm")
        except Failed as error:
            _fail(stands, seat, str(error))
            seat.leave()
            continue
        stands[name]["settings"] = note
        _clear()
        print(f"  {name}: {note}", flush=True)
        seats.append(seat)
    return seats


def _contest(
    seats: Sequence[Seat], stands: dict[str, dict[str, Any]], rows: Rows, texts: list[str], plan: Plan
) -> None:
    """Rounds of each kind; medians into `stands`."""
    tokens = sum(map(len, rows))

    def rounds(question: str, *arguments: Any, who: Sequence[Seat] = seats) -> dict[str, list[Any]]:
        def came(seat: Seat, answer: Any) -> None:
            _clear()
            each = f"{1e3 * median(answer):.2f} ms" if isinstance(answer, list) else f"{tokens / answer:,.0f} tokens/s"
            print(f"  {question.replace('_', ' ')}: {seat.name} {each}", flush=True)

        return rounds_of(
            who,
            question,
            *arguments,
            rounds=plan.rounds,
            show=_show,
            failed=lambda seat, line: _fail(stands, seat, line),
            came=came,
        )

    for question, key in (("sorted_pass", "sorted_rate"), ("stream_pass", "stream_rate")):
        for name, seconds in rounds(question).items():
            stands[name][key] = tokens / median(seconds)
            stands[name][question] = [round(one, 4) for one in seconds]
    short = [row for row in rows if 12 <= len(row) <= 32][:40] or sorted(rows, key=len)[:4]
    for name, found in rounds("latencies", short).items():
        every = np.array(list(chain.from_iterable(found))) * 1e3
        stands[name]["latency_ms"] = float(np.median(every))
        stands[name]["latency_p99_ms"] = float(np.percentile(every, 99))
    whole = [seat for seat in seats if is_ours(seat.name) or seat.name == SENTENCE]
    for name, seconds in rounds("embed_pass", texts, who=whole).items():
        stands[name]["embed_rate"] = tokens / median(seconds)


def _accuracy(
    seats: Sequence[Seat],
    stands: dict[str, dict[str, Any]],
    subject: Subject,
    rows: Rows,
    tokenizer: BertTokenizer,
    plan: Plan,
    result: dict[str, Any],
) -> None:
    """Cosines to the float32 reference for everyone; STS-B for those who round, where weights are trained."""
    reference = BertModel.from_pretrained(subject.folder, add_pooling_layer=False).eval()
    wanted = _reference(reference, rows)
    pairs = data_folder(plan.data) / "glue" / "STS-B" / "dev.tsv"
    examples = list(read_glue("STS-B", pairs)) if subject.trained and pairs.is_file() else []
    if plan.quick:
        examples = examples[:300]
    firsts, seconds = [one.text_a for one in examples], [one.text_b or "" for one in examples]
    scores = [float(one.label or 0) for one in examples]
    sentences = tokenizer.encode_ids(firsts + seconds, max_length=MAX_TOKENS) if examples else []

    def spearman(vectors: NDArray[np.float32]) -> float:
        from scipy.stats import spearmanr

        cosines = score_pairs(vectors[: len(scores)], vectors[len(scores) :])
        return float(spearmanr(cosines, scores).statistic)

    if examples:
        _show("STS-B, the reference")
        result["stsb_reference"] = spearman(_reference(reference, sentences))
        result["stsb_pairs"] = len(examples)
    for seat in seats:
        stand = stands[seat.name]
        _show(f"vectors of {seat.name}")
        try:
            cosines = (seat.ask("vectors", rows) * wanted).sum(axis=1)
            stand["cosine_mean"], stand["cosine_min"] = float(cosines.mean()), float(cosines.min())
            if examples and stand["precision"] != "float32" and (is_ours(seat.name) or not plan.quick):
                stand["stsb"] = spearman(seat.ask("vectors", sentences))
        except Failed as error:
            _fail(stands, seat, str(error))


@torch.inference_mode()
def _reference(model: BertModel, rows: Rows) -> NDArray[np.float32]:
    """The reference's unit vectors; texts of one length go together, so there is no padding to get wrong."""
    found = torch.empty(len(rows), model.config.hidden_size)
    for length in {len(row) for row in rows}:
        places = [place for place, row in enumerate(rows) if len(row) == length]
        for chunk in (places[start : start + 32] for start in range(0, len(places), 32)):
            found[chunk] = model(torch.tensor([list(rows[i]) for i in chunk])).last_hidden_state.mean(dim=1)
    unit: NDArray[np.float32] = torch.nn.functional.normalize(found).numpy()
    return unit


def _linearity(seats: Sequence[Seat], rows: Rows, config: BertConfig, plan: Plan) -> dict[str, Any]:
    """For ours: seconds against tokens in texts of mixed length, and time a token against text length."""
    limit = config.max_position_embeddings
    lengths = [n for n in (8, 16, 32, 64, 128, 256, 512) if n <= limit]
    budget = max(lengths[-1], sum(map(len, rows)) // (16 if plan.quick else 4))
    counts = [max(1, len(rows) * part // 8) for part in range(1, 9)]
    repeats = 1 if plan.quick else 3
    found = {}
    for seat in seats:
        if not is_ours(seat.name):
            continue
        _show(f"time against tokens, {seat.name}")
        tokens = [sum(map(len, rows[:count])) for count in counts]
        seconds = [seat.ask("seconds_for", rows[:count], repeats) for count in counts]
        slope, intercept = np.polyfit(tokens, seconds, 1)
        off = np.array(seconds) - (slope * np.array(tokens) + intercept)
        per_token = []
        for length in lengths:
            same = rows_of_length(rows, length, max(1, budget // length))
            per_token.append(1e6 * seat.ask("seconds_for", same, repeats) / (length * len(same)))
        found[seat.name] = {
            "tokens": tokens,
            "seconds": seconds,
            "slope": float(slope),
            "intercept": float(intercept),
            "r_squared": float(1 - off.var() / max(np.var(seconds), 1e-18)),
            "lengths": lengths,
            "microseconds_per_token": per_token,
        }
    return found


def _fail(stands: dict[str, dict[str, Any]], seat: Seat, line: str) -> None:
    stands[seat.name]["error"] = line
    _clear()
    print(f"  {seat.name} did not run: {line}", flush=True)


def _show(line: str) -> None:
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns - 1
        print(f"\r\033[K{line[:width]}", end="", file=sys.stderr, flush=True)
    else:
        print(f"  · {line}", file=sys.stderr, flush=True)


def _clear() -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def save(
    models: list[dict[str, Any]], name: str, command: str, plan: Plan, texts: Texts, *, threads: str, load: float
) -> list[Path]:
    """results/NAME-DATE.json, .md and the pictures."""
    from benchmarks.chart import draw

    facts = {
        "versions": _versions(),
        "threads": threads,
        "rounds": plan.rounds,
        "texts": texts.source,
        "load": load,
        "predictions": list(PREDICTIONS),
        "figures": report.as_figures(models),
    }
    path = save_result(name, command, models, **facts)
    today = datetime.date.today().isoformat()
    result = {"date": today, "machine": describe(), "command": command, **facts, "rows": models}
    pictures = draw(result, RESULTS, path.stem)
    page = path.with_suffix(".md")
    page.write_text(report.page(result, pictures), encoding="utf-8")
    return [path, page, *pictures]


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("minilm", "base", "all"), default="all")
    parser.add_argument("--folder", type=Path, help="a checkpoint of your own instead of --model")
    parser.add_argument("--quick", action="store_true", help="two rounds, an eighth of the texts, settings untried")
    parser.add_argument("--rounds", type=int, help="5 by default, 2 with --quick")
    parser.add_argument("--texts", type=int, help="how many texts (512; 128 for base; an eighth with --quick)")
    parser.add_argument("--threads", default="2", help="how many, or several by comma, one after the other: 1,2,4,8,16")
    parser.add_argument("--tune", action="store_true", help="try settings with --quick too")
    parser.add_argument("--peers", default="all", help="all, none, or names by comma: " + ", ".join(CONTESTANTS))
    parser.add_argument("--data", type=Path, help="the data folder; $BERTIE_DATA or ../shared/data by default")
    parser.add_argument("--work", type=Path, default=WORK, help="where exported models are kept (.bench)")
    parser.add_argument("--no-linearity", action="store_true", help="leave out time against tokens and text length")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/cpu-….json, .md and charts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file of your own")
    return parser.parse_args(given)


def _names(wanted: str) -> tuple[str, ...]:
    if wanted == "all":
        return tuple(CONTESTANTS)
    chosen = [] if wanted == "none" else [name.strip() for name in wanted.split(",")]
    unknown = [name for name in chosen if name not in CONTESTANTS]
    if unknown:
        sys.exit(f"There is no peer {unknown[0]!r}. There are: {', '.join(CONTESTANTS)}.")
    return tuple(dict.fromkeys((OURS_FP32, OURS_BF16, OURS_INT8, *chosen)))


def _threads(given: str) -> list[int]:
    counts = given.split(",")
    if not all(count.strip().isdecimal() and int(count) for count in counts):
        sys.exit(f"--threads takes a number, or several by comma, like 1,2,4; it was given {given!r}.")
    return [int(count) for count in counts]


def main(given: Sequence[str] | None = None) -> list[dict[str, Any]]:
    options = _arguments(given)
    counts = _threads(options.threads)
    plan = Plan(
        rounds=options.rounds or (2 if options.quick else 5),
        threads=counts[0],
        tune=options.tune or not options.quick,
        names=_names(options.peers),
        work=options.work,
        data=data_folder(options.data),
        quick=options.quick,
        linearity=not options.no_linearity,
    )
    if options.folder is not None:
        subjects = [Subject("custom", options.folder.name, options.folder, 512, trained=False)]
    else:
        subjects = [minilm()] if options.model in ("minilm", "all") else []
        subjects += [base(plan.work)] if options.model in ("base", "all") else []
    texts = paragraphs(options.texts or 512, data=plan.data)
    load = os.getloadavg()[0]
    print(describe(("torch",)))
    if load > BUSY:
        print(f"THE MACHINE IS BUSY (load {load:.1f}): these figures only show that everything runs")
    print(f"{texts.source}; {options.threads} threads, {plan.rounds} rounds")
    print("Expected before measuring:", *(f"  {line}" for line in PREDICTIONS), sep="\n")
    models = []
    for subject, threads in product(subjects, counts):
        count = options.texts or (subject.num_texts // 8 if plan.quick else subject.num_texts)
        sized = replace(subject, num_texts=count)
        if len(counts) > 1:
            sized = replace(sized, name=f"{sized.name}-{threads}", title=f"{sized.title}, {threads} threads")
        models.append(measure(sized, texts, replace(plan, threads=threads)))
        print(*report.table(models[-1]), sep="\n")
        print(*report.floors(models[-1]), sep="\n", flush=True)
    if options.json is not None:
        found = {"machine": describe(), "versions": _versions(), "texts": texts.source, "rows": models}
        options.json.write_text(json.dumps(found | {"figures": report.as_figures(models)}, indent=2) + "\n")
    if options.save:
        name = "cpu" if options.model == "all" and options.folder is None else f"cpu-{subjects[0].name}"
        command = "python -m benchmarks.cpu " + " ".join(sys.argv[1:] if given is None else given)
        print(
            *(path for path in save(models, name, command.strip(), plan, texts, threads=options.threads, load=load)),
            sep="\n",
        )
    print(*(ratio for model in models for ratio in report.ratios(model)), sep="\n")
    return models


if __name__ == "__main__":
    main()
