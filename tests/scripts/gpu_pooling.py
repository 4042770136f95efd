"""On a CUDA machine: pooling there equals pooling on the CPU, in every mode and dtype, with the same bits each time.

    PYTHONPATH=src python tests/scripts/gpu_pooling.py

Needs torch ≥ 2.11 and nothing else. The last line is the largest difference.
"""

from __future__ import annotations

import random

import torch

from bertie.tasks.batching import Row
from bertie.tasks.pooling import POOLING_MODES, Piece, join_parts, pool_parts


def pieces(seed: int) -> list[Piece]:
    """Whole texts, texts whose prompt does not count, texts in several pieces, and one of which nothing counts."""
    chance = random.Random(seed)
    made = [Piece(Row([1, 2]), 2, 2)]
    for _ in range(200):
        length = chance.randint(2, 300)
        row = Row([0] * length)
        kind = chance.randrange(3)
        if kind == 0:
            made.append(Piece(row, 0, length))
        elif kind == 1:
            start = chance.randrange(length)
            made.append(Piece(row, start, length, position=start))
        else:
            cut = chance.randrange(length)
            made.append(Piece(row, 0, cut, is_last=False))
            made.append(Piece(row, cut, length, position=cut, is_first=False))
    return made


def joined(packed: torch.Tensor, batch: list[Piece]) -> torch.Tensor:
    vectors, parts = [], []
    for part in pool_parts(packed, batch, POOLING_MODES):
        parts.append(part)
        if part.piece.is_last:
            vectors.append(join_parts(parts, POOLING_MODES))
            parts = []
    return torch.stack(vectors)


def main() -> None:
    print(f"{torch.cuda.get_device_name()}; torch {torch.__version__}")
    worst = 0.0
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for seed in range(5):
            batch = pieces(seed)
            packed = torch.randn(sum(map(len, batch)), 384, generator=torch.Generator().manual_seed(seed)).to(dtype)
            wanted = joined(packed, batch)
            found = [joined(packed.cuda(), batch) for _ in range(3)]
            assert all(torch.equal(found[0], other) for other in found[1:]), "three runs, different bits"
            assert torch.isfinite(found[0]).all()
            worst = max(worst, float((found[0] - wanted).abs().max()))
    assert worst <= 1e-5, worst
    print(f"largest difference {worst:.1e}")


if __name__ == "__main__":
    main()
