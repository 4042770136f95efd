"""Both C++ libraries under AddressSanitizer with UndefinedBehaviorSanitizer, and under ThreadSanitizer.

    python tests/scripts/sanitize_native.py [--rounds 100] [--processes 10]

They are built anew, with the driver beside this file, and called at random from several threads: odd sizes, int8 and
float32, truncation, buffers too small. The last line is the figure: calls, and findings (a sanitizer's report, or an
answer that depends on threads). Needs gcc or clang with its sanitizer libraries.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from kernel_answers import build  # in this folder

BUILDS = {
    "address,undefined": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-fsanitize=thread"],
}
QUIET = {"ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "halt_on_error=1"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100, help="models and vocabularies to a process")
    parser.add_argument("--processes", type=int, default=10, help="one after the other, for each build and kernel")
    options = parser.parse_args()
    calls = findings = 0
    for name, flags in BUILDS.items():
        with tempfile.TemporaryDirectory() as folder:
            driver = build(Path(folder), Path(__file__).with_suffix(".cpp"), ["-O1", "-g", *flags], whole=True)
            for kernels in ("", "avx2", "portable", "tiles", "pairs"):
                for seed in range(options.processes):
                    done = subprocess.run(
                        [driver, str(seed), str(options.rounds)],
                        env=os.environ | QUIET | {"BERTIE_CPU": kernels},
                        capture_output=True,
                        text=True,
                        timeout=3600,
                    )
                    if done.returncode:
                        findings += 1
                        print(f"{name} {kernels or 'best'} seed {seed}:\n{done.stderr[-4000:]}")
                    else:
                        calls += int(done.stdout)
                print(f"{name}, kernels {kernels or 'best'}: {calls:,} calls so far, {findings} findings", flush=True)
    print(f"{calls:,} calls, {findings} findings")
    return 1 if findings or not calls else 0


if __name__ == "__main__":
    sys.exit(main())
