"""Every kernel of the CPU engine against plain loops, over random sizes: here, under sanitizers, or for ARM.

    python tests/scripts/kernel_answers.py [--rounds 60] [--sanitize] [--arm] [--time] [--kernels avx2,tiles]

The kernels are built anew with the driver beside this file. `--arm` builds them with Debian's cross compiler
(g++-aarch64-linux-gnu) and runs them by qemu-user. The last line is the figure: comparisons, and findings.
"""

from __future__ import annotations

import argparse
import ast
import os
import platform
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ENGINE = ROOT / "src/bertie/engine/cpu/csrc"
TOKENIZER = ROOT / "src/bertie/text/wordpiece/csrc/wordpiece.cpp"
HERE = ("", "avx2", "avx512-vnni", "avx512-bf16", "portable", "tiles", "pairs")
ARM = ("", "neon-i8mm", "neon-dotprod", "portable")
CROSS = ("aarch64-linux-gnu-g++", "qemu-aarch64")
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g"]
_CONSTANTS = ("FLAGS", "AVX512", "X86", "ARM", "PLAIN", "FILES")


def of_setup() -> dict[str, Any]:
    """What setup.py builds with."""
    tree = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
    found: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in _CONSTANTS:
            exec(compile(ast.Module([node], []), "setup.py", "exec"), found)
    return found


def build(folder: Path, driver: Path, flags: list[str], *, arm: bool = False, whole: bool = False) -> Path:
    """The driver with the kernels; `whole`: with both libraries. An optimisation level in `flags` counts."""
    compiler = CROSS[0] if arm else os.environ.get("CXX", "g++")
    constants = of_setup()
    machine = "aarch64" if arm else platform.machine().lower()
    own = constants["X86"] if machine in ("x86_64", "amd64") else constants["ARM"] if machine == "aarch64" else {}
    names = [
        name
        for name in [*constants["FILES"], *constants["PLAIN"], *own]
        if whole or name.startswith(("dispatch", "kernels"))
    ]
    sources = [*(ENGINE / name for name in names), *([TOKENIZER] if whole else []), driver]

    def compiled(source: Path) -> Path:
        made = folder / f"{source.stem}.o"
        command = [compiler, *constants["FLAGS"], *own.get(source.name, []), *flags, f"-I{ENGINE}", "-c", source]
        subprocess.run([*command, "-o", made], check=True)
        return made

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compiled, sources))
    made = folder / "driver"
    links = ["-static"] if arm else []
    subprocess.run([compiler, *objects, "-o", made, *flags, *links, "-lpthread"], check=True)
    return made


def run(made: Path, kernels: str, *arguments: str, arm: bool = False) -> subprocess.CompletedProcess[str]:
    prefix = [CROSS[1], "-cpu", "max"] if arm else []
    environment = os.environ | {"BERTIE_CPU": kernels, "ASAN_OPTIONS": "detect_leaks=0"}
    return subprocess.run([*prefix, made, *arguments], env=environment, capture_output=True, text=True, timeout=3600)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--sanitize", action="store_true")
    parser.add_argument("--arm", action="store_true")
    parser.add_argument("--time", action="store_true", help="microseconds instead of comparisons")
    parser.add_argument("--kernels", help="by comma; all by default")
    parser.add_argument("--driver", type=Path, help="one that is built already")
    options = parser.parse_args()
    comparisons = findings = 0
    done = set()
    with tempfile.TemporaryDirectory() as folder:
        made = options.driver or build(
            Path(folder),
            Path(__file__).with_suffix(".cpp"),
            [] if options.time else ["-O1", *(SANITIZERS if options.sanitize else [])],
            arm=options.arm,
        )
        for kernels in options.kernels.split(",") if options.kernels else ARM if options.arm else HERE:
            if options.time:
                print(run(made, kernels, "time", arm=options.arm).stdout, flush=True)
                continue
            found = run(made, kernels, "1", str(options.rounds), arm=options.arm)
            name, _, count = found.stdout.strip().partition(" ")
            if found.returncode:
                findings += 1
                print(f"{kernels or 'best'}:\n{found.stderr[-4000:]}", flush=True)
            elif name not in done:  # a processor without these kernels has taken the next ones
                done.add(name)
                comparisons += int(count)
                print(f"{name}: {int(count):,} comparisons", flush=True)
    if not options.time:
        print(f"{', '.join(sorted(done))}: {comparisons:,} comparisons, {findings} findings")
    return 1 if findings or not (comparisons or options.time) else 0


if __name__ == "__main__":
    sys.exit(main())
