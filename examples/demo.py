"""Search by meaning in a small collection of facts, with a real model: `make demo`.

Indexes examples/facts.jsonl with all-MiniLM-L6-v2 and asks it three questions whose words are not in the answers.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

from bertie.cli.support.show import columns, scored
from bertie.data import read_rows
from bertie.search.index import build_index

HERE = Path(__file__).parent
FACTS = HERE / "facts.jsonl"
FOLDER = HERE.parent / "build" / "demo-index"
QUESTIONS = [
    "How do animals find their way home?",
    "Why is it loud when there is a storm?",
    "Which inventions changed how diseases are treated?",
]


def main() -> None:
    console = Console(highlight=False)
    started = time.perf_counter()
    shutil.rmtree(FOLDER, ignore_errors=True)  # ours, and built anew each time
    index = build_index(read_rows(FACTS), FOLDER, progress=False)
    built = time.perf_counter()
    console.print(f"{len(index)} texts read by all-MiniLM-L6-v2 in {built - started:.1f} s. Three questions:\n")
    answers = index.search(QUESTIONS, k=3)
    seconds = time.perf_counter() - built
    for question, hits in zip(QUESTIONS, answers, strict=True):
        console.print(Text(question, style="bold"))
        for hit in hits:
            console.print(columns(Text.assemble("  ", scored(hit.score)), Text(hit.text)))
        console.print()
    console.print(f"{len(QUESTIONS)} questions answered in {1e3 * seconds:.0f} ms. Try next:\n")
    script = Path(sys.executable).parent / "bertie"
    bertie = _shown(script) if script.exists() else f"{_shown(Path(sys.executable))} -m bertie"
    for line in (
        f'{bertie} search {_shown(FOLDER)} "your own question"',
        f'{bertie} similarity "A man plays guitar." "Someone makes music."',
        f"{bertie} --help",
        f'{bertie} explore "The man went to the [MASK] to buy milk." -o page.html',
    ):
        console.print(Text(f"  {line}", style="green"), soft_wrap=True)


def _shown(path: Path) -> str:
    """As short as it can be typed from here."""
    return min(str(path), os.path.relpath(path), key=len)


if __name__ == "__main__":
    main()
