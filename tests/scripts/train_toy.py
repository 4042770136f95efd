"""Train the toy task as a program, alone or under torchrun: what the tests of processes and kills start.

torchrun --nproc-per-node 2 tests/scripts/train_toy.py RUN --steps 20 [--resume] [--shard] …
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bertie.errors import BertieError
from bertie.training import train
from bertie.training.contract import Batch
from bertie.training.run.distributed import world
from training_toy import Toy, ToyExamples, settings


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--hidden-size", type=int, default=16)
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--ema", type=float, default=0.0)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--shard", action="store_true")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to wait in every micro-batch")
    parser.add_argument("--die", default="", help="RANK:CALL, a process that kills itself, and when")
    arguments = parser.parse_args()
    toy = Toy(dropout=arguments.dropout, hidden_size=arguments.hidden_size)
    calls = 0

    def before(batch: Batch) -> None:
        nonlocal calls
        calls += 1
        time.sleep(arguments.pause)
        if arguments.die == f"{os.environ.get('RANK', '0')}:{calls}":
            os.kill(os.getpid(), 9)

    toy.before_loss = before
    made = settings(
        max_steps=arguments.steps,
        save_every=arguments.save_every,
        shard=arguments.shard,
        optimizer=arguments.optimizer,
        ema=arguments.ema,
        batch_size=9,
    )
    try:
        with world(device="cpu", shard=arguments.shard) as here:
            dev = ToyExamples(20, seed=1)
            result = train(
                toy, ToyExamples(40), dev, made, arguments.run, world=here, resume=arguments.resume, show=False
            )
            if here.is_main:
                print(f"done {result.steps} {result.metrics}", flush=True)
    except BertieError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
