"""Phrases that made readers stop, and what to write instead. None of them may come back.

Read are README and the other documents at the top, docs/ and examples/ without their code, the words of the pages, and
everything in src: help, error messages, docstrings and comments.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# A pattern, and the words to use in its place. Spaces match line ends too.
PHRASES = {
    r"without a word": "by default; silently",
    r"\(not with\)": "at least 0 and less than 1",
    r"[;}] it takes": "it must be",
    r"refused by name": "rejected; an error names it",
    r"(is|are|was|were) passed over|pass(es|ing)? over (such|one|rows|lines|questions) ": "skipped, ignored",
    r"told otherwise|unless told|told by their": "by default",
    r"(kernels?|caches?|class|test|texts?|one|code) of ours": "our kernel",
    r"of theirs": "their",
    r"lets? go of": "release, unload, delete",
    r"puts? apart": "sharded, separated",
    r"there and back": "round trip",
    r"as it came": "raw",
    r"anew": "again, from scratch",
    r"hangs? on": "depends on",
    r"heeds?": "respects",
    r"equally many": "the same number of",
    r"said aloud": "reported",
    r"each time an? \w+ comes by": "each time it is used",
    r"are had from": "follow from",
    r"so many (heads|epochs|neurons|tokens|rows|times|of)": "this many",
    r"in silence": "silently",
    r"his own": "their own",
    r"(one|label|numbers|sentence|paragraph|bytes|cores|actor|object) to an? "
    r"(line|parameter|GPU|model|text|token|request|row|word)": "per line",
    r"go(es)? on where it was|(run|job|command|page)( that was \w+)? goes on": "continues",
    r"go on with (it|an?|the same|fewer)": "continue",
    r"in the order of how": "sorted by how",
    r"a second and (key|client)": "per second and key",
    r"(mean|look) alike": "are similar",
    r"the living|from the dead": "a process that is still running",
    r"and its kin": "and similar methods",
    r"cuda where there is one|where torch sees one": "if PyTorch finds one",
    r"as it stands here": "exactly as written",
    r"is asked again": "is retried",
    r"goes along": "is written too",
    r"(strings?|list|iterator|words|pair) was wanted": "it must be a string",
    r"; wanted": "it must be; expected",
    r"torch (sees|finds)": "PyTorch finds",
    r"be told from": "be recognized by",
    r"is no folder here": "is not a folder",
    r"beside it are:": "Did you mean …?",
    r"not read here": "Bertie cannot read",
    r"known are": "known:",
    r"road of": "path of",
}
FILES = [
    # compatibility.md lists names of tests.
    *(file for file in sorted(ROOT.glob("docs/**/*.md")) if file.name != "compatibility.md"),
    *(file for file in sorted(ROOT.glob("*.md")) if file.name != "README.zh.md"),
    ROOT / "examples" / "README.md",
    ROOT / "web" / "src" / "words.ts",
    *sorted((ROOT / "src" / "bertie").rglob("*.py")),
]


def read(file: Path) -> str:
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".md":  # a block becomes as many empty lines
        text = re.sub(r"^```.*?^```$", lambda block: "\n" * block[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)
    return text


@pytest.mark.parametrize("phrase", PHRASES)
def test_a_phrase_that_readers_stumble_over_does_not_come_back(phrase: str) -> None:
    words = phrase.replace(" ", r"\s+")
    pattern = re.compile(rf"(?<![\w.]){words}(?!\w)", re.IGNORECASE)
    found = []
    for file in FILES:
        text = read(file)
        for hit in pattern.finditer(text):
            line = text.count("\n", 0, hit.start()) + 1
            found.append(f"{file.relative_to(ROOT)}:{line}: {' '.join(hit[0].split())}")
    assert found == [], f"write instead: {PHRASES[phrase]}"


def test_a_matmul_is_called_one_in_the_documents() -> None:
    for file in FILES:
        # The products of explore.md and of the course are of single numbers, and dot products.
        if file.suffix == ".md" and file.name != "explore.md" and file.parent.name != "en":
            assert not re.search(r"(?<!dot )\bproducts?\b", read(file)), file.name
