"""One encoder layer of base width, batch 4 × 512, eval, on a CPU: ours beside transformers 4.57.6.

    python -m benchmarks.attention [--rounds 15] [--save]

Ours and theirs alternate in one process; times are medians, the ratio is theirs over ours (above 1: ours is faster).
Peak extra memory is what one forward pass adds to a fresh process's resident set, measured in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.machine import describe, save_result

BATCH, LENGTH = 4, 512
# name: (position type, head mask?, wanted speed ratio)
CASES: dict[str, tuple[str, bool, float]] = {
    "plain": ("absolute", False, 0.98),
    "head mask": ("absolute", True, 1.1),
    "relative_key": ("relative_key", False, 1.25),
    "relative_key_query": ("relative_key_query", False, 1.5),
}
SIZES = {"num_hidden_layers": 1, "vocab_size": 1000}


def ours(position_type: str, head_mask: bool) -> Callable[[int], Any]:
    from bertie import BertConfig, BertModel

    torch.manual_seed(0)
    model = BertModel(BertConfig(**SIZES, position_embedding_type=position_type), add_pooling_layer=False).eval()
    return _encoder_call(model, head_mask)


def theirs(position_type: str, head_mask: bool) -> Callable[[int], Any]:
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = transformers.BertConfig(**SIZES, position_embedding_type=position_type)
    model = transformers.BertModel._from_config(config, attn_implementation="sdpa", add_pooling_layer=False).eval()
    return _encoder_call(model, head_mask)


def _encoder_call(model: Any, head_mask: bool) -> Callable[[int], Any]:
    mask = {"head_mask": torch.ones(12).index_fill(0, torch.tensor([3, 7]), 0.0)} if head_mask else {}

    @torch.inference_mode()
    def call(length: int) -> Any:
        ids = torch.arange(BATCH * length).view(BATCH, length) % 1000
        return model(ids, **mask).last_hidden_state

    return call


def peak_extra_bytes(who: str, case: str) -> int:
    """In a fresh process: how far one forward pass raises the resident set above what it was."""
    command = [sys.executable, "-m", "benchmarks.attention", "--peak", who, case]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def measure_peak(who: str, case: str) -> int:
    position_type, head_mask, _ = CASES[case]
    call = (ours if who == "ours" else theirs)(position_type, head_mask)
    call(8)  # libraries loaded, threads started, weights touched
    before = _status("VmRSS")
    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")  # forget the peak so far
    call(LENGTH)
    return _status("VmHWM") - before


def _status(field: str) -> int:
    with open("/proc/self/status") as lines:
        for line in lines:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/")
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak:
        print(measure_peak(*arguments.peak))
        return

    print(describe())
    rows = []
    for case, (position_type, head_mask, wanted) in CASES.items():
        calls = {"ours": ours(position_type, head_mask), "theirs": theirs(position_type, head_mask)}
        times: dict[str, list[float]] = {"ours": [], "theirs": []}
        for call in calls.values():
            call(LENGTH)
        for _ in range(arguments.rounds):
            for who, call in calls.items():
                start = time.perf_counter()
                call(LENGTH)
                times[who].append(time.perf_counter() - start)
        ours_ms, theirs_ms = (1e3 * statistics.median(times[who]) for who in ("ours", "theirs"))
        ratio = statistics.median(b / a for a, b in zip(times["ours"], times["theirs"], strict=True))
        peaks = {who: peak_extra_bytes(who, case) / 2**20 for who in ("ours", "theirs")}
        rows.append(
            {
                "case": case,
                "ours_ms": round(ours_ms, 1),
                "theirs_ms": round(theirs_ms, 1),
                "ratio": round(ratio, 3),
                "wanted": wanted,
                "ours_peak_mb": round(peaks["ours"]),
                "theirs_peak_mb": round(peaks["theirs"]),
                "peak_ratio": round(peaks["ours"] / peaks["theirs"], 2),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    if arguments.save:
        save_result("attention", "python -m benchmarks.attention", rows)
    worst = min(rows, key=lambda row: row["ratio"] / row["wanted"])
    print(f"worst against its bar: {worst['case']} {worst['ratio']}x (wanted {worst['wanted']}x)")


if __name__ == "__main__":
    main()
