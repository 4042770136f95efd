"""Which attention heads does a classifier need? Rank them on your file, then take them out one after another.

    python examples/prune_heads.py my-sentiment dev.csv

Importance is the gradient of the loss with respect to each head's mask (Michel et al. 2019). The table shows how the
accuracy falls as the least important heads go, and beside it what happens when the most important go first.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from typing import cast

import bertie
from bertie.data import examples, read_rows
from bertie.explore import importance

Head = tuple[int, int]  # layer, head


def accuracy(folder: str, rows: list[tuple[str, str]], pruned: Sequence[Head]) -> float:
    model, tokenizer = bertie.load(folder), bertie.BertTokenizer.from_pretrained(folder)
    by_layer: dict[int, list[int]] = defaultdict(list)
    for layer, head in pruned:
        by_layer[layer].append(head)
    model.prune_heads(by_layer)
    found = bertie.classify([text for text, _ in rows], model=model, tokenizer=tokenizer)
    return sum(one.label == label for one, (_, label) in zip(found, rows, strict=True)) / len(rows)


def main(folder: str, file: str) -> list[tuple[int, float, float]]:
    order = cast(list[Head], importance(file, model=folder).ranked())
    rows = [(one.text_a, str(one.label)) for one in examples(read_rows(file))]
    table = []
    for share in (0.0, 0.25, 0.5, 0.75):
        count = int(share * len(order))
        least, most = (accuracy(folder, rows, heads[:count]) for heads in (order[::-1], order))
        table.append((count, least, most))
        print(f"{count:4d} of {len(order)} heads out: accuracy {least:.3f} (least important first), {most:.3f} (most)")
    return table


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
