"""On a CUDA machine: pooling there equals pooling on the CPU, in every mode and dtype, with the same bits each time.

    PYTHONPATH=src python tests/scripts/gpu_pooling.py

Needs torch ≥ 2.11 and nothing else. The last line is the largest difference.
"""

from __future__ import annotations

import random

import numpy as np
import torch

from bertie.running.pooling import POOLING_MODES, Pieces, divide, join, pool


def pieces(seed: int) -> Pieces:
    """Whole texts, texts whose prompt does not count, texts in several pieces, and one of which nothing counts."""
    chance = random.Random(seed)
    made = [(2, 2, 0, 0, True, True)]  # length, start, count, position, first, last
    for _ in range(200):
        length = chance.randint(2, 300)
        kind = chance.randrange(3)
        cut = chance.randrange(length)
        if kind == 0:
            made.append((length, 0, length, 0, True, True))
        elif kind == 1:
            made.append((length, cut, length - cut, cut, True, True))
        else:
            made.append((length, 0, cut, 0, True, False))
            made.append((length, cut, length - cut, cut, False, True))
    columns = [np.array(column) for column in zip(*made, strict=True)]
    return Pieces(np.zeros(columns[0].sum(), dtype=np.int64), *columns)


def joined(packed: torch.Tensor, batch: Pieces) -> torch.Tensor:
    return divide(join(pool(packed, batch, POOLING_MODES).cpu(), batch, POOLING_MODES), batch, POOLING_MODES)


def main() -> None:
    print(f"{torch.cuda.get_device_name()}; torch {torch.__version__}")
    worst = 0.0
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for seed in range(5):
            batch = pieces(seed)
            packed = torch.randn(len(batch.ids), 384, generator=torch.Generator().manual_seed(seed)).to(dtype)
            wanted = joined(packed, batch)
            found = [joined(packed.cuda(), batch) for _ in range(3)]
            assert all(torch.equal(found[0], other) for other in found[1:]), "three runs, different bits"
            assert torch.isfinite(found[0]).all()
            worst = max(worst, float((found[0] - wanted).abs().max()))
    assert worst <= 1e-5, worst
    print(f"largest difference {worst:.1e}")


if __name__ == "__main__":
    main()
