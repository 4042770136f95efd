"""Teach a BERT the language of your own texts, and see what it learned.

    python examples/continue_pretraining.py letters.txt my-letters-bert --model bert-base-uncased --epochs 1

The corpus has one sentence to a line and a blank line between documents. Fine-tuning from the new model usually gains
most where the texts are unlike what BERT has read: medicine, law, chat.
"""

from __future__ import annotations

import argparse

import bertie
from bertie.training import PretrainOptions, Settings, pretrain

MASKED = "The judge read the [MASK]."


def main(corpus: str, output: str, model: str, epochs: float, max_length: int) -> tuple[str, str]:
    before = bertie.fill(MASKED, model=model).candidates[0].token
    settings, options = (
        Settings(epochs=epochs, learning_rate=1e-4),
        PretrainOptions(max_length=max_length, dev_share=0.1),
    )
    result = pretrain(corpus=corpus, model=model, output=output, settings=settings, options=options)
    after = bertie.fill(MASKED, model=output).candidates[0].token
    print(f"loss on held-out text: {result.metrics['loss']:.3f}")
    print(f"{MASKED}  before: {before}  after: {after}")
    return before, after


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus")
    parser.add_argument("output")
    parser.add_argument("--model", default="bert-base-uncased")
    parser.add_argument("--epochs", type=float, default=1)
    parser.add_argument("--max-length", type=int, default=128)
    main(**vars(parser.parse_args()))
