"""A text gives the same vector alone and in any company: all-MiniLM-L6-v2, fp32, random batches, random token budgets.

    python tests/scripts/batch_invariance.py [--batches 1000]

The last line is the largest difference any text's vector ever had, and whether three runs gave the same bits.
"""

from __future__ import annotations

import argparse
import random

import numpy as np

from bertie.defaults import default_embedding_model
from bertie.model import BertModel
from bertie.running.open import OpenModel, open_model
from bertie.tasks.embed import Embedder

WORDS = ["time", "year", "people", "way", "day", "thing", "woman", "life", "child", "world", "school", "state"]


def texts(rng: random.Random, count: int) -> list[str]:
    return [" ".join(rng.choices(WORDS, k=rng.choice([1, 2, 5, 12, 30, 80, 200]))) for _ in range(count)]


def measure(batches: int, seed: int) -> tuple[float, bool]:
    """The largest difference, and whether three runs gave the same bits."""
    rng = random.Random(seed)
    loaded = open_model(
        None, BertModel, task="embed", default=default_embedding_model, device="cpu", add_pooling_layer=False
    )
    probes = ["a", "", *texts(rng, 14)]
    alone = [Embedder(loaded).embed(text) for text in probes]
    largest = 0.0
    for _ in range(batches):
        number = rng.randrange(len(probes))
        company = texts(rng, rng.randrange(1, 6))
        place = rng.randrange(len(company) + 1)
        budget = rng.choice([16, 128, 1024, 4096])
        embedder = Embedder(OpenModel(loaded.model, loaded.tokenizer, loaded.folder, loaded.name, budget))
        together = embedder.embed([*company[:place], probes[number], *company[place:]])
        largest = max(largest, float(np.abs(together[place] - alone[number]).max()))
    runs = [Embedder(loaded).embed(probes).tobytes() for _ in range(3)]
    return largest, len(set(runs)) == 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=1000)
    batches = parser.parse_args().batches
    seed = 0
    print(f"seed {seed}, {batches} batches")
    largest, equal = measure(batches, seed)
    print(f"largest difference {largest:.1e} over {batches} batches; three runs bit-equal: {equal}")


if __name__ == "__main__":
    main()
