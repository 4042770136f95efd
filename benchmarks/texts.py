"""The texts that are measured: real paragraphs, their lengths mixed as people's are.

512 paragraphs of at most 256 tokens, mean about 54: seven of eight from public-domain books (half of them dialogue of a
line or two), one of eight from Wikipedia articles (wikitext-2). They are drawn with a fixed seed, so that every run
measures the same texts. The data folder is `--data`, or $BERTIE_DATA, or ../shared/data; without it the facts of
examples/facts.jsonl stand in, which are shorter and few, and every report says so.
"""

from __future__ import annotations

import json
import lzma
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DEFAULT = ROOT.parent / "shared" / "data"
MAX_TOKENS = 256
_WORDS = (3, 160)  # shorter lines are headings and page numbers, longer ones would all be cut to MAX_TOKENS


@dataclass(frozen=True)
class Texts:
    """The paragraphs, in the random order in which they arrive, and in a few words where they come from."""

    texts: list[str]
    source: str


def paragraphs(count: int = 512, *, data: Path | None = None, seed: int = 0) -> Texts:
    """`count` paragraphs from the data folder, or the stand-ins."""
    folder = data_folder(data)
    books, articles = folder / "text" / "books" / "books-00.txt.xz", folder / "text" / "wikitext-2" / "valid.txt"
    chance = random.Random(seed)
    if books.is_file() and articles.is_file():
        with lzma.open(books, "rt", encoding="utf-8") as lines:
            prose = _usable(lines.read().split("\n"))
        encyclopedia = _usable(articles.read_text(encoding="utf-8").split("\n"))
        chosen = chance.sample(prose, count - count // 8) + chance.sample(encyclopedia, count // 8)
        source = f"{count} paragraphs of public-domain books and wikitext-2"
    else:
        facts = (ROOT / "examples" / "facts.jsonl").read_text(encoding="utf-8").splitlines()
        known = [json.loads(line)["text"] for line in facts if line.strip()]
        chosen = [known[i % len(known)] for i in range(count)]
        source = (
            f"STAND-INS: {count} texts out of examples/facts.jsonl, because {folder} has no text/books and "
            "text/wikitext-2; name the data folder with --data or $BERTIE_DATA"
        )
    chance.shuffle(chosen)
    return Texts(chosen, source)


def data_folder(given: Path | None = None) -> Path:
    """`given`, or $BERTIE_DATA, or ../shared/data; it need not exist."""
    return given or Path(os.environ.get("BERTIE_DATA") or DEFAULT)


def rows_of_length(rows: Sequence[Sequence[int]], length: int, count: int) -> list[list[int]]:
    """`count` rows of exactly `length` tokens, cut out of the tokens of all `rows`, framed as texts are."""
    first, last = rows[0][0], rows[0][-1]  # [CLS], [SEP]
    inside = [token for row in rows for token in row[1:-1]]
    step = length - 2
    cut = [[inside[(i * step + j) % len(inside)] for j in range(step)] for i in range(count)]
    return [[first, *middle, last] for middle in cut]


def _usable(lines: Sequence[str]) -> list[str]:
    kept = (line.strip() for line in lines)
    least, most = _WORDS
    return [line for line in kept if not line.startswith("=") and least <= len(line.split()) <= most]
