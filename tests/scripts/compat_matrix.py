"""Run tests/compat and write docs/compatibility.md: what was compared with transformers, with which versions, and how.

    python tests/scripts/compat_matrix.py                     # this environment
    python tests/scripts/compat_matrix.py OTHER/bin/python    # and a second one, with transformers 5

The tests of VERSION_5 are about what transformers 5 still has; the others are about 4.57's own surface and run with
4.57 alone. tests/compat/test_matrix_page.py fails when a test is not on the page, or is there and no longer exists.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests" / "compat"
PAGE = ROOT / "docs" / "compatibility.md"
AREAS = {
    "test_scripts": "Example scripts",
    "test_auto_names": "Auto classes",
    "test_hub_auto": "Auto classes",
    "test_hub_outputs": "Outputs",
    "test_hub_forwards": "Calls",
    "test_hub_config": "Configuration",
    "test_hub_loading": "Loading and saving",
    "test_hub_keywords": "Loading and saving",
    "test_hub_caches": "Caches",
    "test_hub_accelerate": "accelerate",
    "test_hub_subclassing": "Subclassing",
    "test_hub_parts": "Parts of one's own",
    "test_stranger_parts": "Parts of one's own",
    "test_stranger_programs": "Programs",
    "test_hub_trainer": "Trainer",
    "test_hub_export": "Tracing and export",
    "test_hub_differences": "Differences on purpose",
    "test_generation_compat": "generate()",
    "test_tokenizer_calls": "Tokenizer",
    "test_tokenizer_settings": "Tokenizer",
    "test_tokenizer_around": "Tokenizer",
    "test_tokenizer_names": "Tokenizer",
    "test_chat_templates": "Tokenizer",
    "test_around_peft": "peft",
    "test_around_torch": "PyTorch",
    "test_around_tools": "Tools",
}
VERSION_5 = (
    "test_scripts", "test_auto_names", "test_hub_auto", "test_hub_accelerate", "test_around_peft", "test_around_torch",
    "test_around_tools",
)  # fmt: skip
PACKAGES = (
    "transformers", "torch", "tokenizers", "huggingface_hub", "accelerate", "peft", "datasets", "lightning",
    "sentence-transformers", "captum", "bertviz", "onnx", "onnxruntime",
)  # fmt: skip


def tests_there_are() -> dict[str, list[str]]:
    """The test functions of each file, in order, by reading the files."""
    found: dict[str, list[str]] = {}
    for file in sorted(TESTS.glob("test_*.py")):
        if file.stem == "test_matrix_page":  # it is about the page
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        found[file.stem] = [n.name for n in tree.body if isinstance(n, ast.FunctionDef) and n.name.startswith("test_")]
    return found


class Recorder:
    """A pytest plugin: how every test ended, and the versions it ran with."""

    def __init__(self) -> None:
        self.outcomes: dict[str, Counter[str]] = {}
        self.skipped: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            file, function = report.nodeid.split("::")[:2]
            name = f"{Path(file).stem}::{function.split('[')[0]}"
            self.outcomes.setdefault(name, Counter())[report.outcome] += 1
            if report.outcome == "skipped":
                self.skipped[f"`{name}`: {report.longrepr[2].removeprefix('Skipped: ')}"] += 1


def record(out: str, stems: list[str]) -> None:
    """Run tests in this process and write what came of them."""
    import pytest

    recorder = Recorder()
    files = [str(TESTS / f"{stem}.py") for stem in stems]
    pytest.main(["-q", "-m", "slow or not slow", "-p", "no:cacheprovider", *files], plugins=[recorder])
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    Path(out).write_text(json.dumps({"outcomes": recorder.outcomes, "skipped": recorder.skipped, "versions": versions}))


def recorded(python: str, stems: list[str]) -> dict[str, Any]:
    """The same in another process, maybe of another environment."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "outcomes.json"
        path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        subprocess.run([python, __file__, "--record", str(out), *stems], cwd=ROOT, env=environment, check=True)
        return dict(json.loads(out.read_text()))


def cell(outcomes: dict[str, int] | None) -> str:
    if not outcomes:
        return "–"
    passed, failed, skipped = (outcomes.get(kind, 0) for kind in ("passed", "failed", "skipped"))
    words = [f"{passed} passed" if passed else "", f"**{failed} failed**" if failed else ""]
    words.append(f"{skipped} skipped" if skipped else "")
    return ", ".join(filter(None, words))


def page(runs: list[dict[str, Any]]) -> str:
    names = [f"transformers {run['versions']['transformers']}" for run in runs]
    lines = [
        "# What was compared with transformers",
        "",
        "Each row is a test in `tests/compat`, the slow ones included. Nearly all of them do the same thing with",
        "transformers and with Bertie, from the same weights and the same seed, and pass only if the results are the",
        "same; a few are about Bertie alone, such as its error messages. The number counts the cases of a test. A",
        "dash means that the test is about the surface of 4.57 and was not run. The last section says what was",
        "skipped and why; `ARCHITECTURE.md` lists what differs on purpose. `python tests/scripts/compat_matrix.py`",
        "writes this page.",
        "",
        "| versions | " + " | ".join(names) + " |",
        "|---" * (len(runs) + 1) + "|",
    ]
    for package in PACKAGES[1:]:
        lines.append(f"| {package} | " + " | ".join(run["versions"].get(package, "–") for run in runs) + " |")
    there_are = tests_there_are()
    for area in dict.fromkeys(AREAS[stem] for stem in there_are):
        lines += ["", f"## {area}", "", "| what | " + " | ".join(names) + " | test |", "|---" * (len(runs) + 2) + "|"]
        for stem in [stem for stem in there_are if AREAS[stem] == area]:
            for name in there_are[stem]:
                what = name.removeprefix("test_").replace("_", " ")
                cells = [cell(run["outcomes"].get(f"{stem}::{name}")) for run in runs]
                lines.append(f"| {what} | " + " | ".join(cells) + f" | `{stem}.py::{name}` |")
    lines += ["", "## Skipped, and why"]
    for name, run in zip(names, runs, strict=True):
        lines += ["", f"With {name}:", ""]
        lines += [
            f"- {reason} ({count} cases)" if count > 1 else f"- {reason}" for reason, count in run["skipped"].items()
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    if sys.argv[1:2] == ["--record"]:
        return record(sys.argv[2], sys.argv[3:])
    runs = [recorded(sys.executable, list(tests_there_are()))]
    runs += [recorded(python, list(VERSION_5)) for python in sys.argv[1:]]
    PAGE.write_text(page(runs), encoding="utf-8")
    failed = [name for run in runs for name, outcomes in run["outcomes"].items() if outcomes.get("failed")]
    print(
        f"{PAGE.relative_to(ROOT)} is written; {len(failed)} tests failed{': ' if failed else '.'}{', '.join(failed)}"
    )
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
