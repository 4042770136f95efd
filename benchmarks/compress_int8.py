"""A compressed model in our int8 beside every peer's int8 of the model before compression, in the contest of cpu.py.

    python -m benchmarks.compress_int8 COMPRESSED [--original MODEL] [--rounds 5] [--save]

COMPRESSED is a folder that `bertie compress --task embed --on cpu-int8` wrote. Everyone gets the same rows, in turn,
with the fastest of their settings (contest.py); the score is the Spearman correlation on STS-B's dev set of everyone's
own vectors. Expected before measuring: at least 3 times the fastest peer, at most 1 point of the original's float32
score lost.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.contest import Failed, Seat, rounds_of
from benchmarks.machine import describe, save_result
from benchmarks.peers import CONTESTANTS, OURS_FP32, OURS_INT8, is_ours
from benchmarks.texts import MAX_TOKENS, ROOT, data_folder, paragraphs
from bertie.data import read_glue
from bertie.defaults import default_embedding_model
from bertie.tasks.similarity import score_pairs
from bertie.text import BertTokenizer
from bertie.training.metrics import spearman

COMPRESSED = "bertie int8, compressed"
PEERS = tuple(name for name, entry in CONTESTANTS.items() if entry.precision == "int8" and not is_ours(name))


def main(given: Sequence[str] | None = None) -> list[dict[str, Any]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("compressed", type=Path)
    parser.add_argument("--original", type=Path, default=Path(default_embedding_model()))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--texts", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--data", type=Path, help="the data folder; $BERTIE_DATA or ../shared/data by default")
    parser.add_argument("--work", type=Path, default=ROOT / ".bench", help="where exported models are kept")
    parser.add_argument("--save", action="store_true", help="write results/compress_int8-DATE.json")
    options = parser.parse_args(given)
    print(f"{describe()}; load {os.getloadavg()[0]:.1f}", flush=True)
    data = data_folder(options.data)
    tokenizer = BertTokenizer.from_pretrained(options.original)
    rows = tokenizer.encode_ids(paragraphs(options.texts, data=data).texts, max_length=MAX_TOKENS)
    pairs = list(read_glue("STS-B", data / "glue" / "STS-B" / "dev.tsv"))
    sentences = tokenizer.encode_ids([*(p.text_a for p in pairs), *(p.text_b or "" for p in pairs)], max_length=128)
    wanted = [float(pair.label or 0) for pair in pairs]

    def score(vectors: NDArray[np.float32]) -> float:
        return spearman(score_pairs(vectors[: len(pairs)], vectors[len(pairs) :]), wanted)

    seats: list[Seat] = []
    found: dict[str, dict[str, Any]] = {}
    who = [(COMPRESSED, OURS_INT8), *((name, name) for name in (OURS_INT8, OURS_FP32, *PEERS))]
    work = options.work / "minilm"
    work.mkdir(parents=True, exist_ok=True)
    for title, name in who:
        seat = Seat(name, threads=options.threads, log=options.work / "logs" / f"compress-{title}.log")
        folder = options.compressed if title == COMPRESSED else options.original
        try:
            note = seat.ask("prepare", str(folder), str(work.resolve()), options.threads)
            seat.ask("load", rows, rows[::4])
            seat.ask("tune")
            seat.ask("warm")
            found[title] = {"name": title, "settings": note, "stsb": score(seat.ask("vectors", sentences))}
        except Failed as error:
            print(f"  {title} did not run: {error}", flush=True)
            seat.leave()
            continue
        seat.name = title  # two are the same contestant
        seats.append(seat)
        print(f"  {title}: {note}", flush=True)
    try:
        _timed(seats, found, sum(map(len, rows)), options.rounds)
    finally:
        for seat in seats:
            seat.leave()
    result = list(found.values())
    _show(result)
    if options.save:
        command = f"python -m benchmarks.compress_int8 {options.compressed.name} --rounds {options.rounds}"
        print(save_result("compress_int8", command, result, threads=options.threads))
    return result


def _timed(seats: Sequence[Seat], found: dict[str, dict[str, Any]], tokens: int, rounds: int) -> None:
    def came(seat: Seat, seconds: float) -> None:
        print(f"  {seat.name}: {tokens / seconds:,.0f} tokens/s", flush=True)

    for question, key in (("sorted_pass", "sorted_rate"), ("stream_pass", "stream_rate")):
        every = rounds_of(seats, question, rounds=rounds, show=lambda line: None, failed=_failed, came=came)
        for title, seconds in every.items():
            found[title][key] = tokens / median(seconds)


def _failed(seat: Seat, line: str) -> None:
    raise Failed(f"{seat.name}: {line}")


def _show(result: list[dict[str, Any]]) -> None:
    print("\n| | sorted tokens/s | arrival tokens/s | STS-B |\n|---|---|---|---|")
    for one in result:
        print(f"| {one['name']} | {one['sorted_rate']:,.0f} | {one['stream_rate']:,.0f} | {one['stsb']:.4f} |")
    ours = result[0]
    others = [one for one in result if one["name"] in PEERS]
    for key in ("sorted_rate", "stream_rate"):
        best = max(others, key=lambda one: one[key])
        print(f"{key}: {ours[key] / best[key]:.2f} times {best['name']} (wanted ≥ 3)")
    whole = next(one for one in result if one["name"] == OURS_FP32)
    print(f"points lost against float32: {100 * (whole['stsb'] - ours['stsb']):.2f} (wanted ≤ 1)")


if __name__ == "__main__":
    main()
