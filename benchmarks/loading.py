"""How long loading takes and how much memory it needs, beside transformers: bert-base, random weights, safetensors.

    python -m benchmarks.loading [--rounds 7] [--preset base] [--dtype float32] [--save]

Every measurement is a fresh process, ours and theirs in turn, torch imported, the file in the page cache. Three times
are taken: the call of `from_pretrained` alone, with all of the library imported; the same and the library's import, for
which a script waits; and the call until every weight has then been read once, because both libraries map the file and
have read nothing when they return. Peak memory is the process's resident set (Linux's VmHWM) over what it was before
the call, when every weight has been read: pages of the mapped file count.

Expected before measuring: several times faster by the call, as there is nothing to do but to build 200 small modules;
nearer once the weights are read, which is the same work for both; memory at the weights' own size.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.machine import describe, save_result

CHILD = """
import json, sys, time
library, folder, dtype = sys.argv[1:]
import torch
start = time.perf_counter()
if library == "bertie":
    from bertie import BertModel
    import bertie.checkpoint.load_weights
else:
    from transformers import BertModel
imported = time.perf_counter() - start
dtype = getattr(torch, dtype)

def status(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key + ":"))

with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak starts again from here
before = status("VmRSS")
start = time.perf_counter()
model = BertModel.from_pretrained(folder, dtype=dtype)
call = time.perf_counter() - start
with torch.no_grad():
    total = sum(float(p.sum()) for p in model.parameters())
read, peak = time.perf_counter() - start, status("VmHWM") - before
weights = sum(p.numel() * p.element_size() for p in model.parameters())
print(json.dumps(dict(call=call, script=imported + call, read=read, peak=peak, weights=weights, sum=total)))
"""
MB = 2**20


def measure(library: str, folder: Path, dtype: str) -> dict[str, float]:
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, library, str(folder), dtype],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def inspection(folder: Path) -> float:
    """Seconds that `bertie inspect` takes, from starting Python to its end."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "bertie", "inspect", str(folder)], check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--preset", default="base")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/loading-DATE.json")
    options = parser.parse_args()

    from bertie import BertConfig, BertModel

    print(describe())
    rows: dict[str, list[dict[str, Any]]] = {"bertie": [], "transformers": []}
    inspections: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        BertModel(BertConfig.preset(options.preset)).save_pretrained(folder)
        for library in rows:
            measure(library, Path(folder), options.dtype)  # compiles byte code, warms the page cache
        for _ in range(options.rounds):
            for library, results in rows.items():
                results.append(measure(library, Path(folder), options.dtype))
            inspections.append(inspection(Path(folder)))
    sums = {one["sum"] for results in rows.values() for one in results}
    if len(sums) != 1:
        raise SystemExit(f"the two loaded different weights: {sums}")
    middle = {
        library: {key: median(one[key] for one in results) for key in results[0]} for library, results in rows.items()
    }
    ours, theirs = middle["bertie"], middle["transformers"]
    print(f"weights: {ours['weights'] / MB:.0f} MiB; medians of {options.rounds}; peaks over the weights")
    for library, one in middle.items():
        print(
            f"  {library:<13} call {one['call'] * 1000:5.0f} ms   with import {one['script'] * 1000:6.0f} ms   "
            f"every weight read {one['read'] * 1000:5.0f} ms   peak {(one['peak'] - one['weights']) / MB:+5.0f} MiB"
        )
    figures = {f"{key}_ratio": theirs[key] / ours[key] for key in ("call", "script", "read")}
    figures["inspect_seconds"] = median(inspections)
    figures["peak_over_weights_mib"] = (ours["peak"] - ours["weights"]) / MB
    if options.save:
        command = f"python -m benchmarks.loading --rounds {options.rounds} --preset {options.preset}"
        print(save_result("loading", command, rows, figures=figures))
    print(
        f"loading: {figures['call_ratio']:.1f}x faster than transformers by the call, {figures['script_ratio']:.0f}x "
        f"with the import, {figures['read_ratio']:.1f}x with every weight read; peak memory: the weights "
        f"{figures['peak_over_weights_mib']:+.0f} MiB; inspect: {figures['inspect_seconds']:.2f} s"
    )


if __name__ == "__main__":
    main()
