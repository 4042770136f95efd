"""Fine-tune embeddings as a program, alone or under torchrun: what the test of processes starts.

torchrun --nproc-per-node 2 tests/scripts/train_embed.py MODEL RUN --loss cosent [--shard]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bertie.training import Settings, TaskOptions, finetune
from tiny_models import SENTENCES


def pairs(loss: str) -> list[dict[str, Any]]:
    """Eleven pairs, some with the same anchor or the same positive; batches of five leave one that is alone."""
    texts = [sentence[:30] for sentence in SENTENCES] + [sentence[-30:] for sentence in SENTENCES]
    made: list[dict[str, Any]] = []
    for n in range(11):
        row: dict[str, Any] = {"query": texts[n % 9], "positive": texts[(3 * n + 1) % 14]}
        row |= {"score": n % 4} if loss == "cosent" else {"negative": texts[(5 * n + 2) % 14]}
        made.append(row)
    return made


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--loss", default="contrastive")
    parser.add_argument("--shard", action="store_true")
    given = parser.parse_args()
    # A large epsilon: the gradient of a key's bias is rounding noise, which Adam would blow up to a full step.
    settings = Settings(epochs=4, batch_size=5, learning_rate=1e-3, epsilon=1e-3, save_every=4, shard=given.shard)
    options = TaskOptions(loss=given.loss, max_length=24)
    finetune(
        "embed", model=given.model, train=pairs(given.loss), output=given.run, settings=settings, options=options,
        dropout=0.0, attention_dropout=0.0, device="cpu", show=False,
    )  # fmt: skip


if __name__ == "__main__":
    main()
