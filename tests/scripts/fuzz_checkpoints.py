"""QUALITY 1: 10,000 seeded mutants of checkpoints, 2,000 of each kind: each is refused with a typed error or loaded as
what its bytes say, within 2 s, and with its file's size and 64 MB of memory.

    python tests/scripts/fuzz_checkpoints.py [--mutants 2000] [--first 0] [--kind safetensors …]

A mutant is made again by its seed: `hostile.corpus.mutant("bin", 1671)`. The last line is the figure.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hostile.corpus import KINDS
from hostile.isolation import Tally, run_isolated

SECONDS, MEGABYTES = 2.0, 64.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=2000, help="of each kind")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--kind", choices=KINDS, action="append")
    given = parser.parse_args()
    tallies = []
    for kind in given.kind or KINDS:
        seeds = range(given.first, given.first + given.mutants)
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            cases = (f"{kind}:{seed}" for seed in seeds)
            outcomes = run_isolated("hostile.mutants:trial", cases, Path(folder))
            tally = Tally.of(outcomes, seconds=SECONDS, megabytes=MEGABYTES)
        print(f"{kind}, seeds {seeds[0]} to {seeds[-1]}: {tally} [{time.perf_counter() - started:.0f} s]", flush=True)
        for one in tally.bad:
            print(f"  {one.case}: {one.verdict}, {one.seconds:.2f} s, {one.megabytes:.1f} MB: {one.detail}", flush=True)
        tallies.append(tally)
    verdicts = sum((tally.verdicts for tally in tallies), start=type(tallies[0].verdicts)())
    bad = sum(len(tally.bad) for tally in tallies)
    print(
        f"{verdicts.total()} mutants: {verdicts['refused']} typed errors, {verdicts['loaded']} faithful loads, "
        f"{verdicts['failed']} wrong, {verdicts['crashed']} crashes, {verdicts['hung']} hangs; "
        f"slowest {max(tally.slowest.seconds for tally in tallies):.2f} s, "
        f"most memory {max(tally.largest.megabytes for tally in tallies):.1f} MB; {bad} outside the bar"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
