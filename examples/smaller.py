"""Make a fine-tuned classifier smaller and faster in three steps, and say what each cost: distil, prune, int8.

    python examples/smaller.py my-sentiment train.csv dev.csv small

Half of the layers are left after distillation, pruning takes out the heads and neurons that matter least until the
rest is 1.5 times as fast, and int8 computes with eight bits. The last folder is the one to serve.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import bertie
from bertie.data import examples, read_rows
from bertie.training import finetune


def judged(model: str, dev: str, dtype: str = "float32") -> tuple[float, float]:
    """Accuracy, and texts a second."""
    rows = [(one.text_a, str(one.label)) for one in examples(read_rows(dev))]
    texts = [text for text, _ in rows]
    bertie.classify(texts[:8], model=model, dtype=dtype)  # the first call compiles
    started = time.perf_counter()
    found = bertie.classify(texts, model=model, dtype=dtype)
    rate = len(texts) / (time.perf_counter() - started)
    return sum(one.label == label for one, (_, label) in zip(found, rows, strict=True)) / len(rows), rate


def main(model: str, train: str, dev: str, output: str) -> list[tuple[str, float, float]]:
    layers = bertie.load(model).config.num_hidden_layers
    distilled, pruned = str(Path(output) / "distilled"), str(Path(output) / "pruned")
    finetune("classify", train=train, dev=dev, output=distilled, teacher=model, student_layers=max(1, layers // 2))
    bertie.compress(distilled, output=pruned, task="classify", data=dev, train=train, epochs=1, speedup=1.5)
    steps = [("as it was", model, "float32"), ("distilled", distilled, "float32"), ("pruned", pruned, "float32"),
             ("int8", pruned, "int8")]  # fmt: skip
    table = [(name, *judged(folder, dev, dtype)) for name, folder, dtype in steps]
    for name, accuracy, rate in table:
        print(f"{name:10s} accuracy {accuracy:.3f}, {rate:8,.0f} texts/s, {rate / table[0][2]:.1f} times as fast")
    print(f"To serve it: bertie serve -m {pruned} --dtype int8")
    return table


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
