"""STS-B: how well cosine similarity of embeddings ranks 1,500 sentence pairs, ours and sentence-transformers' in turn.

    python -m benchmarks.stsb [--model FOLDER] [--data dev.tsv]

Spearman's rank correlation between the cosine of the two vectors and people's scores (0 to 5), on the same weights.
Expected before measuring: the same to the fourth decimal, because the vectors differ by rounding only. The last line is
ours, theirs and the difference, which must be at most 0.0005.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from benchmarks.machine import describe, save_result
from bertie.data import read_glue
from bertie.running.open import default_embedding_model
from bertie.tasks.embed import Embedder
from bertie.tasks.similarity import score_pairs

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "glue" / "STS-B" / "dev.tsv"
TOLERANCE = 0.0005


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=None)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--save", action="store_true", help="write results/stsb-DATE.json")
    arguments = parser.parse_args()
    if not arguments.data.is_file():
        sys.exit(f"{arguments.data} is not on this machine; name a dev.tsv of STS-B with --data.")
    import sentence_transformers

    folder = arguments.model or default_embedding_model()
    examples = list(read_glue("STS-B", arguments.data))
    first = [example.text_a for example in examples]
    second = [example.text_b or "" for example in examples]
    scores = [float(example.label or 0) for example in examples]
    ours = Embedder(folder, device="cpu")
    theirs = sentence_transformers.SentenceTransformer(folder, device="cpu")

    def measure(encode: object) -> tuple[float, float, np.ndarray]:
        started = time.perf_counter()
        vectors = encode(first + second)  # type: ignore[operator]
        seconds = time.perf_counter() - started
        cosines = score_pairs(vectors[: len(first)], vectors[len(first) :])
        return float(spearmanr(cosines, scores).statistic), seconds, vectors

    our_rho, our_seconds, our_vectors = measure(ours.embed)
    their_rho, their_seconds, their_vectors = measure(theirs.encode)
    difference = our_rho - their_rho
    worst = float(score_pairs(our_vectors, their_vectors).min())
    largest = np.abs(our_vectors - their_vectors).max()
    print(describe(("torch", "sentence-transformers", "transformers")))
    print(f"{len(examples)} pairs; worst cosine with their vector {worst:.8f}, largest difference {largest:.2e}")
    print(f"seconds: ours {our_seconds:.1f}, theirs {their_seconds:.1f}, ratio {their_seconds / our_seconds:.2f}")
    if arguments.save:
        rows = {"ours": our_rho, "theirs": their_rho, "seconds": [our_seconds, their_seconds], "worst_cosine": worst}
        save_result("stsb", "python -m benchmarks.stsb", rows)
    print(
        f"STS-B dev Spearman: ours {our_rho:.6f}, sentence-transformers {their_rho:.6f}, difference {difference:+.6f}"
    )
    if abs(difference) > TOLERANCE:
        sys.exit(1)


if __name__ == "__main__":
    main()
