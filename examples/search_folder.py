"""Search the text files of a folder by meaning.

    python examples/search_folder.py docs "how do I make a model smaller?"

The first run embeds every paragraph with all-MiniLM-L6-v2 and keeps the vectors in `.bertie-index` inside the folder;
later runs open that index. Delete the index folder to read the files again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import bertie

ENDINGS = (".md", ".txt", ".rst")


def paragraphs(folder: Path) -> Iterator[dict[str, str]]:
    """A row for each paragraph: its file and the number of its first line are its id."""
    for file in sorted(folder.rglob("*")):
        if file.suffix not in ENDINGS or ".bertie-index" in file.parts:
            continue
        line = 1
        for block in file.read_text(encoding="utf-8", errors="replace").split("\n\n"):
            if len(block.split()) > 4:
                yield {"id": f"{file.relative_to(folder)}:{line}", "text": " ".join(block.split())}
            line += block.count("\n") + 2


def main(folder: Path, question: str) -> None:
    place = folder / ".bertie-index"
    index = bertie.Index.open(place) if place.exists() else bertie.build_index(paragraphs(folder), place)
    (hits,) = index.search([question], k=5)
    for hit in hits:
        print(f"{hit.score:.3f}  {hit.id}\n       {hit.text[:100]}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        main(Path(sys.argv[1]), sys.argv[2])
    except bertie.BertieError as error:
        sys.exit(str(error))
