"""On a CUDA machine: tasks give there what they give on the CPU, through the same files.

    PYTHONPATH=src python tests/scripts/gpu_tasks.py [FOLDER_WITH_AN_EMBEDDING_MODEL]

The last line is the lowest cosine between a text's vectors on the two.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import bertie
from bertie.text import BertTokenizer

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "near", "wide", "rivers"]


def texts(count: int) -> list[str]:
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 120, count)
    return [" ".join(generator.choice(WORDS, length)) for length in lengths]


def main(folder: str = "all-MiniLM-L6-v2") -> None:
    import huggingface_hub
    import tokenizers

    print(f"torch {torch.__version__}, tokenizers {tokenizers.__version__}, hub {huggingface_hub.__version__}")
    given = texts(2000)
    there = bertie.embed(given, model=folder, device="cuda", dtype="bfloat16")
    started = time.perf_counter()
    there = bertie.embed(given, model=folder, device="cuda", dtype="bfloat16")
    print(f"2000 texts on the GPU in {time.perf_counter() - started:.2f} s")
    here = bertie.embed(given[:200], model=folder, device="cpu", dtype="float32")
    cosines = (here * there[:200]).sum(-1) / np.linalg.norm(here, axis=-1) / np.linalg.norm(there[:200], axis=-1)

    tokenizer = BertTokenizer.from_pretrained(folder)
    with tempfile.TemporaryDirectory() as made:
        config = bertie.BertConfig.preset("tiny", vocab_size=len(tokenizer), num_labels=3)
        for name, task in (
            ("BertForMaskedLM", lambda m, d: bertie.fill("a lazy [MASK]", model=m, device=d).candidates[0].id),
            ("BertForSequenceClassification", lambda m, d: bertie.classify("a lazy dog", model=m, device=d).label),
            ("BertForTokenClassification", lambda m, d: [e.label for e in bertie.tag("a lazy dog", model=m, device=d)]),
        ):
            torch.manual_seed(1)
            place = Path(made) / name
            getattr(bertie, name)(config).save_pretrained(place)
            tokenizer.save_pretrained(place)
            assert task(place, "cpu") == task(place, "cuda"), name
            print(f"{name}: the same answer on both")
    print(f"lowest cosine {cosines.min():.5f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
